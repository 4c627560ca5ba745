"""Reads and checks the settings of a function in its environment.

    KNAFKA_INGRESSES   receiver: its contract, a JSON array of Ingress
    KNAFKA_RECEIVER    receiver, instead: one Receiver as JSON, which names a topic of Ingresses
    KNAFKA_EGRESS      dispatcher: its contract, one Egress as JSON
    KNAFKA_SHARD       dispatcher, instead: one Shard as JSON, which names a topic of Egresses
    KNAFKA_SENSOR      sensor: its contract, one Sensor as JSON
    KNAFKA_SERVICE_URL dispatcher, sensor: URL of its own Service, to which it sends drain requests
                       while it has work and no operator sends any (none: it sends none);
                       receiver: URL of its own Service, to which it sends requests in proportion
                       to the events that bypass Knative's proxy, which thereby sees the load
                       (none: it sends none)
    KNAFKA_DRAIN_AT_START  dispatcher, sensor: true: it drains without a request (min-scale)
    KNAFKA_GRACE_PERIOD    dispatcher: seconds that it has from SIGTERM to its end (10)
    KNAFKA_LOG_LEVEL   debug, info, warning (the default), error
    KNAFKA_LOG_FORMAT  text (the default), json: one object a line, with ids of the event's trace
    KNAFKA_STATISTICS_INTERVAL  seconds between two reports of librdkafka's statistics (15), 0: none
    KNAFKA_PROFILING   enabled: profiles at http://127.0.0.1:8008/debug/pprof/ (disabled)
    KNAFKA_LOCAL_ADDRESSES  allowed: destinations may be loopback or link-local (refused)
    KNAFKA_OIDC_URL    receiver: the API server whose keys verify senders' tokens (none: Brokers
                       with an audience answer 503);
                       dispatcher: the API server that issues tokens for destinations (none: those
                       that require one get no events)
    KNAFKA_OIDC_FOLDER receiver: its own token and that server's CA (/var/run/secrets/knafka/api)
    KNAFKA_TRUST_BUNDLES  dispatcher: folder with authorities that it trusts (none: the system's)
    KNAFKA_CALLERS     digests of the tokens that /drain and /contract require (none: no token)
    KNAFKA_SCRAPERS    digests of the tokens that /metrics requires (none: no token)
    KNAFKA_EVENT_TYPES receiver: enabled: it lists new types of events for its operator (disabled)
    KNAFKA_TLS         receiver: folder with tls.crt and tls.key, with which it serves TLS (none)
    KNAFKA_TLS_PORT    receiver: the port at which it serves TLS (8443)
    OTEL_*             tracing: see `knafka.tracing.settings`
    HOST, PORT         where to listen; PORT is set by Knative

Not here: defaults for the contract. A function without one says so and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from knafka.core.addresses import LOCAL_ADDRESSES
from knafka.core.contract import Egress, Ingress, Receiver, Shard, parse_ingresses
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument
from knafka.core.tokens.caller_tokens import CALLERS, SCRAPERS, Callers

# Names of environment variables, which this module's docstring describes.
INGRESSES: Final = "KNAFKA_INGRESSES"
RECEIVER: Final = "KNAFKA_RECEIVER"
EGRESS: Final = "KNAFKA_EGRESS"
SHARD: Final = "KNAFKA_SHARD"
SENSOR: Final = "KNAFKA_SENSOR"
SERVICE_URL: Final = "KNAFKA_SERVICE_URL"
DRAIN_AT_START: Final = "KNAFKA_DRAIN_AT_START"
GRACE_PERIOD: Final = "KNAFKA_GRACE_PERIOD"
LOG_LEVEL: Final = "KNAFKA_LOG_LEVEL"
LOG_FORMAT: Final = "KNAFKA_LOG_FORMAT"
PROFILING: Final = "KNAFKA_PROFILING"
STATISTICS_INTERVAL: Final = "KNAFKA_STATISTICS_INTERVAL"

EVENT_TYPES: Final = "KNAFKA_EVENT_TYPES"
OIDC_URL: Final = "KNAFKA_OIDC_URL"
OIDC_FOLDER: Final = "KNAFKA_OIDC_FOLDER"
TLS: Final = "KNAFKA_TLS"
TLS_PORT: Final = "KNAFKA_TLS_PORT"
TRUST_BUNDLES: Final = "KNAFKA_TRUST_BUNDLES"
API_FOLDER: Final = "/var/run/secrets/knafka/api"
"""Folder with the function's own token and the API server's CA."""

LEAVING_SECONDS: Final = 7.0
"""Seconds of the grace period that are kept for the time after the attempts: for the last commits,
dead letters and replies, and for leaving the group."""

if TYPE_CHECKING:
    from knafka.core.sensor.contract import SensorContract

Environment = Mapping[str, str]
"""Environment variables by name."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and port at which a function listens."""

    host: str = "0.0.0.0"
    port: int = 8080


