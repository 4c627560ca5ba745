"""The dispatcher as a function: it drains one Egress, or all Egresses of a shard
(docs/decisions/0018-shared-dispatchers.md). A shard is ready once it has read its contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from knafka import settings
from knafka.clients.http.trust_bundles import TrustBundles
from knafka.core import addresses
from knafka.core.contract import Egress, Shard
from knafka.core.errors import InvalidDocument
from knafka.dispatcher.connecting import ShardClients, connect, connect_shard
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.own import OwnEgress
from knafka.dispatcher.shared.served import ServedShard
from knafka.draining.function import DrainingFunction, Side
from knafka.settings import DrainSettings
from knafka.tracing.spans import Tracer

if TYPE_CHECKING:
    from knafka.dispatcher.engine.sending.authorizing import SinkTokens


class Dispatcher(DrainingFunction):
    """The dispatcher's ASGI application; its environment declares one Egress or a shard."""

    def __init__(
        self,
        connect: Callable[[Egress], Clients] | None = None,
        connect_shard: Callable[[Shard], ShardClients] | None = None,
    ) -> None:
        """`connect` opens the clients of an Egress, `connect_shard` those of a shard; None: the
        functions of these names in `connecting` do."""
        super().__init__("knafka-dispatcher", self._open)
        self._connect = connect
        self._connect_shard = connect_shard

    def _open(
        self, environment: Mapping[str, str], drain_settings: DrainSettings, tracer: Tracer | None
    ) -> Side:
        """Open the Egress or the shard that the environment declares. Of `drain_settings`, only the
        URL of the dispatcher's own Service is used. `tracer` None: no spans are recorded. Raises
        `InvalidDocument` for an invalid setting, and `LogError` if a Kafka client can't be
        opened."""
        shard = settings.shard(environment)
        reporting = self.statistics.connection
        refusal = None if settings.allows_local_addresses(environment) else addresses.refusal
        folder = settings.trust_bundles(environment)
        bundles = None if folder is None else TrustBundles(folder)
        tokens = make_sink_tokens(settings.oidc_url(environment), settings.oidc_folder(environment))
        if shard is None:
            egress = settings.egress(environment)
            connect_egress = self._connect or partial(
                connect, reporting=reporting, refusal=refusal, tokens=tokens, bundles=bundles
            )
            return OwnEgress(egress, connect_egress(egress), drain_settings.service_url, tracer)
        open_shard_clients = self._connect_shard or partial(
            connect_shard, reporting=reporting, refusal=refusal, tokens=tokens, bundles=bundles
        )
        return ServedShard(shard, open_shard_clients(shard), drain_settings.service_url, tracer)


def make_sink_tokens(url: str | None, folder: Path) -> SinkTokens | None:
    """Return the cache of the tokens that destinations require; None if `url` is None. The cache
    requests a token only when a destination requires it, from the API server at `url` with the
    credentials in `folder`. Raises `InvalidDocument` if `url` or the credentials are unusable."""
    if url is None:
        return None
    # Imported here, as most dispatchers don't need it.
    from knafka.clients.kubernetes.api_server import ask_with_credentials, own_audiences
    from knafka.clients.kubernetes.api_server_tokens import ApiServerTokens
    from knafka.dispatcher.engine.sending.authorizing import SinkTokens

    try:
        ask = ask_with_credentials(url, folder)
    except InvalidDocument as error:
        raise InvalidDocument(settings.OIDC_URL, str(error)) from error
    return SinkTokens(ApiServerTokens(ask, partial(own_audiences, folder)))
