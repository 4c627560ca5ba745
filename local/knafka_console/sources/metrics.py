"""Metrics of a cluster's operator, fetched for the console: one Protocol, two ways.

    ProxiedMetrics   through the API server, under the viewer's rights: from anywhere
    DirectMetrics    from each replica's address: from inside the cluster, with no rights at all

Both give every replica's text; which of them acts is said there (`figures`).
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from urllib.parse import quote

from knafka.core.errors import KnafkaError
from knafka_client.declared.kubernetes_api import KubernetesApi, Objects
from knafka_console.sources import figures
from knafka_console.sources.figures import Figures
from knafka_operator.model.cluster import ClusterError, NotAllowed
from knafka_operator.model.resources import CORE

METRICS_PORT: Final = 9090
"""Where an operator serves them (docs/reference/metrics.md)."""
METRICS_TIMEOUT: Final = 5.0
"""Seconds for one replica's."""
FIGURES_MAX_AGE: Final = 1.0
"""Seconds for which figures count, however many look."""
PODS: Final = Objects(CORE, "pods")
_OPERATOR: Final = {"app.kubernetes.io/name": "knafka", "app.kubernetes.io/component": "operator"}


class NoMetrics(KnafkaError):
    """The operator's metrics can't be had; the text says why."""


class Metrics(Protocol):
    """Source of the operator's metrics."""

    def read(self) -> Sequence[str]:
        """Of each replica that answers, as Prometheus text. Blocks. Raises `KnafkaError`."""
        ...


class ProxiedMetrics:
    """By the API server's proxy to the operator's pods: needs `list` of pods and `get` of
    `pods/proxy` in the operator's namespace."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    def read(self) -> Sequence[str]:
        pods = self._api.list(PODS, self._namespace) or ()
        texts, failures = [], []
        for pod_document in pods:
            labels = pod_document["metadata"].get("labels") or {}
            if not _OPERATOR.items() <= labels.items():
                continue
            pod = f"{pod_document['metadata']['name']}:{METRICS_PORT}"
            path = f"/api/v1/namespaces/{quote(self._namespace)}/pods/{quote(pod)}/proxy/metrics"
            try:
                text = self._api.ask(f"get pods/proxy of {self._namespace}/{pod}", "GET", path)
            except NotAllowed:
                raise
            except ClusterError as error:
                failures.append(str(error))  # it is starting, or ending; the other one may act
                continue
            if text is not None:
                texts.append(text.decode())
        if not texts:
            why = failures or [f"no operator runs in {self._namespace} (--system-namespace)"]
            raise NoMetrics("; ".join(why))
        return texts


class DirectMetrics:
    """Of all addresses that a host name has, such as a headless Service's."""

    def __init__(self, host: str, port: int = METRICS_PORT, token: str = "") -> None:
        """`token`: what the operator wants for them; empty: nothing."""
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._host = host
        self._port = port

    def read(self) -> Sequence[str]:
        try:
            addresses = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NoMetrics(f"the operator isn't found at {self._host}: {error}") from error
        texts, failures = [], []
        for address in sorted({str(entry[4][0]) for entry in addresses}):
            try:
                texts.append(self._get(address))
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{address}: {error}")
        if not texts:
            raise NoMetrics(f"the operator's metrics can't be had: {'; '.join(failures)}")
        return texts

    def _get(self, address: str) -> str:
        connection = http.client.HTTPConnection(address, self._port, timeout=METRICS_TIMEOUT)
        try:
            connection.request("GET", "/metrics", headers=self._headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise http.client.HTTPException(f"status {response.status}")
        return body.decode()


class SharedFigures:
    """Figures that all viewers share: fetched while somebody looks, and once for all of them."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._lock = asyncio.Lock()
        self._found: tuple[float, Figures | KnafkaError] | None = None

    async def get(self) -> Figures:
        """Raises `KnafkaError`."""
        async with self._lock:
            if self._found is None or self._clock() - self._found[0] >= FIGURES_MAX_AGE:
                try:
                    answer: Figures | KnafkaError = await asyncio.to_thread(self._read)
                except KnafkaError as error:
                    answer = error
                self._found = self._clock(), answer
        if isinstance(self._found[1], KnafkaError):
            raise self._found[1]
        return self._found[1]

    def _read(self) -> Figures:
        return figures.read(self._metrics.read())
