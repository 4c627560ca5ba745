"""Brokers and Triggers of a Kubernetes cluster, KafkaChannels and Subscriptions, for commands that
only look.

Their status says which topic and group they have; where Kafka is and with what credentials is in
their ConfigMap and its Secret, merged as the operator does. The Secret stays in memory.

Not here: writing anything, and anything that the operator keeps to itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import kubernetes
from kubernetes.config import ConfigException

from knafka.clients.kafka_connection import connection_configuration
from knafka.core import names
from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.core.kafka_secret import for_librdkafka
from knafka_client.declared.declared_source import (
    DEFAULT_NAMESPACE,
    SYSTEM_NAMESPACE,
    DeclaredView,
    broker_of,
    trigger_of,
)
from knafka_client.declared.kubernetes_api import API_SERVER_TIMEOUT, answered
from knafka_client.declared.triggers import is_paused
from knafka_client.state.installation import CHANNEL_PREFIX
from knafka_operator.decide import channel, credentials, desired
from knafka_operator.decide.broker_defaults import with_default_delivery
from knafka_operator.decide.desired import Defaults
from knafka_operator.decide.trigger import DEAD_LETTER_TOPIC
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.cluster import ClusterError, Document, NotAllowed, decoded_secret
from knafka_operator.model.family import (
    BROKERS,
    CHANNELS,
    FAMILIES,
    Family,
    is_of_kafka_channel,
)
from knafka_operator.model.identity import Identity
from knafka_operator.model.naming import AS_RECORDED, DEFAULT_NAMING
from knafka_operator.model.resources import Broker, ConfigMap, is_claimed_by_peer, is_ours
from knafka_operator.model.settings import BROKER_DEFAULTS

BROKER_CONFIG: Final = "kafka-broker-config"
"""The installation's ConfigMap of Brokers there."""
CHANNEL_CONFIG: Final = "kafka-channel-config"
"""That of KafkaChannels."""
UNKNOWN_SINK: Final = Sink(url="http://unknown.invalid/")
"""Of a Trigger whose status has no subscriber yet."""
NEITHER: Final = (
    "there are neither Brokers nor KafkaChannels: Knative Eventing is not in this cluster, nor are "
    "Knafka's CRDs"
)
UNREACHED: Final = (
    "if it is only reachable from inside the cluster, name an address that is reachable from here "
    "with --bootstrap-servers HOST:PORT (an external listener, or `kubectl port-forward` to one "
    "whose advertised address leads back here)"
)


def client_of(context: str | None, kubeconfig: Path | None) -> tuple[Any, str]:
    """A client by a kubeconfig, and the namespace of its context. Raises `ClusterError`.

    None is kubectl's: its current context, its KUBECONFIG.
    """
    file = None if kubeconfig is None else str(kubeconfig)
    try:
        contexts, current = kubernetes.config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
        by_name = {context_entry["name"]: context_entry for context_entry in contexts}
        chosen = current if context is None else by_name.get(context)
        if chosen is None:
            known = ", ".join(by_name) or "none"
            raise ClusterError(f"there is no context {context}: there is {known} (--context)")
        client = kubernetes.config.new_client_from_config(file, chosen["name"])  # type: ignore[no-untyped-call]
    except ConfigException as error:
        raise ClusterError(
            f"no cluster: {error}: name a file with --kubeconfig or KUBECONFIG, and one of its "
            "contexts (`kubectl config get-contexts`) with --context"
        ) from error
    return client, chosen["context"].get("namespace") or DEFAULT_NAMESPACE


