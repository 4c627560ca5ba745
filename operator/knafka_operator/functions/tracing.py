"""Tracing: translates Knative's ConfigMaps about tracing to functions' environment variables
(DSP-12). Pure.

    ConfigMap config-observability   tracing-protocol, tracing-endpoint, tracing-sampling-rate
    ConfigMap config-tracing         backend, zipkin-endpoint, sample-rate, debug

The first is the current one, and applies if it names a protocol; the second is from older releases.
Invalid settings change nothing: functions keep theirs, or have no tracing.

Not here: how functions read the variables (`knafka.tracing.settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from knafka.core.errors import InvalidDocument
from knafka.tracing.settings import (
    EXPORTER,
    GRPC,
    OTLP_TRACES_ENDPOINT,
    OTLP_TRACES_PROTOCOL,
    PROTOCOL,
    SAMPLER,
    SAMPLER_ARG,
    ZIPKIN_ENDPOINT,
    rate_of,
)
from knafka_operator.functions import services

OBSERVABILITY: Final = "config-observability"
TRACING: Final = "config-tracing"
"""Names of Knative's two ConfigMaps."""
DEFAULT_RATE: Final = "0.1"
"""Default sampling rate of traces that begin in functions; Knative's default for config-tracing."""
_OTLP_PATH: Final = "/v1/traces"
"""Path of an OTLP endpoint that is declared without a path."""
_TRACING_VARIABLES: Final = frozenset(
    {
        EXPORTER,
        OTLP_TRACES_ENDPOINT,
        OTLP_TRACES_PROTOCOL,
        SAMPLER,
        SAMPLER_ARG,
        ZIPKIN_ENDPOINT,
    }
)
"""Environment variables that this module sets."""


def tracing_environment(
    observability: Mapping[str, str], tracing: Mapping[str, str], namespace: str, domain: str
) -> Mapping[str, str]:
    """Return the tracing variables that every function gets; empty if tracing is off.
    `observability` and `tracing` are the data of the two ConfigMaps, empty for a missing one.
    Raises `InvalidDocument` whose path is the ConfigMap's name.

    If Zipkin's endpoint isn't declared, it is the Service `zipkin` of `namespace`, in the cluster's
    DNS `domain` (DSP-13).
    """
    protocol = observability.get("tracing-protocol", "none").strip().lower()
    if protocol not in ("", "none"):
        try:
            return _otlp_environment(protocol, observability)
        except ValueError as error:
            raise InvalidDocument(OBSERVABILITY, str(error)) from None
    try:
        return _zipkin_environment(
            tracing, f"http://zipkin.{namespace}.svc.{domain}:9411/api/v2/spans"
        )
    except ValueError as error:
        raise InvalidDocument(TRACING, str(error)) from None


def tracing_variables_of(service: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the tracing variables in the environment of a stored Knative Service."""
    containers = service["spec"]["template"]["spec"]["containers"]
    return {
        name: value
        for container in containers
        for name, value in services.environment_of(container).items()
        if name in _TRACING_VARIABLES
    }


def _otlp_environment(protocol: str, data: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment variables for OTLP tracing, from the data of `config-observability`.
    Raises `ValueError`."""
    if protocol not in (PROTOCOL, GRPC):
        raise ValueError(
            f"tracing-protocol: invalid value: {protocol:.80}: want {PROTOCOL}, {GRPC} or none"
        )
    endpoint_text = data.get("tracing-endpoint", "").strip()
    rate = _parse_rate(data.get("tracing-sampling-rate"), "tracing-sampling-rate")
    if protocol == GRPC:
        # For gRPC the endpoint is often only host:port; without a scheme the SDK would use TLS.
        endpoint = _check_url(
            endpoint_text if "://" in endpoint_text else f"http://{endpoint_text}",
            "tracing-endpoint",
        )
        protocol_variables = {OTLP_TRACES_PROTOCOL: GRPC}
    else:
        endpoint, protocol_variables = _check_url(endpoint_text, "tracing-endpoint"), {}
        if urlsplit(endpoint).path in ("", "/"):
            endpoint = endpoint.rstrip("/") + _OTLP_PATH
    return {
        EXPORTER: "otlp",
        OTLP_TRACES_ENDPOINT: endpoint,
        **protocol_variables,
        **_sampler_variables(rate),
    }


def _zipkin_environment(data: Mapping[str, str], default_endpoint: str) -> Mapping[str, str]:
    """Return the environment variables for Zipkin tracing, from the data of `config-tracing`; empty
    if tracing is off. Raises `ValueError`."""
    backend = data.get("backend", "none").strip().lower()
    if backend in ("", "none"):
        return {}
    if backend != "zipkin":
        raise ValueError(f"backend: invalid value: {backend:.80}: want zipkin or none")
    endpoint = _check_url(
        data.get("zipkin-endpoint", "").strip() or default_endpoint, "zipkin-endpoint"
    )
    rate = _parse_rate(data.get("sample-rate"), "sample-rate")
    if data.get("debug", "").strip().lower() == "true":
        rate = "1"  # Knative's debug mode samples every trace
    return {EXPORTER: "zipkin", ZIPKIN_ENDPOINT: endpoint, **_sampler_variables(rate)}


def _sampler_variables(rate: str) -> Mapping[str, str]:
    """Return the variables by which functions sample the traces that begin in them at this rate."""
    return {SAMPLER: "parentbased_traceidratio", SAMPLER_ARG: rate}


def _parse_rate(text: str | None, where: str) -> str:
    """Return the sampling rate in `text`, a number from 0 to 1; `DEFAULT_RATE` if `text` is empty
    or None. Raises `ValueError` for any other text; the error names the ConfigMap's key, `where`.
    """
    rate = (text or "").strip() or DEFAULT_RATE
    if rate_of(rate) is None:
        raise ValueError(f"{where}: invalid value: {rate:.80}: want 0 to 1")
    return rate


def _check_url(url: str, where: str) -> str:
    """Return the URL unchanged. Raises `ValueError` unless it is an HTTP URL with a host; the error
    names the ConfigMap's key, `where`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{where}: invalid value: {url:.200}: want a URL")
    return url
