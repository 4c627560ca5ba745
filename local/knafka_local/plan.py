"""The plan: what is declared, as what has to run here. Pure: declared -> desired.

Everything that can't run is in `refused` with the reason; the rest runs all the same. A reference
that a cluster's resolver would look up is an address on this machine: a Broker's is a path below
our own URL, a Knative Service's the port of the command that stands in for its image.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

from knafka.core.contract import Egress, Ingress, Kafka, Sink, parse
from knafka.core.errors import InvalidDocument
from knafka_local.manifests import Declared, Identity
from knafka_operator.decide import desired
from knafka_operator.decide.desired import Defaults, Topic
from knafka_operator.decide.external_topics import refusal
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.resources import (
    BROKER_CLASS,
    BROKER_CLASSES,
    EVENTING,
    EXTERNAL_TOPIC,
    LOCAL_COMMAND,
    SERVING,
    Broker,
    ConfigMap,
    Destination,
    KReference,
    Service,
    Trigger,
    annotation_path,
    is_ours,
)

AUTOSCALING: Final = Autoscaling(polling_interval=1.0, cooldown_period=10.0)
"""Defaults for one machine: a look at the lag costs next to nothing and a person is watching."""

PARTITIONS: Final = 10
"""Upstream's default number, so that a Trigger scales here as it does there."""

EXTERNAL_TOPICS: Final = "*"
"""Which external topics are allowed: all that can be, as who starts this is the installation."""


def defaults(kafka: Kafka) -> Defaults:
    """What holds where nothing is declared: one Kafka node, so one copy of everything."""
    return Defaults(kafka=kafka, partitions=PARTITIONS, replication=1, max_replication=1)


@dataclass(frozen=True, slots=True)
class Program:
    """A Knative Service as a command on this machine."""

    arguments: tuple[str, ...]
    folder: Path
    """That of the manifest: relative paths in the command start there."""
    environment: Mapping[str, str]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@dataclass(frozen=True, slots=True)
class PlannedBroker:
    ingress: Ingress
    topic: Topic


@dataclass(frozen=True, slots=True)
class PlannedTrigger:
    egress: Egress
    autoscaling: Autoscaling
    partitions: int
    """Of its Broker's topic: more replicas than that would have nothing to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to run."""

    brokers: Mapping[Identity, PlannedBroker] = field(default_factory=dict)
    triggers: Mapping[Identity, PlannedTrigger] = field(default_factory=dict)
    programs: Mapping[Identity, Program] = field(default_factory=dict)
    refused: Mapping[Identity, str] = field(default_factory=dict)
    """Why these don't run."""


def make_plan(
    declared: Declared, defaults: Defaults, url: str, ports: Mapping[Identity, int], before: Plan
) -> Plan:
    """Plan everything declared; names stay with whoever had them in the plan `before`.

    `url` is where all Brokers are addressed, `ports` has one for each Service with a command.
    """
    planner = _Planner(declared, defaults, url.rstrip("/"))
    for service in declared.all(Service):
        planner.service(service, ports)
    owned = {
        each.topic.name: who for who, each in before.brokers.items() if not each.topic.external
    }
    owners = _Owners(owned, declared)
    for broker in declared.all(Broker):
        planner.broker(broker, owners)
    owners = _Owners({each.egress.group: who for who, each in before.triggers.items()}, declared)
    for trigger in declared.all(Trigger):
        planner.trigger(trigger, owners)
    return Plan(planner.brokers, planner.triggers, planner.programs, planner.refused)


def has_command(service: Service) -> bool:
    return LOCAL_COMMAND in service.annotations


def identity(resource: Broker | Trigger | Service | ConfigMap) -> Identity:
    return Identity(resource.kind, resource.metadata.namespace, resource.metadata.name)


class _Owners:
    """Who has a name: dash-joined names collide, and the second comer must not share it."""

    def __init__(self, before: Mapping[str, Identity], declared: Declared) -> None:
        self._owners = {name: who for name, who in before.items() if who in declared.resources}

    def claim(self, name: str, who: Identity, what: str) -> None:
        owner = self._owners.setdefault(name, who)
        if owner != who:
            raise InvalidDocument(
                "metadata.name", f"its {what} {name} is that of {owner} already: rename one of them"
            )


