"""What Knative's ConfigMaps say of traces becomes the functions' environment (DSP-12, DSP-13)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from support.operator_world import OperatorWorld, running_operator
from support.sharing import SERVICE, SHARED, SHOP, declare
from support.waiting import until

from knafka.core.errors import InvalidDocument
from knafka.tracing.sampling import Sampler
from knafka.tracing.settings import TracingSettings, tracing_settings
from knafka_operator.functions.tracing import (
    OBSERVABILITY,
    TRACING,
    tracing_environment,
    tracing_variables_of,
)
from knafka_operator.installation.settings import Settings
from knafka_operator.installation.tracing import FunctionTracing, Owner
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.runtime import tracing as following
from knafka_operator.runtime.tracing import FollowedTracing

SAMPLED = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}


def decided(
    observability: dict[str, str] | None = None, tracing: dict[str, str] | None = None
) -> dict[str, str]:
    return dict(tracing_environment(observability or {}, tracing or {}, "knafka", "cluster.local"))


@pytest.mark.parametrize(
    ("observability", "tracing"),
    [
        ({}, {}),
        ({"_example": "tracing-protocol: grpc"}, {"_example": "backend: zipkin"}),
        ({"tracing-protocol": "none"}, {"backend": "none", "zipkin-endpoint": "http://z/"}),
    ],
)
def test_without_a_backend_functions_have_no_variable_more(
    observability: dict[str, str], tracing: dict[str, str]
) -> None:
    assert decided(observability, tracing) == {}


@pytest.mark.conformance("DSP-12")
def test_otlp_is_exported_to_the_endpoint_at_the_rate() -> None:
    data = {
        "tracing-protocol": "http/protobuf",
        "tracing-endpoint": "http://collector.observability:4318/v1/traces",
        "tracing-sampling-rate": "0.01",
    }
    assert decided(data) == {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector.observability:4318/v1/traces",
        **SAMPLED,
        "OTEL_TRACES_SAMPLER_ARG": "0.01",
    }
    assert tracing_settings(decided(data)) == TracingSettings("otlp", Sampler(0.01))


@pytest.mark.conformance("DSP-12")
@pytest.mark.parametrize(
    "endpoint", ["collector.observability:4317", "http://collector.observability:4317"]
)
def test_otlp_by_grpc_goes_to_a_host_and_port(endpoint: str) -> None:
    data = {"tracing-protocol": "grpc", "tracing-endpoint": endpoint}
    assert decided(data) == {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector.observability:4317",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
        **SAMPLED,
        "OTEL_TRACES_SAMPLER_ARG": "0.1",
    }
    assert tracing_settings(decided(data)) == TracingSettings("otlp-grpc", Sampler(0.1))


def test_an_endpoint_without_a_path_is_a_collectors() -> None:
    data = {"tracing-protocol": "http/protobuf", "tracing-endpoint": "http://collector:4318"}
    assert decided(data)["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == (
        "http://collector:4318/v1/traces"
    )


@pytest.mark.conformance("DSP-12", "DSP-13")
def test_zipkin_is_as_config_tracing_says() -> None:
    endpoint = "http://zipkin.istio-system.svc.cluster.local:9411/api/v2/spans"
    data = {"backend": "zipkin", "zipkin-endpoint": endpoint, "sample-rate": "0.5"}
    assert decided(tracing=data) == {
        "OTEL_TRACES_EXPORTER": "zipkin",
        "OTEL_EXPORTER_ZIPKIN_ENDPOINT": endpoint,
        **SAMPLED,
        "OTEL_TRACES_SAMPLER_ARG": "0.5",
    }


@pytest.mark.conformance("DSP-13")
def test_zipkin_alone_is_the_service_of_that_name_beside_the_operator() -> None:
    """DSP-13."""
    found = decided(tracing={"backend": "zipkin"})
    assert found["OTEL_EXPORTER_ZIPKIN_ENDPOINT"] == (
        "http://zipkin.knafka.svc.cluster.local:9411/api/v2/spans"
    )
    assert found["OTEL_TRACES_SAMPLER_ARG"] == "0.1"
    everything = decided(tracing={"backend": "zipkin", "debug": "true"})
    assert everything["OTEL_TRACES_SAMPLER_ARG"] == "1"


def test_config_observability_goes_before_config_tracing() -> None:
    observability = {"tracing-protocol": "http/protobuf", "tracing-endpoint": "http://c:4318"}
    found = decided(observability, {"backend": "zipkin"})
    assert found["OTEL_TRACES_EXPORTER"] == "otlp"


@pytest.mark.parametrize(
    ("observability", "tracing", "named"),
    [
        ({"tracing-protocol": "thrift"}, {}, "tracing-protocol: invalid value: thrift"),
        ({"tracing-protocol": "grpc"}, {}, "tracing-endpoint"),
        ({"tracing-protocol": "http/protobuf"}, {}, "tracing-endpoint"),
        (
            {"tracing-protocol": "http/protobuf", "tracing-endpoint": "collector:4318"},
            {},
            "tracing-endpoint",
        ),
        (
            {
                "tracing-protocol": "http/protobuf",
                "tracing-endpoint": "http://c",
                "tracing-sampling-rate": "10",
            },
            {},
            "tracing-sampling-rate",
        ),
        ({}, {"backend": "stackdriver"}, "backend: invalid value: stackdriver"),
        ({}, {"backend": "zipkin", "sample-rate": "all"}, "sample-rate"),
        ({}, {"backend": "zipkin", "zipkin-endpoint": "http://["}, "Invalid IPv6"),
    ],
)
def test_what_cant_be_used_is_refused_with_the_config_map_and_the_key(
    observability: dict[str, str], tracing: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidDocument) as raised:
        decided(observability, tracing)
    assert raised.value.path == (OBSERVABILITY if observability else TRACING)
    assert named in str(raised.value)


def config_map(name: str, namespace: str = "knafka", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": data}


@pytest.mark.conformance("DSP-12")
async def test_the_operator_reads_both_beside_itself_at_its_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DSP-12; an API server that doesn't answer is asked again: without, every Revision would
    roll."""
    monkeypatch.setattr(following, "TRACING_RETRY_INTERVAL", 0.01)
    cluster, settings = MemoryCluster(), Settings(namespace="knafka", image="knafka")
    followed, tracing = FollowedTracing(settings, cluster), settings.tracing
    await followed.start()
    assert tracing.desired == {}
    cluster.put(config_map(TRACING, "elsewhere", backend="zipkin"))
    cluster.put(config_map(TRACING, backend="zipkin"))
    cluster.refuse("get", error=ClusterError("away"))
    asking = asyncio.create_task(followed.start())
    await until(lambda: "away" in caplog.text)
    cluster.permit()
    await asking
    assert tracing.desired["OTEL_TRACES_EXPORTER"] == "zipkin"


