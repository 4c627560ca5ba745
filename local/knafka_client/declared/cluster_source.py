"""Reads the declared objects of a Kubernetes cluster, for commands that change nothing.

The status of Brokers, Triggers, KafkaChannels and Subscriptions names their topics and groups.
Kafka's address and credentials are in their ConfigMap and its Secret, merged as the operator does.
The Secret is kept in memory only.

Not here: writing anything, and anything that the operator keeps to itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import kubernetes
from kubernetes.config import ConfigException

from knafka.clients.kafka.kafka_connection import connection_configuration
from knafka.core import names
from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.core.kafka_settings.kafka_secret import for_librdkafka
from knafka_client.declared.declared_source import (
    DEFAULT_NAMESPACE,
    SYSTEM_NAMESPACE,
    DeclaredView,
    broker_name_of,
    trigger_name_of,
)
from knafka_client.declared.kubernetes_api import API_SERVER_TIMEOUT, read_answer
from knafka_client.declared.triggers import is_paused
from knafka_client.state.installation import CHANNEL_PREFIX
from knafka_operator.brokers.defaults import with_default_delivery
from knafka_operator.channels import decide as channel
from knafka_operator.installation.naming import AS_RECORDED, DEFAULT_NAMING
from knafka_operator.installation.settings import BROKER_DEFAULTS
from knafka_operator.kafka import credentials, desired, egresses
from knafka_operator.kafka.dead_letter_topics import DEAD_LETTER_TOPIC
from knafka_operator.kafka.desired import Defaults
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.cluster import ClusterError, Document, NotAllowed, decode_secret
from knafka_operator.model.family import (
    BROKERS,
    CHANNELS,
    FAMILIES,
    Family,
    is_of_kafka_channel,
)
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import Broker, ConfigMap, is_claimed_by_peer, is_ours
from knafka_operator.model.topics import Topic

BROKER_CONFIG_MAP: Final = "kafka-broker-config"
"""Name of the installation's ConfigMap for Brokers."""
CHANNEL_CONFIG_MAP: Final = "kafka-channel-config"
"""Name of the installation's ConfigMap for KafkaChannels."""
UNKNOWN_SINK: Final = Sink(url="http://unknown.invalid/")
"""The subscriber of a Trigger whose status has none yet."""
NO_KNATIVE_EVENTING: Final = (
    "there are neither Brokers nor KafkaChannels: Knative Eventing is not in this cluster, nor are "
    "Knafka's CRDs"
)  # the error of a cluster without these kinds
UNREACHED_HINT: Final = (  # what to do if Kafka doesn't answer
    "if it is only reachable from inside the cluster, name an address that is reachable from here "
    "with --bootstrap-servers HOST:PORT (an external listener, or `kubectl port-forward` to one "
    "whose advertised address leads back here)"
)


class KafkaAccess(NamedTuple):
    """How to reach the Kafka of a Broker or KafkaChannel."""

    configuration: Mapping[str, Any]
    """The librdkafka configuration, with credentials."""
    config: ConfigMap | None
    """The ConfigMap that applies to the Broker or KafkaChannel."""
    problems: Sequence[str]
    """A sentence for each ConfigMap that the user may not read."""


def client_of(context: str | None, kubeconfig: Path | None) -> tuple[Any, str]:
    """Return a Kubernetes client for a kubeconfig's context, and the namespace of that context.

    None stands for kubectl's defaults: the current context, and KUBECONFIG. Raises `ClusterError`.
    """
    file = None if kubeconfig is None else str(kubeconfig)
    try:
        contexts, current = kubernetes.config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
        by_name = {context_entry["name"]: context_entry for context_entry in contexts}
        chosen_context = current if context is None else by_name.get(context)
        if chosen_context is None:
            known_contexts = ", ".join(by_name) or "none"
            raise ClusterError(
                f"there is no context {context}: there is {known_contexts} (--context)"
            )
        client = kubernetes.config.new_client_from_config(file, chosen_context["name"])  # type: ignore[no-untyped-call]
    except ConfigException as error:
        raise ClusterError(
            f"no cluster: {error}: name a file with --kubeconfig or KUBECONFIG, and one of its "
            "contexts (`kubectl config get-contexts`) with --context"
        ) from error
    return client, chosen_context["context"].get("namespace") or DEFAULT_NAMESPACE


