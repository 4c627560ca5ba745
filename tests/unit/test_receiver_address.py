"""What a request's target and headers say about where it is for (KN-CHN-11)."""

from __future__ import annotations

import pytest

from knafka.receiver.address import address_of, path_of


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (b"/ns/b", b"/ns/b"),
        (b"/ns/b?x=/y", b"/ns/b"),
        (b"http://host:80/ns/b?x", b"/ns/b"),
        (b"http://host", b"/"),
        (b"/n%73/b", b"/ns/b"),
        (b"/ns%2Fb", b"/ns%2Fb"),
        (b"*", b"*"),
        (b"", b""),
    ],
)
def test_a_target_has_a_path(url: bytes, path: bytes) -> None:
    assert path_of(url) == path


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ([], b"host:"),
        ([(b"Host", b"A.b")], b"host:a.b"),
        ([(b"host", b" a.b:80 ")], b"host:a.b"),
        ([(b"host", b"a.b:")], b"host:a.b"),
        ([(b"host", b"[::1]:80")], b"host:[::1]"),
        ([(b"host", b"[::1]")], b"host:[::1]"),
        ([(b"host", b"a"), (b"K-ORIGINAL-HOST", b"B:1")], b"host:b"),
        ([(b"k-original-host", b"b"), (b"host", b"a")], b"host:b"),
        ([(b"from", b"c"), (b"x-original-host", b"d")], b"host:"),
    ],
)
@pytest.mark.parametrize("path", [b"", b"/"])
def test_at_the_root_the_address_is_the_host_that_was_asked_for(
    headers: list[tuple[bytes, bytes]], address: bytes, path: bytes
) -> None:
    assert address_of(path, headers) == address
    assert address_of(b"/ns/b", headers) == b"/ns/b"