class _Planner:
    """One pass over what is declared."""

    def __init__(self, declared: Declared, defaults: Defaults, url: str) -> None:
        self._declared = declared
        self._defaults = defaults
        self._url = url
        self._declared_brokers: dict[Identity, Broker] = {}
        self.brokers: dict[Identity, PlannedBroker] = {}
        self.triggers: dict[Identity, PlannedTrigger] = {}
        self.programs: dict[Identity, Program] = {}
        self.refused: dict[Identity, str] = {}

    def service(self, service: Service, ports: Mapping[Identity, int]) -> None:
        who = identity(service)
        if not has_command(service):
            self.refused[who] = (
                f"no image runs here: say what to run in the template's annotation {LOCAL_COMMAND}"
            )
            return
        try:
            arguments = tuple(shlex.split(service.annotations[LOCAL_COMMAND]))
        except ValueError as error:
            self.refused[who] = f"{LOCAL_COMMAND} can't be read: {error}"
            return
        if not arguments:
            self.refused[who] = f"{LOCAL_COMMAND} is empty: say what to run"
            return
        folder = self._declared.resources[who][1].file.parent
        self.programs[who] = Program(arguments, folder, dict(service.env), ports[who])

    def broker(self, broker: Broker, owners: _Owners) -> None:
        who = identity(broker)
        try:
            if not is_ours(broker, BROKER_CLASSES | {""}):
                name = broker.metadata.annotations[BROKER_CLASS]
                raise InvalidDocument(
                    f"metadata.annotations[{BROKER_CLASS}]", f"{name} is another implementation's"
                )
            topic = desired.broker_topic(broker, self._config(broker), self._defaults)
            if not topic.external:
                owners.claim(topic.name, who, "topic")
            elif why := refusal(topic.name, who.namespace, EXTERNAL_TOPICS, "the local mode"):
                raise InvalidDocument(annotation_path(EXTERNAL_TOPIC), why)
            ingress = desired.ingress(broker, topic, topic.config, self._defaults)
            self.brokers[who] = PlannedBroker(ingress, topic)
            self._declared_brokers[who] = broker
        except InvalidDocument as error:
            self.refused[who] = str(error)

    def _config(self, broker: Broker) -> ConfigMap | None:
        """The Broker's ConfigMap without what only a cluster has: its Kafka, its Secret.

        One that isn't among the files is one that Knative itself installs, and says nothing here.
        """
        reference = desired.config_reference(broker)
        if reference is None:
            return None
        found, _ = self._declared.resources.get(Identity("ConfigMap", *reference), (None, None))
        if not isinstance(found, ConfigMap):
            return None
        here = {
            key: value
            for key, value in found.data.items()
            if key != "bootstrap.servers" and not key.startswith("auth.secret.")
        }
        return found.model_copy(update={"data": here})

    def trigger(self, trigger: Trigger, owners: _Owners) -> None:
        who = identity(trigger)
        try:
            broker_is = Identity("Broker", trigger.metadata.namespace, trigger.spec.broker)
            planned = self.brokers.get(broker_is)
            if planned is None:
                raise InvalidDocument("spec.broker", self._no_broker(broker_is))
            broker = self._declared_brokers[broker_is]
            subscriber = self._sink(trigger.spec.subscriber, trigger, "spec.subscriber")
            buried_at = desired.dead_letter_destination(trigger, broker)
            dead_letter_sink = (
                self._sink(buried_at, trigger, "spec.delivery.deadLetterSink")
                if buried_at
                else None
            )
            egress = desired.egress(
                trigger,
                broker,
                planned.topic,
                subscriber,
                dead_letter_sink,
                self._defaults,
            )
            owners.claim(egress.group, who, "consumer group")
            self.triggers[who] = PlannedTrigger(
                egress,
                Autoscaling.from_annotations(trigger.metadata.annotations, AUTOSCALING),
                planned.topic.partitions,
            )
        except InvalidDocument as error:
            self.refused[who] = str(error)

    def _no_broker(self, broker: Identity) -> str:
        """KN-TRG-01: the reason says so."""
        if broker in self.refused:
            return f'Broker "{broker.name}" is refused: {self.refused[broker]}'
        return f'Broker "{broker.name}" does not exist in namespace {broker.namespace}'

    def _sink(self, destination: Destination, trigger: Trigger, path: str) -> Sink:
        """KN-DST-01, KN-DST-03; raises `InvalidDocument` for what has no address here."""
        url = destination.uri or ""
        if destination.ref is not None:
            url = urljoin(self._address(destination.ref, trigger, f"{path}.ref"), url)
        try:
            return parse(Sink, {"url": url, "caCerts": destination.ca_certs})
        except InvalidDocument as error:
            raise InvalidDocument(f"{path}.uri", error.problem) from None

    def _address(self, ref: KReference, trigger: Trigger, path: str) -> str:
        who = Identity(ref.kind, ref.namespace or trigger.metadata.namespace, ref.name)
        match ref.api_version, ref.kind:
            case (str(version), "Broker") if version == EVENTING:
                if who in self.brokers:
                    return f"{self._url}/{who.namespace}/{who.name}"
            case (str(version), "Service") if version == SERVING:
                if who in self.programs:
                    return self.programs[who].url
            case _:
                raise InvalidDocument(
                    path,
                    f"a {ref.kind} ({ref.api_version}) has no address here: use uri, or a ref to a "
                    f"Knative Service ({SERVING}) or a Broker",
                )
        reason = self.refused.get(who, "it is not among the files")
        raise InvalidDocument(path, f"{who} has no address: {reason}")
