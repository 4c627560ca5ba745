"""Kafka trust: limits what users' Secrets can make the operator do. Pure.

    the installation's own   a Secret that an administrator's ConfigMap names: no limits
    a user's                 no token endpoint at an address of the pod or the node; a token of the
                             operator's own AWS identity only for servers and roles in
                             KNAFKA_AWS_SERVERS and KNAFKA_AWS_ROLES

For IAM the Secret holds no credentials: a process creates the token with its own identity.
Functions have their namespace's identity, the operator has the installation's, and a server that
gets its token can use it for a quarter of an hour.

Not here: translating a Secret to client settings (`knafka.core.kafka_settings.kafka_secret`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final
from urllib.parse import urlsplit

from knafka.core import addresses
from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings.kafka_oauth import PROVIDERS, ROLE, TOKEN_ENDPOINT, TOKEN_PROVIDER

AWS_SERVERS: Final = "KNAFKA_AWS_SERVERS"
AWS_ROLES: Final = "KNAFKA_AWS_ROLES"
"""Environment variables with the patterns of `KafkaTrust`."""

_match_server = re.compile(r"[A-Za-z0-9.-]+:[0-9]{1,5}").fullmatch
"""Matches a plain `host:port`. Servers in another form match no pattern, since librdkafka may read
them differently."""
_match_server_pattern = re.compile(r"[A-Za-z0-9.*-]+:[0-9]{1,5}").fullmatch
"""Matches legal patterns of servers."""
_match_role_pattern = re.compile(
    r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=.@_/*-]+"
).fullmatch
"""Matches legal patterns of roles."""


@dataclass(frozen=True, slots=True)
class KafkaTrust:
    """Limits of what Secrets written by users, not administrators, can make the operator do."""

    local_addresses: bool = False
    """Whether token endpoints may be at addresses of the pod or the node."""
    aws_servers: Sequence[str] = ()
    """Patterns of `host:port`, with `*` for any characters: servers that may get a token of the
    operator's AWS identity."""
    aws_roles: Sequence[str] = ()
    """Patterns of ARNs: roles that the operator may assume for such a token."""

    def check(self, servers: str, secret: Mapping[str, str] | None) -> None:
        """Check that a user's Secret for the Kafka `servers` (`host:port`, comma-separated) stays
        within these limits. `secret` is its decoded data; None: there is none, which is allowed.
        Raises `InvalidDocument`."""
        if secret is None:
            return
        if secret.get(TOKEN_PROVIDER) in PROVIDERS:
            self._check_aws_token(servers, secret)
        elif not self.local_addresses and (host := token_endpoint_host(secret)):
            # `refusal` returns a reason for an address of the pod or the node, None for others.
            if (reason := addresses.refusal(host)) is not None:
                raise refused_endpoint_error(reason)

    def _check_aws_token(self, servers: str, secret: Mapping[str, str]) -> None:
        """Check that these servers may get tokens of the operator's AWS identity, and that the
        Secret's role may be assumed. Raises `InvalidDocument`."""
        for server in filter(None, map(str.strip, servers.split(","))):
            if not (_match_server(server) and _any_matches(self.aws_servers, server.lower())):
                raise InvalidDocument(
                    TOKEN_PROVIDER,
                    f"not allowed for {server:.200}: the token would be one of the operator's own "
                    f"AWS identity; an administrator may list the server in {AWS_SERVERS}, or want "
                    "a Secret with user and password",
                )
        role = secret.get(ROLE, "")
        if role and not _any_matches(self.aws_roles, role):
            raise InvalidDocument(
                ROLE,
                f"not allowed: {role:.200}: the operator would take it on by its own AWS identity; "
                f"an administrator may list the role in {AWS_ROLES}",
            )


def token_endpoint_host(secret: Mapping[str, str]) -> str:
    """Return the host of a Secret's token endpoint. Empty if the Secret has a token provider, which
    takes the endpoint's place, or has no endpoint, or an invalid URL of one, which
    `core.kafka_settings.kafka_oauth` refuses."""
    if secret.get(TOKEN_PROVIDER):
        return ""
    try:
        return urlsplit(secret.get(TOKEN_ENDPOINT) or "").hostname or ""
    except ValueError:
        return ""


def refused_endpoint_error(why: str) -> InvalidDocument:
    """Return the error for a token endpoint at a local address. `why` says, for users, why the
    address is refused; the error's text adds how to allow such addresses."""
    return InvalidDocument(
        TOKEN_ENDPOINT,
        f"not allowed: {why}; an administrator may allow these for everybody with "
        f"{addresses.LOCAL_ADDRESSES}=allowed",
    )


def parse_patterns(text: str, name: str) -> tuple[str, ...]:
    """Return the patterns in `text`, separated by commas or white space; those of servers in lower
    case. `name` is the variable that holds the text, `AWS_SERVERS` or `AWS_ROLES`. Raises
    `InvalidDocument` with that name for a malformed pattern."""
    match_legal = _match_server_pattern if name == AWS_SERVERS else _match_role_pattern
    patterns = tuple(text.replace(",", " ").split())
    for pattern in patterns:
        if match_legal(pattern) is None:
            expected_form = "host:port" if name == AWS_SERVERS else "arn:aws:iam::ACCOUNT:role/NAME"
            raise InvalidDocument(
                name, f"invalid value: {pattern:.200}: want {expected_form}, maybe with *"
            )
    return tuple(map(str.lower, patterns)) if name == AWS_SERVERS else patterns


def _any_matches(patterns: Sequence[str], text: str) -> bool:
    """Whether one of the patterns, with `*` for any characters, matches the text."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)