class Followed:
    """An operator whose tracing is followed; what is enqueued is reconciled at once."""

    def __init__(self, world: OperatorWorld, tracing: FunctionTracing) -> None:
        self.world = world
        self.tracing = tracing
        self.followed = FollowedTracing(world.operator.settings, world.cluster)
        self.enqueued: list[tuple[float, str]] = []
        self.posted: list[tuple[str, str, str, str]] = []
        self._due: asyncio.Queue[Owner] = asyncio.Queue()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.followed.follow(self.world.operator, self._enqueue, self._post))
            while True:
                kind, namespace, name = await self._due.get()
                reconcile = (
                    self.world.reconcile_broker
                    if kind == "Broker"
                    else self.world.reconcile_trigger
                )
                await reconcile(namespace, name)

    def _enqueue(self, owner: Owner) -> None:
        self.enqueued.append((asyncio.get_running_loop().time(), owner[2]))
        self._due.put_nowait(owner)

    def _post(self, of: Document, type_: str, reason: str, message: str) -> None:
        self.posted.append((of["metadata"]["name"], type_, reason, message))

    def configure(self, name: str = TRACING, **data: str) -> None:
        document = config_map(name, **data)
        self.world.cluster.put(document)
        self.followed.on_config_map(document)

    def rate(self, service: str) -> str | None:
        """Of its environment."""
        found = tracing_variables_of(self.world.cluster.objects[SERVING, "Service", SHOP, service])
        return dict(found).get("OTEL_TRACES_SAMPLER_ARG")


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    async with running_operator() as world:
        tracing = FunctionTracing()
        await world.restart(tracing=tracing)
        world.declare_broker(SHOP)
        await world.reconcile_broker(SHOP)
        found = Followed(world, tracing)
        task = asyncio.create_task(found.run())
        yield found
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.looptime
async def test_a_change_is_one_new_revision_a_second(followed: Followed) -> None:
    """A thousand pods that start at once would take the nodes that deliver."""
    for number in range(20):
        followed.world.declare_trigger(SHOP, f"t{number}")
        await followed.world.reconcile_trigger(SHOP, f"t{number}")
    followed.configure(backend="zipkin", **{"sample-rate": "0.5"})
    await asyncio.sleep(5.5)
    services = [f"t{number}-kn-dispatcher" for number in range(20)]
    rolled = [each for each in services if followed.rate(each) == "0.5"]
    assert len(rolled) == 5, "the Broker's receiver was first"
    waits = next(each for each in services if each not in rolled).removesuffix("-kn-dispatcher")
    await followed.world.reconcile_trigger(SHOP, waits)
    assert followed.rate(f"{waits}-kn-dispatcher") is None, "reconciled for something else"
    followed.world.declare_trigger(SHOP, "new")
    await followed.world.reconcile_trigger(SHOP, "new")
    assert followed.rate("new-kn-dispatcher") == "0.5"
    await asyncio.sleep(20)
    assert {followed.rate(each) for each in services} == {"0.5"}
    assert len(followed.enqueued) == 21
    times = [time for time, _ in followed.enqueued]
    assert min(later - time for time, later in pairwise(times)) >= 1.0
    assert followed.posted == [
        (
            TRACING,
            "Normal",
            "TracingChanged",
            "21 Brokers and Triggers get it in turn, in about 21 s",
        )
    ]


