"""Channels: KafkaChannel and Subscription as declared, as far as Knafka reads them.

Unknown fields are refused, as in `resources`, with upstream's messages if it has any; parse with
`knafka.core.documents.parse`.

Not here: the defaults that a webhook writes into a document, and the fields that may not change
(`channels.admission`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from knafka.core.documents import Duration, problem
from knafka_operator.model.resources import (
    KNAFKA_PREFIX,
    Declared,
    DeliverySpec,
    Destination,
    KReference,
    Observed,
    Resource,
)

MESSAGING: Final = "messaging.knative.dev/v1"
"""The apiVersion of Subscriptions."""
KAFKA_CHANNEL_VERSIONS: Final = ("messaging.knative.dev/v1beta1", "messaging.knative.dev/v1")
"""The apiVersions of KafkaChannels; the API server stores the first (KN-CHN-10)."""
KAFKA_CHANNEL: Final = "KafkaChannel"
SUBSCRIPTION: Final = "Subscription"
CHANNEL: Final = "Channel"
"""The kind for which Knative Eventing creates a channel of another kind from a template."""

SUBSCRIBABLE: Final = "messaging.knative.dev/subscribable"
"""Annotation of a KafkaChannel: the version of `spec.subscribers`, always `v1` (KN-CHN-07)."""

ENTRY: Final = "entryOf"
"""Key in the metadata of a Subscription that stands for an entry of `spec.subscribers`: the
channel's name. The operator adds it in memory; no stored object has it."""
SENDS_AS: Final = "entrySendsAs"
"""Key beside `ENTRY`: the service account that the entry names, if a stored Subscription has the
entry's UID."""
PROMISE: Final = f"{KNAFKA_PREFIX}subscriber."
"""Prefix of a key of `status.annotations`; the UID of an entry of `spec.subscribers` follows. The
value has, as JSON, the annotations that the entry must keep, such as its dispatcher
(`channels.entries`). While this annotation exists, the entry's consumer group keeps its offsets."""
DECLARED: Final = f"{KNAFKA_PREFIX}declared-subscribers"
"""Key of `status.annotations`: UIDs of the entries that Knafka may have written."""

DEFAULT_CHANNEL_PARTITIONS: Final = 1
DEFAULT_CHANNEL_REPLICATION: Final = 1
DEFAULT_CHANNEL_RETENTION: Final = "PT168H"
"""Defaults of a KafkaChannel: partitions, replicas, and how long events are kept (seven days)."""

MAX_CHANNEL_RETENTION: Final = 9e15
"""Seconds; Kafka counts milliseconds in 63 bits."""

PEERS_CHANNEL_FINALIZER: Final = "kafkachannels.messaging.knative.dev"
"""The finalizer that eventing-kafka-broker puts on each KafkaChannel that it serves."""

_OMITTED_IF_EMPTY: Final = ("channel", "subscriber", "reply")
"""Fields of a Subscription's spec that count as missing if they hold an empty object."""


class Auth(Observed):
    """The service accounts whose tokens are sent with the events, if OIDC is on."""

    service_account_name: str | None = None
    """The entry's own account; None: it has none."""
    service_account_names: tuple[str, ...] = ()
    """The accounts of a sender that has several; empty: it has none."""


class SubscriberSpec(Declared):
    """An entry of a channel's `spec.subscribers`: one Subscription with all addresses resolved
    (KN-CHN-05).

    At least one of the two URIs is set. The dead letter sink in `delivery` is a URI, too.
    """

    uid: str = ""
    """UID of the Subscription."""
    generation: int = 0
    """The Subscription's generation when this entry was written."""
    name: str = ""
    """Name of the Subscription."""
    subscriber_uri: str | None = None
    """URL of the subscriber; None: the event itself is sent to the reply address."""
    subscriber_ca_certs: str | None = Field(default=None, alias="subscriberCACerts")
    """PEM certificates to trust in addition to the system's; None: none."""
    subscriber_audience: str | None = None
    """The audience of the tokens that are sent there; None: no tokens are sent."""
    reply_uri: str | None = None
    """URL to which replies are sent; None: they are discarded (KN-SUB-02)."""
    reply_ca_certs: str | None = Field(default=None, alias="replyCACerts")
    reply_audience: str | None = None
    delivery: DeliverySpec = DeliverySpec()
    """Delivery options; if any is set, none of the channel's applies (KN-CHN-06)."""
    auth: Auth | None = None
    """The service account whose tokens are sent to the destinations; None: no tokens are sent."""

    @model_validator(mode="after")
    def _require_address(self) -> Self:
        """Check that the entry has a subscriber or a reply address. Raises a validation error."""
        if not self.subscriber_uri and not self.reply_uri:
            raise problem("missing field(s)", "replyUri", "subscriberUri")
        return self


