"""Tracing: what Knative's ConfigMaps say of traces, as the functions' environment (DSP-12). Pure.

    ConfigMap config-observability   tracing-protocol, tracing-endpoint, tracing-sampling-rate
    ConfigMap config-tracing         backend, zipkin-endpoint, sample-rate, debug

The first is today's, and holds where it names a protocol; the second is that of older releases.
What can't be used is left out with a warning: functions run without traces rather than not at all.

Not here: what the variables mean to a function (`knafka.tracing.settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from knafka.tracing.settings import (
    EXPORTER,
    OTLP_TRACES_ENDPOINT,
    PROTOCOL,
    SAMPLER,
    SAMPLER_ARG,
    ZIPKIN_ENDPOINT,
    rate_of,
)

OBSERVABILITY: Final = "config-observability"
TRACING: Final = "config-tracing"
DEFAULT_RATE: Final = "0.1"
"""Of traces that begin here, where the ConfigMap has no rate: Knative's for config-tracing."""
_OTLP_PATH: Final = "/v1/traces"


def tracing_environment(
    observability: Mapping[str, str], tracing: Mapping[str, str], namespace: str, domain: str
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """The variables of every function, none if there are to be no traces; and warnings.

    `observability` and `tracing` are the ConfigMaps' data, empty where there is none. Zipkin
    without an address is the Service `zipkin` of `namespace` (DSP-13).
    """
    protocol = observability.get("tracing-protocol", "none").strip().lower()
    try:
        if protocol not in ("", "none"):
            return _otlp(protocol, observability), ()
        return _zipkin(tracing, f"http://zipkin.{namespace}.svc.{domain}:9411/api/v2/spans"), ()
    except ValueError as error:
        return {}, (f"{error}: events are not traced",)


def _otlp(protocol: str, data: Mapping[str, str]) -> Mapping[str, str]:
    if protocol != PROTOCOL:
        raise ValueError(
            f"{OBSERVABILITY}: tracing-protocol: {protocol:.80} is not spoken by functions: "
            f"want {PROTOCOL} or none"
        )
    endpoint = _url(data.get("tracing-endpoint", ""), f"{OBSERVABILITY}: tracing-endpoint")
    if urlsplit(endpoint).path in ("", "/"):
        endpoint = endpoint.rstrip("/") + _OTLP_PATH
    rate = _rate(data.get("tracing-sampling-rate"), f"{OBSERVABILITY}: tracing-sampling-rate")
    return {EXPORTER: "otlp", OTLP_TRACES_ENDPOINT: endpoint, **_sampler(rate)}


def _zipkin(data: Mapping[str, str], usual: str) -> Mapping[str, str]:
    backend = data.get("backend", "none").strip().lower()
    if backend in ("", "none"):
        return {}
    if backend != "zipkin":
        raise ValueError(f"{TRACING}: backend: {backend:.80}: want zipkin or none")
    endpoint = _url(data.get("zipkin-endpoint", "").strip() or usual, f"{TRACING}: zipkin-endpoint")
    rate = _rate(data.get("sample-rate"), f"{TRACING}: sample-rate")
    if data.get("debug", "").strip().lower() == "true":
        rate = "1"
    return {EXPORTER: "zipkin", ZIPKIN_ENDPOINT: endpoint, **_sampler(rate)}


def _sampler(rate: str) -> Mapping[str, str]:
    return {SAMPLER: "parentbased_traceidratio", SAMPLER_ARG: rate}


def _rate(text: str | None, where: str) -> str:
    given = (text or "").strip() or DEFAULT_RATE
    if rate_of(given) is None:
        raise ValueError(f"{where}: invalid value: {given:.80}: want 0 to 1")
    return given


def _url(text: str, where: str) -> str:
    given = text.strip()
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{where}: invalid value: {given:.200}: want a URL")
    return given