def listen_address(environment: Environment) -> ListenAddress:
    """Return host and port at which the function listens; port 0: any free port. Raises
    `InvalidDocument` if PORT is no port."""
    port = environment.get("PORT", "8080")
    # The length is checked first, here and below, as `int` of very many digits takes long.
    if not port.isdecimal() or len(port) > 5 or int(port) > 65_535:
        raise InvalidDocument("PORT", f"invalid value: {port:.80}: want a port number")
    return ListenAddress(environment.get("HOST", "0.0.0.0"), int(port))


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Port and certificate of a function that serves TLS itself."""

    folder: Path
    """Folder with `tls.crt` and `tls.key`, which may change while the function runs."""
    port: int = 8443


def tls_settings(environment: Environment) -> TlsSettings | None:
    """Return the TLS settings; None: the function serves plain HTTP only. Raises `InvalidDocument`
    if KNAFKA_TLS_PORT is no port."""
    port = environment.get(TLS_PORT, "8443")
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) <= 65_535:
        raise InvalidDocument(TLS_PORT, f"invalid value: {port:.80}: want a port number")
    folder = environment.get(TLS)
    return TlsSettings(Path(folder), int(port)) if folder else None


def log_level(environment: Environment) -> str:
    """Return the lowest level of log records that are logged, `warning` by default. Raises
    `InvalidDocument` for an unknown level."""
    level = environment.get(LOG_LEVEL, "warning").lower()
    if level not in ("debug", "info", "warning", "error"):
        raise InvalidDocument(
            LOG_LEVEL, f"invalid value: {level:.80}: want debug, info, warning, error"
        )
    return level


def log_format(environment: Environment) -> Literal["json", "text"]:
    """Return the format of the log, `text` by default. Raises `InvalidDocument` for another
    format."""
    value = environment.get(LOG_FORMAT, "text").strip().lower()
    if value == "json":
        return "json"
    if value == "text":
        return "text"
    raise InvalidDocument(LOG_FORMAT, f"invalid value: {value:.80}: want json or text")


def serves_profiles(environment: Environment) -> bool:
    """Whether the function serves profiles; by default it doesn't. The variable has the values of
    Knative's `runtime-profiling`. Raises `InvalidDocument` for an unknown value."""
    value = environment.get(PROFILING, "disabled").strip().lower()
    if value not in ("enabled", "disabled"):
        raise InvalidDocument(PROFILING, f"invalid value: {value:.80}: want enabled or disabled")
    return value == "enabled"


def allows_local_addresses(environment: Environment) -> bool:
    """Whether destinations may have loopback or link-local addresses, or that of a cloud's metadata
    service; by default they may not. Raises `InvalidDocument` for an unknown value."""
    value = environment.get(LOCAL_ADDRESSES, "refused").strip().lower()
    if value not in ("allowed", "refused"):
        problem = f"invalid value: {value:.80}: want allowed or refused"
        raise InvalidDocument(LOCAL_ADDRESSES, problem)
    return value == "allowed"


def callers(environment: Environment) -> Callers:
    """Return who may call `/drain` and `/contract`: everybody if the variable isn't set. Raises
    `InvalidDocument` for an invalid value."""
    return Callers.parse(environment.get(CALLERS, ""))


def scrapers(environment: Environment) -> Callers:
    """Return who may call `/metrics`: everybody if the variable isn't set. Raises
    `InvalidDocument` for an invalid value."""
    return Callers.parse(environment.get(SCRAPERS, ""), SCRAPERS)


def oidc_url(environment: Environment) -> str | None:
    """Return the URL of the API server that issues tokens; None: the function neither verifies nor
    requests tokens."""
    return environment.get(OIDC_URL) or None


def oidc_folder(environment: Environment) -> Path:
    """Return the folder with this function's own token and the CA of the server at `oidc_url`."""
    return Path(environment.get(OIDC_FOLDER) or API_FOLDER)


def trust_bundles(environment: Environment) -> Path | None:
    """Return the folder of the certificate authorities that are trusted besides the system's; None:
    only the system's are trusted."""
    folder = environment.get(TRUST_BUNDLES)
    return Path(folder) if folder else None


def statistics_interval(environment: Environment) -> float:
    """Return the seconds between two reports of librdkafka's statistics, 15 by default; 0: there
    are no reports. Raises `InvalidDocument` for an invalid number."""
    text = environment.get(STATISTICS_INTERVAL, "15").strip()
    if not text.isdecimal() or len(text) > 5 or int(text) > 86_400:
        problem = f"invalid value: {text:.80}: want whole seconds, 0 to 86400"
        raise InvalidDocument(STATISTICS_INTERVAL, problem)
    return float(text)


