"""Settings of the console's function, by its environment.

KNAFKA_NAMESPACE            the operator's namespace, where this runs
KNAFKA_CONSOLE_NAME         what the page calls the cluster ("cluster")
KNAFKA_CONSOLE_METRICS      host name that resolves to the operator's replicas
                            ("knafka-operator-replicas.NAMESPACE.svc")
KNAFKA_METRICS_TOKENS       as the operator has it: the first reads its metrics (none: open to all)
KNAFKA_CONSOLE_PLAIN_HTTP   true: accept tokens over plain HTTP (false)
KNAFKA_TRACE_URL            the URL of a trace for people, with {trace} for its id ("")
PORT                        the port to serve at (8080); set by Knative
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from knafka.core.errors import InvalidDocument
from knafka.core.tokens.caller_tokens import METRICS_TOKENS, parse_metrics_tokens
from knafka.core.trace_url import trace_url


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Settings of the console's function; the module's docstring explains each."""

    namespace: str
    name: str = "cluster"
    metrics: str = ""
    metrics_token: str = field(default="", repr=False)
    plain_http: bool = False
    trace_url: str = ""
    port: int = 8080

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ConsoleSettings:
        """Read the settings from environment variables. Raises `InvalidDocument`, which names a
        variable that is missing or invalid."""
        namespace = environment.get("KNAFKA_NAMESPACE", "")
        if not namespace:
            raise InvalidDocument("KNAFKA_NAMESPACE", "missing: set it to the operator's namespace")
        plain_http = environment.get("KNAFKA_CONSOLE_PLAIN_HTTP", "false").strip().lower()
        if plain_http not in ("true", "false"):
            raise InvalidDocument("KNAFKA_CONSOLE_PLAIN_HTTP", "must be true or false")
        port = environment.get("PORT", "8080")
        if not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InvalidDocument("PORT", f"{port:.80}: must be a port from 1 to 65535")
        metrics_host = f"knafka-operator-replicas.{namespace}.svc"
        metrics_tokens = parse_metrics_tokens(environment.get(METRICS_TOKENS, ""))
        return cls(
            namespace=namespace,
            name=environment.get("KNAFKA_CONSOLE_NAME", "cluster"),
            metrics=environment.get("KNAFKA_CONSOLE_METRICS", metrics_host),
            metrics_token=metrics_tokens[0] if metrics_tokens else "",
            plain_http=plain_http == "true",
            trace_url=trace_url(environment),
            port=int(port),
        )
