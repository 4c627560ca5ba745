"""Refuses addresses of the pod, the node and a cloud's metadata as destinations that users name,
unless the installation allows them.

    loopback, unspecified   the pod itself: its probes, its profiles, a mesh's admin port
    link-local              the node: a cloud's metadata, with credentials of node and pod
    metadata                a cloud's metadata at other addresses

A name is judged by the addresses that it resolves to, when a connection is made. A host that is
written as an IP address, in any form that resolvers take (`127.1`, `0x7f000001`), is judged as that
address.

Addresses in private networks aren't refused: subscribers are there.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

LOCAL_ADDRESSES: Final = "KNAFKA_LOCAL_ADDRESSES"
"""Environment variable: `allowed`, or `refused` (the default)."""

METADATA: Final = frozenset(
    map(
        ip_address,
        (
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure
            "192.0.0.192",  # Oracle
            "fd00:ec2::23",  # EKS Pod Identity
            "fd00:ec2::254",  # EC2
            "fd20:ce::254",  # Google
        ),
    )
)
"""Metadata services of clouds at addresses outside 169.254.0.0/16."""
_match_local_name: Final = re.compile(
    r"(?:.*\.)?(?:localhost|localhost\.localdomain|ip6-localhost|ip6-loopback)"
    r"|metadata\.google\.internal|metadata\.goog|instance-data(?:\..*)?"
).fullmatch
"""Matches names of the pod itself, and of clouds' metadata services."""
_NAT64_PREFIX: Final = IPv6Network("64:ff9b::/96")
"""Prefix of IPv6 addresses that NAT64 translates: their last 32 bits are an IPv4 address."""
_match_number: Final = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+").fullmatch
"""Matches one number of an IPv4 address: hexadecimal, octal (with a leading 0) or decimal."""
_MAX_NUMBER_CHARACTERS: Final = 12
"""Most characters of one number in an IPv4 address: 32 bits have 11 octal digits and a `0`."""


def refusal(host: str) -> str | None:
    """Return why this host, a name or an address, must not be connected to. None: it may be
    connected to, or it is a name that must be resolved first."""
    host = host.strip("[]").rstrip(".").lower()
    if _match_local_name(host) is not None:
        return f"{host} is a name of the pod or the node itself"
    address = _parse_address(host)
    local_kind = None if address is None else _local_kind(address)
    if local_kind is None:
        return None
    shown_host = str(address) if str(address) == host else f"{host} ({address})"
    return f"{shown_host} is {local_kind}"


def refusal_of_url(url: str) -> str | None:
    """Return why the host of this URL must not be connected to, as `refusal` does; None also for a
    URL that can't be parsed, which is refused elsewhere."""
    try:
        return refusal(urlsplit(url).hostname or "")
    except ValueError:
        return None


def is_address(host: str) -> bool:
    """Whether a host is an IP address, so that no name has to be resolved."""
    return _parse_address(host.strip("[]")) is not None


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address; False for names."""
    address = _parse_address(host)
    return address is not None and _unwrap_ipv4(address).is_loopback


def _unwrap_ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that is embedded in an IPv6 address; any other address is returned
    unchanged."""
    embedded = _embedded_ipv4(address) if isinstance(address, IPv6Address) else None
    return address if embedded is None else embedded


def _local_kind(address: IPv4Address | IPv6Address) -> str | None:
    """Return which kind of local address this is, as a phrase for `refusal`, such as "a loopback
    address"; None: the address isn't refused."""
    address = _unwrap_ipv4(address)
    if address.is_loopback:
        return "a loopback address"
    # All of 0.0.0.0/8 is "this host" (RFC 1122).
    if address.is_unspecified or (isinstance(address, IPv4Address) and address.packed[0] == 0):
        return "an unspecified address"
    if address.is_link_local:
        return "a link-local address"
    return "an address of a cloud's metadata" if address in METADATA else None


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that is embedded in an IPv6 address: by NAT64, as `::a.b.c.d`, as
    `::ffff:a.b.c.d`, or by 6to4. None: the address embeds none."""
    has_only_low_bits = int(address) >> 32 == 0
    is_ipv4_compatible = has_only_low_bits and int(address) > 1  # `::` and `::1` are IPv6's own
    if is_ipv4_compatible or address in _NAT64_PREFIX:
        low_bits = int(address) & 0xFFFFFFFF
        return IPv4Address(low_bits)
    return address.ipv4_mapped or address.sixtofour


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address in any form that resolvers take; None: the host is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return _parse_as_resolvers(host)


def _parse_as_resolvers(host: str) -> IPv4Address | None:
    """Parse an IPv4 address as `inet_aton` does: one to four decimal, octal or hexadecimal numbers,
    the last of which fills all remaining bytes. None: the host is no address."""
    parts = host.split(".")
    if len(parts) > 4 or not all(map(_match_number, parts)):
        return None
    if any(len(part) > _MAX_NUMBER_CHARACTERS for part in parts):
        return None
    try:
        # `0x` begins a hexadecimal number, any other leading 0 an octal one.
        numbers = [
            int(part[2:] or "0", 16) if part[:2] in ("0x", "0X")
            else int(part, 8 if part[0] == "0" else 10)
            for part in parts
        ]  # fmt: skip
    except ValueError:  # an octal number with an 8 or 9
        return None
    *leading_bytes, last = numbers
    remaining_byte_count = 4 - len(leading_bytes)
    if any(number > 255 for number in leading_bytes) or last >= 256**remaining_byte_count:
        return None
    value = last
    for index, byte in enumerate(leading_bytes):
        value += byte << 8 * (3 - index)
    return IPv4Address(value)
