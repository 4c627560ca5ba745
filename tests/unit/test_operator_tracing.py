"""What Knative's ConfigMaps say of traces becomes the functions' environment (DSP-12, DSP-13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.waiting import until

from knafka.tracing.sampling import Sampler
from knafka.tracing.settings import TracingSettings, tracing_settings
from knafka_operator.decide.tracing import tracing_environment
from knafka_operator.model.cluster import ClusterError
from knafka_operator.model.resources import CORE
from knafka_operator.model.settings import Settings
from knafka_operator.runtime import replica
from knafka_operator.runtime.memory_cluster import MemoryCluster

SAMPLED = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}


def decided(
    observability: dict[str, str] | None = None, tracing: dict[str, str] | None = None
) -> tuple[dict[str, str], tuple[str, ...]]:
    found, warnings = tracing_environment(
        observability or {}, tracing or {}, "knafka", "cluster.local"
    )
    return dict(found), warnings


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
    assert decided(observability, tracing) == ({}, ())


def test_otlp_is_exported_to_the_endpoint_at_the_rate() -> None:
    data = {
        "tracing-protocol": "http/protobuf",
        "tracing-endpoint": "http://collector.observability:4318/v1/traces",
        "tracing-sampling-rate": "0.01",
    }
    assert decided(data) == (
        {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector.observability:4318/v1/traces",
            **SAMPLED,
            "OTEL_TRACES_SAMPLER_ARG": "0.01",
        },
        (),
    )
    assert tracing_settings(decided(data)[0]) == TracingSettings("otlp", Sampler(0.01))


def test_an_endpoint_without_a_path_is_a_collectors() -> None:
    data = {"tracing-protocol": "http/protobuf", "tracing-endpoint": "http://collector:4318"}
    assert decided(data)[0]["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == (
        "http://collector:4318/v1/traces"
    )


def test_zipkin_is_as_config_tracing_says() -> None:
    endpoint = "http://zipkin.istio-system.svc.cluster.local:9411/api/v2/spans"
    data = {"backend": "zipkin", "zipkin-endpoint": endpoint, "sample-rate": "0.5"}
    assert decided(tracing=data) == (
        {
            "OTEL_TRACES_EXPORTER": "zipkin",
            "OTEL_EXPORTER_ZIPKIN_ENDPOINT": endpoint,
            **SAMPLED,
            "OTEL_TRACES_SAMPLER_ARG": "0.5",
        },
        (),
    )


def test_zipkin_alone_is_the_service_of_that_name_beside_the_operator() -> None:
    """DSP-13."""
    found, _ = decided(tracing={"backend": "zipkin"})
    assert found["OTEL_EXPORTER_ZIPKIN_ENDPOINT"] == (
        "http://zipkin.knafka.svc.cluster.local:9411/api/v2/spans"
    )
    assert found["OTEL_TRACES_SAMPLER_ARG"] == "0.1"
    everything, _ = decided(tracing={"backend": "zipkin", "debug": "true"})
    assert everything["OTEL_TRACES_SAMPLER_ARG"] == "1"


def test_config_observability_goes_before_config_tracing() -> None:
    observability = {"tracing-protocol": "http/protobuf", "tracing-endpoint": "http://c:4318"}
    found, _ = decided(observability, {"backend": "zipkin"})
    assert found["OTEL_TRACES_EXPORTER"] == "otlp"


@pytest.mark.parametrize(
    ("observability", "tracing", "named"),
    [
        ({"tracing-protocol": "grpc", "tracing-endpoint": "c:4317"}, {}, "tracing-protocol: grpc"),
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
        ({}, {"backend": "stackdriver"}, "backend: stackdriver"),
        ({}, {"backend": "zipkin", "sample-rate": "all"}, "sample-rate"),
        ({}, {"backend": "zipkin", "zipkin-endpoint": "http://["}, "Invalid IPv6"),
    ],
)
def test_what_cant_be_used_is_a_warning_and_no_traces(
    observability: dict[str, str], tracing: dict[str, str], named: str
) -> None:
    found, (warning,) = decided(observability, tracing)
    assert found == {}
    assert named in warning


async def test_the_operator_reads_both_beside_itself_at_its_start(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DSP-12; an API server that doesn't answer is asked again: without, every Revision would
    roll."""
    monkeypatch.setattr(replica, "ASK_AGAIN", 0.01)
    cluster, settings = MemoryCluster(), Settings(namespace="knafka", image="knafka")
    assert await replica.tracing_of(settings, cluster) == {}
    cluster.put(config_map("config-tracing", "elsewhere", backend="zipkin"))
    cluster.put(config_map("config-tracing", "knafka", backend="zipkin"))
    cluster.refuse("get", error=ClusterError("away"))
    asking = asyncio.create_task(replica.tracing_of(settings, cluster))
    await until(lambda: "away" in caplog.text)
    cluster.permit()
    assert (await asking)["OTEL_TRACES_EXPORTER"] == "zipkin"
    wrong = config_map("config-observability", "knafka", **{"tracing-protocol": "grpc"})
    cluster.put(wrong)
    assert await replica.tracing_of(settings, cluster) == {}
    assert "grpc is not spoken" in caplog.text


def config_map(name: str, namespace: str, **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": CORE, "kind": "ConfigMap", "metadata": metadata, "data": data}
