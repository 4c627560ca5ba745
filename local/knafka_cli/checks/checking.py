"""Checking files without a cluster: what admission would refuse, and what can't be meant.

    files -> documents -> admission's answers, references among the files, impossible filters

An `error` is refused by the cluster, or leaves something that never works; a `warning` is allowed
and probably a mistake. What a document refers to is looked for among the files only.
Not here: asking a cluster or Kafka, objects of other kinds than Knafka's, and what is said of a
Sensor (`sensor_checks`), of an EventPolicy (`policy_checks`) and of what comes back
(`loop_checks`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, Final

from knafka.core.client_settings import SIDES
from knafka.core.contract import Kafka
from knafka.core.errors import InvalidDocument
from knafka_cli.checks import loop_checks, policy_checks, sensor_checks
from knafka_cli.checks.impossible import impossible
from knafka_cli.shared.cesql_calls import missing_functions
from knafka_client.declared.manifests import (
    ManifestPlace,
    Manifests,
    ObjectIdentity,
    Unreadable,
    documents,
    identity_of,
    parse,
)
from knafka_operator.decide import admission, channel_admission, dead_letter_topics, desired
from knafka_operator.decide.credentials import KAFKA_SECRET
from knafka_operator.decide.desired import Defaults
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
    PAUSED,
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

KNOWN_ANNOTATIONS: Final = frozenset(
    {
        EXTERNAL_TOPIC,
        DELIVERY_ORDER,
        MAX_IN_FLIGHT,
        PAUSED,
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
"""All annotations of these prefixes; others' we can't know."""
_OURS: Final = re.compile(
    r"(?:autoscaling\.eventing\.knative|kafka\.eventing\.knative)\.dev/|(?:local\.)?knafka\.dev/"
).match

_ADMITTED: Final = frozenset(
    {(EVENTING, "Broker"), (EVENTING, "Trigger"), (MESSAGING, "Subscription")}
    | {(version, KAFKA_CHANNEL) for version in KAFKA_CHANNEL_VERSIONS}
)
"""What webhooks are asked about."""
_REFERRED: Final = frozenset(
    {(SERVING, "Service"), (EVENTING, "Broker")}
    | {(version, KAFKA_CHANNEL) for version in KAFKA_CHANNEL_VERSIONS}
)

CONFIG_KEYS: Final = (
    desired.PARTITIONS,
    desired.REPLICATION,
    desired.BOOTSTRAP_SERVERS,
    desired.SECRET,
    dead_letter_topics.RETENTION_KEY,
)
"""What a Broker's ConfigMap may hold besides `default.topic.config.`…"""


