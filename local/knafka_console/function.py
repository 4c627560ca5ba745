"""The console as a function in a cluster: a source for each viewer's token, and none without one.

Its own account reads the ConfigMaps and Secrets of the installation's Kafka, and nothing else: all
other requests to the API server are the viewer's. Nothing is kept but lists of some seconds.
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
from knafka_console.sources.cluster_console import ClusterConsole, GetsFigures
from knafka_console.sources.cluster_kafka import ClusterKafka
from knafka_console.sources.metrics import DirectMetrics, SharedFigures
from knafka_console.sources.reports import ReportTopics
from knafka_console.web.server import ConsoleServer
from knafka_console.web.sign_in import SignIn, Viewer

MOST_VIEWERS: Final = 100
"""Whose lists are kept at once."""
VIEWER_KEPT_FOR: Final = 60.0
"""Seconds after which a viewer who didn't ask is forgotten, with the token."""


class Viewers:
    """A source for each viewer who has asked lately."""

    def __init__(
        self,
        system: kubernetes.client.ApiClient,
        figures: GetsFigures,
        settings: ConsoleSettings,
        clock: Callable[[], float] = time.monotonic,
        topics: ReportTopics | None = None,
    ) -> None:
        """`system` is the function's own account."""
        self._topics = topics
        self._system = system
        self._figures = figures
        self._settings = settings
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, ClusterConsole]] = OrderedDict()
        """By a digest of token and namespaces, those who asked last at the end."""

    def source(self, viewer: Viewer) -> ClusterConsole:
        """The source of this viewer, made if need be; the API server judges the token."""
        now = self._clock()
        key = hashlib.sha256("\n".join([viewer.token, *viewer.namespaces]).encode()).digest()
        _, kept_source = self._known.pop(key, (now, None))
        source = kept_source or self._made(viewer)
        self._known[key] = now, source
        while len(self._known) > MOST_VIEWERS or self._oldest() < now - VIEWER_KEPT_FOR:
            self._known.popitem(last=False)
        return source

    def _oldest(self) -> float:
        return next(iter(self._known.values()))[0]

    def _made(self, viewer: Viewer) -> ClusterConsole:
        client = as_bearer(self._system, viewer.token)
        namespace = self._settings.namespace
        return ClusterConsole(
            KubernetesApi(client),
            self._figures,
            ClusterKafka(client, namespace, system=self._system),
            self._settings.name,
            viewer.namespaces,
            reviews_kafka=True,
            topics=self._topics,
            traces=self._settings.trace_url,
            clock=self._clock,
        )


def as_bearer(client: kubernetes.client.ApiClient, token: str) -> kubernetes.client.ApiClient:
    """A client of the same API server with another token, and with no other credentials of
    `client`."""
    configuration = kubernetes.client.Configuration()
    configuration.host = client.configuration.host
    configuration.ssl_ca_cert = client.configuration.ssl_ca_cert
    configuration.api_key = {"authorization": f"Bearer {token}"}
    return kubernetes.client.ApiClient(configuration)


def own_account() -> kubernetes.client.ApiClient:
    """The function's, whose token Kubernetes renews in its file."""
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return kubernetes.client.ApiClient(configuration)


async def serve(settings: ConsoleSettings, system: kubernetes.client.ApiClient) -> None:
    """Until SIGTERM."""
    viewers = Viewers(system, SharedFigures(DirectMetrics(settings.metrics)), settings)
    sign_in = SignIn(viewers.source, plain_http=settings.plain_http)
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    with contextlib.closing(socket.create_server(("", settings.port))) as listener:
        server = await ConsoleServer.start_signed_in(listener, sign_in)
        await stop.wait()
        await server.close()
