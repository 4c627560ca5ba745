"""Desired: builds topics and contract entries from declared Brokers.

    Broker, ConfigMap, Defaults -> Topic, Ingress

An `Ingress` is a Broker's entry in the contract: by it a receiver knows which events to accept, and
where to append them. Pure. Not here: a Trigger's entry (`egresses`), and checking a topic's owner,
which happens when the topic is created, since different objects can get the same name.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from knafka.core import names
from knafka.core.contract import (
    MAX_RECORD_BYTES,
    BackoffPolicy,
    Delivery,
    Ingress,
    Kafka,
    event_limit,
)
from knafka.core.errors import InvalidDocument
from knafka.core.filters.declared_filters import Exact, Filter
from knafka.core.sensor import records
from knafka_operator.installation.naming import (
    DEFAULT_NAMING,
    NamedObject,
    NameKind,
    NameTaken,
    Naming,
)
from knafka_operator.kafka import dead_letter_topics, kafka_settings
from knafka_operator.kafka.dead_letter_topics import (
    DEFAULT_RETENTION,
    MAX_MESSAGE_BYTES,
    RETENTION_KEY,
)
from knafka_operator.model.family import CHANNELS, family_of
from knafka_operator.model.resources import (
    CORE,
    EXTERNAL_TOPIC,
    TOPIC_STATUS,
    Broker,
    ConfigMap,
    Resource,
    annotation_path,
    parse_whole_number,
)
from knafka_operator.model.topics import REPLICATION_KEY, Topic

MAX_REPLICATION: Final = 32_767
"""Largest replication factor; Kafka stores it in 16 bits."""

DEFAULT_DELIVERY: Final = Delivery(
    retry=10, backoff_policy=BackoffPolicy.EXPONENTIAL, backoff_delay=0.2
)
"""Upstream's `default-br-config` (KN-DLV-01)."""

MIN_IN_SYNC: Final = "min.insync.replicas"
"""Topic setting: how many replicas must have a record before it is acknowledged."""
LOG_APPEND_TIME_CONFIG: Final[Mapping[str, str]] = {"message.timestamp.type": "LogAppendTime"}
"""Topic setting that gives records the log's time instead of a sender's."""

# Keys of a Broker's ConfigMap.
PARTITIONS_KEY: Final = "default.topic.partitions"
"""Number of partitions of a new topic; in the Broker's `status.annotations`, of its topic."""
TOPIC_CONFIG: Final = "default.topic.config."
"""Prefix of the keys that are settings of new topics."""
BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
"""Kafka's servers, `host:port`, comma-separated; also a key of the Broker's `status.annotations`.
"""
SECRET_NAME_KEY: Final = "auth.secret.ref.name"
"""Name of the Secret with the credentials for Kafka."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """Default values for Brokers and Triggers. `kafka` is the connection that a Broker has without
    a ConfigMap of its own."""

    kafka: Kafka
    partitions: int = 10
    """Number of partitions of a new topic."""
    replication: int = 3
    """Number of replicas of a new topic."""
    declares_replication: bool = False
    """Whether `replication` was declared, and isn't the built-in default."""
    max_replication: int = MAX_REPLICATION
    """Upper limit of any topic's replication factor; 1 for a Kafka with a single node."""
    topic_config: Mapping[str, str] = field(default_factory=dict)
    """Settings of new topics, as in Kafka; declared ones take precedence."""
    delivery: Delivery = DEFAULT_DELIVERY
    """Delivery of Triggers if neither they nor their Broker declare one."""
    dead_letter_retention: float | None = DEFAULT_RETENTION
    """Seconds for which dead-letter topics keep records by default; None: for ever."""


@dataclass(frozen=True, slots=True)
class SensorActions:
    """Where the firings (the events that are sent when a condition holds) of one of a Sensor's
    triggers are: in which topic, and under which trigger name."""

    topic: Topic
    trigger: str
    """The trigger's name in the Sensor."""

    @property
    def filters(self) -> tuple[Filter, ...]:
        """Return the filter that passes only this trigger's firings."""
        return (Exact(exact={records.TRIGGER: self.trigger}),)


@dataclass(frozen=True, slots=True)
class NamesOfOthers:
    """The set of topic or group names that one object may not have; supports only `in`."""

    uids: Mapping[str, str]
    """UID of the object that has claimed each name."""
    uid: str
    """UID of the one object, whose own names are not in the set."""
    applications: Container[str] = frozenset()
    """Names that applications use."""

    def __contains__(self, name: object) -> bool:
        """Whether another object has claimed this name, or an application uses it."""
        if not isinstance(name, str):
            return False
        # A name that nobody has claimed counts as the object's own.
        return name in self.applications or self.uids.get(name, self.uid) != self.uid