def lists_event_types(environment: Environment) -> bool:
    """Whether a receiver lists new types of events for its operator; by default it doesn't. Raises
    `InvalidDocument` for an unknown value."""
    value = environment.get(EVENT_TYPES, "disabled").strip().lower()
    if value not in ("enabled", "disabled"):
        problem = f"invalid value: {value:.80}: want enabled or disabled"
        raise InvalidDocument(EVENT_TYPES, problem)
    return value == "enabled"


def ingresses(environment: Environment) -> Sequence[Ingress]:
    """Return the Ingresses that the environment declares. Raises `InvalidDocument` that names the
    variable and the broken field, or the path that several Ingresses have."""
    text = _required_variable(environment, INGRESSES)
    try:
        parsed = parse_ingresses(text)
    except InvalidDocument as error:
        raise InvalidDocument(INGRESSES, str(error)) from error
    for path, count in Counter(ingress.path for ingress in parsed).items():
        if count > 1:
            raise InvalidDocument(INGRESSES, f"{count} Brokers have the path {path}: want one")
    return parsed


def receiver(environment: Environment) -> Receiver | None:
    """Return the contract of a receiver that reads its Ingresses from a topic; None: the
    environment itself declares the Ingresses (`ingresses`). Raises `InvalidDocument` for an invalid
    contract, or if both are declared."""
    if not (text := environment.get(RECEIVER)):
        return None
    if environment.get(INGRESSES):
        raise InvalidDocument(RECEIVER, f"{INGRESSES} is set, too: want one of them")
    try:
        return parse_json(Receiver, text)
    except InvalidDocument as error:
        raise InvalidDocument(RECEIVER, str(error)) from error


def egress(environment: Environment) -> Egress:
    """Return the Egress of a dispatcher. Raises `InvalidDocument` that names the variable and the
    broken field."""
    text = _required_variable(environment, EGRESS)
    try:
        return parse_json(Egress, text)
    except InvalidDocument as error:
        raise InvalidDocument(EGRESS, str(error)) from error


def shard(environment: Environment) -> Shard | None:
    """Return the shard of a dispatcher; None: it has one Egress. Raises `InvalidDocument` that
    names the variable and the broken field."""
    if not (text := environment.get(SHARD)):
        return None
    try:
        return parse_json(Shard, text)
    except InvalidDocument as error:
        raise InvalidDocument(SHARD, str(error)) from error


def sensor(environment: Environment) -> SensorContract:
    """Return the contract of a Sensor's function. Raises `InvalidDocument` that names the variable
    and the broken field."""
    # Imported here, as the module imports time zones, which no other function needs.
    from knafka.core.sensor.contract import SensorContract

    text = _required_variable(environment, SENSOR)
    try:
        return parse_json(SensorContract, text)
    except InvalidDocument as error:
        raise InvalidDocument(SENSOR, str(error)) from error


@dataclass(frozen=True, slots=True)
class DrainSettings:
    """How a dispatcher or Sensor starts and stops its drains."""

    service_url: str | None = None
    """URL of the function's own Service, by which the function renews its drains; None: it renews
    none, as no operator scales it."""
    at_start: bool = False
    """Whether the function drains from its start, without a request."""
    stop_timeout: float = 3.0
    """Seconds that attempts under way get when the process ends."""


def service_url(environment: Environment) -> str | None:
    """Return the URL of the function's own Service; None: the function sends no requests there, as
    no operator scales it."""
    return environment.get(SERVICE_URL) or None


def drain_settings(environment: Environment) -> DrainSettings:
    """Return the settings of the function's drains. Their `stop_timeout` is the grace period minus
    `LEAVING_SECONDS`. Raises `InvalidDocument`, which names the variable with an invalid value."""
    at_start = environment.get(DRAIN_AT_START, "false").strip().lower()
    if at_start not in ("true", "false"):
        raise InvalidDocument(DRAIN_AT_START, f"invalid value: {at_start:.80}: want true or false")
    grace = environment.get(GRACE_PERIOD, "10")
    if not grace.isdecimal() or len(grace) > 6 or int(grace) < 10:
        problem = f"invalid value: {grace:.80}: want whole seconds, 10 or more"
        raise InvalidDocument(GRACE_PERIOD, problem)
    return DrainSettings(service_url(environment), at_start == "true", int(grace) - LEAVING_SECONDS)


def _required_variable(environment: Environment, name: str) -> str:
    """Return the value of the variable `name`. Raises `InvalidDocument` if it isn't set or is
    empty."""
    if not (text := environment.get(name)):
        raise InvalidDocument(name, "is not set: the operator writes a function's contract there")
    return text