class ClusterSource:
    """`DeclaredSource` of one namespace of a cluster, read once for each `read`."""

    def __init__(
        self,
        client: kubernetes.client.ApiClient,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        system_namespace: str = SYSTEM_NAMESPACE,
        bootstrap_servers: str | None = None,
        system_client: kubernetes.client.ApiClient | None = None,
    ) -> None:
        """`bootstrap_servers` are used in place of those that are declared; `system_client` reads
        ConfigMaps and Secrets of the system namespace, and status is believed without it only."""
        self._core = kubernetes.client.CoreV1Api(client)
        self._system_core = kubernetes.client.CoreV1Api(system_client or client)
        self.believes_status = system_client is None
        self._objects = kubernetes.client.CustomObjectsApi(client)
        self._namespace = namespace
        self._servers = bootstrap_servers
        self._system = system_namespace

    def read(self, namespace: str | None = None) -> DeclaredView:
        """Raises `ClusterError`, `NotAllowed` if the user may not read what is needed."""
        namespace = namespace or self._namespace
        reading = _Reading(self)
        there, denied = 0, list[NotAllowed]()
        for family in FAMILIES:
            try:
                there += self._read(family, namespace, reading)
            except NotAllowed as error:
                denied.append(error)
        if not there:
            raise denied[0] if denied else ClusterError(NEITHER)
        reading.problems += map(str, denied)
        return self._view(reading, namespace)

    def view(self, family: Family, broker: Document, trigger: Document) -> DeclaredView:
        """Of one Broker or KafkaChannel and one that gets its events. Raises `ClusterError`."""
        reading = _Reading(self)
        reading.broker(family, broker)
        reading.trigger(family, trigger)
        return self._view(reading, trigger["metadata"]["namespace"])

    def _view(self, reading: _Reading, namespace: str) -> DeclaredView:
        return DeclaredView(
            reading.ingresses,
            reading.egresses,
            reading.connections,
            reading.paused,
            reading.problems,
            namespace,
            UNREACHED,
        )

    def _read(self, family: Family, namespace: str, reading: _Reading) -> bool:
        """False: the cluster has no such kinds. Raises `NotAllowed` and `ClusterError`."""
        brokers = self.list(family.broker_version, family.broker, namespace)
        if brokers is None:
            return False
        for document in brokers:
            reading.broker(family, document)
        for document in self.list(family.trigger_version, family.trigger, namespace) or ():
            reading.trigger(family, document)
        return True

    def connection_of_channel(
        self, channel: Broker
    ) -> tuple[Mapping[str, Any], ConfigMap | None, Sequence[str]]:
        """Like `connection_of`, for a KafkaChannel: all have one ConfigMap, and each may name a
        Secret."""
        problems: list[str] = []
        default, base = Identity(self._system, CHANNEL_CONFIG), None
        try:
            base = self.config_map(default)
        except NotAllowed as error:
            problems.append(str(error))
        try:
            named = channel.metadata.annotations.get(credentials.KAFKA_SECRET)
            secret_name, values = credentials.channel_secret(named, base, self._system), None
            if secret_name is not None:
                there = self._get("Secret", secret_name)
                secret = credentials.check_channel_secret(named, there, secret_name)
                values = dict(decoded_secret(secret))
            config = credentials.channel_config(named, values, base, default)
        except InvalidDocument as error:
            # Without credentials, as for a Broker.
            servers = self._servers or channel.status.annotations.get(desired.BOOTSTRAP_SERVERS)
            if servers is None:
                raise ClusterError("; ".join([str(error), *problems])) from error
            return connection_configuration(Kafka(bootstrap_servers=servers)), base, problems
        servers = self._servers or config.data[desired.BOOTSTRAP_SERVERS]
        reached = connection_configuration(Kafka(bootstrap_servers=servers))
        if values is not None:
            reached.update(for_librdkafka(values))
        return reached, config, problems

    def connection_of(
        self, broker: Broker
    ) -> tuple[Mapping[str, Any], ConfigMap | None, Sequence[str]]:
        """The librdkafka configuration that reaches a Broker's Kafka, the ConfigMap that applies to
        the Broker, and what could not be read. Raises `KnafkaError`."""
        problems: list[str] = []
        default = Identity(self._system, BROKER_CONFIG)
        base = None
        try:
            base = self.config_map(default)
        except NotAllowed as error:
            problems.append(str(error))
        reference = desired.config_reference(broker)
        own = None if reference is None else self.config_map(Identity(*reference))
        try:
            configured = credentials.merged_configuration(reference, own, base, default)
        except InvalidDocument as error:
            # Without credentials: those belong to servers that a ConfigMap names.
            servers = self._servers or broker.status.annotations.get(desired.BOOTSTRAP_SERVERS)
            if servers is None:
                raise ClusterError("; ".join([str(error), *problems])) from error
            return connection_configuration(Kafka(bootstrap_servers=servers)), own or base, problems
        servers = self._servers or configured.config.data[desired.BOOTSTRAP_SERVERS]
        reached = connection_configuration(Kafka(bootstrap_servers=servers))
        if configured.secret is not None:
            secret = self._get("Secret", configured.secret)
            if secret is None:
                raise ClusterError(f"Secret {configured.secret} does not exist")
            reached.update(for_librdkafka(decoded_secret(secret)))
        return reached, configured.config, []

    def config_map(self, identity: Identity) -> ConfigMap | None:
        document = self._get("ConfigMap", identity)
        return None if document is None else parse(ConfigMap, document)

    def default_delivery(self, broker: Broker) -> Broker:
        """The Broker with the delivery of `config-br-defaults`, if it declares none and that
        ConfigMap can be read."""
        if broker.spec.delivery.is_set:
            return broker
        namespace, _, name = BROKER_DEFAULTS.partition("/")
        try:
            return with_default_delivery(broker, self.config_map(Identity(namespace, name)))
        except KnafkaError:
            return broker  # what is looked for doesn't depend on it

    def list(self, api_version: str, kind: str, namespace: str) -> Sequence[Document] | None:
        """All objects of a kind in a namespace; None: the cluster doesn't have the kind. Raises
        `ClusterError`."""
        group, _, version = api_version.partition("/")
        plural = f"{kind.lower()}s"
        answer = self._asked(
            f"list {plural} in {namespace}",
            self._objects.list_namespaced_custom_object,
            group, version, namespace, plural,
        )  # fmt: skip
        if answer is None:
            return None
        # Objects in a list don't say what they are.
        about = {"apiVersion": api_version, "kind": kind}
        return [{**about, **item} for item in answer.get("items") or ()]

    def _get(self, kind: Literal["ConfigMap", "Secret"], identity: Identity) -> Document | None:
        core = self._system_core if identity.namespace == self._system else self._core
        read = {
            "ConfigMap": core.read_namespaced_config_map,
            "Secret": core.read_namespaced_secret,
        }[kind]
        return self._asked(f"get {kind} {identity}", read, identity.name, identity.namespace)

    def _asked(self, what: str, ask: Callable[..., Any], *arguments: str) -> Document | None:
        answer = answered(
            what,
            lambda: ask(*arguments, _preload_content=False, _request_timeout=API_SERVER_TIMEOUT),
        )
        return None if answer is None else json.loads(answer)


