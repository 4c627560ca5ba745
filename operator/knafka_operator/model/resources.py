"""Resources: models of declared documents, as far as Knafka reads them.

`parse_resource` parses decoded YAML or JSON to a Broker, a Trigger, a ConfigMap or a Knative
Service, or reports a problem with its path, with upstream's message if it has one. Like `kubectl`,
it refuses unknown fields of a spec, but not what the API server adds to metadata and status. Not
here: reading the objects that a document refers to.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from knafka.core.contract import Delivery
from knafka.core.documents import Model, check_url_text, parse, problem, shown_url
from knafka.core.errors import InvalidDocument
from knafka.core.filters.declared_filters import AttributesFilter
from knafka.core.filters.filter_limits import DeclaredAttributes, DeclaredFilters

EVENTING: Final = "eventing.knative.dev/v1"
SERVING: Final = "serving.knative.dev/v1"
CORE: Final = "v1"
RBAC: Final = "rbac.authorization.k8s.io/v1"

BROKER_CLASS: Final = "eventing.knative.dev/broker.class"
EXTERNAL_TOPIC: Final = "kafka.eventing.knative.dev/external.topic"
DELIVERY_ORDER: Final = "kafka.eventing.knative.dev/delivery.order"
AUTOSCALING: Final = "autoscaling.eventing.knative.dev/"
"""Prefix of the annotations `class`, `min-scale`, `max-scale`, `lag-threshold` and so on: see
`autoscaling`."""
KNAFKA_PREFIX: Final = "knafka.dev/"
"""Prefix of Knafka's own annotations. `knafka.dev/consumer.` and `knafka.dev/producer.` are the
prefixes of Kafka client settings (`knafka.core.kafka_settings.client_settings`)."""
FINALIZER: Final = f"{KNAFKA_PREFIX}finalizer"
"""The finalizer that the operator puts on every object it reconciles."""
MAX_IN_FLIGHT: Final = "knafka.dev/max-in-flight"
"""Annotation of a Trigger: most concurrent attempts in one dispatcher."""
PAUSED_ANNOTATION: Final = "knafka.dev/paused"
"""Annotation of a Trigger: `true` stops delivery until it is `false` or removed; events wait in
Kafka."""
START: Final = "knafka.dev/start-position"
"""Annotation of a Trigger: the start position of a new Trigger; in its status, where it began."""
SEMANTICS: Final = "knafka.dev/delivery-semantics"
"""Annotation of a Trigger: `at-least-once`, or `at-most-once` (BUS-5)."""
RATE_LIMIT: Final = "knafka.dev/rate-limit"
"""Annotation of a Trigger: the maximum rate of attempts at its subscriber, such as `10/Second`
(BUS-S13)."""
PAYLOAD: Final = "knafka.dev/payload"
"""Annotation of a Sensor's Trigger: `batch` sends an action's events in batched mode."""
BATCH_PAYLOAD: Final = "batch"
ISOLATION: Final = "knafka.dev/isolation"
"""Annotation of a Trigger, or of its Broker for Triggers without one: `own`, `shared` or `auto`,
see `isolation`."""
LOCAL_COMMAND: Final = "local.knafka.dev/command"
"""Annotation of a Knative Service: the command that the local mode runs instead of its image."""

TOPIC_STATUS: Final = "default.topic"
GROUP_STATUS: Final = "group.id"
"""Keys of `status.annotations`: names of topic and group, which are chosen once and never change
(KN-BRK-19)."""

PEERS_FINALIZER: Final = "brokers.eventing.knative.dev"
"""The finalizer that eventing-kafka-broker puts on each Broker that it serves; it shows which of
two implementations with the same class serves the Broker."""

BROKER_CLASSES: Final = frozenset({"Kafka", "kafka"})
"""Broker classes that Knafka serves; case matters, as upstream."""

MAX_OBJECT_NAME: Final = 253
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?").fullmatch
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?").fullmatch


def _check_name(name: str) -> str:
    """Return `name` unchanged. Raises a validation error if Kubernetes allows no object with it."""
    if _NAME(name) is None or len(name) > MAX_OBJECT_NAME:
        raise problem(
            f"invalid value: {name:.80}: want a-z, 0-9, '-' or '.', at most {MAX_OBJECT_NAME}"
        )
    return name


def _check_namespace(name: str) -> str:
    """Return `name` unchanged. Raises a validation error if Kubernetes allows no such namespace."""
    if _NAMESPACE(name) is None:
        raise problem(f"invalid value: {name:.80}: want a-z, 0-9 or '-', at most 63")
    return name


Namespace: TypeAlias = Annotated[str, AfterValidator(_check_namespace)]
NonEmpty: TypeAlias = Annotated[str, Field(min_length=1)]


class Declared(Model):
    """Part of a declared document; fields set to null are ignored, as by the API server."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, document: object) -> object:
        """Return the document without fields whose value is null."""
        if isinstance(document, Mapping):
            return {name: value for name, value in document.items() if value is not None}
        return document