def config_reference(broker: Broker) -> tuple[str, str] | None:
    """Return namespace and name of the Broker's ConfigMap; None if it declares none. Raises
    `InvalidDocument` if it names an object of another kind."""
    reference = broker.spec.config
    if reference is None:
        return None
    if (reference.api_version, reference.kind) != (CORE, "ConfigMap"):
        raise InvalidDocument(
            "spec.config.kind",
            f"invalid value: {reference.api_version} {reference.kind}: want v1 ConfigMap",
        )
    return reference.namespace or broker.metadata.namespace, reference.name


def defaults_with_config(config: ConfigMap | None, defaults: Defaults) -> Defaults:
    """Return `defaults` with the values of a Broker's ConfigMap in place of its own, including
    `bootstrap.servers`; `config` None: the Broker has no ConfigMap, so nothing is replaced.

    Raises `InvalidDocument` with a path such as `data.default.topic.partitions`.
    """
    data = {} if config is None else config.data
    kafka = defaults.kafka
    if BOOTSTRAP_SERVERS in data:
        kafka = kafka.model_copy(
            update={"bootstrap_servers": _bootstrap_servers(data[BOOTSTRAP_SERVERS])}
        )
    return replace(
        defaults,
        kafka=kafka_settings.with_config_settings(kafka, data),
        partitions=_positive_count(data, PARTITIONS_KEY, defaults.partitions, 2**31 - 1),
        replication=_positive_count(data, REPLICATION_KEY, defaults.replication, MAX_REPLICATION),
        declares_replication=defaults.declares_replication or REPLICATION_KEY in data,
        topic_config={**defaults.topic_config, **_topic_config(data)},
        dead_letter_retention=(
            dead_letter_topics.parse_retention(data[RETENTION_KEY], f"data.{RETENTION_KEY}")
            if RETENTION_KEY in data
            else defaults.dead_letter_retention
        ),
    )


def secret_reference(config: ConfigMap | None) -> tuple[str, str] | None:
    """Return namespace and name of the Secret with credentials for Kafka that a ConfigMap names.
    The namespace is the ConfigMap's own. None: there is no ConfigMap, or it names no Secret."""
    if config is None:
        return None
    name = config.data.get(SECRET_NAME_KEY, "").strip()
    return (config.metadata.namespace, name) if name else None


def broker_topic(
    broker: Broker,
    config: ConfigMap | None,
    defaults: Defaults,
    names_of_others: Container[str] = frozenset(),
    naming: Naming = DEFAULT_NAMING,
) -> Topic:
    """Return the desired topic of a Broker, with the settings of its ConfigMap `config` (None: it
    has none) over `defaults`. The topic's name is that of the Broker's external topic, else the one
    in its status, else the one that `naming` gives.

    `names_of_others` has the names of other Brokers' topics. Whether the Broker may use an external
    topic is checked in `brokers.external_topics`. Raises `NameTaken` and `InvalidDocument`.
    """
    merged_defaults = defaults_with_config(config, defaults)
    annotations = broker.metadata.annotations
    external = annotations.get(EXTERNAL_TOPIC)
    if external is not None:
        path = annotation_path(EXTERNAL_TOPIC)
        name = external
    else:
        path = "metadata.name"
        # The topic keeps its name if the template changes (KN-BRK-19). A name in the status that
        # no template gives was an external topic's, or was written by somebody else.
        name = kept_or_new_name(
            NameKind.BROKER_TOPIC, broker, TOPIC_STATUS, names_of_others, naming
        )
    if not names.is_topic(name):
        raise InvalidDocument(
            path,
            f"invalid value: {name:.300}: want a topic's name, at most {names.MAX_LENGTH} of "
            "A-Z, a-z, 0-9, '.', '_' and '-'",
        )
    replication = min(merged_defaults.replication, merged_defaults.max_replication)
    return Topic(
        name=name,
        partitions=merged_defaults.partitions,
        replication=replication,
        config=_durable_config(merged_defaults.topic_config, replication),
        external=external is not None,
    )


