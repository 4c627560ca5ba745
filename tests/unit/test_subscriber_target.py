"""Where an event goes: a URL taken apart once."""

from __future__ import annotations

import pytest

from knafka.core.errors import InvalidDocument
from knafka.ports.subscriber import Target


@pytest.mark.parametrize(
    ("url", "origin", "start"),
    [
        ("http://a.b", (False, "a.b", 80, None), b"POST / HTTP/1.1\r\nhost: a.b\r\n"),
        ("https://a.b/", (True, "a.b", 443, None), b"POST / HTTP/1.1\r\nhost: a.b\r\n"),
        ("HTTP://A.B:80/C", (False, "a.b", 80, None), b"POST /C HTTP/1.1\r\nhost: a.b\r\n"),
        (
            "http://a:443/x?y=%20",
            (False, "a", 443, None),
            b"POST /x?y=%20 HTTP/1.1\r\nhost: a:443\r\n",
        ),
        ("http://a?y#frag", (False, "a", 80, None), b"POST /?y HTTP/1.1\r\nhost: a\r\n"),
        ("http://[::1]:81/", (False, "::1", 81, None), b"POST / HTTP/1.1\r\nhost: [::1]:81\r\n"),
        ("https://[::1]/", (True, "::1", 443, None), b"POST / HTTP/1.1\r\nhost: [::1]\r\n"),
    ],
)
def test_a_target_is_a_url_taken_apart(
    url: str, origin: tuple[bool, str, int, None], start: bytes
) -> None:
    assert Target.parse(url) == Target(url, origin, start)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.b/c",
        "/path",
        "//a/path",
        "mailto:you",
        "http://",
        "http:///path",
        "http://:80/",
        "http://user@a/",
        "http://user:secret@a/",
        "bad://user:secret@a/",
        "http://a/b c",
        "http://a/b\r\nce-id: forged",
        "bad://a/b\r\nce-id: forged",
        "http://a\tb/",
        "http://a\x00/",
        "http://a/\x7f",
        "http://a/é",
        "http://[::1/",
    ],
)
def test_what_is_no_absolute_url_or_could_leave_the_request_line_is_refused(url: str) -> None:
    with pytest.raises(InvalidDocument, match="the URL"):
        Target.parse(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("bad://uri", "unsupported scheme bad: want http or https"),
        ("ftp://a/", "unsupported scheme ftp: want http or https"),
        ("http://a:0/", "the URL 'http://a:0/' has no usable host and port"),
        ("http://a:65536/", "the URL 'http://a:65536/' can't be read: Port out of range 0-65535"),
        ("http://a:b/", "the URL 'http://a:b/' can't be read: Port could not be cast to integer"),
        ("http://a\\b/", "the URL 'http://a\\\\b/' has no usable host and port"),
        ("http://a%0d%0ab/", "the URL 'http://a%0d%0ab/' has no usable host and port"),
        ("http://[fe80::1%25eth0]/", "the URL 'http://[fe80::1%25eth0]/' has no usable host"),
        ("http://a..b/", "the URL 'http://a..b/' can't be read: "),
        (f"http://{'a' * 64}.b/", "can't be read: "),
    ],
)
def test_an_absolute_url_that_cannot_be_posted_to_says_why(url: str, problem: str) -> None:
    """Upstream takes any: each attempt fails, and the events are dead letters."""
    target = Target.parse(url)
    assert target.url == url
    assert problem in target.problem
    assert target.start == b""
