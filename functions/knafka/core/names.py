"""Derives names of topics and consumer groups from Kubernetes names.

The Broker's topic and the Trigger's group carry upstream's names (spec/naming.md). They are joined
with dashes and so can collide (`a-b`/`c` and `a`/`b-c`): the creator of a topic checks its owner
before adopting it. Names that only we use end in a digest of their parts and can't collide.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Final

MAX_LENGTH: Final = 249
"""Kafka's limit for a topic name, in characters."""

BROKERS: Final = "knative-broker-"
"""Prefix of the names of Brokers' own topics."""

TRIGGERS: Final = "knative-trigger-"
"""Prefix of the names of Triggers' consumer groups."""

OURS: Final = "knafka-"
"""Prefix of the names of all other topics that Knafka creates."""

DEAD_LETTERS: Final = f"{OURS}dead-letters-"
"""Prefix of the names of dead-letter topics."""

CHANNELS: Final = "knative-messaging-kafka."
"""Prefix of the names of KafkaChannels' topics."""

REPLAYS: Final = f"{OURS}replays-"
"""Prefix of the names of replay topics."""

REPORTS: Final = f"{OURS}reports-"
"""Prefix of the names of topics with reports on dead letters."""

CONTRACTS: Final = f"{OURS}contract-"
"""Prefix of the names of contract topics."""

SENSORS: Final = "Sensor-"
"""Prefix of the name that stands for a Sensor where names of dead letters have a Trigger
(`of_sensor`)."""

SHARDS: Final = f"{OURS}shard-"
"""Prefix of the names of shards' consumer groups."""

SOURCES: Final = "knative-kafka-source-"
"""Prefix of the names of consumer groups of KafkaSources that don't name a group themselves."""

MAX_LABEL_LENGTH: Final = 63
"""Kubernetes' limit for a name that is part of a host name, in characters."""

NAME_TEMPLATES: Final = "KNAFKA_NAME_TEMPLATES"
"""Environment variable of dead-letter jobs: the installation's templates of names, one per line."""

PLACEHOLDER: Final = re.compile(r"\{\{\s*\.(Namespace|Name|UID)\s*\}\}")
"""A placeholder in a template of names."""

_match_short_name = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,28}[a-z0-9])?").fullmatch
"""Matches a name of at most 30 characters that can be part of a Kubernetes name."""
_match_topic_name = re.compile(r"[A-Za-z0-9._-]{1,249}").fullmatch
"""Matches every name of a topic, and also `.` and `..`, which Kafka refuses."""


def broker_topic(namespace: str, broker: str) -> str:
    """Return the name of a Broker's topic by upstream's default template."""
    return f"{BROKERS}{namespace}-{broker}"


def possible_splits(joined: str) -> Iterator[tuple[str, str]]:
    """Yield every pair of namespace and name that, joined with a dash, makes this text: `a-b-c` may
    be `a` and `b-c`, or `a-b` and `c`."""
    for position, character in enumerate(joined):
        if character == "-" and 0 < position < len(joined) - 1:
            yield joined[:position], joined[position + 1 :]


def trigger_group(namespace: str, trigger: str) -> str:
    """Return the consumer group of a Trigger by upstream's default template."""
    return f"{TRIGGERS}{namespace}-{trigger}"


def distinct_broker_topic(namespace: str, broker: str) -> str:
    """Return the topic of a Broker whose usual topic belongs to another owner; it ends in a
    digest."""
    return _distinct_name(BROKERS, namespace, broker)


def is_broker_topic(topic: str | None, namespace: str, broker: str) -> bool:
    """Whether this Broker can have this topic as its own: the topic has the Broker's usual name, or
    the Broker's name with a digest. False for None (no topic)."""
    return topic in (broker_topic(namespace, broker), distinct_broker_topic(namespace, broker))


def distinct_trigger_group(namespace: str, trigger: str) -> str:
    """Return the consumer group of a Trigger whose usual group belongs to another owner; it ends in
    a digest."""
    return _distinct_name(TRIGGERS, namespace, trigger)


def is_trigger_group(group: str | None, namespace: str, trigger: str) -> bool:
    """Whether this Trigger can have this consumer group: the group has the Trigger's usual name, or
    the Trigger's name with a digest. False for None (no group)."""
    return group in (trigger_group(namespace, trigger), distinct_trigger_group(namespace, trigger))


