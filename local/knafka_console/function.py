"""The console as a function in a cluster, with one source for each viewer's token.

The function's own account reads only the ConfigMaps and Secrets of the installation's Kafka: all
other requests to the API server carry the viewer's token. Lists of objects are kept for seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import kubernetes

from knafka_client.declared.kubernetes_api import KubernetesApi
from knafka_console.settings import ConsoleSettings
from knafka_console.sources.cluster_console import ClusterConsole, FiguresSource
from knafka_console.sources.cluster_kafka import ClusterKafka
from knafka_console.sources.metrics import METRICS_PORT, DirectMetrics, SharedFigures
from knafka_console.sources.reports import ConsoleScope, ReportTopics
from knafka_console.web.server import ConsoleServer
from knafka_console.web.sign_in import SignIn, Viewer

MAX_KEPT_VIEWERS: Final = 100
"""The largest number of viewers whose sources are kept at once."""
VIEWER_IDLE_TIMEOUT: Final = 60.0
"""Seconds without a request after which a viewer's source and token are forgotten."""


class ViewerSources:
    """Keeps a source for each viewer who has sent a request lately."""

    def __init__(
        self,
        system: kubernetes.client.ApiClient,
        figures: FiguresSource,
        settings: ConsoleSettings,
        clock: Callable[[], float] = time.monotonic,
        topics: ReportTopics | None = None,
    ) -> None:
        """`system` is the client of the function's own account. `figures` returns lag, replicas and
        counts, for all viewers. `topics` reads reports from topics (None: from Kafka itself).
        `clock` returns seconds of any monotonic clock."""
        self._system = system
        self._figures = figures
        self._settings = settings
        self._clock = clock
        self._topics = topics
        self._sources: OrderedDict[bytes, tuple[float, ClusterConsole]] = OrderedDict()
        """Time of a viewer's last request and the viewer's source, by a digest of token and
        namespaces. The viewer who sent the last request is at the end."""

    def source_for(self, viewer: Viewer) -> ClusterConsole:
        """Return the source of this viewer, a new one if none is kept.

        Forgets the sources of viewers who have sent no request for `VIEWER_IDLE_TIMEOUT` seconds.
        If more than `MAX_KEPT_VIEWERS` are left, also forgets those who have been idle longest. The
        token isn't checked here: the API server does that at the source's first request.
        """
        now = self._clock()
        key = hashlib.sha256("\n".join([viewer.token, *viewer.namespaces]).encode()).digest()
        # Taken out and put in again, since `_sources` is ordered by the time of the last request.
        _, kept_source = self._sources.pop(key, (now, None))
        source = kept_source or self._create_source(viewer)
        self._sources[key] = now, source
        # This viewer's source is at the end and fresh, so it is never removed.
        while (
            len(self._sources) > MAX_KEPT_VIEWERS
            or self._longest_idle_since() < now - VIEWER_IDLE_TIMEOUT
        ):
            self._sources.popitem(last=False)
        return source

    def _longest_idle_since(self) -> float:
        """Return when the viewer who has been idle longest sent the last request, by `clock`."""
        return next(iter(self._sources.values()))[0]

    def _create_source(self, viewer: Viewer) -> ClusterConsole:
        """Create the source of a viewer, whose requests carry the viewer's token."""
        client = client_with_token(self._system, viewer.token)
        namespace = self._settings.namespace
        return ClusterConsole(
            KubernetesApi(client),
            self._figures,
            ClusterKafka(client, namespace, system=self._system),
            ConsoleScope(
                self._settings.name,
                viewer.namespaces,
                reads_kafka_with_own_account=True,
                trace_url=self._settings.trace_url,
            ),
            topics=self._topics,
            clock=self._clock,
        )


def client_with_token(
    client: kubernetes.client.ApiClient, token: str
) -> kubernetes.client.ApiClient:
    """Return a client of the same API server with this token, and without the credentials of
    `client`."""
    configuration = kubernetes.client.Configuration()
    configuration.host = client.configuration.host
    configuration.ssl_ca_cert = client.configuration.ssl_ca_cert
    configuration.api_key = {"authorization": f"Bearer {token}"}
    return kubernetes.client.ApiClient(configuration)


def own_client() -> kubernetes.client.ApiClient:
    """Return a client with the function's own account. Its token is read from a file, in which
    Kubernetes renews it."""
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return kubernetes.client.ApiClient(configuration)


def metrics_reader(settings: ConsoleSettings, port: int = METRICS_PORT) -> DirectMetrics:
    """Return a reader of the operator's metrics, which shows the token that the operator requires
    for them."""
    return DirectMetrics(settings.metrics, port, token=settings.metrics_token)


async def serve(settings: ConsoleSettings, system: kubernetes.client.ApiClient) -> None:
    """Serve the console at the port in `settings` until SIGTERM or SIGINT; `system` is the client
    of the function's own account. Raises `OSError` if the port is in use."""
    viewers = ViewerSources(system, SharedFigures(metrics_reader(settings)), settings)
    sign_in = SignIn(viewers.source_for, plain_http=settings.plain_http)
    stop_requested = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop_requested.set)
    with contextlib.closing(socket.create_server(("", settings.port))) as listener:
        server = await ConsoleServer.start_signed_in(listener, sign_in)
        await stop_requested.wait()
        await server.close()
