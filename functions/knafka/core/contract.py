"""The contract between control plane and data plane: JSON in a function's environment.

`Ingress` tells a receiver where one Broker's events go; `Egress` tells a dispatcher everything
about one Trigger. The operator (or the local mode) writes them, the functions only read them, so
a change of a Trigger is a new Revision. Field names are camelCase in JSON and snake_case here.

Not here: secrets (they are mounted as files, `Kafka.secret_path` names the folder), anything
that changes while a Revision runs, and unresolved references: every destination is a URL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, Field

from knafka.core import names
from knafka.core.documents import AbsoluteUrl, Duration, Model, parse_json_array, problem
from knafka.core.filters.declared_filters import AttributesFilter, Filter

MAX_EVENT_BYTES: Final = 1_000_000
"""Largest event a receiver takes by default, headers included: Kafka's own limit is 1 MiB."""
MAX_RECORD_BYTES: Final = 1_048_588
"""Kafka's max.message.bytes unless a topic has its own: key, value and headers together."""

DEAD_LETTER_TOPIC_CONFIG: Final[Mapping[str, str]] = {
    # Not `compact`: compaction would take the dead letter of an event without data for a tombstone,
    # and delete it (CE-K3).
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""Configuration of dead-letter topics whose records are kept for ever; the operator may set a
retention."""


class BackoffPolicy(StrEnum):
    """How the wait grows from one retry to the next."""

    LINEAR = "linear"
    """The wait before the n-th retry is n times the delay."""
    EXPONENTIAL = "exponential"
    """The wait before the first retry is the delay, and is doubled for each further one."""


class Delivery(Model):
    """How often and how long to attempt a delivery (KN-DLV-01..06); the defaults are those of an
    empty delivery spec."""

    retry: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] = 0
    """Attempts after the first one."""
    backoff_policy: BackoffPolicy = BackoffPolicy.EXPONENTIAL
    backoff_delay: Annotated[Duration, Field(ge=0)] = 1.0
    """Seconds; upstream's default (BROKER_DEFAULT_BACKOFF_DELAY_MS)."""
    timeout: Annotated[Duration, Field(gt=0)] = 600.0
    """Seconds for one attempt, connection included; upstream's default."""
    retry_after_max: Annotated[Duration, Field(ge=0)] | None = None
    """Seconds; None or 0: a subscriber's Retry-After is ignored (KN-DLV-04)."""
    format: Literal["json", "binary"] | None = None
    """Content mode of requests (`json`: structured); None: the record's own (KN-DLV-05)."""


class Order(StrEnum):
    """Which later events wait while an event is slow or fails."""

    KEY = "key"
    """Later events of the same key wait."""
    PARTITION = "partition"
    """All later events of the same partition wait (upstream's `ordered`)."""
    NONE = "none"
    """Nothing waits (upstream's `unordered`)."""


class RateUnit(StrEnum):
    """Unit of time of a rate limit, in Argo's words."""

    SECOND = "Second"
    MINUTE = "Minute"
    HOUR = "Hour"


_SECONDS_PER_UNIT: Final = {RateUnit.SECOND: 1.0, RateUnit.MINUTE: 60.0, RateUnit.HOUR: 3600.0}


class RateLimit(Model):
    """The most attempts that a subscriber gets per unit of time (BUS-S13)."""

    unit: RateUnit = RateUnit.SECOND
    requests_per_unit: Annotated[int, Field(gt=0, le=2**31 - 1)]

    @property
    def interval(self) -> float:
        """Least seconds between the starts of two attempts."""
        return _SECONDS_PER_UNIT[self.unit] / self.requests_per_unit


class Kafka(Model):
    """How to connect to Kafka."""

    bootstrap_servers: Annotated[str, Field(min_length=1)]
    """host:port, comma-separated."""
    secret_path: str | None = None
    """Folder of the mounted Secret; None: plaintext, no authentication."""
    protocol: str | None = None
    """Security protocol where the mounted Secrets name none; a KafkaSource declares it."""
    consumer: dict[str, str] = Field(default_factory=dict)
    """Settings of consumers; only those that `client_settings.CONSUMER` allows."""
    producer: dict[str, str] = Field(default_factory=dict)
    """Settings of producers; only those that `client_settings.PRODUCER` allows."""

    def __hash__(self) -> int:
        """Hash only the servers and the Secret's folder, as dicts can't be hashed."""
        return hash((self.bootstrap_servers, self.secret_path))


class Sink(Model):
    """A resolved destination."""

    url: AbsoluteUrl
    ca_certs: str | None = None
    """PEM to trust for this destination beside the system's."""
    audience: str | None = None
    """Audience of the token that the destination wants (OIDC); None: it wants none."""


def event_limit(max_batch_bytes: int) -> int:
    """Return the most bytes that an event may have in a topic that takes batches of at most
    `max_batch_bytes`. This is the fraction `MAX_EVENT_BYTES` / `MAX_RECORD_BYTES` of the batch, as
    a record holds more than its event."""
    return max(1, max_batch_bytes * MAX_EVENT_BYTES // MAX_RECORD_BYTES)


class TopicSettings(Model):
    """Settings with which a missing topic is created."""

    partitions: Annotated[int, Field(gt=0)] = 1
    replication: Annotated[int, Field(ge=-1)] = -1
    """-1: the cluster's default."""
    config: dict[str, str] = Field(default_factory=dict)


AuthorizationMode: TypeAlias = Literal["allow-all", "deny-all", "allow-same-namespace"]
"""Which senders are admitted if no policy applies, in upstream's words."""


class Policy(Model):
    """An EventPolicy that applies to a Broker or KafkaChannel."""

    subjects: tuple[str, ...] = ()
    """Senders, by the subject of their tokens; a final `*` matches any ending."""
    filters: tuple[Filter, ...] = ()
    """Filters that an event must all match; empty: every event does."""


class Ingress(Model):
    """The contract of a receiver for one Broker, KafkaChannel or KafkaSink."""

    namespace: str
    broker: str
    """Name of the Broker, KafkaChannel or KafkaSink."""
    kind: Literal["Broker", "KafkaChannel", "KafkaSink"] = "Broker"
    hosts: tuple[str, ...] = ()
    """Host names of its own, in lower case and without a port: `/` at such a host is the same as
    its path (KN-CHN-11)."""
    topic: str
    content_mode: Literal["binary", "structured"] = "binary"
    """Content mode of its events in the topic, whatever mode they came in."""
    kafka: Kafka
    max_event_bytes: Annotated[int, Field(gt=0)] = MAX_EVENT_BYTES
    """Most bytes of body and attributes; a larger event is answered with 413 (KN-DP-12)."""
    max_batch_bytes: Annotated[int, Field(gt=0)] | None = None
    """Largest batch of records that Kafka takes for this topic (max.message.bytes); None: Kafka's
    default, which is more than a writer puts into one batch."""
    audience: str | None = None
    """Audience of the token that senders must show (OIDC); None: everybody may send."""
    policies: tuple[Policy, ...] = ()
    """If there are any, one of them must admit the sender and the event. Without an `audience` they
    have no effect."""
    default_authorization: AuthorizationMode = "allow-same-namespace"
    """Who may send if there are no policies. Without an `audience` it has no effect."""
    encrypted_only: bool = False
    """Whether events that came over an unencrypted connection are refused."""

    @property
    def path(self) -> str:
        """Path of its requests: `/{namespace}/{broker}` (KN-BRK-20)."""
        return f"/{self.namespace}/{self.broker}"


class Receiver(Model):
    """The contract of a receiver that reads its Ingresses from a topic, so that a changed Ingress
    needs no new Revision: all KafkaChannels of one Kafka Secret (CHN-11, CHN-23), or one Broker."""

    kafka: Kafka
    """Kafka of the contract topic and of all Ingresses; of an Ingress's own `kafka` only `producer`
    counts."""
    contract_topic: Annotated[str, Field(min_length=1)]
    """A compacted topic with one partition: the key is an Ingress's path, the value an `Ingress` or
    a tombstone."""
    path: str | None = None
    """Path of the only Ingress that the receiver serves; None: it serves all."""


class Conversion(Model):
    """Settings for the conversion of a KafkaSource's records to events (`foreign_records`)."""

    source: str
    """Part of a converted event's `source` before `#TOPIC`."""
    key_type: Literal["string", "int", "float", "byte-array"] = "string"
    """How a record's key is converted to text (`foreign_records.key_text`)."""
    extensions: dict[str, str] = Field(default_factory=dict)
    """Attributes that every converted event gets, in place of its own of these names
    (`ceOverrides`)."""


class Egress(Model):
    """The contract of a dispatcher for one Trigger, Subscription or KafkaSource."""

    namespace: str
    broker: str
    """Name of its Broker or KafkaChannel; for a KafkaSource, the source's own name."""
    trigger: str
    """Name of the Trigger, Subscription or KafkaSource."""
    kind: Literal["Trigger", "Subscription", "KafkaSource"] = "Trigger"
    topic: str
    more_topics: tuple[str, ...] = ()
    """Further topics that a KafkaSource reads with the same group."""
    conversion: Conversion | None = None
    """How records are converted to events; None: they hold events."""
    group: str
    """The consumer group whose committed offsets say what was delivered."""
    dead_letter_topic: str
    dead_letter_settings: TopicSettings = TopicSettings(config=dict(DEAD_LETTER_TOPIC_CONFIG))
    """Settings with which the dispatcher creates the dead-letter topic when it first needs it."""
    shares_topic: bool = True
    """Whether other Triggers of the same Broker or KafkaChannel read `topic` too: then a record
    without an event gets one dead letter for all, in `broker_dead_letter_topic`."""
    broker_dead_letter_settings: TopicSettings | None = None
    """Settings of `broker_dead_letter_topic`; None: `dead_letter_settings`."""
    kafka: Kafka
    service_account: str | None = None
    """Service account in `namespace` whose tokens are shown to destinations with an audience; None:
    no destination has one, or the account doesn't exist yet."""
    subscriber: Sink
    reply_topic: str | None = None
    """Topic of a Trigger's replies if it isn't `topic`: in a replay, the Broker's topic."""
    reply: Sink | None = None
    """Destination of a Subscription's replies; None: they are discarded (KN-SUB-02)."""
    dead_letter_sink: Sink | None = None
    filter: AttributesFilter = AttributesFilter()
    filters: tuple[Filter, ...] = ()
    """ANDed; when there are any, `filter` is ignored (KN-TRG-10)."""
    delivery: Delivery = Delivery()
    order: Order = Order.KEY
    max_in_flight: Annotated[int, Field(gt=0, le=10_000)] = 100
    """Most attempts under way at once in one dispatcher; eventing-kafka-broker's fixed pool has
    100."""
    batch: bool = False
    """Whether the data of its events, which are arrays of events, are sent as JSON batches: a
    Sensor's actions in batched mode. A dead letter sink gets the events themselves."""
    rate_limit: RateLimit | None = None
    """Attempts beyond the limit wait; None: there is no limit."""
    record_position: bool = True
    """Whether delivered events get the attributes `knativekafkapartition` and
    `knativekafkaoffset`."""
    at_most_once: bool = False
    """Whether an event's offset is committed before its first attempt begins (BUS-5, BUS-S7): then
    a crash loses it, and repeats nothing."""

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that the group reads; their order determines the partitions' numbers
        (`numbering`)."""
        return (self.topic, *self.more_topics)

    @property
    def broker_dead_letter_topic(self) -> str | None:
        """Topic of dead letters of records without an event; None: they go to
        `dead_letter_topic`, the Trigger's own."""
        if not self.shares_topic:
            return None
        return names.broker_dead_letter_topic(self.namespace, self.name_of_broker)

    @property
    def needs_tokens(self) -> bool:
        """Whether any destination of the Egress has an audience, so that requests to that
        destination need a token."""
        sinks = (self.subscriber, self.reply, self.dead_letter_sink)
        return any(sink is not None and sink.audience is not None for sink in sinks)

    @property
    def name_of_broker(self) -> str:
        """The name that the Egress's Broker has in the names of topics and in dead letters; for a
        KafkaChannel or KafkaSource, the name that stands for it there."""
        if self.kind == "KafkaSource":
            return names.of_source(self.broker)
        return names.of_channel(self.broker) if self.kind == "Subscription" else self.broker


class Shard(Model):
    """Many Egresses of one Broker in one dispatcher (docs/decisions/0018-shared-dispatchers.md).

    The dispatcher reads its Egresses from a topic, so that a changed Egress needs no new Revision
    (docs/decisions/0019-contract-topic.md).
    """

    group: Annotated[str, Field(min_length=1)]
    """The shard's name, and the consumer group by which its pods divide the partitions among them;
    delivered offsets are committed for each Egress's own group."""
    kafka: Kafka
    """Kafka of the contract topic and of all Egresses, whose own `kafka` doesn't count."""
    contract_topic: Annotated[str, Field(min_length=1)]
    """A compacted topic with one partition: the key is an Egress's group, the value a
    `SharedEgress` or a tombstone."""


def _check_at_least_once(egress: Egress) -> Egress:
    """Return the Egress unchanged; raise an error if its events are to be delivered at most once,
    which a shared dispatcher can't do."""
    if egress.at_most_once:
        raise problem("a shared dispatcher delivers at least once: want no atMostOnce")
    return egress


class SharedEgress(Model):
    """An Egress and the shard that delivers it: the value of a record in a contract topic."""

    shard: Annotated[str, Field(min_length=1)]
    """`Shard.group`."""
    egress: Annotated[Egress, AfterValidator(_check_at_least_once)]


def parse_ingresses(text: str) -> Sequence[Ingress]:
    """Parse a receiver's contract, a JSON array of `Ingress`. Raises `InvalidDocument`."""
    return parse_json_array(Ingress, text)
