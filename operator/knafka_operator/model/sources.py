"""KafkaSources: the model of declared ones, and their representation as Triggers.

A source is read as a Trigger without filters whose topics belong to no Broker:
`parse_source_as_trigger` translates its fields to a Trigger's annotations. `SourceTrigger` has the
fields for which Triggers have no annotation.

Not here: the defaults that a webhook fills in, and the fields that may not change
(`sources.admission`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from knafka.core import names
from knafka.core.contract import Conversion
from knafka.core.documents import parse, problem
from knafka.core.errors import InvalidDocument
from knafka.core.events.event import CORE, is_attribute_name, is_legal
from knafka_operator.model.resources import (
    AUTOSCALING,
    DELIVERY_ORDER,
    PAUSED_ANNOTATION,
    START,
    Declared,
    DeliverySpec,
    Destination,
    NonEmpty,
    Observed,
    Resource,
    Trigger,
    TriggerSpec,
)

_GENERATED_GROUP: Final = re.compile(
    rf"{names.SOURCES}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}"
).fullmatch
"""Matches group names that the webhook or `consumer_group_of` has made of a UID."""
SOURCES_VERSION: Final = "sources.knative.dev/v1"
KAFKA_SOURCE: Final = "KafkaSource"
KEY_TYPE: Final = "kafkasources.sources.knative.dev/key-type"
"""Label of a KafkaSource: the type of its records' keys, one of `KEY_TYPES`."""
KEY_TYPES: Final = ("string", "int", "float", "byte-array")

PEERS_SOURCE_FINALIZER: Final = "kafkasources.sources.knative.dev"
"""The finalizer that eventing-kafka-broker puts on each KafkaSource that it serves."""

_FORBIDDEN_TOPIC_PREFIXES: Final = (names.BROKERS, names.CHANNELS, names.OURS, "__")
"""Prefixes of topics that a source may not read: Brokers' and channels' events belong to their
namespaces, and a dispatcher may have access to a Kafka to which the user has none."""
_SUBSCRIPTION_GROUP = re.compile(
    r"kafka\..+\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
).fullmatch
"""Matches group names made by `names.subscription_group`."""

DEFAULT_OFFSET: Final = "latest"
"""The initial offset of a source that declares none."""
DEFAULT_ORDER: Final = "ordered"
"""The ordering of a source that declares none."""


class SecretKey(Observed):
    """One key of a Secret in the source's namespace."""

    name: NonEmpty
    """Name of the Secret."""
    key: NonEmpty


class SecretValue(Observed):
    """A value that is stored under a key of a Secret."""

    secret_key_ref: SecretKey | None = None
    """None: no value is declared."""


def _require_secret_keys(credentials: Declared, *fields: str) -> None:
    """Raise a validation error if one of these fields of `credentials` names no key of a Secret.
    Upstream notices a missing one only when it connects."""
    missing = [name for name in fields if getattr(credentials, name).secret_key_ref is None]
    if missing:
        raise problem("missing field(s)", *(f"{name}.secretKeyRef" for name in missing))


class Sasl(Declared):
    """How the source authenticates to Kafka by SASL."""

    enable: bool = False
    user: SecretValue = SecretValue()
    password: SecretValue = SecretValue()
    type: SecretValue = SecretValue()
    """The SASL mechanism; PLAIN if it is not set."""

    @model_validator(mode="after")
    def _check_secret_keys(self) -> Self:
        """Check that enabled SASL names a user and a password. Raises a validation error."""
        if self.enable:
            _require_secret_keys(self, "user", "password")
        return self


class SourceTls(Declared):
    """How the source encrypts its connections to Kafka."""

    enable: bool = False
    cert: SecretValue = SecretValue()
    key: SecretValue = SecretValue()
    ca_cert: SecretValue = SecretValue()
    """PEM of the authorities that sign the servers' certificates; not set: the system's."""

    @model_validator(mode="after")
    def _check_secret_keys(self) -> Self:
        """Check that enabled TLS names both client certificate and key, or neither. Raises a
        validation error."""
        if self.enable and (self.cert.secret_key_ref or self.key.secret_key_ref):
            _require_secret_keys(self, "cert", "key")
        return self


class Net(Declared):
    """How the source connects to Kafka: SASL and TLS."""

    sasl: Sasl = Sasl()
    tls: SourceTls = SourceTls()


def _check_extension_name(name: str) -> str:
    """Return `name` unchanged. Raises a validation error if it is no legal name of an extension
    attribute, or the name of an attribute that CloudEvents itself defines."""
    if not is_attribute_name(name) or name in CORE:
        raise problem("invalid key name: want a-z and 0-9, and none that CloudEvents defines")
    return name


