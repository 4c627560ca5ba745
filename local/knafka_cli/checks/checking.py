"""Checks files without a cluster: what admission would refuse, and probable mistakes.

    files -> documents -> admission's answers, references among the files, impossible filters

An `error` is refused by the cluster, or can never work; a `warning` is allowed and probably a
mistake. Referenced objects are looked up in `known_objects`: all objects in the files, by identity.
Not here: asking a cluster or Kafka, kinds that Knafka doesn't handle, and the checks of Sensors
(`sensor_checks`), EventPolicies (`policy_checks`) and loops (`loop_checks`). More than 400 lines,
so that one file shows what is checked of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final

from knafka.core.contract import Kafka
from knafka.core.errors import InvalidDocument
from knafka.core.kafka_settings.client_settings import SIDES
from knafka_cli.checks import loop_checks, policy_checks, sensor_checks
from knafka_cli.checks.impossible import contradictions
from knafka_cli.shared.cesql_calls import missing_functions
from knafka_client.declared.manifests import (
    ManifestPlace,
    Manifests,
    ObjectIdentity,
    UnreadableFile,
    identity_of,
    parse_declared,
    read_documents,
)
from knafka_operator.brokers import admission
from knafka_operator.channels import admission as channel_admission
from knafka_operator.kafka import dead_letter_topics, desired
from knafka_operator.kafka.credentials import KAFKA_SECRET
from knafka_operator.kafka.desired import Defaults
from knafka_operator.model.channels import (
    KAFKA_CHANNEL,
    KAFKA_CHANNEL_VERSIONS,
    MESSAGING,
    Subscription,
)
from knafka_operator.model.event_policies import EventPolicy
from knafka_operator.model.family import BROKERS
from knafka_operator.model.resources import (
    AUTOSCALING,
    BROKER_CLASS,
    BROKER_CLASSES,
    DELIVERY_ORDER,
    EVENTING,
    EXTERNAL_TOPIC,
    ISOLATION,
    KNAFKA_PREFIX,
    LOCAL_COMMAND,
    MAX_IN_FLIGHT,
    PAUSED_ANNOTATION,
    RATE_LIMIT,
    SEMANTICS,
    SERVING,
    START,
    Broker,
    ConfigMap,
    Destination,
    Trigger,
)
from knafka_operator.model.sensors import Sensor
from knafka_operator.model.topics import REPLICATION_KEY
from knafka_operator.triggers.admission import (
    check_trigger,
    trigger_warnings,
    with_trigger_defaults,
)

KNOWN_ANNOTATIONS: Final = frozenset(
    {
        EXTERNAL_TOPIC,
        DELIVERY_ORDER,
        MAX_IN_FLIGHT,
        PAUSED_ANNOTATION,
        RATE_LIMIT,
        ISOLATION,
        KAFKA_SECRET,
        LOCAL_COMMAND,
        SEMANTICS,
        START,
        dead_letter_topics.RETENTION_ANNOTATION,
        *(f"{KNAFKA_PREFIX}{side}.{name}" for side, settings in SIDES.items() for name in settings),
        *(
            AUTOSCALING + annotation
            for annotation in (
                "class",
                "min-scale",
                "max-scale",
                "lag-threshold",
                "activation-lag-threshold",
                "polling-interval",
                "cooldown-period",
            )
        ),
    }
)
"""All annotations with our prefixes; those with other prefixes aren't checked."""
_has_our_prefix: Final = re.compile(
    r"(?:autoscaling\.eventing\.knative|kafka\.eventing\.knative)\.dev/|(?:local\.)?knafka\.dev/"
).match
"""Matches annotations with a prefix of Knafka's or of Knative's Kafka components."""

_ADMITTED_KINDS: Final = frozenset(
    {(EVENTING, "Broker"), (EVENTING, "Trigger"), (MESSAGING, "Subscription")}
    | {(version, KAFKA_CHANNEL) for version in KAFKA_CHANNEL_VERSIONS}
)
"""apiVersion and kind of objects that admission webhooks check."""
_REFERENCED_KINDS: Final = frozenset(
    {(SERVING, "Service"), (EVENTING, "Broker")}
    | {(version, KAFKA_CHANNEL) for version in KAFKA_CHANNEL_VERSIONS}
)
"""apiVersion and kind of referenced objects that must be among the files."""

CONFIG_KEYS: Final = (
    desired.PARTITIONS_KEY,
    REPLICATION_KEY,
    desired.BOOTSTRAP_SERVERS,
    desired.SECRET_NAME_KEY,
    dead_letter_topics.RETENTION_KEY,
)
"""Keys of a Broker's ConfigMap, beside those that begin with `default.topic.config.`."""


