"""Brokers and Triggers of a Kubernetes cluster, for commands that only look.

Their status says which topic and group they have; where Kafka is and with what credentials is in
their ConfigMap and its Secret, merged as the operator does. The Secret stays in memory.

Not here: writing anything, and anything that the operator keeps to itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import kubernetes
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from knafka.clients.kafka_connection import connection
from knafka.core import names
from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.core.kafka_secret import for_librdkafka
from knafka_local.declared_source import (
    DEFAULT_NAMESPACE,
    SYSTEM_NAMESPACE,
    DeclaredView,
    broker_of,
    trigger_of,
)
from knafka_local.triggers import is_paused
from knafka_operator.decide import credentials, desired
from knafka_operator.decide.broker_defaults import with_default_delivery
from knafka_operator.decide.desired import Defaults
from knafka_operator.decide.trigger import DEAD_LETTER_TOPIC
from knafka_operator.model.cluster import ClusterError, Document, NotAllowed, decoded
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import EVENTING, Broker, ConfigMap, Trigger, is_ours
from knafka_operator.model.settings import BROKER_DEFAULTS

TIMEOUT: Final = 15.0
"""Seconds for one request."""
CONFIG: Final = "kafka-broker-config"
"""The installation's ConfigMap there."""
UNKNOWN_SINK: Final = Sink(url="http://unknown.invalid/")
"""Of a Trigger whose status has no subscriber yet."""
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
        by_name = {each["name"]: each for each in contexts}
        wanted = current if context is None else by_name.get(context)
        if wanted is None:
            known = ", ".join(by_name) or "none"
            raise ClusterError(f"there is no context {context}: there is {known} (--context)")
        client = kubernetes.config.new_client_from_config(file, wanted["name"])  # type: ignore[no-untyped-call]
    except ConfigException as error:
        raise ClusterError(
            f"no cluster: {error}: name a file with --kubeconfig or KUBECONFIG, and one of its "
            "contexts (`kubectl config get-contexts`) with --context"
        ) from error
    return client, wanted["context"].get("namespace") or DEFAULT_NAMESPACE


class ClusterSource:
    """`DeclaredSource` of one namespace of a cluster, read once for each `read`."""

    def __init__(
        self,
        client: kubernetes.client.ApiClient,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        system_namespace: str = SYSTEM_NAMESPACE,
        bootstrap_servers: str | None = None,
    ) -> None:
        """`bootstrap_servers` are used in place of those that are declared."""
        self._core = kubernetes.client.CoreV1Api(client)
        self._objects = kubernetes.client.CustomObjectsApi(client)
        self._namespace = namespace
        self._servers = bootstrap_servers
        self._system = system_namespace

    def read(self, namespace: str | None = None) -> DeclaredView:
        """Raises `ClusterError`, `NotAllowed` if the user may not read what is needed."""
        namespace = namespace or self._namespace
        reading = _Reading(self, namespace)
        for document in self.list("brokers", namespace):
            reading.broker(document)
        for document in self.list("triggers", namespace):
            reading.trigger(document)
        return DeclaredView(
            reading.ingresses,
            reading.egresses,
            reading.connections,
            reading.paused,
            reading.problems,
            namespace,
            UNREACHED,
        )

    def connection_of(
        self, broker: Broker
    ) -> tuple[Mapping[str, Any], ConfigMap | None, Sequence[str]]:
        """How its Kafka is reached, its ConfigMap over the installation's, and what couldn't be
        read on the way. Raises `KnafkaError`."""
        problems: list[str] = []
        default = Identity(self._system, CONFIG)
        base = None
        try:
            base = self.config_map(default)
        except NotAllowed as error:
            problems.append(str(error))
        reference = desired.config_reference(broker)
        own = None if reference is None else self.config_map(Identity(*reference))
        try:
            found = credentials.configuration(reference, own, base, default)
        except InvalidDocument as error:
            # Without credentials: those belong to servers that a ConfigMap names.
            servers = self._servers or broker.status.annotations.get(desired.BOOTSTRAP_SERVERS)
            if servers is None:
                raise ClusterError("; ".join([str(error), *problems])) from error
            return connection(Kafka(bootstrap_servers=servers)), own or base, problems
        servers = self._servers or found.config.data[desired.BOOTSTRAP_SERVERS]
        reached = connection(Kafka(bootstrap_servers=servers))
        if found.secret is not None:
            secret = self._get(self._core.read_namespaced_secret, "Secret", found.secret)
            if secret is None:
                raise ClusterError(f"Secret {found.secret} does not exist")
            reached.update(for_librdkafka(decoded(secret)))
        return reached, found.config, []

    def config_map(self, of: Identity) -> ConfigMap | None:
        found = self._get(self._core.read_namespaced_config_map, "ConfigMap", of)
        return None if found is None else parse(ConfigMap, _typed(found, "v1", "ConfigMap"))

    def default_delivery(self, broker: Broker) -> Broker:
        """With the delivery of `config-br-defaults` where it declares none and that is readable."""
        if broker.spec.delivery.is_set:
            return broker
        namespace, _, name = BROKER_DEFAULTS.partition("/")
        try:
            return with_default_delivery(broker, self.config_map(Identity(namespace, name)))
        except KnafkaError:
            return broker  # what is looked for doesn't depend on it

    def list(self, plural: str, namespace: str) -> Sequence[Document]:
        group, _, version = EVENTING.partition("/")
        found = self._asked(
            f"list {plural} in {namespace}",
            self._objects.list_namespaced_custom_object,
            group, version, namespace, plural,
        )  # fmt: skip
        if found is None:
            raise ClusterError("there are no Brokers: Knative Eventing is not in this cluster")
        items: Sequence[Document] = found.get("items") or []
        return items

    def _get(self, read: Callable[..., Any], kind: str, of: Identity) -> Document | None:
        return self._asked(f"get {kind} {of}", read, of.name, of.namespace)

    def _asked(self, what: str, ask: Callable[..., Any], *arguments: str) -> Document | None:
        try:
            answer = ask(*arguments, _preload_content=False, _request_timeout=TIMEOUT)
            document: Document = json.loads(answer.data)
        except ApiException as error:
            if error.status == 404:
                return None
            if error.status in (401, 403):
                verb, plural = what.split()[:2]
                raise NotAllowed(
                    f"can't {what}: {_message(error)}: ask for a role that may {verb} "
                    f"{plural.lower()}, or name another --context"
                ) from error
            raise ClusterError(f"can't {what}: {_message(error)}") from error
        except (HTTPError, OSError, ValueError) as error:
            raise ClusterError(
                f"can't {what}: the API server does not answer ({error}): is the --context right, "
                "and `kubectl version` answered?"
            ) from error
        return document


