"""Kafka servers: checks that an installation allows the servers that the operator connects to.
Pure.

Anyone who may write a ConfigMap or Secret can name servers to which the operator connects, from its
own network and with its own memory.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Final

from knafka_operator.decisions.status import NotReady

ANY_SERVER: Final = ("*",)
"""The patterns of an installation that allows all servers."""
_LEGAL_SERVER = re.compile(r"[a-z0-9._:\[\]-]+").fullmatch
"""Matches `host:port` in lower case; no other characters may reach a pattern."""


def check_servers(bootstrap_servers: str, allowed: Collection[str]) -> None:
    """Raise `NotReady` unless each of the comma-separated servers matches a pattern in `allowed`. A
    pattern is for `host:port`, in lower case, with `*` for any characters. A protocol in front of a
    server is ignored, as by librdkafka.
    """
    if set(allowed) == set(ANY_SERVER):
        return
    for address in bootstrap_servers.split(","):
        server = address.strip().rpartition("://")[2].lower()
        if not server:
            continue
        if _LEGAL_SERVER(server) is None or not any(
            fnmatchcase(server, pattern) for pattern in allowed
        ):
            raise NotReady(
                "ServersNotAllowed",
                f"bootstrap.servers: {server:.253} is not among those that this installation allows"
                " (KNAFKA_ALLOWED_SERVERS): name others, or ask whoever runs the operator",
            )
