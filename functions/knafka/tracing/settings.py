"""Reads the settings of tracing from OpenTelemetry's own environment variables. Pure.

    OTEL_TRACES_EXPORTER            otlp, zipkin or none
    OTEL_EXPORTER_OTLP_ENDPOINT     http://collector:4318; OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, too
    OTEL_EXPORTER_OTLP_PROTOCOL     http/protobuf (the default), or grpc with http://collector:4317:
                                    that needs knafka[tracing-grpc]
    OTEL_EXPORTER_ZIPKIN_ENDPOINT   http://zipkin:9411/api/v2/spans
    OTEL_TRACES_SAMPLER             parentbased_always_on (the default), parentbased_traceidratio,
                                    traceidratio, always_on, always_off, parentbased_always_off
    OTEL_TRACES_SAMPLER_ARG         the rate of a ratio, 0 to 1
    OTEL_SDK_DISABLED               true: no tracing

Tracing is on if an exporter or an endpoint is named. The SDK reads the rest, such as
OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_HEADERS and OTEL_BSP_SCHEDULE_DELAY, by itself. An unusable
value is ignored with a warning, as OpenTelemetry demands: tracing never costs an event.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from knafka.tracing.sampling import SAMPLERS, Sampler

# Names of environment variables, which the module's docstring explains.
EXPORTER: Final = "OTEL_TRACES_EXPORTER"
OTLP_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTLP_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
OTLP_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
OTLP_TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
ZIPKIN_ENDPOINT: Final = "OTEL_EXPORTER_ZIPKIN_ENDPOINT"
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
DISABLED: Final = "OTEL_SDK_DISABLED"

DEFAULT_SAMPLER: Final = "parentbased_always_on"
"""Value of OTEL_TRACES_SAMPLER if it isn't set, or invalid."""
PROTOCOL: Final = "http/protobuf"
"""Default protocol of OTLP."""
GRPC: Final = "grpc"
"""The other protocol of OTLP."""

Exporter: TypeAlias = Literal["otlp", "otlp-grpc", "zipkin"]
"""How spans are exported: by OTLP over HTTP, by OTLP over gRPC, or to Zipkin."""


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """The settings of tracing, as the environment declares them."""

    exporter: Exporter | None = None
    """How spans are exported; None: tracing is off."""
    sampler: Sampler = field(default_factory=Sampler)
    problems: tuple[str, ...] = ()
    """Sentences about invalid settings, for the log."""


def tracing_settings(environment: Mapping[str, str]) -> TracingSettings:
    """Return the settings of tracing in an environment. Never raises: an invalid value is described
    in `TracingSettings.problems`. Then tracing is off, or the default is used."""
    variables = {name: value.strip() for name, value in environment.items() if value.strip()}
    if variables.get(DISABLED, "").lower() == "true":
        return TracingSettings()
    problems: list[str] = []
    exporter = _declared_exporter(variables, problems)
    if exporter == "otlp":
        protocol = variables.get(OTLP_TRACES_PROTOCOL) or variables.get(OTLP_PROTOCOL) or PROTOCOL
        if protocol == GRPC:
            exporter = "otlp-grpc"
        elif protocol != PROTOCOL:
            exporter = None
            problems.append(
                f"{OTLP_PROTOCOL}: invalid value: {protocol:.80}: want {PROTOCOL} or {GRPC}, "
                "so tracing is off"
            )
    sampler = Sampler() if exporter is None else _declared_sampler(variables, problems)
    return TracingSettings(exporter, sampler, tuple(problems))


def _declared_exporter(variables: Mapping[str, str], problems: list[str]) -> Exporter | None:
    """Return the exporter that the environment's `variables` declare, by name or by an endpoint;
    for OTLP "otlp", whatever its protocol. None: tracing is off. For an invalid name, a sentence is
    added to `problems`."""
    name = variables.get(EXPORTER, "").lower()
    if not name:
        if variables.get(OTLP_ENDPOINT) or variables.get(OTLP_TRACES_ENDPOINT):
            return "otlp"
        return "zipkin" if variables.get(ZIPKIN_ENDPOINT) else None
    if name == "otlp":
        return "otlp"
    if name == "zipkin":
        return "zipkin"
    if name != "none":
        problems.append(
            f"{EXPORTER}: invalid value: {name:.80}: want otlp, zipkin or none, so tracing is off"
        )
    return None


def _declared_sampler(variables: Mapping[str, str], problems: list[str]) -> Sampler:
    """Return the sampler that the environment's `variables` declare. For an invalid value, a
    sentence is added to `problems`, and the default is used."""
    name = variables.get(SAMPLER, DEFAULT_SAMPLER).lower()
    if name not in SAMPLERS:
        problems.append(
            f"{SAMPLER}: invalid value: {name:.80}: want one of {', '.join(SAMPLERS)}, so it is "
            f"{DEFAULT_SAMPLER}"
        )
        name = DEFAULT_SAMPLER
    follows_parent, rate = SAMPLERS[name]
    if rate is None:
        rate = rate_of(variables.get(SAMPLER_ARG, "1"))
        if rate is None:
            problems.append(
                f"{SAMPLER_ARG}: invalid value: {variables[SAMPLER_ARG]:.80}: want 0 "
                "to 1, so it is 1"
            )
            rate = 1.0
    return Sampler(rate, follows_parent)


def rate_of(text: str) -> float | None:
    """Parse a sampling rate and return it; None if the text isn't a number from 0 to 1."""
    try:
        rate = float(text)
    except ValueError:
        return None
    return rate if math.isfinite(rate) and 0 <= rate <= 1 else None