class FindingSeverity(Enum):
    """Whether a finding is an error or a warning."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem with a document."""

    place: ManifestPlace
    """The document's place; the whole file if that can't be read."""
    object_name: str
    """`Trigger default/orders`; empty if the document has no name."""
    severity: FindingSeverity
    text: str
    """The problem; further lines hold details in Knative's words."""

    def __str__(self) -> str:
        """Return the finding as `PLACE: OBJECT: SEVERITY: TEXT`, with further lines indented."""
        about = f"{self.place}: {self.object_name}: " if self.object_name else f"{self.place}: "
        first, *rest = self.text.split("\n")
        return "\n".join(
            [f"{about}{self.severity.value}: {first}", *(f"    {line}" for line in rest)]
        )


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of checking files together."""

    object_count: int
    """Number of documents that were checked."""
    findings: Sequence[Finding]

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity is FindingSeverity.ERROR for finding in self.findings)


def check(paths: Sequence[Path], *, partial: bool = False) -> CheckResult:
    """Check all documents of files and folders together. `partial` True: a reference to an object
    that isn't in the files is no error, since the cluster may have it. Raises `NoManifests` if a
    path doesn't exist."""
    placed_documents: list[tuple[ManifestPlace, Any]] = []
    findings = []
    for file in Manifests(paths).files():
        try:
            placed_documents += read_documents(file)
        except UnreadableFile as error:
            findings.append(Finding(ManifestPlace(file), "", FindingSeverity.ERROR, str(error)))
    known_objects = _known_objects(placed_documents)
    object_count = 0
    first_places: dict[ObjectIdentity, ManifestPlace] = {}
    for place, document in placed_documents:
        identity = identity_of(document)
        name = str(identity or "")
        if (problems := _check_document(document, known_objects, partial)) is None:
            continue  # its kind isn't checked
        object_count += 1
        if identity and identity in first_places:
            text = f"it is already declared in {first_places[identity]}"
            findings.append(Finding(place, name, FindingSeverity.ERROR, text))
        elif identity:
            first_places[identity] = place
        findings += [Finding(place, name, severity, text) for severity, text in problems]
    return CheckResult(object_count, findings)


def _check_document(
    document: Any, known_objects: Mapping[ObjectIdentity, Any], partial: bool
) -> list[tuple[FindingSeverity, str]] | None:
    """Return the severity and the text of each problem of a document, empty if it has none; None if
    its kind isn't checked. `partial` True: references to missing objects are no errors."""
    errors: list[str] = []
    warnings: list[str] = []
    resource: object
    try:
        is_sensor = sensor_checks.is_sensor(document)
        resource = sensor_checks.parse_sensor(document) if is_sensor else parse_declared(document)
        if resource is None:
            return None
    except InvalidDocument as error:
        resource = None
        errors.append(str(error))
    match document:
        case {"apiVersion": str(version), "kind": str(kind)} if (version, kind) in _ADMITTED_KINDS:
            if (refusal := _admission_error(kind, document)) is not None:
                errors = [refusal]  # admission reports all problems, in Knative's words
            warnings += _unknown_annotations(document)
    if isinstance(resource, Trigger):
        # Of filters that no event can pass, admission only warns; here they are errors.
        errors += trigger_warnings(document)
        errors += missing_functions(resource.spec.filters, "spec.filters")
        errors += contradictions(resource.spec.filters, "spec.filters")
        if resource.spec.filters and resource.spec.filter.attributes:
            warnings.append("spec.filter is ignored, since spec.filters is set")
    elif isinstance(resource, EventPolicy):
        errors += policy_checks.errors(resource)
    elif isinstance(resource, Sensor):
        errors += sensor_checks.errors(resource)
    missing_errors, reference_warnings = _reference_problems(resource, document, known_objects)
    errors += [] if partial else missing_errors
    return [
        *((FindingSeverity.ERROR, error) for error in errors),
        *((FindingSeverity.WARNING, warning) for warning in [*warnings, *reference_warnings]),
    ]


def _reference_problems(
    resource: object, document: Any, known_objects: Mapping[ObjectIdentity, Any]
) -> tuple[list[str], list[str]]:
    """Return two lists: errors about missing objects that a document refers to, and warnings.
    `resource` is the parsed document; if it couldn't be parsed (None), both lists are empty."""
    if isinstance(resource, Broker):
        missing, warnings = _broker_problems(resource, known_objects)
        return missing, [*warnings, *loop_checks.broker_warnings(resource, known_objects)]
    if isinstance(resource, Trigger):
        return _trigger_problems(resource, known_objects)
    if isinstance(resource, Subscription):
        return _subscription_problems(resource, known_objects)
    if isinstance(resource, EventPolicy):
        missing_objects = policy_checks.missing_objects(resource, known_objects)
        return (
            [_missing_error("spec.to", identity, known_objects) for identity in missing_objects],
            list(policy_checks.warnings(resource, document, known_objects)),
        )
    if isinstance(resource, Sensor):
        return _sensor_problems(resource, known_objects)
    return [], []