class FindingSeverity(Enum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a document."""

    place: ManifestPlace
    who: str
    """`Trigger default/orders`; empty for what has no name."""
    severity: FindingSeverity
    text: str
    """May have several lines: Knative's details follow on their own."""

    def __str__(self) -> str:
        about = f"{self.place}: {self.who}: " if self.who else f"{self.place}: "
        first, *rest = self.text.split("\n")
        return "\n".join(
            [f"{about}{self.severity.value}: {first}", *(f"    {line}" for line in rest)]
        )


@dataclass(frozen=True, slots=True)
class Checked:
    """What was checked: how many documents, and what is wrong with them."""

    objects: int
    findings: Sequence[Finding]

    @property
    def failed(self) -> bool:
        return any(finding.severity is FindingSeverity.ERROR for finding in self.findings)


def check(paths: Sequence[Path], *, partial: bool = False) -> Checked:
    """Check all files and folders together; `partial`: the rest is in the cluster already.

    Raises `NoManifests` if a path isn't there.
    """
    placed_documents: list[tuple[ManifestPlace, Any]] = []
    findings = []
    for file in Manifests(paths).files():
        try:
            placed_documents += documents(file)
        except Unreadable as error:
            findings.append(Finding(ManifestPlace(file), "", FindingSeverity.ERROR, str(error)))
    known = _known(placed_documents)
    objects = 0
    first: dict[ObjectIdentity, ManifestPlace] = {}
    for place, document in placed_documents:
        identity = identity_of(document)
        name = str(identity or "")
        if (judged := _judge(document, known, partial)) is None:
            continue
        objects += 1
        if identity and identity in first:
            findings.append(
                Finding(
                    place,
                    name,
                    FindingSeverity.ERROR,
                    f"it is declared in {first[identity]} already",
                )
            )
        elif identity:
            first[identity] = place
        findings += [Finding(place, name, severity, text) for severity, text in judged]
    return Checked(objects, findings)


def _judge(
    document: Any, known: Mapping[ObjectIdentity, Any], partial: bool
) -> list[tuple[FindingSeverity, str]] | None:
    """What is wrong with one document; None: it is none of our kinds."""
    errors: list[str] = []
    warnings: list[str] = []
    resource: object
    try:
        is_sensor = sensor_checks.is_sensor(document)
        resource = sensor_checks.read(document) if is_sensor else parse(document)
        if resource is None:
            return None
    except InvalidDocument as error:
        resource = None
        errors.append(str(error))
    match document:
        case {"apiVersion": str(version), "kind": str(kind)} if (version, kind) in _ADMITTED:
            if (refused := _refused(kind, document)) is not None:
                errors = [refused]  # all problems in Knative's words, not the first one only
            warnings += _unknown_annotations(document)
    if isinstance(resource, Broker):
        missing, doubts = _of_broker(resource, known)
        doubts += loop_checks.of_broker(resource, known)
    elif isinstance(resource, Trigger):
        missing, doubts = _of_trigger(resource, known)
        errors += admission.trigger_warnings(document)
        errors += missing_functions(resource.spec.filters, "spec.filters")
        errors += impossible(resource.spec.filters, "spec.filters")
        if resource.spec.filters and resource.spec.filter.attributes:
            warnings.append("spec.filter says nothing, as spec.filters is there")
    elif isinstance(resource, Subscription):
        missing, doubts = _of_subscription(resource, known)
    elif isinstance(resource, EventPolicy):
        errors += policy_checks.errors(resource)
        absent = policy_checks.missing(resource, known)
        missing = [_missing("spec.to", identity, known) for identity in absent]
        doubts = list(policy_checks.warnings(resource, document, known))
    elif isinstance(resource, Sensor):
        errors += sensor_checks.errors(resource)
        missing, doubts = _of_sensor(resource, known)
    else:
        missing, doubts = [], []
    errors += [] if partial else missing
    return [
        *((FindingSeverity.ERROR, error) for error in errors),
        *((FindingSeverity.WARNING, warning) for warning in [*warnings, *doubts]),
    ]


def _refused(kind: str, document: Mapping[str, Any]) -> str | None:
    """What the webhooks would answer."""
    try:
        if kind == "Trigger":
            admission.check_trigger(admission.defaulted_trigger(document))
        elif kind == KAFKA_CHANNEL:
            channel_admission.check_channel(channel_admission.defaulted_channel(document))
        elif kind == "Subscription":
            if channel_admission.may_be_ours(document):
                defaulted = channel_admission.defaulted_subscription(document)
                channel_admission.check_subscription(defaulted)
        elif _class_of(document) in BROKER_CLASSES | {""}:
            admission.check_broker(admission.defaulted_broker(document))
    except InvalidDocument as error:
        return str(error)
    return None


def _of_broker(broker: Broker, known: Mapping[ObjectIdentity, Any]) -> tuple[list[str], list[str]]:
    """What it refers to and isn't there; what is doubtful."""
    given = broker.metadata.annotations.get(BROKER_CLASS, "")
    if given not in BROKER_CLASSES | {""}:
        return [], [f"its class {given} is another implementation's, so nothing of it is checked"]
    try:
        reference = desired.config_reference(broker)
    except InvalidDocument as error:
        return [str(error)], []
    if reference is None:
        return [], []
    config_map = ObjectIdentity("ConfigMap", *reference)
    config = known.get(config_map)
    if config is None:
        if config_map.namespace != broker.metadata.namespace:
            return [], [
                f"spec.config: {config_map} isn't among the files: it has to be in the cluster"
            ]
        return [_missing("spec.config", config_map, known)], []
    return _of_config(config) if isinstance(config, ConfigMap) else ([], [])


def _of_config(config: ConfigMap) -> tuple[list[str], list[str]]:
    name = f"ConfigMap {config.id}"
    errors = []
    try:
        # Kafka's address is the installation's, if the ConfigMap has none.
        desired.defaults_with_config(config, Defaults(kafka=Kafka(bootstrap_servers="kafka:9092")))
    except InvalidDocument as error:
        errors.append(f"{name}: {error}")
    unknown = [
        key
        for key in config.data
        if key not in CONFIG_KEYS and not key.startswith(desired.TOPIC_CONFIG)
    ]
    return errors, [
        f"{name}: data.{key} is no key that a Broker reads{_meant(key, CONFIG_KEYS)}"
        for key in unknown
    ]


def _of_trigger(
    trigger: Trigger, known: Mapping[ObjectIdentity, Any]
) -> tuple[list[str], list[str]]:
    """What it refers to and isn't there; what is doubtful."""
    missing = []
    broker = ObjectIdentity("Broker", trigger.metadata.namespace, trigger.spec.broker)
    if broker not in known:
        missing.append(_missing("spec.broker", broker, known))
    destinations = {
        "spec.subscriber": trigger.spec.subscriber,
        "spec.delivery.deadLetterSink": trigger.spec.delivery.dead_letter_sink,
    }
    for path, referenced in _referred(destinations, trigger.metadata.namespace):
        if referenced not in known:
            missing.append(_missing(f"{path}.ref", referenced, known))
    return missing, loop_checks.warnings(destinations, broker, known)


def _of_subscription(
    subscription: Subscription, known: Mapping[ObjectIdentity, Any]
) -> tuple[list[str], list[str]]:
    """The same of a Subscription."""
    spec, namespace = subscription.spec, subscription.metadata.namespace
    if not spec.channel.is_kafka_channel:
        what = f"{spec.channel.kind} of {spec.channel.api_version}"
        return [], [f"its channel is a {what}, another implementation's: it is not checked"]
    missing = []
    channel = ObjectIdentity(KAFKA_CHANNEL, namespace, spec.channel.name)
    if channel not in known:
        missing.append(_missing("spec.channel", channel, known))
    destinations = {
        "spec.subscriber": spec.subscriber,
        "spec.reply": spec.reply,
        "spec.delivery.deadLetterSink": spec.delivery.dead_letter_sink,
    }
    for path, referenced in _referred(destinations, namespace):
        if referenced not in known:
            missing.append(_missing(f"{path}.ref", referenced, known))
    return missing, loop_checks.warnings(destinations, channel, known)


def _of_sensor(sensor: Sensor, known: Mapping[ObjectIdentity, Any]) -> tuple[list[str], list[str]]:
    """The same of a Sensor."""
    namespace, family = sensor.metadata.namespace, sensor.bus.family
    bus = ObjectIdentity(family.broker, *sensor.bus.identity)
    path = "spec.broker" if family is BROKERS else "spec.channel"
    missing = [] if bus in known else [_missing(path, bus, known)]
    for path, referenced in _referred(sensor_checks.destinations(sensor), namespace):
        if referenced not in known:
            missing.append(_missing(f"{path}.ref", referenced, known))
    return missing, sensor_checks.warnings(sensor)


def _referred(
    destinations: Mapping[str, Destination | None], namespace: str
) -> Iterator[tuple[str, ObjectIdentity]]:
    """The Knative Services, Brokers and KafkaChannels that destinations name, by path; others may
    be of any kind."""
    for path, destination in destinations.items():
        if destination is not None and (ref := destination.ref) is not None:
            if (ref.api_version, ref.kind) in _REFERRED:
                yield path, ObjectIdentity(ref.kind, ref.namespace or namespace, ref.name)


def _missing(path: str, referenced: ObjectIdentity, known: Mapping[ObjectIdentity, Any]) -> str:
    names = [identity.name for identity in known if identity[:2] == referenced[:2]]
    text = f"{path}: {referenced} isn't among the files{_meant(referenced.name, names)}"
    return f"{text} (--partial, if it is in the cluster already)"


def _unknown_annotations(document: Mapping[str, Any]) -> Iterator[str]:
    metadata = document.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    for annotation in annotations if isinstance(annotations, Mapping) else ():
        if (
            isinstance(annotation, str)
            and _OURS(annotation)
            and annotation not in KNOWN_ANNOTATIONS
        ):
            meant = _meant(annotation, KNOWN_ANNOTATIONS)
            yield f"metadata.annotations[{annotation}] means nothing here{meant}"


def _meant(given: str, known: Iterable[str]) -> str:
    close = get_close_matches(given, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def _known(placed_documents: Iterable[tuple[ManifestPlace, Any]]) -> dict[ObjectIdentity, Any]:
    """Every object of our kinds that has a name, the first of each; broken ones count as there."""
    known: dict[ObjectIdentity, Any] = {}
    for _, document in placed_documents:
        if (identity := identity_of(document)) is not None:
            try:
                known.setdefault(identity, parse(document))
            except InvalidDocument:
                known.setdefault(identity, _Broken())
    return known


class _Broken:
    """An object that is there and can't be read: what refers to it is right."""


def _class_of(document: Mapping[str, Any]) -> str:
    match document:
        case {"metadata": {"annotations": {**annotations}}}:
            return str(annotations.get(BROKER_CLASS, ""))
    return ""
