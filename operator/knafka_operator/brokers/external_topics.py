"""External topics: decides which topics that Knafka didn't create a Broker may use. Pure.

    topic, the Broker's namespace, the installation's list -> None, or the reason of the refusal

The user annotates a Broker; the installation lists the allowed topics in the key `external.topics`
of its own ConfigMap: patterns, separated by commas or lines, none by default. In a pattern `*`
stands for any characters, `{namespace}` for the Broker's namespace, and everything else for itself.
Knafka's own topics, and Kafka's internal ones, can't be allowed. Sensors' topics have no common
prefix: known ones can't be allowed, and topics of the same form only by a pattern without `*`.

Not here: whether the topic exists (`kafka.topics`), and reading the ConfigMap (`observe`).
"""

from __future__ import annotations

import re
from collections.abc import Container
from fnmatch import fnmatchcase
from typing import Final

from knafka.core import names

EXTERNAL_TOPICS: Final = "external.topics"
"""Key of the installation's ConfigMap: the patterns of allowed topics."""
NAMESPACE: Final = "{namespace}"
"""Stands in a pattern for the Broker's namespace."""

_RESERVED: Final = {
    names.BROKERS: "are the topics of Brokers",
    names.CHANNELS: "are the topics of KafkaChannels",
    names.OURS: "are Knafka's",
    "__": "are internal to Kafka",
}
"""Reserved prefixes of topics, with a description of the topics."""

_match_sensor_topic = re.compile(r".+-.+-.+-(?:trigger|changelog|action)").fullmatch
"""Matches names of the form that `names.sensor_topic` builds."""
_match_legal_pattern = re.compile(r"(?:[A-Za-z0-9._*-]|\{namespace\})+").fullmatch
"""Matches patterns of allowed topics in a legal form."""
_match_legal_namespace = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?").fullmatch
"""Matches the names that Kubernetes allows for namespaces."""
_NO_SEPARATOR: Final = r"(?:[-a-z0-9]|\{namespace\})*"
"""Regular expression of a part of a pattern without a separator: a separator is a character that no
namespace's name has, such as `.` or `_`."""
_find_ambiguity = re.compile(
    rf"\{{namespace\}}{_NO_SEPARATOR}\*|\*{_NO_SEPARATOR}\{{namespace\}}"
).search
"""Finds `{namespace}` and `*` without a separator between them, in either order."""


def reserved_reason(topic: str) -> str | None:
    """Return why no Broker may declare a topic of this name as its external topic, even if a
    pattern allows it; None: the name isn't reserved.
    """
    for prefix, description in _RESERVED.items():
        if topic.startswith(prefix):
            return f"topics whose names begin with {prefix} {description}"
    return None


def is_sensor_topic(topic: str, sensor_names: Container[str]) -> bool:
    """Whether a topic is a Sensor's. `sensor_names` has the names of all topics and consumer groups
    that Sensors have claimed; because of the groups, the form of the topic's name is checked, too.
    """
    return topic in sensor_names and _match_sensor_topic(topic) is not None


def external_topic_refusal(
    topic: str,
    namespace: str,
    allowed: str,
    config_map: str,
    sensor_names: Container[str] = frozenset(),
    broker_topics: Container[str] = frozenset(),
) -> str | None:
    """Return why a Broker of this namespace may not use this external topic; None: it may.
    `allowed` is the value of `external.topics`, and `config_map` describes the ConfigMap with that
    key, for the text. `sensor_names` has the names of all topics and consumer groups that Sensors
    have claimed, `broker_topics` the topics that other Brokers have claimed.
    """
    is_of_sensor = is_sensor_topic(topic, sensor_names)
    reason = "it is a Sensor's" if is_of_sensor else reserved_reason(topic)
    if reason is None and topic in broker_topics:
        reason = "it is another Broker's own"
    if reason is not None:
        return f"external topic {topic:.300} is not allowed: {reason}"
    patterns = [text.strip() for text in re.split(r"[,\n]", allowed) if text.strip()]
    ignored_patterns = []
    for pattern in patterns:
        if (problem := _pattern_problem(pattern)) is not None:
            ignored_patterns.append(f"{pattern:.300} ({problem})")
        elif _is_match(pattern, topic, namespace):
            if "*" not in pattern or _match_sensor_topic(topic) is None:
                return None  # allowed
            problem = "a name like those of Sensors' topics wants no '*'"
            ignored_patterns.append(f"{pattern:.300} ({problem})")
    return (
        f"external topic {topic:.300} is not allowed in namespace {namespace}: to allow it, set "
        f"{EXTERNAL_TOPICS} in {config_map} to a list of patterns of which one matches it"
        + (f"; these are ignored there: {', '.join(ignored_patterns)}" if ignored_patterns else "")
    )


def _pattern_problem(pattern: str) -> str | None:
    """Return why a pattern is invalid, or could give a namespace the topics of another one; None:
    it is usable."""
    if _match_legal_pattern(pattern) is None:
        return f"want A-Z, a-z, 0-9, '.', '_', '-', '*' and {NAMESPACE} only"
    if _find_ambiguity(pattern):
        # `{namespace}-*` would give the namespace `team` the topics of `team-a`.
        return f"want a '.' or '_' between {NAMESPACE} and '*', as a namespace may have a '-'"
    return None


def _is_match(pattern: str, topic: str, namespace: str) -> bool:
    """Whether the topic's name matches the pattern, in which `{namespace}` stands for `namespace`.
    The pattern has no problem (`_pattern_problem`)."""
    if _match_legal_namespace(namespace) is None:
        return False
    # Neither a legal pattern nor a namespace has any of fnmatch's other special characters.
    return fnmatchcase(topic, pattern.replace(NAMESPACE, namespace))