def channel_topic(namespace: str, channel: str) -> str:
    """Return the topic of a KafkaChannel: its name by upstream's default template or, where Kafka
    allows no name of that length, a shorter one that ends in a digest. Namespaces have no dots, so
    no two channels share a topic."""
    name = f"{CHANNELS}{namespace}.{channel}"
    return name if len(name) <= MAX_LENGTH else _distinct_name(CHANNELS, namespace, channel)


def of_channel(channel: str) -> str:
    """Return the name that stands for a KafkaChannel where names have a Broker. No Broker has
    it, as Kubernetes names have no capitals."""
    return f"KafkaChannel-{channel}"


def of_source(source: str) -> str:
    """Return the name that stands for a KafkaSource where names have a Broker. No Broker has it,
    as Kubernetes names have no capitals."""
    return f"KafkaSource-{source}"


def of_sensor(sensor: str) -> str:
    """Return the name that stands for a Sensor where names of dead letters have a Trigger. No
    Trigger has it, as Kubernetes names have no capitals."""
    return f"{SENSORS}{sensor}"


def subscription_group(namespace: str, channel: str, uid: str) -> str:
    """Return the consumer group of a Subscription (KN-CHN-11); the UID makes it unique."""
    name = f"kafka.{namespace}.{channel}.{uid}"
    return name if len(name) <= MAX_LENGTH else f"kafka.{namespace}.{uid}"


def child(parent: str, suffix: str) -> str:
    """Return the name of an object that belongs to the object named `parent`: `parent` and `suffix`
    joined, in a form that can be part of a host name.

    `parent` is a Kubernetes name. If the two are too long together, or `parent` has dots or begins
    with a digit, `parent` is changed and gets a digest, so that no two parents share a child's
    name.
    """
    if len(parent + suffix) <= MAX_LABEL_LENGTH and "." not in parent and parent[0].isalpha():
        return parent + suffix
    ending = f"-{short_digest(parent)}{suffix}"
    beginning = f"k-{parent.replace('.', '-')}"  # names of Services begin with a letter
    return beginning[: MAX_LABEL_LENGTH - len(ending)].rstrip("-") + ending


def dead_letter_topic(namespace: str, broker: str, trigger: str) -> str:
    """Return the topic in which a Trigger's dead letters are stored; different arguments never give
    the same name."""
    return _distinct_name(DEAD_LETTERS, namespace, broker, trigger)


def broker_dead_letter_topic(namespace: str, broker: str) -> str:
    """Return the dead-letter topic of a Broker itself, for records that hold no event."""
    return dead_letter_topic(namespace, broker, "")


def replay_topic(namespace: str, broker: str, trigger: str) -> str:
    """Return the topic from which a Trigger's dead letters are sent again; its consumer group has
    the same name."""
    return _distinct_name(REPLAYS, namespace, broker, trigger)


def reports_topic(namespace: str, broker: str) -> str:
    """Return the topic with the last report on a Broker's dead letters, at the key `report_key`."""
    return _distinct_name(REPORTS, namespace, broker)


def report_key(namespace: str, archive: str) -> bytes:
    """Return the record key of a DeadLetterArchive's last report."""
    return f"{namespace}/{archive}".encode()


def contract_topic(namespace: str, broker: str) -> str:
    """Return the topic with the contract of a Broker's shared dispatchers."""
    return _distinct_name(CONTRACTS, namespace, broker)


def shard_group(namespace: str, broker: str, number: int) -> str:
    """Return the name of a Broker's shard with this number, and of the consumer group of its
    pods."""
    return _distinct_name(SHARDS, namespace, broker, str(number))


def shard_members_group(shard: str, topic: str) -> str:
    """Return the consumer group by which a shard's processes divide a topic's partitions. Each
    topic has its own group, as members that read different topics would wait for each other."""
    return f"{shard}.{topic}"


def sensor_topic(namespace: str, bus: str, sensor: str, purpose: str) -> str:
    """Return a topic of one Sensor of the Broker or KafkaChannel `bus` (BUS-10, BUS-11); `purpose`
    is trigger, action or changelog."""
    name = f"{namespace}-{bus}-{sensor}-{purpose}"
    return (
        name if len(name) <= MAX_LENGTH else _distinct_name(OURS, namespace, bus, sensor, purpose)
    )