class KafkaChannelSpec(Declared):
    """The spec of a KafkaChannel: its topic, and the Subscriptions that it delivers to."""

    num_partitions: Annotated[int, Field(gt=0, le=2**31 - 1, strict=True)] = (
        DEFAULT_CHANNEL_PARTITIONS
    )
    replication_factor: Annotated[int, Field(gt=0, le=32_767, strict=True)] = (
        DEFAULT_CHANNEL_REPLICATION
    )
    # Empty in a channel that was stored before upstream had this field.
    retention_duration: Annotated[
        Duration,
        Field(ge=0, le=MAX_CHANNEL_RETENTION),
        BeforeValidator(lambda value: DEFAULT_CHANNEL_RETENTION if value == "" else value),
    ] = 604_800.0
    """Seconds for which the topic keeps events."""
    delivery: DeliverySpec = DeliverySpec()
    """Delivery options of Subscriptions that declare none themselves (KN-CHN-06)."""
    subscribers: tuple[SubscriberSpec, ...] = ()
    """One entry for each Subscription that can be delivered, written by the controller of
    Subscriptions (KN-CHN-05)."""


class KafkaChannel(Resource):
    """A KafkaChannel as declared."""

    spec: KafkaChannelSpec = KafkaChannelSpec()


class ChannelReference(KReference):
    """A Subscription's channel; the kind may be another implementation's."""

    @property
    def is_kafka_channel(self) -> bool:
        """Whether the reference is to a KafkaChannel, by its kind and apiVersion."""
        return self.kind == KAFKA_CHANNEL and self.api_version in KAFKA_CHANNEL_VERSIONS


class SubscriptionSpec(Declared):
    """The spec of a Subscription: its channel, destinations and delivery options."""

    channel: ChannelReference
    subscriber: Destination
    reply: Destination | None = None
    """Where the subscriber's replies are sent; None: they are discarded (KN-SUB-02)."""
    delivery: DeliverySpec = DeliverySpec()
    """Delivery options; if any is set, none of the channel's applies."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, document: object) -> object:
        """Return the spec without those fields of `_OMITTED_IF_EMPTY` that hold an empty object, as
        upstream does. Anything but a mapping is returned as it is, for the model to refuse."""
        if not isinstance(document, Mapping):
            return document
        return {
            name: value
            for name, value in document.items()
            if name not in _OMITTED_IF_EMPTY or not _is_empty(value)
        }


class Subscription(Resource):
    """A Subscription as declared."""

    spec: SubscriptionSpec

    @model_validator(mode="after")
    def _check_same_namespace(self) -> Self:
        """Check that the channel is in the Subscription's namespace. Raises a validation error."""
        if self.spec.channel.namespace not in (None, self.metadata.namespace):
            raise problem(
                "must not set the field(s): want none, or the Subscription's own namespace",
                "spec.channel.namespace",
            )
        return self


def _is_empty(value: object) -> bool:
    """Whether a value is a mapping without members, or with members that are all None."""
    return isinstance(value, Mapping) and all(member is None for member in value.values())


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """A Subscription's entries in the spec and status of its channel."""

    declared: Mapping[str, Any] | None
    """The entry in `spec.subscribers`; None: the Subscription isn't delivered yet."""
    reported: Mapping[str, Any]
    """The entry in `status.subscribers`; empty: there is none."""


def is_entry(subscription: Mapping[str, Any]) -> bool:
    """Whether a Subscription document was built by the operator for an entry of a channel's
    `spec.subscribers`; False for one as stored in the API server."""
    return ENTRY in subscription["metadata"]
