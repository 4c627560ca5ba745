"""Checks the settings of our Kafka clients that a Broker or Trigger may declare.

Names and values are Kafka's own (Java's, as in its documentation). Only the settings in `CONSUMER`
and `PRODUCER` are allowed, as some others would lose events: `REFUSED` gives the reason for each.

Not here: where settings are declared (a Broker's ConfigMap, a Trigger's annotations: the operator's
`kafka.desired`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from knafka.core.errors import InvalidDocument

Settings: TypeAlias = Mapping[str, str]
"""Checked settings: values by Kafka's names."""

_Check: TypeAlias = Callable[[str], str]
"""A function that returns a value in its normal form, or raises ValueError; the error's text says
which values are allowed."""

_match_integer = re.compile(r"-?[0-9]{1,10}", re.ASCII).fullmatch
_match_rack = re.compile(r"[A-Za-z0-9._/:-]{1,255}", re.ASCII).fullmatch


def _check_of_number(minimum: int, maximum: int) -> _Check:
    """Return a function that checks that a text is a whole number from `minimum` to `maximum`, and
    returns the number without leading zeros."""

    def check(text: str) -> str:
        """Return the number without leading zeros. Raises ValueError, which names both limits."""
        if _match_integer(text) and minimum <= int(text) <= maximum:
            return str(int(text))
        raise ValueError(f"a whole number from {minimum} to {maximum}")

    return check


def _check_of_values(*values: str) -> _Check:
    """Return a function that checks that a text is one of these values, and returns it."""

    def check(text: str) -> str:
        """Return the text if it is one of `values`. Raises ValueError, which lists them."""
        if text in values:
            return text
        raise ValueError(f"one of {', '.join(values)}")

    return check


def _check_rack(text: str) -> str:
    """Return the name of a rack unchanged. Raises ValueError if the text can't name a rack."""
    if _match_rack(text):
        return text
    raise ValueError("the name of a rack or zone, as the brokers' broker.rack has it")


_CONNECTIONS: Final[Mapping[str, _Check]] = {
    # A load balancer before Kafka drops idle connections, such as Azure's after four minutes.
    "connections.max.idle.ms": _check_of_number(10_000, 86_400_000),
    "metadata.max.age.ms": _check_of_number(10_000, 3_600_000),
    "socket.keepalive.enable": _check_of_values("true", "false"),
}
"""Settings that may be declared for consumers and for producers."""

CONSUMER: Final[Mapping[str, _Check]] = {
    "client.rack": _check_rack,
    "fetch.min.bytes": _check_of_number(1, 1_048_576),
    # A partition that was just assigned or resumed waits for the fetch under way.
    "fetch.max.wait.ms": _check_of_number(0, 5_000),
    # librdkafka refuses less than the largest record; more would be held in memory.
    "fetch.max.bytes": _check_of_number(1_048_576, 67_108_864),
    "max.partition.fetch.bytes": _check_of_number(1_024, 16_777_216),
    **_CONNECTIONS,
}
"""Settings that may be declared for consumers, with the check of each value."""
PRODUCER: Final[Mapping[str, _Check]] = {
    "compression.type": _check_of_values("none", "gzip", "snappy", "lz4", "zstd"),
    "compression.level": _check_of_number(-1, 12),
    "linger.ms": _check_of_number(0, 1_000),
    "batch.size": _check_of_number(1_024, 1_000_000),
    **_CONNECTIONS,
}
"""Settings that may be declared for producers, with the check of each value."""
SIDES: Final[Mapping[str, Mapping[str, _Check]]] = {"consumer": CONSUMER, "producer": PRODUCER}
"""The settings that may be declared, by the kind of client."""

# Reasons that several refused settings share.
_OFFSETS: Final = (
    "Knafka commits what was delivered, and nothing else: an event could be lost or passed over"
)
_ORDER: Final = "events of one key would no longer be in order"
_GROUP: Final = "its group is chosen once, and its offsets count"
REFUSED: Final[Mapping[str, str]] = {
    "acks": "an event is answered with success once all replicas in sync have it (acks=all)",
    "enable.idempotence": (
        "librdkafka may then report an event as stored that Kafka rejected "
        "(docs/decisions/0012-no-idempotence.md)"
    ),
    "transactional.id": "a transaction that is aborted takes back what was answered with success",
    "enable.auto.commit": _OFFSETS,
    "enable.auto.offset.store": _OFFSETS,
    "auto.offset.reset": (
        f"{_OFFSETS}; where a new Trigger begins is its annotation knafka.dev/start-position"
    ),
    "isolation.level": "what an aborted transaction wrote would be delivered",
    "group.id": _GROUP,
    "group.instance.id": _GROUP,
    "group.protocol": "Knafka takes the one that the brokers have",
    "max.in.flight.requests.per.connection": _ORDER,
    "partitioner": _ORDER,
    "retries": "an event would be refused where Kafka only moves a leader",
    "max.request.size": "the largest event is the topic's to say: set its max.message.bytes",
    "message.max.bytes": "the largest event is the topic's to say: set its max.message.bytes",
}
"""Settings that would break delivery, each with the reason."""

_LIBRDKAFKA: Final[Mapping[str, str]] = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "compression.type": "compression.codec",
}
"""librdkafka's names, by Java's, of the settings that the two name differently."""


def check_setting(side: str, name: str, value: str, path: str) -> str:
    """Check a declared setting, and return its value in normal form. `side`: `consumer` or
    `producer`. `name`: Kafka's name of the setting. `path`: where the setting is declared. Raises
    `InvalidDocument` with this path if the setting or its value isn't allowed."""
    if (reason := REFUSED.get(name)) is not None:
        raise InvalidDocument(path, f"can't be set: {reason}")
    allowed = SIDES[side]
    if name not in allowed:
        raise InvalidDocument(path, f"unknown setting: want one of {', '.join(sorted(allowed))}")
    try:
        return allowed[name](value.strip())
    except ValueError as error:
        raise InvalidDocument(path, f"invalid value: {value:.80}: want {error}") from None


def declared_settings(
    document: Mapping[str, str], prefix: str, path: str
) -> dict[str, dict[str, str]]:
    """Return the checked settings that a document declares, by side (`consumer` or `producer`) and
    name; keys that declare no setting are ignored.

    A setting's key is `prefix`, the side, a dot and the name, such as `producer.linger.ms` with an
    empty prefix. Raises `InvalidDocument`, whose path is `path` followed by the key.
    """
    settings_by_side: dict[str, dict[str, str]] = {side: {} for side in SIDES}
    for key in sorted(document):
        side, _, name = key.removeprefix(prefix).partition(".")
        if key.startswith(prefix) and side in SIDES:
            settings_by_side[side][name] = check_setting(side, name, document[key], f"{path}{key}")
    return settings_by_side


def for_librdkafka(settings: Settings) -> dict[str, str]:
    """Return these checked settings under librdkafka's names, some of which differ from Java's."""
    return {_LIBRDKAFKA.get(name, name): value for name, value in settings.items()}