def _admission_error(kind: str, document: Mapping[str, Any]) -> str | None:
    """Return the error with which Knafka's admission webhook would refuse a document of this kind;
    None if the webhook would admit it, or leaves it to another implementation."""
    try:
        if kind == "Trigger":
            check_trigger(with_trigger_defaults(document))
        elif kind == KAFKA_CHANNEL:
            channel_admission.check_channel(channel_admission.with_channel_defaults(document))
        elif kind == "Subscription":
            if channel_admission.may_be_ours(document):
                defaulted = channel_admission.with_subscription_defaults(document)
                channel_admission.check_subscription(defaulted)
        elif _broker_class(document) in BROKER_CLASSES | {""}:  # a Broker that may be ours
            admission.check_broker(admission.with_broker_defaults(document))
    except InvalidDocument as error:
        return str(error)
    return None


def _broker_problems(
    broker: Broker, known_objects: Mapping[ObjectIdentity, Any]
) -> tuple[list[str], list[str]]:
    """Return errors about a Broker's ConfigMap, and warnings. A missing ConfigMap is an error, but
    only a warning if it should be in another namespace. A Broker of another implementation gets
    only a warning that it isn't checked."""
    broker_class = broker.metadata.annotations.get(BROKER_CLASS, "")
    if broker_class not in BROKER_CLASSES | {""}:
        return [], [f"its class {broker_class} is another implementation's, so it is not checked"]
    try:
        reference = desired.config_reference(broker)
    except InvalidDocument as error:
        return [str(error)], []
    if reference is None:
        return [], []
    config_map = ObjectIdentity("ConfigMap", *reference)
    config = known_objects.get(config_map)
    if config is None:
        if config_map.namespace != broker.metadata.namespace:
            return [], [
                f"spec.config: {config_map} isn't among the files: it must be in the cluster"
            ]
        return [_missing_error("spec.config", config_map, known_objects)], []
    return _config_problems(config) if isinstance(config, ConfigMap) else ([], [])


def _config_problems(config: ConfigMap) -> tuple[list[str], list[str]]:
    """Return errors and warnings about the data of a Broker's ConfigMap."""
    name = f"ConfigMap {config.id}"
    errors = []
    try:
        # A ConfigMap may leave Kafka's address to the installation: any address will do here.
        desired.defaults_with_config(config, Defaults(kafka=Kafka(bootstrap_servers="kafka:9092")))
    except InvalidDocument as error:
        errors.append(f"{name}: {error}")
    unknown = [
        key
        for key in config.data
        if key not in CONFIG_KEYS and not key.startswith(desired.TOPIC_CONFIG)
    ]
    return errors, [
        f"{name}: data.{key} is no key that a Broker reads{_suggestion(key, CONFIG_KEYS)}"
        for key in unknown
    ]


def _trigger_problems(
    trigger: Trigger, known_objects: Mapping[ObjectIdentity, Any]
) -> tuple[list[str], list[str]]:
    """Return errors about missing objects that a Trigger names, and warnings."""
    broker = ObjectIdentity("Broker", trigger.metadata.namespace, trigger.spec.broker)
    destinations = {
        "spec.subscriber": trigger.spec.subscriber,
        "spec.delivery.deadLetterSink": trigger.spec.delivery.dead_letter_sink,
    }
    missing = _missing_references(
        "spec.broker", broker, destinations, trigger.metadata.namespace, known_objects
    )
    return missing, loop_checks.loop_warnings(destinations, broker, known_objects)


def _subscription_problems(
    subscription: Subscription, known_objects: Mapping[ObjectIdentity, Any]
) -> tuple[list[str], list[str]]:
    """Return errors about missing objects that a Subscription names, and warnings."""
    spec, namespace = subscription.spec, subscription.metadata.namespace
    if not spec.channel.is_kafka_channel:
        channel_kind = f"{spec.channel.kind} of {spec.channel.api_version}"
        return [], [f"its channel is a {channel_kind}, another implementation's: it is not checked"]
    channel = ObjectIdentity(KAFKA_CHANNEL, namespace, spec.channel.name)
    destinations = {
        "spec.subscriber": spec.subscriber,
        "spec.reply": spec.reply,
        "spec.delivery.deadLetterSink": spec.delivery.dead_letter_sink,
    }
    missing = _missing_references("spec.channel", channel, destinations, namespace, known_objects)
    return missing, loop_checks.loop_warnings(destinations, channel, known_objects)


