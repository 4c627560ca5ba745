"""What goes over HTTP, into a Broker and out of a Trigger, on a real cluster (KN-DP)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest
from support.cluster import Cluster
from support.conformance_world import event, own_namespace
from support.installation import Installation
from support.listener import Arrival, Listener
from support.watched import Watched

pytestmark = pytest.mark.timeout(600)

ARRIVALS = "/of-data-plane"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FIRST_TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, watched: Watched) -> Iterator[str]:
    yield from own_namespace(cluster, watched)


@dataclass(frozen=True, slots=True)
class World:
    """A Broker with one Trigger, for everything."""

    installed: Installation
    listener: Listener
    namespace: str
    address: str

    def ask(self, method: str, path: str | None = None, **headers: str) -> httpx.Response:
        """Anything but an event."""
        url = urlsplit(self.address)
        where = url.path if path is None else path
        return self.installed.cluster.request(url.netloc, where, method=method, headers=headers)

    def post(self, headers: dict[str, str], data: bytes = b"{}") -> httpx.Response:
        return self.installed.post(self.address, headers, data)

    def deliver(self, id_: str, headers: dict[str, str], data: bytes = b"{}") -> Arrival:
        """Send it, and wait until it is there."""
        answer = self.post({**event(id_), **headers}, data)
        assert answer.status_code == 202, answer.text
        return self.listener.wait_for(self.installed.cluster, ARRIVALS, id_)[0]


@pytest.fixture(scope="module")
def world(installed: Installation, namespace: str, listener: Listener) -> World:
    address = installed.broker(namespace)
    installed.trigger(namespace, "everything", listener.sink(ARRIVALS))
    return World(installed, listener, namespace, address)


@pytest.mark.conformance("KN-DP-01", "KN-DP-06", "KN-DP-11")
def test_a_delivery_is_a_post_over_http_1_1_that_asks_for_a_reply(world: World) -> None:
    arrival = world.deliver(
        "plain", {"x-request-id": "r-1", "knative-hop": "2", "x-b3-traceid": "b3", "x-private": "p"}
    )
    assert arrival.version == "HTTP/1.1"
    assert arrival.headers["prefer"] == "reply"
    assert arrival.headers["kn-namespace"] == world.namespace
    assert arrival.headers["x-request-id"] == "r-1"
    assert arrival.headers["knative-hop"] == "2"
    assert arrival.headers["x-b3-traceid"] == "b3"
    assert "x-private" not in arrival.headers


@pytest.mark.conformance("KN-DP-10")
def test_trace_headers_pass_and_the_events_own_trace_stays(world: World) -> None:
    arrival = world.deliver(
        "traced",
        {"traceparent": TRACE, "tracestate": "vendor=1", "ce-traceparent": FIRST_TRACE},
    )
    trace_id = arrival.headers["traceparent"].split("-")[1]
    assert trace_id == TRACE.split("-")[1]
    assert "vendor=1" in arrival.headers["tracestate"]
    assert arrival.headers["ce-traceparent"] == FIRST_TRACE


@pytest.mark.conformance("KN-DP-07")
def test_options_tells_how_to_send(world: World) -> None:
    answer = world.ask("OPTIONS")
    assert answer.status_code == 200
    assert answer.headers["allow"] == "POST, OPTIONS"
    assert answer.headers["webhook-allowed-origin"] == "*"
    assert answer.headers["webhook-allowed-rate"] == "*"


@pytest.mark.conformance("KN-DP-09")
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
def test_other_methods_are_not_allowed(world: World, method: str) -> None:
    answer = world.ask(method)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST, OPTIONS"


@pytest.mark.conformance("KN-DP-09")
@pytest.mark.parametrize("path", ["/nowhere", "/{namespace}", "/{namespace}/other", "/a/b/c"])
def test_other_paths_are_no_broker(world: World, path: str) -> None:
    url = urlsplit(world.address)
    where = path.format(namespace=world.namespace)
    answer = world.installed.cluster.request(
        url.netloc, where, headers=event("lost"), content=b"{}"
    )
    assert answer.status_code == 404


@pytest.mark.conformance("KN-DP-09")
@pytest.mark.parametrize(
    ("change", "data"),
    [
        pytest.param({"ce-id": None}, b"{}", id="no-id"),
        pytest.param({"ce-source": None}, b"{}", id="no-source"),
        pytest.param({"ce-type": None}, b"{}", id="no-type"),
        pytest.param({"ce-specversion": None}, b"{}", id="no-specversion"),
        pytest.param({"ce-type": ""}, b"{}", id="empty-type"),
        pytest.param({"ce-time": "yesterday"}, b"{}", id="no-time"),
        pytest.param({"content-type": "application/cloudevents+json"}, b"{", id="broken-json"),
        pytest.param(
            {"content-type": "application/cloudevents+json"}, b'{"id":"1"}', id="half-an-event"
        ),
    ],
)
def test_what_is_no_event_is_refused(
    world: World, change: dict[str, str | None], data: bytes
) -> None:
    given = {**event("malformed"), **change}
    answer = world.post({name: value for name, value in given.items() if value is not None}, data)
    assert answer.status_code == 400
    assert answer.text


@pytest.mark.conformance("KN-DP-14")
@pytest.mark.parametrize(("version", "status"), [("0.1", 400), ("0.2", 400), ("19.0", 400)])
def test_other_versions_are_refused(world: World, version: str, status: int) -> None:
    answer = world.post({**event("old"), "ce-specversion": version})
    assert answer.status_code == status


@pytest.mark.conformance("KN-DP-14", "KN-DP-01")
@pytest.mark.parametrize("version", ["0.3", "1.0"])
def test_a_version_stays_as_it_was_sent(world: World, version: str) -> None:
    arrival = world.deliver(f"version-{version}", {"ce-specversion": version})
    assert arrival.headers["ce-specversion"] == version


@pytest.mark.conformance("KN-DP-12", "KN-BRK-08", "KN-BRK-10")
@pytest.mark.parametrize("size", [36_864, 64 * 1024, 900_000])
def test_a_large_event_arrives_once_and_whole(world: World, size: int) -> None:
    """36,864 bytes is what Knative's own test sends."""
    data = bytes(number % 251 for number in range(size))
    id_ = f"large-{size}"
    key = {"ce-partitionkey": "large", "content-type": "application/octet-stream"}
    arrival = world.deliver(id_, key, data)
    assert arrival.body == data
    world.deliver(f"after-{id_}", key)
    assert len(world.listener.at(ARRIVALS, id_)) == 1