def kept_or_new_name(
    kind: NameKind, owner: Resource, key: str, names_of_others: Container[str], naming: Naming
) -> str:
    """Return the name of `owner`'s topic or group: the one in its status under `key`, if `naming`
    accepts it as the owner's own, else the one that `naming` gives to a new topic or group.

    If another object has that name (`names_of_others`): a Broker's topic or a Trigger's group that
    has its default name gets this name with a digest; for all others, `NameTaken` is raised. Raises
    `InvalidDocument` for a new name that Kafka doesn't accept."""
    metadata = owner.metadata
    named_owner = NamedObject(metadata.namespace, metadata.name, metadata.uid)
    recorded_name = owner.status.annotations.get(key)
    name = (
        recorded_name
        if recorded_name and naming.is_own(kind, recorded_name, named_owner)
        else naming.name(kind, named_owner)
    )
    if name not in names_of_others:
        return name
    owner_identity = named_owner.namespace, named_owner.name
    if kind is NameKind.BROKER_TOPIC and names.is_broker_topic(name, *owner_identity):
        return names.distinct_broker_topic(*owner_identity)
    if kind is NameKind.TRIGGER_GROUP and names.is_trigger_group(name, *owner_identity):
        return names.distinct_trigger_group(*owner_identity)
    is_group = kind is NameKind.TRIGGER_GROUP
    raise NameTaken(
        "GroupTaken" if is_group else "TopicTaken",
        f"{'group' if is_group else 'topic'} {name} belongs to another object, or to an "
        f"application: have {kind.value} in ConfigMap config-kafka-features give each object a "
        "name of its own, by {{ .Namespace }} and {{ .Name }}, or by {{ .UID }}",
    )


def _durable_config(config: Mapping[str, str], replication: int) -> Mapping[str, str]:
    """Return a topic's settings: those in `config`, which were declared, over Knafka's defaults. By
    these, records get the log's time, and an acknowledged record is on two replicas if the topic
    has three or more."""
    # With fewer than three replicas, a topic that needs two couldn't be written while one is down.
    durability = {MIN_IN_SYNC: "2"} if replication >= 3 else {}
    return {**durability, **LOG_APPEND_TIME_CONFIG, **config}


def broker_ingress(
    broker: Broker,
    topic: Topic,
    config: Mapping[str, str],
    defaults: Defaults,
    hosts: tuple[str, ...] = (),
) -> Ingress:
    """Return the entry of a Broker or KafkaChannel in its receiver's contract. `config` has the
    topic's settings in Kafka; `hosts` are a channel's own host names, none for a Broker."""
    return Ingress(
        namespace=broker.metadata.namespace,
        broker=broker.metadata.name,
        kind="KafkaChannel" if family_of(broker.kind) is CHANNELS else "Broker",
        hosts=hosts,
        topic=topic.name,
        # A receiver has no consumer, so consumer settings needn't change its entry.
        kafka=defaults.kafka.model_copy(update={"consumer": {}}),
        **ingress_limits(config),
    )


def ingress_limits(config: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the fields of an Ingress that limit the size of an event and of a batch, in bytes;
    empty if `config`, the topic's settings in Kafka, has no limit."""
    limit = config.get(MAX_MESSAGE_BYTES, "")
    if not limit.isdecimal():
        return {}
    return {"max_batch_bytes": int(limit), "max_event_bytes": event_limit(int(limit))}


def max_record_bytes(config: Mapping[str, str]) -> int:
    """Return the most bytes that a record may have in a topic with the settings `config`; if they
    don't say, Kafka's default (`MAX_RECORD_BYTES`)."""
    limit = config.get(MAX_MESSAGE_BYTES, "")
    return int(limit) if limit.isdecimal() else MAX_RECORD_BYTES


def with_record_limit_in_kafka(topic: Topic, config: Mapping[str, str]) -> Topic:
    """Return the desired topic, with the record size limit that the topic has in Kafka if that is
    larger than the declared one; `config` has its settings in Kafka. Receivers accept events up to
    that limit (`ingress_limits`), so topics of dead letters and of Sensors need the same limit."""
    limit = max_record_bytes(config)
    if limit <= max_record_bytes(topic.config):
        return topic
    return replace(topic, config={**topic.config, MAX_MESSAGE_BYTES: str(limit)})


def _positive_count(data: Mapping[str, str], key: str, default: int, maximum: int) -> int:
    """Return the number under `key` in a ConfigMap's `data`; without the key, `default`. Raises
    `InvalidDocument` unless the declared number is from 1 to `maximum`."""
    return parse_whole_number(data[key], f"data.{key}", 1, maximum) if key in data else default


def _topic_config(data: Mapping[str, str]) -> Mapping[str, str]:
    """Return the topic settings in a ConfigMap's data, without their prefix. Raises
    `InvalidDocument` for a cleanup policy that would lose events."""
    config = {
        key.removeprefix(TOPIC_CONFIG): value.strip()
        for key, value in data.items()
        if key.startswith(TOPIC_CONFIG)
    }
    kafka_settings.check_cleanup_policy(config, f"data.{TOPIC_CONFIG}")
    return config


def _bootstrap_servers(declared: str) -> str:
    """Return the comma-separated servers without spaces. Raises `InvalidDocument` if there is
    none."""
    servers = [server.strip() for server in declared.split(",") if server.strip()]
    if not servers:
        raise InvalidDocument(f"data.{BOOTSTRAP_SERVERS}", "want host:port, comma-separated")
    return ",".join(servers)
