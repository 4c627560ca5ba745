"""Settings of the console's function, by its environment.

KNAFKA_NAMESPACE            the operator's namespace, where this runs
KNAFKA_CONSOLE_NAME         what the page calls the cluster ("cluster")
KNAFKA_CONSOLE_METRICS      host that has the operator's replicas as its addresses
                            ("knafka-operator-replicas.NAMESPACE.svc")
KNAFKA_METRICS_TOKENS       the operator's: the first opens its metrics (none: they are open)
KNAFKA_CONSOLE_PLAIN_HTTP   true: a token may come without TLS (false)
KNAFKA_TRACE_URL            where people look at a trace, {trace} in the place of its id ("")
PORT                        where to serve (8080); Knative says it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from knafka.core.caller_tokens import METRICS_TOKENS, parse_tokens
from knafka.core.errors import InvalidDocument
from knafka.core.trace_url import trace_url


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """How this function is installed."""

    namespace: str
    name: str = "cluster"
    metrics: str = ""
    metrics_token: str = field(default="", repr=False)
    plain_http: bool = False
    trace_url: str = ""
    port: int = 8080

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ConsoleSettings:
        """Raises `InvalidDocument` that names the variable."""
        namespace = environment.get("KNAFKA_NAMESPACE", "")
        if not namespace:
            raise InvalidDocument("KNAFKA_NAMESPACE", "missing: want the operator's namespace")
        plain = environment.get("KNAFKA_CONSOLE_PLAIN_HTTP", "false").strip().lower()
        if plain not in ("true", "false"):
            raise InvalidDocument("KNAFKA_CONSOLE_PLAIN_HTTP", "want true or false")
        port = environment.get("PORT", "8080")
        if not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InvalidDocument("PORT", f"{port:.80}: want a port")
        return cls(
            namespace,
            environment.get("KNAFKA_CONSOLE_NAME", "cluster"),
            environment.get("KNAFKA_CONSOLE_METRICS", f"knafka-operator-replicas.{namespace}.svc"),
            next(iter(parse_tokens(environment.get(METRICS_TOKENS, ""))), ""),
            plain == "true",
            trace_url(environment),
            int(port),
        )