class ClusterSource:
    """The `DeclaredSource` of a cluster; each `read` reads the objects of one namespace once."""

    def __init__(
        self,
        client: kubernetes.client.ApiClient,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        system_namespace: str = SYSTEM_NAMESPACE,
        bootstrap_servers: str | None = None,
        system_client: kubernetes.client.ApiClient | None = None,
    ) -> None:
        """`namespace` is read by default. `bootstrap_servers` replace the declared ones (None: they
        don't). `system_client` reads ConfigMaps and Secrets of `system_namespace`, the operator's;
        None: `client` reads them, and topic and group names in a status are trusted."""
        self._core = kubernetes.client.CoreV1Api(client)
        self._system_core = kubernetes.client.CoreV1Api(system_client or client)
        self.trusts_status = system_client is None
        self._objects = kubernetes.client.CustomObjectsApi(client)
        self._namespace = namespace
        self._bootstrap_servers = bootstrap_servers
        self._system_namespace = system_namespace

    def read(self, namespace: str | None = None) -> DeclaredView:
        """Read the declared objects of a namespace.

        Raises `ClusterError`, and `NotAllowed` if the user may read none of the kinds.
        """
        namespace = namespace or self._namespace
        reading = _NamespaceReading(self)
        families_read = 0
        denied: list[NotAllowed] = []
        for family in FAMILIES:
            try:
                families_read += self._read_family(family, namespace, reading)
            except NotAllowed as error:
                denied.append(error)
        if not families_read:  # the cluster has none of the kinds, or the user may read none
            raise denied[0] if denied else ClusterError(NO_KNATIVE_EVENTING)
        reading.problems += map(str, denied)
        return self._view_of(reading, namespace)

    def view(self, family: Family, broker: Document, trigger: Document) -> DeclaredView:
        """Return the view of one Broker or KafkaChannel and one of its Triggers or Subscriptions.
        Raises `ClusterError`."""
        reading = _NamespaceReading(self)
        reading.add_broker(family, broker)
        reading.add_trigger(family, trigger)
        return self._view_of(reading, trigger["metadata"]["namespace"])

    def _view_of(self, reading: _NamespaceReading, namespace: str) -> DeclaredView:
        """Return the view of what was read; names without a namespace are in `namespace`."""
        return DeclaredView(
            reading.ingresses,
            reading.egresses,
            reading.connections,
            reading.paused,
            reading.problems,
            namespace,
            UNREACHED_HINT,
        )

    def _read_family(self, family: Family, namespace: str, reading: _NamespaceReading) -> bool:
        """Read the objects of a family (Brokers and Triggers, or KafkaChannels and Subscriptions)
        into `reading`; returns False if the cluster doesn't have these kinds.

        Raises `NotAllowed` and `ClusterError`.
        """
        brokers = self.list(family.broker_version, family.broker, namespace)
        if brokers is None:
            return False
        for document in brokers:
            reading.add_broker(family, document)
        for document in self.list(family.trigger_version, family.trigger, namespace) or ():
            reading.add_trigger(family, document)
        return True

    def connection_of(self, broker: Broker) -> KafkaAccess:
        """Return how to reach a Broker's Kafka: by the ConfigMap of its `spec.config` and the
        installation's. Raises `KnafkaError`."""
        identity, base, problems = self._installation_config(BROKER_CONFIG_MAP)
        reference = desired.config_reference(broker)
        broker_config = None if reference is None else self.config_map(Identity(*reference))
        try:
            configured = credentials.merge_configuration(reference, broker_config, base, identity)
        except InvalidDocument as error:
            return self._connect_without_credentials(broker, broker_config or base, problems, error)
        servers = self._bootstrap_servers or configured.config.data[desired.BOOTSTRAP_SERVERS]
        configuration = connection_configuration(Kafka(bootstrap_servers=servers))
        if configured.secret is not None:
            secret = self._get("Secret", configured.secret)
            if secret is None:
                raise ClusterError(f"Secret {configured.secret} does not exist")
            configuration.update(for_librdkafka(decode_secret(secret)))
        return KafkaAccess(configuration, configured.config, [])  # what can't be read isn't needed

    def connection_of_channel(self, channel: Broker) -> KafkaAccess:
        """Return how to reach a KafkaChannel's Kafka: by the installation's ConfigMap, and by the
        Secret that an annotation of the channel may name. Raises `KnafkaError`."""
        identity, base, problems = self._installation_config(CHANNEL_CONFIG_MAP)
        secret_name = channel.metadata.annotations.get(credentials.KAFKA_SECRET)
        secret_values = None
        try:
            secret = credentials.channel_secret(secret_name, base, self._system_namespace)
            if secret is not None:
                document = self._get("Secret", secret)
                checked = credentials.check_channel_secret(secret_name, document, secret)
                secret_values = dict(decode_secret(checked))
            config = credentials.channel_config(secret_name, secret_values, base, identity)
        except InvalidDocument as error:
            return self._connect_without_credentials(channel, base, problems, error)
        servers = self._bootstrap_servers or config.data[desired.BOOTSTRAP_SERVERS]
        configuration = connection_configuration(Kafka(bootstrap_servers=servers))
        if secret_values is not None:
            configuration.update(for_librdkafka(secret_values))
        return KafkaAccess(configuration, config, problems)

    def _installation_config(self, name: str) -> tuple[Identity, ConfigMap | None, Sequence[str]]:
        """Return the identity of the installation's ConfigMap of this name, the ConfigMap (None if
        it doesn't exist or may not be read), and a problem if the user may not read it."""
        identity = Identity(self._system_namespace, name)
        try:
            return identity, self.config_map(identity), []
        except NotAllowed as error:
            return identity, None, [str(error)]

    def _connect_without_credentials(
        self,
        broker: Broker,
        config: ConfigMap | None,
        problems: Sequence[str],
        cause: InvalidDocument,
    ) -> KafkaAccess:
        """Return a connection to `bootstrap_servers`, or else to the servers in the Broker's
        status, since no ConfigMap names servers: that is the error `cause`. There are no
        credentials, as these belong to servers that a ConfigMap names.

        Raises `ClusterError` if the status names no servers either.
        """
        recorded = broker.status.annotations.get(desired.BOOTSTRAP_SERVERS)
        servers = self._bootstrap_servers or recorded
        if servers is None:
            raise ClusterError("; ".join([str(cause), *problems])) from cause
        configuration = connection_configuration(Kafka(bootstrap_servers=servers))
        return KafkaAccess(configuration, config, problems)

    def config_map(self, identity: Identity) -> ConfigMap | None:
        """Return the ConfigMap of this name; None if it doesn't exist. Raises `ClusterError`."""
        document = self._get("ConfigMap", identity)
        return None if document is None else parse(ConfigMap, document)

    def with_default_delivery(self, broker: Broker) -> Broker:
        """Return the Broker with the delivery of `config-br-defaults`, if it declares none and that
        ConfigMap can be read."""
        if broker.spec.delivery.is_set:
            return broker
        namespace, _, name = BROKER_DEFAULTS.partition("/")
        try:
            return with_default_delivery(broker, self.config_map(Identity(namespace, name)))
        except KnafkaError:
            return broker  # topics and groups don't depend on the delivery

    def list(self, api_version: str, kind: str, namespace: str) -> Sequence[Document] | None:
        """Return all objects of a kind in a namespace; None if the cluster doesn't have the kind.
        Raises `ClusterError`."""
        group, _, version = api_version.partition("/")
        plural = f"{kind.lower()}s"
        answer = self._request(
            f"list {plural} in {namespace}",
            self._objects.list_namespaced_custom_object,
            group, version, namespace, plural,
        )  # fmt: skip
        if answer is None:
            return None
        # Objects in a list lack apiVersion and kind.
        type_fields = {"apiVersion": api_version, "kind": kind}
        return [{**type_fields, **item} for item in answer.get("items") or ()]

    def _get(self, kind: Literal["ConfigMap", "Secret"], identity: Identity) -> Document | None:
        """Return a ConfigMap or Secret; None if it doesn't exist. Raises `ClusterError`."""
        core = self._system_core if identity.namespace == self._system_namespace else self._core
        read_object = {
            "ConfigMap": core.read_namespaced_config_map,
            "Secret": core.read_namespaced_secret,
        }[kind]
        return self._request(
            f"get {kind} {identity}", read_object, identity.name, identity.namespace
        )

    def _request(
        self, request_text: str, ask: Callable[..., Any], *arguments: str
    ) -> Document | None:
        """Return the JSON answer to a request; None if it was 404. `ask` is a method of the
        Kubernetes client, called with `arguments`. Raises `ClusterError`."""
        answer = read_answer(
            request_text,
            lambda: ask(*arguments, _preload_content=False, _request_timeout=API_SERVER_TIMEOUT),
        )
        return None if answer is None else json.loads(answer)