@pytest.mark.looptime
async def test_a_change_during_a_roll_out_goes_on_from_what_each_has(followed: Followed) -> None:
    """Nobody gets the change between, and who has the last one already gets no Revision more."""
    for number in range(6):
        followed.world.declare_trigger(SHOP, f"t{number}")
        await followed.world.reconcile_trigger(SHOP, f"t{number}")
    services = [f"t{number}-kn-dispatcher" for number in range(6)]
    followed.configure(backend="zipkin", **{"sample-rate": "0.5"})
    await asyncio.sleep(2.5)
    assert [followed.rate(each) for each in services] == ["0.5", "0.5", *[None] * 4]
    followed.configure(backend="none")
    await asyncio.sleep(10)
    assert {followed.rate(each) for each in services} == {None}
    assert followed.rate("default-kn-receiver") is None
    again = [name for _, name in followed.enqueued[3:]]
    assert sorted(again) == ["default", "t0", "t1"]


@pytest.mark.looptime
async def test_a_shared_dispatcher_rolls_with_its_broker(followed: Followed) -> None:
    await declare(followed.world, SHARED)
    await declare(followed.world, SHARED, "others")
    followed.configure(backend="zipkin", **{"sample-rate": "0.5"})
    await asyncio.sleep(0.5)
    assert followed.rate(SERVICE) == "0.5"
    assert sorted(name for _, name in followed.enqueued) == ["default", "orders", "others"]


@pytest.mark.looptime
async def test_what_cant_be_used_changes_nothing_and_is_said_once(followed: Followed) -> None:
    followed.world.declare_trigger(SHOP, "mail")
    await followed.world.reconcile_trigger(SHOP, "mail")
    followed.configure(backend="zipkin", **{"sample-rate": "0.5"})
    await asyncio.sleep(5)
    followed.configure(backend="zipkin", **{"sample-rate": "all"})
    await asyncio.sleep(5)
    followed.configure(backend="zipkin", **{"sample-rate": "all"})
    await asyncio.sleep(5)
    warnings = [each for each in followed.posted if each[1] == "Warning"]
    assert [each[:3] for each in warnings] == [(TRACING, "Warning", "InvalidTracing")]
    assert "sample-rate: invalid value: all" in warnings[0][3]
    await followed.world.reconcile_trigger(SHOP, "mail")
    assert followed.rate("mail-kn-dispatcher") == "0.5"

    # Another operator takes over, and finds no more than what is there.
    settings = Settings(namespace="knafka", image="knafka")
    await FollowedTracing(settings, followed.world.cluster).start()
    assert settings.tracing.desired == followed.tracing.desired
    assert settings.tracing.desired["OTEL_TRACES_SAMPLER_ARG"] == "0.5"


@pytest.mark.looptime
async def test_an_api_server_that_is_away_is_asked_again(followed: Followed) -> None:
    followed.world.declare_trigger(SHOP, "mail")
    await followed.world.reconcile_trigger(SHOP, "mail")
    followed.world.cluster.refuse("get", "ConfigMap", TRACING, error=ClusterError("away"))
    followed.configure(backend="zipkin")
    await asyncio.sleep(5)
    assert followed.enqueued == []
    followed.world.cluster.permit()
    await asyncio.sleep(5)
    assert followed.rate("mail-kn-dispatcher") == "0.1"