def _check_extension_value(value: str) -> str:
    """Return `value`, of an extension attribute, unchanged. Raises a validation error for
    characters that CloudEvents forbids, such as the line break at the end of a YAML block: with
    them no event of the source would be valid."""
    if not is_legal(value):
        raise problem(f"invalid value: {value!r:.80}: want no control or non-characters")
    return value


class CloudEventOverrides(Declared):
    """Extension attributes that each event of the source gets."""

    extensions: dict[
        Annotated[str, AfterValidator(_check_extension_name)],
        Annotated[str, AfterValidator(_check_extension_value)],
    ] = Field(default_factory=dict)


class Credential(NamedTuple):
    """One value of a user's Secret, with the name that it has in a Secret for Kafka
    (`core.kafka_settings.kafka_secret`)."""

    name: str
    """Name of the value in a Secret for Kafka, such as `user`."""
    path: str
    """Path of the field that names the Secret."""
    secret: str
    """Name of the user's Secret."""
    key: str
    """The key of `secret` that holds the value."""


def check_user_topic(topic: str) -> str:
    """Return `topic`, the name in a KafkaSource or KafkaSink, unchanged. Raises a validation error
    if Kafka doesn't allow the name, or if it has the prefix of Knafka's or Kafka's own topics."""
    if not names.is_topic(topic):
        raise problem(f"invalid value: {topic:.300}: want a topic's name")
    if topic.startswith(_FORBIDDEN_TOPIC_PREFIXES):
        raise problem(_internal_topic_message(topic))
    return topic


def refuse_taken_topics(topics: Iterable[str], is_taken: Callable[[str], bool], path: str) -> None:
    """Raise `InvalidDocument` with this path if one of the topics belongs to a Broker, KafkaChannel
    or Sensor; `is_taken` knows that. `check_user_topic` recognises such topics only by the default
    prefixes, which Sensors' topics and an installation's own name templates needn't have."""
    for topic in filter(is_taken, topics):
        raise InvalidDocument(path, _internal_topic_message(topic))


def _internal_topic_message(topic: str) -> str:
    """Return the message about a topic that belongs to Knafka or Kafka."""
    requirement = "want no topic of a Broker, a KafkaChannel, a Sensor, Knafka or Kafka itself"
    return f"invalid value: {topic:.300}: {requirement}"


def _check_topics(topics: tuple[str, ...]) -> tuple[str, ...]:
    """Return the topics in their order, without duplicates. Raises a validation error for a topic
    that a source may not read."""
    return tuple(dict.fromkeys(map(check_user_topic, topics)))


def _check_group(group: str) -> str:
    """Return `group`, a consumer group's name, unchanged. Raises a validation error if it is
    reserved for a Trigger, a Subscription or Knafka itself."""
    if group.startswith((names.TRIGGERS, names.OURS)) or _SUBSCRIPTION_GROUP(group):
        raise problem(
            f"invalid value: {group:.253}: want a group that is no Trigger's, Subscription's or "
            "Knafka's own"
        )
    return group


def _default_if_empty(default: str) -> BeforeValidator:
    """Return a pydantic validator that replaces an empty text by `default`, as upstream does."""
    return BeforeValidator(lambda text: default if text == "" else text)


_Texts: TypeAlias = Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
"""One or more texts that aren't empty."""


class KafkaSourceSpec(Declared):
    """The spec of a KafkaSource: the topics that it reads, and where it sends their records."""

    topics: Annotated[_Texts, AfterValidator(_check_topics)]
    """The topics, without duplicates."""
    bootstrap_servers: _Texts
    """`host:port` of the Kafka servers."""
    net: Net = Net()
    """SASL and TLS of the connection."""
    consumer_group: Annotated[str, AfterValidator(_check_group)] = ""
    """Empty if no webhook has written a default; see `consumer_group_of`."""
    initial_offset: Annotated[Literal["earliest", "latest"], _default_if_empty(DEFAULT_OFFSET)] = (
        "latest"
    )
    """Where a new consumer group begins."""
    ordering: Annotated[Literal["ordered", "unordered"], _default_if_empty(DEFAULT_ORDER)] = (
        "ordered"
    )
    """`ordered`: per partition, one event after the other; `unordered`: no order."""
    delivery: DeliverySpec = DeliverySpec()
    consumers: Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)] | None = None
    """Most dispatchers; 0 pauses the source, None: as many as a Trigger may have."""
    ce_overrides: CloudEventOverrides = CloudEventOverrides()
    sink: Destination


class KafkaSource(Resource):
    """A KafkaSource as declared."""

    spec: KafkaSourceSpec

    @model_validator(mode="after")
    def _check_key_type(self) -> Self:
        """Check that the label with the type of the records' keys has a known value. Raises a
        validation error."""
        if (declared := self.metadata.labels.get(KEY_TYPE, KEY_TYPES[0])) not in KEY_TYPES:
            requirement = f"want {', '.join(KEY_TYPES)}"
            raise problem(
                f"invalid value: {declared:.80}: {requirement}", f"metadata.labels.{KEY_TYPE}"
            )
        return self