class _Reading:
    """One look at a namespace; what can't be read is a problem, and the rest goes on."""

    def __init__(self, source: ClusterSource) -> None:
        self._source = source
        # Where others may have written a status, a name is believed only as the usual one.
        self._naming = AS_RECORDED if source.believes_status else DEFAULT_NAMING
        self._brokers: dict[str, tuple[Broker, desired.Topic, Defaults]] = {}
        self.ingresses: list[Ingress] = []
        self.egresses: list[Egress] = []
        self.connections: dict[str, Mapping[str, Any]] = {}
        self.paused: set[str] = set()
        self.problems: list[str] = []

    def broker(self, family: Family, document: Document) -> None:
        """A Broker or KafkaChannel."""
        try:
            broker = family.read_broker(document)
            if is_claimed_by_peer(document, family.peers_finalizer):
                return
            if family is BROKERS and not is_ours(broker):
                return
            if family is BROKERS:
                reached, config, problems = self._source.connection_of(broker)
            else:
                reached, config, problems = self._source.connection_of_channel(broker)
            kafka = Kafka(bootstrap_servers=reached["bootstrap.servers"])
            defaults = desired.defaults_with_config(config, Defaults(kafka=kafka))
            defaults = replace(defaults, kafka=kafka)
            if family is BROKERS:
                topic = desired.broker_topic(broker, config, defaults, naming=self._naming)
            else:
                topic = channel.channel_topic(
                    parse(KafkaChannel, document), defaults, naming=self._naming
                )
            ingress = desired.broker_ingress(broker, topic, {}, defaults)
        except KnafkaError as error:
            self.problems.append(f"{family.broker} {Identity.of(document)}: {error}")
            return
        self.problems += [problem for problem in problems if problem not in self.problems]
        if family is BROKERS:
            broker = self._source.default_delivery(broker)
        self._brokers[broker_of(ingress)] = broker, topic, defaults
        self.connections[broker_of(ingress)] = reached
        self.ingresses.append(ingress)

    def trigger(self, family: Family, document: Document) -> None:
        """A Trigger or Subscription."""
        if family is CHANNELS and not is_of_kafka_channel(document):
            return
        broker_id = f"{CHANNEL_PREFIX if family is CHANNELS else ''}{family.broker_of(document)}"
        if (known := self._brokers.get(broker_id)) is None:
            return  # not ours, or its Broker is a problem already
        broker, topic, defaults = known
        try:
            trigger = family.read_trigger(document)
            now = document.get("status") or {}
            if family is CHANNELS:
                now = now.get("physicalSubscription") or {}
            egress = desired.trigger_egress(
                trigger, broker, topic, _sink(now.get("subscriberUri")) or UNKNOWN_SINK,
                _sink(now.get("deadLetterSinkUri")), defaults, reply=_sink(now.get("replyUri")),
                naming=self._naming,
            )  # fmt: skip
        except KnafkaError as error:
            self.problems.append(f"{family.trigger} {Identity.of(document)}: {error}")
            return
        kept = trigger.status.annotations.get(DEAD_LETTER_TOPIC)
        if kept and kept.startswith(names.DEAD_LETTERS) and self._source.believes_status:
            egress = egress.model_copy(update={"dead_letter_topic": kept})
        self.egresses.append(egress)
        if is_paused(trigger):
            self.paused.add(trigger_of(egress))


def _sink(url: object) -> Sink | None:
    return parse(Sink, {"url": url}) if url else None
