"""Adoption's IO: what is seen of a Broker or KafkaSource in a cluster and in its Kafka, and each
step of a plan.

Everything is read anew for every plan, and a list of finalizers is written only over the version
that was read, so that a command that was killed is simply run again.

Not here: what is to be done (`plan`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.clients.kafka_connection import connection_configuration
from knafka.core.contract import Kafka
from knafka.core.documents import parse
from knafka.core.errors import KnafkaError
from knafka.core.kafka_secret import for_librdkafka
from knafka.ports.log import LogAdmin, TopicDescription
from knafka_cli.adoption.plan import (
    Plan,
    SeenBroker,
    SeenGroup,
    SetFinalizers,
    Step,
    WriteAnnotations,
    adoption,
    group_of,
    topic_of,
)
from knafka_cli.adoption.source_plan import SeenSource, source_adoption
from knafka_client.declared.cluster_source import BROKER_CONFIG, ClusterSource
from knafka_client.declared.kubernetes_api import KubernetesApi, Objects
from knafka_operator.decide.external_topics import EXTERNAL_TOPICS, refusal
from knafka_operator.decide.status import is_ready, why_not_ready
from knafka_operator.model.cluster import ClusterError, Conflict, NotAllowed, decoded
from knafka_operator.model.family import BROKERS
from knafka_operator.model.identity import Identity
from knafka_operator.model.naming import NameKind, Naming
from knafka_operator.model.resources import (
    BROKER_CLASSES,
    EVENTING,
    EXTERNAL_TOPIC,
    TOPIC_STATUS,
    Broker,
    finalizers_of,
)
from knafka_operator.model.settings import KAFKA_FEATURES
from knafka_operator.model.sources import (
    KAFKA_SOURCE,
    SOURCES_VERSION,
    Credential,
    KafkaSource,
    credentials,
)
from knafka_operator.model.sources import group_of as consumer_group_of
from knafka_operator.runtime.naming import RECORD, declared, recorded
from knafka_operator.sources.decide import secret_of

Document = Mapping[str, Any]

OBJECTS: Final = {
    "Broker": Objects(EVENTING, "brokers"),
    "Trigger": Objects(EVENTING, "triggers"),
    KAFKA_SOURCE: Objects(SOURCES_VERSION, "kafkasources"),
}
CONFIG_MAPS: Final = Objects("v1", "configmaps")
SECRETS: Final = Objects("v1", "secrets")
DEPLOYMENTS: Final = Objects("apps/v1", "deployments")
STATEFUL_SETS: Final = Objects("apps/v1", "statefulsets")
OPERATOR: Final = "knafka-operator"
BROKERS_PEERS: Final = (
    (DEPLOYMENTS, "Deployment", "kafka-controller"),
    (DEPLOYMENTS, "Deployment", "kafka-broker-dispatcher"),
    (STATEFUL_SETS, "StatefulSet", "kafka-broker-dispatcher"),
)
"""Of eventing-kafka-broker, what may not run while Brokers are taken over. Its receiver may: it
writes to the same topic."""
SOURCES_PEERS: Final = (
    (DEPLOYMENTS, "Deployment", "kafka-controller"),
    (STATEFUL_SETS, "StatefulSet", "kafka-source-dispatcher"),
)
"""The same for KafkaSources."""
LOOK_AGAIN: Final = 1.0
"""Seconds between two looks at what has still to happen."""
WRITES: Final = 5
"""Times that a list of finalizers is written, should somebody else write the object meanwhile."""


class Adopter:
    """Looks at Brokers of one cluster, and carries plans out, under the rights of its user."""

    def __init__(
        self,
        api: KubernetesApi,
        source: ClusterSource,
        declared_source: ClusterSource,
        *,
        system_namespace: str,
        peers_namespace: str,
        bootstrap_servers: str | None = None,
        connect: Callable[[Mapping[str, Any]], LogAdmin] = KafkaAdmin,
    ) -> None:
        """`source` says how Kafka is reached from here, and `declared_source` what is declared of
        that; `bootstrap_servers` are used in place of a KafkaSource's."""
        self._api = api
        self._source = source
        self._declared = declared_source
        self._system = system_namespace
        self._peers = peers_namespace
        self._servers = bootstrap_servers
        self._connect = connect

    def see(self, identity: Identity) -> SeenBroker:
        """All that a plan goes by. Raises `ClusterError`, also where there is no such Broker, and
        `LogError`."""
        stored = self._get("Broker", identity)
        if stored is None:
            raise ClusterError(f"there is no Broker {identity}")
        triggers = self._triggers_of(identity)
        unseen: list[str] = []
        naming = self._naming(unseen)
        broker = parse(Broker, stored)
        reached, _, problems = self._source.connection_of(broker)
        where, _, _ = self._declared.connection_of(broker)
        topic = topic_of(stored, naming)
        groups = [group_of(each, naming)[0] for each in triggers]
        found, seen_groups = asyncio.run(self._ask_kafka(reached, topic, groups))
        return SeenBroker(
            broker=stored,
            triggers=triggers,
            topic=found,
            groups=seen_groups,
            classes=self._classes(unseen),
            naming=naming,
            servers=str(where["bootstrap.servers"]),
            peers=list(self._running(BROKERS_PEERS, unseen)),
            claimed_by=self._claimed(identity, topic),
            refused=self._refusal(stored, topic, unseen),
            unseen=[*problems, *unseen],
        )

    def until_left(self, kind: str, identity: Identity, timeout: float) -> Plan:
        """Wait until no group has members; gives the plan to adopt it as it is then. Raises
        `ClusterError` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            if kind == KAFKA_SOURCE:
                plan = source_adoption(self.see_source(identity))
            else:
                plan = adoption(self.see(identity))
            if not plan.waits:
                return plan
            if time.monotonic() > deadline:
                raise ClusterError(f"after {timeout:.0f} s {'; '.join(plan.waits)}")
            time.sleep(LOOK_AGAIN)

    def do(self, step: Step) -> None:
        """One step; done again it changes nothing. Raises `ClusterError`."""
        match step:
            case WriteAnnotations(kind, of, annotations):
                body = {"status": {"annotations": dict(annotations)}}
                self._api.patch(OBJECTS[kind], *of, body, subresource="status")
            case SetFinalizers():
                self._set_finalizers(step)

    def carry_out(self, plan: Plan) -> None:
        """Every step, in order. Raises `ClusterError`."""
        for step in plan.steps:
            self.do(step)

    def see_source(self, identity: Identity) -> SeenSource:
        """All that the plan of a KafkaSource goes by. Raises as `see`, and `InvalidDocument`."""
        stored = self._get(KAFKA_SOURCE, identity)
        if stored is None:
            raise ClusterError(f"there is no KafkaSource {identity}")
        source, unseen = parse(KafkaSource, stored), list[str]()
        given = dict.fromkeys(credentials(source.spec.net), None)
        found: dict[Credential, str | None] = {
            each: self._secret(identity.namespace, each.secret).get(each.key) for each in given
        }
        secret = secret_of(source.spec, found, identity.namespace)
        servers = self._servers or ",".join(source.spec.bootstrap_servers)
        reached = connection_configuration(Kafka(bootstrap_servers=servers))
        if secret is not None:
            reached.update(for_librdkafka(secret))
        missing, group = asyncio.run(self._ask_kafka_of(reached, source))
        variables = self._variables(unseen)
        return SeenSource(
            stored,
            source,
            group,
            missing,
            served=variables is None or variables.get("KNAFKA_SOURCES", "") == "enabled",
            peers=list(self._running(SOURCES_PEERS, unseen)),
            unseen=unseen,
        )

    def until(
        self,
        what: str,
        kind: str,
        identity: Identity,
        timeout: float,
        missing: Callable[[Sequence[Document]], str | None],
    ) -> None:
        """Wait until nothing is `missing` of a Broker with its Triggers, or of a KafkaSource.
        Raises `ClusterError` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            stored = self._get(kind, identity)
            if stored is None:
                raise ClusterError(f"{kind} {identity} is gone")
            others = self._triggers_of(identity) if kind == "Broker" else []
            if (told := missing([stored, *others])) is None:
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"{what} after {timeout:.0f} s: {told}")
            time.sleep(LOOK_AGAIN)

    def _triggers_of(self, broker: Identity) -> list[dict[str, Any]]:
        """By name."""
        found = self._api.list(OBJECTS["Trigger"], broker.namespace) or ()
        triggers = [{**each, "apiVersion": EVENTING, "kind": "Trigger"} for each in found]
        mine = [each for each in triggers if BROKERS.broker_of(each) == broker]
        return sorted(mine, key=lambda each: str(each["metadata"]["name"]))

    def _secret(self, namespace: str, name: str) -> Mapping[str, str]:
        found = self._api.get(SECRETS, namespace, name)
        return {} if found is None else decoded(found)

    def _get(self, kind: str, of: Identity) -> dict[str, Any] | None:
        objects = OBJECTS[kind]
        found = self._api.get(objects, *of)
        return None if found is None else {**found, "apiVersion": objects.version, "kind": kind}

    def _set_finalizers(self, step: SetFinalizers) -> None:
        for _ in range(WRITES):
            stored = self._get(step.kind, step.of)
            if stored is None:
                return
            metadata = stored["metadata"]
            before = finalizers_of(stored)
            now = [each for each in before if each not in step.drop]
            now += [each for each in step.add if each not in now]
            if now == before:
                return
            body = {"metadata": {"finalizers": now, "resourceVersion": metadata["resourceVersion"]}}
            with suppress(Conflict):
                self._api.patch(OBJECTS[step.kind], *step.of, body)
                return
        raise ClusterError(f"{step.kind} {step.of} is written by somebody else all the time")

    def _naming(self, unseen: list[str]) -> Naming:
        """As the operator has it, as far as its ConfigMaps may be read."""
        naming = Naming()
        try:
            record = self._api.get(CONFIG_MAPS, self._system, RECORD)
            for kind, templates in recorded(record).items():
                for template in templates:
                    naming.remember(kind, template)
            namespace, _, name = KAFKA_FEATURES.partition("/")
            config = self._api.get(CONFIG_MAPS, namespace, name)
            for kind in NameKind:
                naming.put_in_force(kind, declared(kind, (config or {}).get("data") or {}))
        except KnafkaError as error:
            unseen.append(str(error))
        return naming

    def _variables(self, unseen: list[str]) -> Mapping[str, str] | None:
        """The operator's environment; None: it can't be seen."""
        try:
            operator = self._api.get(DEPLOYMENTS, self._system, OPERATOR)
        except NotAllowed as error:
            unseen.append(str(error))
            return None
        if operator is None:
            return None
        return {
            str(variable.get("name")): str(variable.get("value") or "")
            for container in _containers(operator)
            for variable in container.get("env") or ()
        }

    def _classes(self, unseen: list[str]) -> frozenset[str]:
        given = (self._variables(unseen) or {}).get("KNAFKA_BROKER_CLASSES")
        if given is None:
            return BROKER_CLASSES
        return frozenset(each.strip() for each in given.split(",") if each.strip())

    def _running(
        self, peers: Sequence[tuple[Objects, str, str]], unseen: list[str]
    ) -> Iterator[tuple[str, str, str]]:
        for objects, kind, name in peers:
            try:
                found = self._api.get(objects, self._peers, name)
            except NotAllowed as error:
                unseen.append(str(error))
                continue
            if found is None:
                continue
            replicas = (found.get("status") or {}).get("replicas") or 0
            if replicas or (found.get("spec") or {}).get("replicas", 1):
                yield kind, self._peers, name

    def _claimed(self, mine: Identity, topic: str) -> Identity | None:
        """Another Broker whose status names this topic; where only one namespace may be listed, of
        that one."""
        brokers = Objects(EVENTING, "brokers")
        try:
            found = self._api.list(brokers)
        except NotAllowed:
            found = self._api.list(brokers, mine.namespace)
        for each in found or ():
            annotations = (each.get("status") or {}).get("annotations") or {}
            external = EXTERNAL_TOPIC in (each["metadata"].get("annotations") or {})
            if (
                annotations.get(TOPIC_STATUS) == topic
                and Identity.of(each) != mine
                and not external
            ):
                return Identity.of(each)
        return None

    def _refusal(self, broker: Document, topic: str, unseen: list[str]) -> str | None:
        """Why a Broker may not use the external topic that it names; None: it may, or names
        none."""
        if EXTERNAL_TOPIC not in (broker["metadata"].get("annotations") or {}):
            return None
        installation = Identity(self._system, BROKER_CONFIG)
        try:
            base = self._declared.config_map(installation)
        except NotAllowed as error:
            unseen.append(str(error))
            return None
        allowed = "" if base is None else base.data.get(EXTERNAL_TOPICS, "")
        return refusal(topic, broker["metadata"]["namespace"], allowed, f"ConfigMap {installation}")

    async def _ask_kafka(
        self, reached: Mapping[str, Any], topic: str, groups: Sequence[str]
    ) -> tuple[TopicDescription | None, Mapping[str, SeenGroup]]:
        admin = self._connect(reached)
        try:
            found = await admin.describe_topic(topic)
            if found is None:
                return None, {}
            lags = await admin.lags(groups, topic) if groups else {}
            seen = {}
            for group in groups:
                lag = lags[group]
                committed = await admin.has_committed(group, topic)
                seen[group] = SeenGroup(
                    members=sorted(await admin.members(group)),
                    waiting=lag.total,
                    uncommitted=() if committed else range(found.partitions),
                )
            return found, seen
        finally:
            await admin.close()

    async def _ask_kafka_of(
        self, reached: Mapping[str, Any], source: KafkaSource
    ) -> tuple[Sequence[str], SeenGroup]:
        """Topics that aren't there, and the group on the others."""
        admin, group = self._connect(reached), consumer_group_of(source)
        try:
            missing, waiting, committed = [], 0, False
            for topic in source.spec.topics:
                if await admin.describe_topic(topic) is None:
                    missing.append(topic)
                    continue
                waiting += (await admin.lags([group], topic))[group].total
                committed |= await admin.has_committed(group, topic)
            members = sorted(await admin.members(group))
            return missing, SeenGroup(members, waiting, () if committed else (0,))
        finally:
            await admin.close()


def not_ready(documents: Sequence[Document]) -> str | None:
    """What of them isn't Ready; None: all are."""
    waiting = [
        f"{each['kind']} {Identity.of(each)}: {why_not_ready(each)}"
        for each in documents
        if not is_ready(each)
    ]
    return "; ".join(waiting) or None


def _containers(deployment: Document) -> Sequence[Document]:
    template = (deployment.get("spec") or {}).get("template") or {}
    containers: Sequence[Document] = (template.get("spec") or {}).get("containers") or ()
    return containers