class Observed(Declared):
    """Part of a document that may have fields unknown to Knafka."""

    model_config = ConfigDict(extra="ignore")


class Metadata(Observed):
    name: Annotated[str, AfterValidator(_check_name)]
    namespace: Annotated[Namespace, BeforeValidator(lambda value: value or "default")] = "default"
    uid: str = ""
    """Empty for a document that was never stored in a cluster."""
    annotations: dict[str, str] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    generation: int = 0


class ObjectStatus(Observed):
    annotations: dict[str, str] = Field(default_factory=dict)


class KReference(Declared):
    """A reference to an object; without a namespace, the referring object's applies (KN-TRG-12)."""

    api_version: NonEmpty
    kind: NonEmpty
    name: NonEmpty
    namespace: Annotated[Namespace | None, BeforeValidator(lambda value: value or None)] = None


class AddressReference(KReference):
    """A reference to an Addressable."""

    address: str | None = None
    """Name of one of its `status.addresses`, such as `https`; None: the first."""


def are_certificates(pem: str) -> bool:
    """Whether the text holds one or more PEM certificates that an HTTP client can trust."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ValueError, OSError):
        return False
    return True


def _check_certificates(pem: str | None) -> str | None:
    """Return `pem` unchanged; None or empty: no certificates are declared. Raises a validation
    error if the text holds no usable certificates."""
    if pem and not are_certificates(pem):
        raise problem("invalid value: CA Cert provided is invalid")  # Knative's words
    return pem


class BrokerReference(Declared):
    """A Trigger's Broker; kind and API version may be left out, as there is only one Broker."""

    api_version: str | None = None
    kind: str | None = None
    name: NonEmpty
    namespace: Annotated[Namespace | None, BeforeValidator(lambda value: value or None)] = None


class Destination(Declared):
    """A destination: a reference, an absolute URL, or a URL relative to the reference (KN-DST)."""

    ref: AddressReference | None = None
    uri: str | None = None
    ca_certs: Annotated[str | None, AfterValidator(_check_certificates)] = Field(
        default=None, alias="CACerts"
    )
    """PEM certificates to trust in addition to the system's."""
    audience: str | None = None

    @model_validator(mode="after")
    def _check_destination(self) -> Self:
        """Check that the destination has a `ref`, an absolute `uri`, or a `ref` with a relative
        `uri`. Raises a validation error."""
        if self.ref is None and not self.uri:
            raise problem("expected at least one, got none", "ref", "uri")
        uri = self.uri or ""
        shown_uri = shown_url(uri)
        try:
            parts = urlsplit(uri)
        except ValueError as error:
            raise problem(f"invalid value: {shown_uri}, {error}", "uri") from None
        if self.ref is not None and (parts.scheme or parts.netloc):
            raise problem(f"absolute URL beside a ref: {shown_uri}: want a relative one", "uri")
        if self.ref is None and not parts.scheme:
            raise problem(f"relative URL without a ref: {shown_uri}: want an absolute one", "uri")
        if self.ref is None and not parts.hostname:
            requirement = "want one such as http://host/path"
            raise problem(f"a URL without a host: {shown_uri}: {requirement}", "uri")
        if uri:
            check_url_text(uri, "uri")
        return self


class DeliverySpec(Declared, Delivery):
    """Declared delivery options; an explicit `retry: 0` counts as declared (KN-BRK-15)."""

    dead_letter_sink: Destination | None = None

    @property
    def is_set(self) -> bool:
        """Whether any option is declared."""
        return bool(self.model_fields_set)


class Resource(Declared):
    """The common part of all documents: type, metadata, and a status that only operators write."""

    api_version: str
    kind: str
    metadata: Metadata
    status: ObjectStatus = ObjectStatus()

    @property
    def id(self) -> str:
        """Return `namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class _Type(Observed):
    """The fields that name a document's type."""

    api_version: NonEmpty
    kind: NonEmpty


class BrokerSpec(Declared):
    config: KReference | None = None
    delivery: DeliverySpec = DeliverySpec()


class Broker(Resource):
    spec: BrokerSpec = BrokerSpec()


class TriggerSpec(Declared):
    broker: NonEmpty
    """The Broker's name, also if the document names the Broker by `brokerRef`."""
    broker_ref: BrokerReference | None = None
    filter: DeclaredAttributes = AttributesFilter()
    filters: DeclaredFilters = ()
    subscriber: Destination
    delivery: DeliverySpec = DeliverySpec()

    @model_validator(mode="before")
    @classmethod
    def _merge_broker_reference(cls, document: object) -> object:
        """Return the spec without empty fields, and with the name in `brokerRef` as `broker`.
        Anything but a mapping is returned as it is. Raises a validation error if both are set."""
        if not isinstance(document, Mapping):
            return document
        set_fields = {name: value for name, value in document.items() if value not in ("", None)}
        match set_fields:
            case {"broker": _, "brokerRef": _}:
                raise problem("expected exactly one, got both", "broker", "brokerRef")
            case {"brokerRef": {"name": str(name)}}:
                return {**set_fields, "broker": name}
        return set_fields