class _NamespaceReading:
    """Collects what one read finds. What can't be read becomes a problem. The public attributes are
    the fields of the `DeclaredView` that is made from them."""

    def __init__(self, source: ClusterSource) -> None:
        self._source = source
        # A status that isn't trusted may name anybody's topic: then only the default names count.
        self._naming = AS_RECORDED if source.trusts_status else DEFAULT_NAMING
        self._brokers: dict[str, tuple[Broker, Topic, Defaults]] = {}
        """Each added Broker or channel, with its topic and defaults, by `broker_name_of`."""
        self.ingresses: list[Ingress] = []
        self.egresses: list[Egress] = []
        self.connections: dict[str, Mapping[str, Any]] = {}
        self.paused: set[str] = set()
        self.problems: list[str] = []

    def add_broker(self, family: Family, document: Document) -> None:
        """Add the Ingress and the Kafka connection of a Broker or KafkaChannel, unless another
        implementation serves it; if it can't be read, add a problem."""
        try:
            broker = family.read_broker(document)
            is_channel = family is not BROKERS
            if is_claimed_by_peer(document, family.peers_finalizer):
                return  # another implementation serves it
            if not is_channel and not is_ours(broker):
                return
            read_connection = (
                self._source.connection_of_channel if is_channel else self._source.connection_of
            )
            configuration, config, problems = read_connection(broker)
            kafka = Kafka(bootstrap_servers=configuration["bootstrap.servers"])
            defaults = desired.defaults_with_config(config, Defaults(kafka=kafka))
            defaults = replace(defaults, kafka=kafka)
            if is_channel:
                topic = channel.channel_topic(
                    parse(KafkaChannel, document), defaults, naming=self._naming
                )
            else:
                topic = desired.broker_topic(broker, config, defaults, naming=self._naming)
            ingress = desired.broker_ingress(broker, topic, {}, defaults)
        except KnafkaError as error:
            self.problems.append(f"{family.broker} {Identity.of(document)}: {error}")
            return
        self.problems += [problem for problem in problems if problem not in self.problems]
        if not is_channel:
            broker = self._source.with_default_delivery(broker)
        self._brokers[broker_name_of(ingress)] = broker, topic, defaults
        self.connections[broker_name_of(ingress)] = configuration
        self.ingresses.append(ingress)

    def add_trigger(self, family: Family, document: Document) -> None:
        """Add the Egress of a Trigger or Subscription, and note whether it is paused; if it can't
        be read, add a problem. Does nothing if its Broker or channel wasn't added."""
        if family is CHANNELS and not is_of_kafka_channel(document):
            return  # its channel is of another implementation
        broker_id = f"{CHANNEL_PREFIX if family is CHANNELS else ''}{family.broker_of(document)}"
        if broker_id not in self._brokers:
            return  # not ours, or its Broker is a problem already
        broker, topic, defaults = self._brokers[broker_id]
        try:
            trigger = family.read_trigger(document)
            status = document.get("status") or {}
            if family is CHANNELS:
                status = status.get("physicalSubscription") or {}
            egress = egresses.trigger_egress(
                trigger,
                broker,
                topic,
                egresses.TriggerDestinations(
                    _sink(status.get("subscriberUri")) or UNKNOWN_SINK,
                    _sink(status.get("deadLetterSinkUri")),
                    _sink(status.get("replyUri")),
                ),
                defaults,
                naming=self._naming,
            )
        except KnafkaError as error:
            self.problems.append(f"{family.trigger} {Identity.of(document)}: {error}")
            return
        # A status that isn't trusted may name another Trigger's topic.
        recorded_topic = trigger.status.annotations.get(DEAD_LETTER_TOPIC) or ""
        if recorded_topic.startswith(names.DEAD_LETTERS) and self._source.trusts_status:
            egress = egress.model_copy(update={"dead_letter_topic": recorded_topic})
        self.egresses.append(egress)
        if is_paused(trigger):
            self.paused.add(trigger_name_of(egress))


def _sink(url: object) -> Sink | None:
    """Return the Sink with this URL; None if there is no URL."""
    return parse(Sink, {"url": url}) if url else None
