"""Fetches the operator's metrics for the console, in one of two ways.

    ProxiedMetrics   through the API server with the viewer's rights: works from anywhere
    DirectMetrics    from each replica's address: works inside the cluster, and needs no rights

Both return the text of every replica; `figures` finds the leader's.
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
from knafka_operator.model.cluster import ClusterError, Document, NotAllowed
from knafka_operator.model.resources import CORE

METRICS_PORT: Final = 9090
"""Port of the operator's metrics (docs/reference/metrics.md)."""
METRICS_TIMEOUT: Final = 5.0
"""Seconds for the metrics of one replica."""
FIGURES_MAX_AGE: Final = 1.0
"""Seconds for which fetched figures are used again, however many viewers there are."""
POD_OBJECTS: Final = Objects(CORE, "pods")
"""Pods, as requests to the API server name them."""
_OPERATOR_LABELS: Final = {
    "app.kubernetes.io/name": "knafka",
    "app.kubernetes.io/component": "operator",
}
"""Labels of the operator's pods."""


class MetricsUnavailable(KnafkaError):
    """The operator's metrics can't be read; the text says why."""


class Metrics(Protocol):
    """Reads the operator's metrics."""

    def read(self) -> Sequence[str]:
        """Return the metrics of each replica that answers, as Prometheus text; blocks. Raises
        `KnafkaError`."""
        ...


class ProxiedMetrics:
    """Reads metrics through the API server's proxy to the operator's pods.

    The viewer needs `list` of pods and `get` of `pods/proxy` in the operator's namespace.
    """

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        """`api` has the viewer's rights; `namespace` is the operator's."""
        self._api = api
        self._namespace = namespace

    def read(self) -> Sequence[str]:
        """Return the metrics of each replica that answers; blocks. Raises `NotAllowed` if the
        viewer lacks the right, and `MetricsUnavailable` if no replica answers."""
        pods = self._api.list(POD_OBJECTS, self._namespace) or ()
        texts, failures = [], []
        for pod_document in filter(_is_operator_pod, pods):
            try:
                text = self._fetch(pod_document["metadata"]["name"])
            except NotAllowed:
                raise
            except ClusterError as error:
                failures.append(str(error))  # this replica may be starting; another one may lead
                continue
            if text is not None:
                texts.append(text)
        if not texts:
            reasons = failures or [f"no operator runs in {self._namespace} (--system-namespace)"]
            raise MetricsUnavailable("; ".join(reasons))
        return texts

    def _fetch(self, pod: str) -> str | None:
        """Return the metrics of one pod, through the API server's proxy; None if the pod is gone.
        Raises `ClusterError`, of which `NotAllowed` is a kind."""
        pod_and_port = f"{pod}:{METRICS_PORT}"
        pods_path = f"/api/v1/namespaces/{quote(self._namespace)}/pods"
        path = f"{pods_path}/{quote(pod_and_port)}/proxy/metrics"
        text = self._api.ask(f"get pods/proxy of {self._namespace}/{pod_and_port}", "GET", path)
        return None if text is None else text.decode()


class DirectMetrics:
    """Reads metrics from all addresses of a host name, such as a headless Service's."""

    def __init__(self, host: str, port: int = METRICS_PORT, token: str = "") -> None:
        """`host` resolves to the address of each replica of the operator. `token` is the one that
        the operator requires for its metrics; empty if it requires none."""
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._host = host
        self._port = port

    def read(self) -> Sequence[str]:
        """Return the metrics of each replica that answers; blocks. Raises `MetricsUnavailable` if
        none does."""
        try:
            entries = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise MetricsUnavailable(
                f"the operator isn't found at {self._host}: {error}"
            ) from error
        # An entry ends with a socket address, which begins with the IP address.
        addresses = {str(socket_address[0]) for *_, socket_address in entries}
        texts, failures = [], []
        for address in sorted(addresses):
            try:
                texts.append(self._fetch(address))
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{address}: {error}")
        if not texts:
            raise MetricsUnavailable(f"the operator's metrics can't be read: {'; '.join(failures)}")
        return texts

    def _fetch(self, address: str) -> str:
        """Return the metrics at one address. Raises `OSError`, also after `METRICS_TIMEOUT`
        seconds, and `HTTPException` unless the status is 200."""
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
    """Figures that all viewers share. They are fetched only when a viewer asks, and at most once in
    `FIGURES_MAX_AGE` seconds."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds of any monotonic clock."""
        self._metrics = metrics
        self._clock = clock
        self._lock = asyncio.Lock()
        """Held while figures are fetched, so that viewers at the same time share one fetch."""
        self._last_result: tuple[float, Figures | KnafkaError] | None = None
        """When the figures were last fetched, by `clock`, and the figures or the error; None: not
        yet."""

    async def current(self) -> Figures:
        """Return the figures, at most `FIGURES_MAX_AGE` seconds old. Raises `KnafkaError` if they
        can't be read; an error, too, is kept for that time."""
        async with self._lock:
            if self._last_result is None or self._clock() - self._last_result[0] >= FIGURES_MAX_AGE:
                # An error is kept like figures, so that a lost operator isn't asked more often.
                try:
                    fetched: Figures | KnafkaError = await asyncio.to_thread(self._fetch_figures)
                except KnafkaError as error:
                    fetched = error
                self._last_result = self._clock(), fetched
            _, result = self._last_result
        if isinstance(result, KnafkaError):
            raise result
        return result

    def _fetch_figures(self) -> Figures:
        """Fetch the figures from the operator; blocks. Raises `KnafkaError`."""
        return figures.parse_figures(self._metrics.read())


def _is_operator_pod(pod_document: Document) -> bool:
    """Whether a pod is a replica of the operator, by its labels."""
    labels = pod_document["metadata"].get("labels") or {}
    return _OPERATOR_LABELS.items() <= labels.items()