class Trigger(Resource):
    spec: TriggerSpec

    @model_validator(mode="after")
    def _check_same_namespace(self) -> Self:
        """Check that the Broker is in the Trigger's namespace. Raises a validation error."""
        reference = self.spec.broker_ref
        if reference and reference.namespace not in (None, self.metadata.namespace):
            raise problem(
                f"invalid value: {reference.namespace}, a Trigger's Broker is in its own namespace",
                "spec.brokerRef.namespace",
            )
        return self


class ConfigMap(Resource):
    data: dict[str, str] = Field(default_factory=dict)
    binary_data: dict[str, Any] = Field(default_factory=dict)
    immutable: bool = False


class EnvVar(Observed):
    name: str
    value: str = ""


class Container(Observed):
    env: tuple[EnvVar, ...] = ()


class PodSpec(Observed):
    containers: tuple[Container, ...] = ()


class TemplateMetadata(Observed):
    annotations: dict[str, str] = Field(default_factory=dict)


class Template(Observed):
    metadata: TemplateMetadata = TemplateMetadata()
    spec: PodSpec = PodSpec()


class ServiceSpec(Observed):
    template: Template = Template()


class Service(Resource):
    """A Knative Service: only what the local mode needs to run it."""

    spec: ServiceSpec = ServiceSpec()

    @property
    def annotations(self) -> Mapping[str, str]:
        """Return the annotations of the Service and of its template; the template's take
        precedence."""
        return {**self.metadata.annotations, **self.spec.template.metadata.annotations}

    @property
    def env(self) -> Mapping[str, str]:
        """Return the environment variables of the Service's containers; those with a `valueFrom`
        are empty."""
        return {
            variable.name: variable.value
            for container in self.spec.template.spec.containers
            for variable in container.env
        }


RESOURCE_CLASSES: Final[Mapping[tuple[str, str], type[Broker | Trigger | ConfigMap | Service]]] = {
    (EVENTING, "Broker"): Broker,
    (EVENTING, "Trigger"): Trigger,
    (CORE, "ConfigMap"): ConfigMap,
    (SERVING, "Service"): Service,
}
"""The models of documents that `parse_resource` reads, by apiVersion and kind."""


def parse_resource(document: object) -> Broker | Trigger | ConfigMap | Service | None:
    """Parse one declared document (decoded YAML or JSON); None if its kind isn't in
    `RESOURCE_CLASSES`. Raises `InvalidDocument` with the path of the field that is wrong, such as
    `spec.delivery.retry`.
    """
    if not isinstance(document, Mapping):
        raise InvalidDocument("", "a document is an object with apiVersion, kind and metadata")
    document_type = parse(_Type, document)
    resource_class = RESOURCE_CLASSES.get((document_type.api_version, document_type.kind))
    return None if resource_class is None else parse(resource_class, document)


def finalizers_of(document: Mapping[str, Any]) -> list[str]:
    """Return an object's finalizers, in their order."""
    return list(document["metadata"].get("finalizers") or ())


def is_claimed_by_peer(document: Mapping[str, Any], finalizer: str = PEERS_FINALIZER) -> bool:
    """Whether eventing-kafka-broker serves an object: the object has that implementation's
    `finalizer` (by default the one for Brokers), and not Knafka's."""
    finalizers = finalizers_of(document)
    return finalizer in finalizers and FINALIZER not in finalizers


def is_ours(broker: Broker, classes: Collection[str] = BROKER_CLASSES) -> bool:
    """Whether Knafka serves the Broker: its class is one of `classes` (KN-BRK-04).

    A Broker without a class counts as of class `""`. In a cluster each Broker gets a default class;
    where Knafka is the only implementation, `classes` may include `""`.
    """
    return broker.metadata.annotations.get(BROKER_CLASS, "") in classes


def annotation_path(key: str) -> str:
    """Return the path by which an `InvalidDocument` names the annotation `key`."""
    return f"metadata.annotations.{key}"


def parse_whole_number(text: str, path: str, minimum: int, maximum: int) -> int:
    """Parse `text`, from an annotation or ConfigMap, as an integer between `minimum` and `maximum`.
    Raises `InvalidDocument` with this path."""
    digits = text.strip()
    # ASCII, since int() reads other scripts' digits too; short, since it refuses very long ones.
    if digits.isascii() and digits.isdigit() and len(digits) <= 10:
        if minimum <= (number := int(digits)) <= maximum:
            return number
    raise InvalidDocument(
        path, f"invalid value: {text:.80}: want a whole number from {minimum} to {maximum}"
    )
