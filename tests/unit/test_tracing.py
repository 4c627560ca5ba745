"""Trace context, sampling and settings: W3C's and OpenTelemetry's rules (KN-DP-10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from knafka.tracing.context import SpanContext, decode
from knafka.tracing.sampling import Sampler
from knafka.tracing.settings import TracingSettings, tracing_settings

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

trace_ids = st.integers(1, 2**128 - 1)
contexts = st.builds(SpanContext, trace_ids, st.integers(1, 2**64 - 1), st.booleans())


@given(contexts)
def test_a_traceparent_reads_as_it_was_written(context: SpanContext) -> None:
    assert decode(context.encode()) == context


@pytest.mark.conformance("KN-DP-10")
@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (PARENT, True),
        (PARENT[:-2] + b"00", False),
        (PARENT[:-2] + b"03", True),
        (PARENT[:-2] + b"02", False),
        (b"01" + PARENT[2:], True),
        (b"cc" + PARENT[2:] + b"-what-comes-later", True),
    ],
)
def test_a_valid_traceparent_is_read(value: bytes, sampled: bool) -> None:
    assert decode(value) == SpanContext(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"00-abc-def-01",
        PARENT.upper(),
        PARENT + b"-more",
        PARENT + b" ",
        PARENT + b"\n",
        b"ff" + PARENT[2:],
        b"01" + PARENT[2:] + b".more",
        PARENT.replace(b"b7ad6b7169203331", b"0" * 16),
        PARENT.replace(b"0af7651916cd43dd8448eb211c80319c", b"0" * 32),
        PARENT + b", " + PARENT,
    ],
)
def test_an_invalid_traceparent_is_none(value: bytes | None) -> None:
    assert decode(value) is None


def test_a_log_line_names_trace_and_span_as_w3c_writes_them() -> None:
    assert SpanContext(1, 2, True).ids == {"trace_id": "0" * 31 + "1", "span_id": "0" * 15 + "2"}


@given(trace_ids, st.floats(0, 1))
def test_the_rate_decides_by_the_trace_id_as_opentelemetrys_sdk_does(
    trace_id: int, rate: float
) -> None:
    theirs = TraceIdRatioBased(rate).should_sample(None, trace_id, "span").decision
    ours = Sampler(rate).is_sampled(trace_id, parent=None)
    assert ours == (theirs is Decision.RECORD_AND_SAMPLE)


@given(trace_ids, st.booleans(), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_parent_is_followed_unless_the_sampler_says_otherwise(
    trace_id: int, parent: bool, rate: float
) -> None:
    assert Sampler(rate).is_sampled(trace_id, parent) is parent
    alone = Sampler(rate, follows_parent=False)
    assert alone.is_sampled(trace_id, parent) == alone.is_sampled(trace_id, None)


OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
ZIPKIN = {"OTEL_EXPORTER_ZIPKIN_ENDPOINT": "http://zipkin:9411/api/v2/spans"}


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, TracingSettings()),
        ({"OTEL_TRACES_EXPORTER": "none", **OTLP}, TracingSettings()),
        ({"OTEL_SDK_DISABLED": "true", **OTLP}, TracingSettings()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, TracingSettings()),
        (OTLP, TracingSettings("otlp")),
        ({**OTLP, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, TracingSettings("otlp-grpc")),
        ({**OTLP, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, TracingSettings("otlp-grpc")),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/v1/traces"}, TracingSettings("otlp")),
        (ZIPKIN, TracingSettings("zipkin")),
        ({"OTEL_TRACES_EXPORTER": "Zipkin", **OTLP}, TracingSettings("zipkin")),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, TracingSettings("otlp")),
        ({**OTLP, "OTEL_TRACES_SAMPLER": "always_off"}, TracingSettings("otlp", Sampler(0, False))),
        (
            {
                **OTLP,
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": "0.01",
            },
            TracingSettings("otlp", Sampler(0.01)),
        ),
        (
            {**OTLP, "OTEL_TRACES_SAMPLER": "traceidratio"},
            TracingSettings("otlp", Sampler(1.0, False)),
        ),
    ],
)
def test_the_environment_says_whether_and_how_events_are_traced(
    environment: dict[str, str], settings: TracingSettings
) -> None:
    assert tracing_settings(environment) == settings


@pytest.mark.parametrize(
    ("name", "value", "exporter"),
    [
        ("OTEL_TRACES_EXPORTER", "jaeger", None),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", None),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "thrift", None),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "otlp"),
    ],
)
def test_what_cant_be_used_is_ignored_with_a_sentence_that_names_it(
    name: str, value: str, exporter: str | None
) -> None:
    found = tracing_settings({**OTLP, name: value})
    assert (found.exporter, found.sampler) == (exporter, Sampler())
    (problem,) = found.problems
    assert value in problem
    assert "want" in problem


@pytest.mark.parametrize("rate", ["2", "-0.1", "nan", "much"])
def test_a_rate_that_is_none_is_one(rate: str) -> None:
    sampler = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": rate}
    found = tracing_settings({**OTLP, **sampler})
    assert found.sampler == Sampler(1.0, follows_parent=False)
    assert "OTEL_TRACES_SAMPLER_ARG" in found.problems[0]
