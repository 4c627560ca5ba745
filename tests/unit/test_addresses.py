"""Which hosts nothing that a user names may lead to, in every form that a resolver takes."""

from __future__ import annotations

import pytest

from knafka.core import addresses

REFUSED = [
    "127.0.0.1",
    "127.8.9.10",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.01",
    "0",
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.170.23",
    "0xa9fea9fe",
    "2852039166",
    "169.16689662",
    "100.100.100.200",
    "168.63.129.16",
    "::",
    "::1",
    "[::1]",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd20:ce::254",
    "localhost",
    "LOCALHOST.",
    "knafka.localhost",
    "metadata.google.internal",
    "metadata.google.internal.",
]
ALLOWED = [
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "198.18.64.3",
    "8.8.8.8",
    "2001:db8::1",
    "fd12::1",
    "64:ff9b::a00:1",
    "orders.shop.svc.cluster.local",
    "localhost.example.com",
    "127.0.0.1.example.com",
    "09.1",
    "1.2.3.4.5",
    "256.1.1.1",
    "0x1ffffffff",
    "99999999999999999999",
    "",
    "example",
]


@pytest.mark.parametrize("host", REFUSED)
def test_what_leads_to_the_pod_or_the_node_is_refused(host: str) -> None:
    assert addresses.refusal(host) is not None


@pytest.mark.parametrize("host", ALLOWED)
def test_what_may_be_a_subscriber_is_not(host: str) -> None:
    assert addresses.refusal(host) is None


def test_an_address_in_another_form_is_shown_as_what_it_is() -> None:
    assert addresses.refusal("0x7f000001") == "0x7f000001 (127.0.0.1) is a loopback address"
    assert addresses.refusal("169.254.169.254") == "169.254.169.254 is a link-local address"


@pytest.mark.parametrize(("host", "expected"), [("127.1", True), ("::1", True), ("a.b", False)])
def test_an_address_needs_no_resolving(host: str, expected: bool) -> None:
    assert addresses.is_address(host) is expected


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://[::1]:80/a", True),
        ("http://a.b/127.0.0.1", False),
        ("http://[::1", False),
        ("", False),
    ],
)
def test_of_a_url_the_host_counts(url: str, refused: bool) -> None:
    assert (addresses.refusal_of_url(url) is not None) is refused