class SourceTrigger(Trigger):
    """A KafkaSource read as a Trigger, whose `kind` is still KafkaSource."""

    source: KafkaSource
    """The KafkaSource as declared."""

    def egress_fields(self) -> Mapping[str, Any]:
        """Return those fields of the source's Egress (its dispatcher's contract) that differ from
        other Triggers'."""
        spec, metadata = self.source.spec, self.metadata
        event_source = f"/apis/v1/namespaces/{metadata.namespace}/kafkasources/{metadata.name}"
        conversion = {
            "source": event_source,
            "keyType": metadata.labels.get(KEY_TYPE, KEY_TYPES[0]),
            "extensions": spec.ce_overrides.extensions,
        }
        return {
            "kind": KAFKA_SOURCE,
            "group": consumer_group_of(self.source),
            "more_topics": spec.topics[1:],  # the first is the Egress's `topic`
            "conversion": parse(Conversion, conversion),
            # The topics are the user's, and their other readers aren't known.
            "shares_topic": False,
        }

    def credentials_volume(self) -> Mapping[str, Any] | None:
        """Return the volume that mounts the source's credentials as files, named as in a Secret for
        Kafka; None: none is needed."""
        credentials = list(required_credentials(self.source.spec.net))
        if not credentials:
            return None
        return {
            "projected": {
                "sources": [
                    {"secret": {"name": credential.secret, "items": [_volume_item(credential)]}}
                    for credential in credentials
                ]
            }
        }


def _volume_item(credential: Credential) -> Mapping[str, str]:
    """Return the item of a Secret volume that mounts one credential as a file of its name."""
    return {"key": credential.key, "path": credential.name}


def consumer_group_of(source: KafkaSource) -> str:
    """Return the consumer group that reads the source's topics: the declared one, else one that is
    named after the source's UID."""
    return source.spec.consumer_group or group_of_uid(source.metadata.uid)


def group_of_uid(uid: str) -> str:
    """Return the consumer group of a source with this UID that declares none."""
    return f"{names.SOURCES}{uid}"


def has_generated_group(source: KafkaSource) -> bool:
    """Whether the name of the source's consumer group was generated by the webhook or the operator,
    and not chosen by the user."""
    group = source.spec.consumer_group
    return not group or _GENERATED_GROUP(group) is not None


def required_credentials(net: Net) -> Iterator[Credential]:
    """Yield the credentials that a source's `net` declares and needs: those for SASL if SASL is
    enabled, and those for TLS if TLS is enabled."""
    sasl, tls = net.sasl, net.tls
    for is_enabled, name, path, value in (
        (sasl.enable, "user", "sasl.user", sasl.user),
        (sasl.enable, "password", "sasl.password", sasl.password),
        (sasl.enable, "sasl.mechanism", "sasl.type", sasl.type),
        (tls.enable, "user.crt", "tls.cert", tls.cert),
        (tls.enable, "user.key", "tls.key", tls.key),
        (tls.enable, "ca.crt", "tls.caCert", tls.ca_cert),
    ):
        if is_enabled and (ref := value.secret_key_ref) is not None:
            yield Credential(name, f"spec.net.{path}.secretKeyRef", ref.name, ref.key)


def security_protocol(net: Net) -> str | None:
    """Return Kafka's `security.protocol` for a source's connection; None: plaintext without SASL,
    which is Kafka's default."""
    transport = "SSL" if net.tls.enable else "PLAINTEXT"
    if net.sasl.enable:
        return f"SASL_{transport}"
    return transport if net.tls.enable else None


def parse_source_as_trigger(document: Mapping[str, Any]) -> SourceTrigger:
    """Parse a KafkaSource as a Trigger. Its initial offset, ordering and `consumers` become the
    Trigger's annotations about start position, order and scaling; `consumers: 0` pauses it. Raises
    `InvalidDocument`."""
    source = parse(KafkaSource, document)
    spec, annotations = source.spec, dict(source.metadata.annotations)
    # The source's own annotations about order and scaling win; those about start and pause don't.
    annotations[START] = spec.initial_offset
    annotations.setdefault(DELIVERY_ORDER, spec.ordering)
    if spec.consumers:
        annotations.setdefault(f"{AUTOSCALING}max-scale", str(spec.consumers))
    elif spec.consumers == 0:
        annotations[PAUSED_ANNOTATION] = "true"
    metadata = source.metadata.model_copy(update={"annotations": annotations})
    resource_fields = {name: getattr(source, name) for name in Resource.model_fields}
    trigger_spec = TriggerSpec(
        broker=source.metadata.name, subscriber=spec.sink, delivery=spec.delivery
    )
    return SourceTrigger(
        spec=trigger_spec, source=source, **{**resource_fields, "metadata": metadata}
    )