class _Reading:
    """One look at a namespace; what can't be read is a problem, and the rest goes on."""

    def __init__(self, source: ClusterSource, namespace: str) -> None:
        self._source = source
        self._namespace = namespace
        self._brokers: dict[str, tuple[Broker, desired.Topic, Defaults]] = {}
        self.ingresses: list[Ingress] = []
        self.egresses: list[Egress] = []
        self.connections: dict[str, Mapping[str, Any]] = {}
        self.paused: set[str] = set()
        self.problems: list[str] = []

    def broker(self, document: Document) -> None:
        what = f"Broker {Identity.of(document)}"
        try:
            broker = parse(Broker, _typed(document, EVENTING, "Broker"))
            if not is_ours(broker):
                return
            reached, config, problems = self._source.connection_of(broker)
            kafka = Kafka(bootstrap_servers=reached["bootstrap.servers"])
            defaults = desired.configured(config, Defaults(kafka=kafka))
            defaults = replace(defaults, kafka=kafka)
            topic = desired.broker_topic(broker, config, defaults)
            ingress = desired.ingress(broker, topic, {}, defaults)
        except KnafkaError as error:
            self.problems.append(f"{what}: {error}")
            return
        self.problems += problems
        broker = self._source.default_delivery(broker)
        self._brokers[broker_of(ingress)] = broker, topic, defaults
        self.connections[broker_of(ingress)] = reached
        self.ingresses.append(ingress)

    def trigger(self, document: Document) -> None:
        try:
            trigger = parse(Trigger, _typed(document, EVENTING, "Trigger"))
            found = self._brokers.get(f"{self._namespace}/{trigger.spec.broker}")
            if found is None:
                return  # not ours, or its Broker is a problem already
            broker, topic, defaults = found
            now = document.get("status") or {}
            egress = desired.egress(
                trigger, broker, topic, _sink(now.get("subscriberUri")) or UNKNOWN_SINK,
                _sink(now.get("deadLetterSinkUri")), defaults,
            )  # fmt: skip
        except KnafkaError as error:
            self.problems.append(f"Trigger {Identity.of(document)}: {error}")
            return
        kept = trigger.status.annotations.get(DEAD_LETTER_TOPIC)
        if kept and kept.startswith(names.DEAD_LETTERS):
            egress = egress.model_copy(update={"dead_letter_topic": kept})
        self.egresses.append(egress)
        if is_paused(trigger):
            self.paused.add(trigger_of(egress))


def _sink(url: object) -> Sink | None:
    return parse(Sink, {"url": url}) if url else None


def _typed(document: Document, api_version: str, kind: str) -> Document:
    """Objects in a list don't say what they are."""
    return {"apiVersion": api_version, "kind": kind, **document}


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return f"{error.status} {error.reason}"