def distinct_sensor_topic(namespace: str, bus: str, sensor: str, purpose: str) -> str:
    """Return a topic of one Sensor whose usual topic belongs to another owner; it ends in a
    digest. The arguments are those of `sensor_topic`."""
    return _distinct_name(OURS, namespace, bus, sensor, purpose)


def is_sensor_topic(topic: str | None, namespace: str, bus: str, sensor: str, purpose: str) -> bool:
    """Whether this Sensor can have this topic for this purpose: the topic has the usual name, or
    the name with a digest. False for None (no topic)."""
    owner = namespace, bus, sensor, purpose
    return topic in (sensor_topic(*owner), distinct_sensor_topic(*owner))


def sensor_group(namespace: str, sensor: str) -> str:
    """Return the consumer group of a Sensor (BUS-S14)."""
    return f"{namespace}-{sensor}"


def distinct_sensor_group(namespace: str, sensor: str) -> str:
    """Return the consumer group of a Sensor whose usual group belongs to another owner; it ends in
    a digest."""
    # "sensor" tells whose group it is: unlike `TRIGGERS`, the prefix `OURS` doesn't.
    return _distinct_name(OURS, namespace, sensor, "sensor")


def is_sensor_group(group: str | None, namespace: str, sensor: str) -> bool:
    """Whether this Sensor can have this consumer group: the group has the Sensor's usual name, or
    the Sensor's name with a digest. False for None (no group)."""
    return group in (sensor_group(namespace, sensor), distinct_sensor_group(namespace, sensor))


def sensor_trigger(sensor: str, trigger: str) -> str:
    """Return the name of the Trigger that delivers the firings of a Sensor's trigger. If the name
    `trigger` is too long, or can't be part of a Kubernetes object's name, its digest stands for
    it."""
    if _match_short_name(trigger) is None:
        trigger = short_digest(trigger)
    return child(sensor, f"-{trigger}")


def is_dead_letter_topic(topic: str, namespace: str, broker: str) -> bool:
    """Whether a topic holds dead letters of this Broker, judged by the topic's name.

    The digest in the name decides, as dashes alone don't show where a part ends. The result is
    False for a topic whose name was cut to Kafka's limit.
    """
    prefix = f"{DEAD_LETTERS}{namespace}-{broker}-"
    # What is between the prefix and the digest: empty in the Broker's own dead-letter topic.
    trigger = topic.removeprefix(prefix).rpartition("-")[0]
    return topic.startswith(prefix) and dead_letter_topic(namespace, broker, trigger) == topic


def archive_group(namespace: str, archive: str, *table_ids: str) -> str:
    """Return the consumer group whose offsets say which dead letters a DeadLetterArchive has in its
    tables. `table_ids` identify the tables: an archive with other tables has another group."""
    return _distinct_name(f"{OURS}archive-", namespace, archive, *table_ids)


def archive_lease(namespace: str, root: str) -> str:
    """Return the name of the Lease for the tables in the folder `root` (its URL); all archives of
    one namespace that write there share it."""
    return f"{OURS}archive-{hashlib.sha256(f'{namespace}/{root}'.encode()).hexdigest()[:20]}"


def render_template(template: str, namespace: str, name: str, uid: str = "") -> str:
    """Return the name that a template makes of an object's namespace, name and UID. Empty: the
    template uses one of these that is empty, such as a UID that isn't known yet."""
    values = {"Namespace": namespace, "Name": name, "UID": uid}
    if not all(values[placeholder] for placeholder in PLACEHOLDER.findall(template)):
        return ""
    return PLACEHOLDER.sub(lambda match: values[match[1]], template)


def is_topic(name: str) -> bool:
    """Whether Kafka accepts this as a topic's name."""
    return _match_topic_name(name) is not None and name not in (".", "..")


def _distinct_name(prefix: str, *parts: str) -> str:
    """Return a name of this prefix, the parts joined by dashes, and a digest of all parts, which
    makes the name distinct. The joined parts are cut if the name would exceed Kafka's limit."""
    digest = short_digest("/".join(parts))
    readable = "-".join(parts)[: MAX_LENGTH - len(prefix) - len(digest) - 1]
    return f"{prefix}{readable}-{digest}"


def short_digest(text: str) -> str:
    """Return the first 10 hexadecimal digits of a text's SHA-256 digest."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]
