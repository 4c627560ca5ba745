"""Endpoints: refuses a token endpoint in a user's Secret that resolves to the pod or the node.

librdkafka resolves the name again when it connects, and follows no redirection. So this check stops
names that always lead to the pod or the node, but not a name whose address changes in between:
against those, restrict the operator's connections with a NetworkPolicy.

Not here: checking the text of the endpoint (`installation.kafka_trust`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Final

from knafka.core import addresses
from knafka_operator.installation.kafka_trust import refused_endpoint_error, token_endpoint_host
from knafka_operator.installation.settings import Settings

RESOLVE_TIMEOUT: Final = 5.0
"""Seconds to resolve a name; a slower name is accepted here, and librdkafka reports the problem."""


async def check_endpoint(secret: Mapping[str, str], settings: Settings) -> None:
    """Raise `InvalidDocument` if the OAuth token endpoint in a user's Secret has a host name that
    resolves to an address of the pod or the node. A Secret without an endpoint, or whose host can't
    be resolved, is accepted, and so is any if the installation allows local addresses."""
    host = token_endpoint_host(secret)
    # `installation.kafka_trust` has checked a host that is an address.
    if not host or settings.local_addresses or addresses.is_address(host):
        return
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT):
            resolved = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        return
    for *_, socket_address in resolved:
        if (refusal := addresses.refusal(str(socket_address[0]))) is not None:
            raise refused_endpoint_error(f"{host} leads there: {refusal}")