@pytest.mark.conformance("KN-DP-12", "KN-DP-09")
def test_more_than_kafka_takes_is_413(world: World) -> None:
    assert world.post(event("huge"), b"x" * 1_100_000).status_code == 413


@pytest.mark.conformance("KN-DP-04")
def test_an_event_that_is_sent_twice_is_accepted_twice(world: World) -> None:
    for _ in range(2):
        assert world.post(event("twice")).status_code == 202
    world.listener.wait_for(world.installed.cluster, ARRIVALS, "twice", 2)


@pytest.mark.conformance("KN-DP-13")
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/health/liveness", "/health/readiness"])
def test_probes_are_answered(world: World, path: str) -> None:
    assert world.ask("GET", path).status_code == 200


@pytest.mark.conformance("KN-DP-15")
def test_a_receiver_counts_what_it_answered(world: World) -> None:
    """One pod answers for itself, so what is asked for is asked of the same one just before."""

    def counted() -> bool:
        assert world.post(event("counted")).status_code == 202
        assert world.post({"ce-id": "counted"}).status_code == 400
        text = world.ask("GET", "/metrics").text
        labels = f'{{broker="default",code="%s",namespace="{world.namespace}"}}'
        return all(
            f"knafka_receiver_events_total{labels % code}" in text for code in ("202", "400")
        )

    world.installed.cluster.wait_for(counted, 60, "both are counted")