def _sensor_problems(
    sensor: Sensor, known_objects: Mapping[ObjectIdentity, Any]
) -> tuple[list[str], list[str]]:
    """Return errors about missing objects that a Sensor names, and warnings."""
    namespace, family = sensor.metadata.namespace, sensor.bus.family
    bus = ObjectIdentity(family.broker, *sensor.bus.identity)  # its Broker or KafkaChannel
    path = "spec.broker" if family is BROKERS else "spec.channel"
    destinations = sensor_checks.destinations(sensor)
    missing = _missing_references(path, bus, destinations, namespace, known_objects)
    return missing, sensor_checks.warnings(sensor)


def _missing_references(
    bus_path: str,
    bus: ObjectIdentity,
    destinations: Mapping[str, Destination | None],
    namespace: str,
    known_objects: Mapping[ObjectIdentity, Any],
) -> list[str]:
    """Return an error for each object that a document refers to and that isn't among the files.

    `bus` is the Broker or KafkaChannel that it names in its field `bus_path`; `destinations` are
    the other fields that may refer to objects, by path. A reference without a namespace is to an
    object in `namespace`.
    """
    missing = [] if bus in known_objects else [_missing_error(bus_path, bus, known_objects)]
    for path, referenced in _referenced_destinations(destinations, namespace):
        if referenced not in known_objects:
            missing.append(_missing_error(f"{path}.ref", referenced, known_objects))
    return missing


def _referenced_destinations(
    destinations: Mapping[str, Destination | None], namespace: str
) -> Iterator[tuple[str, ObjectIdentity]]:
    """Yield the path and the object of each destination that refers to a Service, Broker or
    KafkaChannel. The keys of `destinations` are paths. A reference without a namespace is to an
    object in `namespace`."""
    for path, destination in destinations.items():
        if destination is not None and (ref := destination.ref) is not None:
            if (ref.api_version, ref.kind) in _REFERENCED_KINDS:
                yield path, ObjectIdentity(ref.kind, ref.namespace or namespace, ref.name)


def _missing_error(
    path: str, referenced: ObjectIdentity, known_objects: Mapping[ObjectIdentity, Any]
) -> str:
    """Return the error for a reference to an object that isn't among the files. It suggests a
    similar name of an object of the same kind and namespace."""
    names = [
        identity.name
        for identity in known_objects
        if (identity.kind, identity.namespace) == (referenced.kind, referenced.namespace)
    ]
    text = f"{path}: {referenced} isn't among the files{_suggestion(referenced.name, names)}"
    return f"{text} (--partial, if it is in the cluster already)"


def _unknown_annotations(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each annotation with our prefix that Knafka doesn't know."""
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    for annotation in annotations if isinstance(annotations, Mapping) else ():
        if (
            isinstance(annotation, str)
            and _has_our_prefix(annotation)
            and annotation not in KNOWN_ANNOTATIONS
        ):
            hint = _suggestion(annotation, KNOWN_ANNOTATIONS)
            yield f"metadata.annotations[{annotation}] is unknown to Knafka{hint}"


def _suggestion(name: str, known_names: Iterable[str]) -> str:
    """Return a hint at a similar known name: `; did you mean X?`; empty if there is none."""
    similar = get_close_matches(name, list(known_names), 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _known_objects(
    placed_documents: Iterable[tuple[ManifestPlace, Any]],
) -> dict[ObjectIdentity, Any]:
    """Return all named objects by identity: the parsed object, None for a kind that Knafka doesn't
    handle, or an `_UnreadableObject` for an invalid document. Of several documents with one
    identity, the first counts."""
    known_objects: dict[ObjectIdentity, Any] = {}
    for _, document in placed_documents:
        if (identity := identity_of(document)) is not None:
            try:
                known_objects.setdefault(identity, parse_declared(document))
            except InvalidDocument:
                known_objects.setdefault(identity, _UnreadableObject())
    return known_objects


class _UnreadableObject:
    """An object that can't be read; references to it are correct nevertheless."""


def _broker_class(document: Mapping[str, Any]) -> str:
    """Return the Broker class that a document declares; empty if it declares none."""
    match document:
        case {"metadata": {"annotations": {**annotations}}}:
            return str(annotations.get(BROKER_CLASS, ""))
    return ""
