"""Receivers: publishes the entries of Brokers and channels in contract topics, which receivers
follow. Many KafkaChannels share one receiver, each Broker has its own; all that use one Kafka
Secret share a contract (CHN-11, CHN-23).

    channel    contract (read once) -> topic -> Service (applied once for all) -> record
               -> wait for every replica
    Broker     contract (read once) -> topic -> record -> its own Service -> wait for it

Not here: what an entry is (`channels.decide`, `brokers.decide`), a Broker's Service
(`brokers.kind`), and the topic's reading and writing (`kafka.contracts`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from knafka.core.contract import Ingress
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument, LogError
from knafka.ports.log import Record
from knafka_operator.decisions.status import NotReady, is_ready
from knafka_operator.functions.applying import apply_service
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.kafka.contracts import ContractTopic
from knafka_operator.kafka.kafka_settings import CLEANUP
from knafka_operator.model.cluster import Cluster, Document, status_annotations
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.model.topics import Topic
from knafka_operator.receivers import contract_topics
from knafka_operator.receivers.contract_topics import COMPACTED
from knafka_operator.records.state import States
from knafka_operator.scale.answers import get_answer
from knafka_operator.scale.http_sessions import open_checked_session

log = logging.getLogger(__name__)

APPLY_RETRY_INTERVAL: Final = 1.0
"""Seconds until a Service that isn't Ready is applied again, however many channels request that."""
CONTRACT_READ_TIMEOUT: Final = 10.0
"""Seconds for every replica to read an entry; after that the entry's object isn't Ready."""
REPLICA_POLL_INTERVAL: Final = 0.1  # seconds
CONTRACT_CHECK_INTERVAL: Final = 30.0
"""Seconds between two checks of a contract topic for changes by others."""
CONTRACT_PORT: Final = 8080  # a pod answers there at `/contract`
ASK_TIMEOUT: Final = 2.0  # seconds
POSITION_BYTES: Final = 256
"""Most bytes of a pod's answer at `/contract`: a position, as JSON."""

ReplicaPositions = Callable[[str, str], Awaitable[Mapping[str, int | None]]]
"""Namespace and name of a receiver's Service -> for each replica that takes requests, the position
to which it has read its contract (None: no answer)."""


@dataclass(eq=False)
class ReceiverRecord:
    """What the operator keeps in memory about one receiver."""

    service: Identity  # the receiver's Knative Service
    contract: ContractTopic[Ingress]  # the contract that the receiver follows
    times_read: int = 0
    """The contract's `times_read` for which `read_position` and `written` are valid."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while the Service is applied
    manifest: Mapping[str, Any] | None = None
    """The Service as it was last applied."""
    revision: str | None = None
    """The receiver's Ready Revision; None: it isn't Ready."""
    problem: NotReady | None = None  # why the applied Service isn't Ready
    applied_at: float = -math.inf
    """When the Service was last applied, by the event loop's clock."""
    read_position: int = 0
    """Position that every replica has read at least: replicas that start later read all records
    first. Back to 0 when the topic was read again, as it may be a new one."""
    written: dict[str, int] = field(default_factory=dict)
    """By path: the position after the last write of its entry by this operator."""
    asking_lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while replicas are asked
    asked_at: float = -math.inf
    """When replicas were last asked, by the event loop's clock."""
    replicas: Mapping[str, int | None] = field(default_factory=dict)
    """The replicas' last answers."""

    async def write(self, path: str, ingress: Ingress | None) -> None:
        """Write the entry at a path, or remove it if `ingress` is None. Raises `LogError`."""
        await self.contract.write(path, ingress)
        self.written[path] = self.contract.position

    def _is_reported_as_read(self, path: str) -> bool:
        """Whether all replicas have reported to this operator that they have read its last write of
        the entry at `path`, or, if it has written none, the whole contract."""
        return self.read_position >= self.written.get(path, self.contract.position)

    def _is_read_by_status(self, path: str, document: Document) -> bool:
        """Whether an earlier operator recorded, in the status in `document`, that all replicas have
        read the entry at `path`; False if this operator has written the entry since."""
        entry = self.contract.records.get(path)
        if entry is None or path in self.written:
            return False
        digest = contract_topics.entry_digest(self.contract.topic, entry)
        recorded_digest = status_annotations(document).get(contract_topics.ACCEPTED_ANNOTATION)
        return bool(recorded_digest == digest)

    def entry(self, path: str, document: Document) -> tuple[Ingress | None, bool]:
        """Return the entry at a path (None: there is none), and whether every replica has read it.
        `document` is the stored Broker or channel of that entry."""
        ingress = self.contract.records.get(path)
        is_read = self._is_reported_as_read(path) or self._is_read_by_status(path, document)
        return ingress, ingress is not None and is_read

    def reset_if_reread(self) -> None:
        """Forget the replicas' positions if the topic was read again, as it may be a new one."""
        if self.times_read != self.contract.times_read:
            self.times_read = self.contract.times_read
            self.read_position = 0
            self.written.clear()


@dataclass(eq=False)
class Receivers:
    """Manages the receivers of one family, and their contracts."""

    settings: Settings
    cluster: Cluster
    states: States
    positions: ReplicaPositions  # asks the replicas of a receiver how far they have read
    enqueue: Callable[[Key], None]  # makes an object due for reconciliation
    records: dict[Identity, ReceiverRecord] = field(default_factory=dict)  # by Knative Service
    contracts: dict[tuple[str, str], ContractTopic[Ingress]] = field(default_factory=dict)
    """Contracts by Kafka servers and topic."""

    async def ensure_receiver(
        self, service: Identity, kafka: KafkaCluster, topic: str
    ) -> ReceiverRecord:
        """Return the record of the receiver with this Knative Service, and create it if needed. If
        memory isn't up to date, its contract `topic` is read first. Raises `LogError`."""
        key = kafka.bootstrap_servers, topic
        if (contract := self.contracts.get(key)) is None:
            contract = self.contracts[key] = ContractTopic(
                topic, kafka, read_ingresses, known=False
            )
        contract.kafka = kafka  # the client changes with its Secret
        record = self.records.get(service)
        if record is None or record.contract is not contract:
            self.forget(service)
            record = self.records[service] = ReceiverRecord(service, contract)
        await contract.load()
        if contract.times_read != contract.compaction_checked:
            contract.compaction_checked = contract.times_read
            await _keep_compacted(contract)
        record.reset_if_reread()
        return record

    def forget(self, service: Identity) -> None:
        """Forget a receiver, and its contract if no other receiver follows that contract."""
        if (record := self.records.pop(service, None)) is not None:
            contract = record.contract
            if not any(other_record.contract is contract for other_record in self.records.values()):
                self.contracts.pop((contract.kafka.bootstrap_servers, contract.topic), None)

    async def delete_contract(self, record: ReceiverRecord) -> None:
        """Delete the topic of a receiver's contract if it has no entries and no other receiver
        follows it. Raises `LogError`."""
        other_records = (
            other_record for other_record in self.records.values() if other_record is not record
        )
        if not any(other_record.contract is record.contract for other_record in other_records):
            await record.contract.delete_if_empty()

    async def check_contract(self, record: ReceiverRecord, requester: Identity) -> None:
        """Check a contract, at most every `CONTRACT_CHECK_INTERVAL` seconds: if others have changed
        its topic, enqueue all Brokers or channels but the `requester`, which is being reconciled.
        Also remove entries of objects that are gone. Raises `LogError`, `ClusterError`."""
        contract, now = record.contract, _now()
        if now - contract.checked_at < CONTRACT_CHECK_INTERVAL:
            return
        contract.checked_at = now
        family = self.states.family
        if await contract.reload_if_changed():
            for broker in self.states.brokers:
                if broker != requester:
                    self.enqueue((family.broker, *broker))
        record.reset_if_reread()
        if not self.settings.installation:
            return  # the entries may be another installation's, which can't be told apart
        for path in list(contract.records):
            identity = identity_at_path(path)
            if identity in self.states.brokers:
                continue
            if await self.cluster.get(family.broker_version, family.broker, *identity) is None:
                log.warning("%s %s is gone and still had an entry", family.broker, identity)
                await contract.write(path, None)

    async def apply(
        self, record: ReceiverRecord, topic: Topic, manifest: Mapping[str, Any], requester: Identity
    ) -> str:
        """Create a contract's topic and apply the receiver's Service for the channel `requester`;
        returns the Ready Revision. The Service is applied once for all channels, and again every
        `APPLY_RETRY_INTERVAL` seconds while it isn't Ready. Raises `NotReady` and `LogError`."""
        key, rolls = (self.states.family.broker, *requester), self.states.rolls
        async with record.lock:
            await record.contract.ensure_created(topic)
            is_lost = await self._is_service_lost(record)
            since_apply = _now() - record.applied_at
            is_retry_due = record.revision is None and since_apply >= APPLY_RETRY_INTERVAL
            waits_for_turn = rolls.is_waiting(record.service)  # to get a new Revision
            if record.manifest != manifest or is_lost or is_retry_due or waits_for_turn:
                record.manifest, record.applied_at, record.problem = manifest, _now(), None
                record.revision = None
                try:
                    record.revision = await apply_service(
                        self.cluster, manifest, rolls=rolls, key=key
                    )
                except NotReady as error:
                    record.problem = error
        if record.revision is None:
            assert record.problem is not None
            raise record.problem
        return record.revision

    async def _is_service_lost(self, record: ReceiverRecord) -> bool:
        """Whether a receiver's Service was Ready and now is gone, or no longer Ready."""
        stored_service = await self.cluster.get(SERVING, "Service", *record.service)
        is_still_ready = stored_service is not None and is_ready(stored_service)
        return record.revision is not None and not is_still_ready

    async def wait_until_read(self, record: ReceiverRecord, path: str) -> None:
        """Wait until every replica has read the last write of `path`. Raises `NotReady` after
        `CONTRACT_READ_TIMEOUT` seconds, `LogError` and `ClusterError`.

        However many channels wait, replicas are asked once in `REPLICA_POLL_INTERVAL` seconds.
        """
        desired_position = record.written.get(path, record.contract.position)
        try:
            async with asyncio.timeout(CONTRACT_READ_TIMEOUT):
                while record.read_position < desired_position:
                    async with record.asking_lock:
                        # Another waiter may have asked while this one waited for the lock.
                        if (
                            _now() - record.asked_at >= REPLICA_POLL_INTERVAL
                            and record.read_position < desired_position
                        ):
                            await self._ask_replicas(record)
                    if record.contract.checked_at == -math.inf:  # never, or the topic is new
                        await self.check_contract(record, identity_at_path(path))
                    if record.read_position < desired_position:
                        await asyncio.sleep(REPLICA_POLL_INTERVAL)
        except TimeoutError:
            behind = sorted(
                identity
                for identity, position in record.replicas.items()
                if position is None or position < desired_position
            )
            raise NotReady(
                "ReceiverBehind",
                f"{len(behind)} replicas of {record.service.name} have not read offset "
                f"{desired_position} of topic {record.contract.topic} yet: "
                f"{', '.join(behind):.200}",
                transient=True,
            ) from None

    async def _ask_replicas(self, record: ReceiverRecord) -> None:
        """Ask every replica for its position in the contract, and update the record."""
        position_when_asked, record.asked_at = record.contract.position, _now()
        answers = await self.positions(*record.service)
        if any(
            position is not None and position > record.contract.position
            for position in answers.values()
        ):
            # A position beyond the end means that the topic was recreated: discard the answer, and
            # make the next check of the topic due at once.
            answers = {
                identity: position if position and position <= record.contract.position else None
                for identity, position in answers.items()
            }
            record.contract.checked_at = -math.inf
        # Without replicas the whole contract counts as read, and the position never goes back: a
        # replica that starts later begins with all records.
        positions = (0 if position is None else position for position in answers.values())
        lowest_position = min(positions, default=position_when_asked)
        record.read_position = max(record.read_position, lowest_position)
        record.replicas = answers


async def _keep_compacted(contract: ContractTopic[Ingress]) -> None:
    """Set an existing contract topic to be compacted, if it isn't; a failed change is logged. A
    topic that somebody else has created may delete old records: a receiver that starts later would
    serve nothing. Raises `LogError` if the topic can't be described."""
    topics = contract.kafka.topics
    description = await topics.describe_topic(contract.topic) if contract.exists else None
    if description is None or "compact" in description.config.get(CLEANUP, ""):
        return
    try:
        await topics.set_topic_config(contract.topic, COMPACTED)
        log.warning("topic %s was not compacted, and is from here on", contract.topic)
    except LogError as error:
        log.error(
            "topic %s is not compacted: after its retention receivers that start will serve no "
            "Broker or channel: set its cleanup.policy to compact (%s)",
            *(contract.topic, error),
        )


def identity_at_path(path: str) -> Identity:
    """Return namespace and name of the Broker or channel whose entry has this path."""
    namespace, _, name = path[1:].partition("/")
    return Identity(namespace, name)


def read_ingresses(records: Iterable[Record]) -> dict[str, Ingress]:
    """Parse the records of a contract, oldest first, to the last entry of each path. Removed and
    invalid entries are left out; invalid ones are rewritten when their object is reconciled."""
    ingresses: dict[str, Ingress] = {}
    for record in records:
        path, value = (record.key() or b"").decode("utf-8", "replace"), record.value()
        ingresses.pop(path, None)
        if value is not None:
            try:
                ingresses[path] = parse_json(Ingress, value.decode("utf-8", "replace"))
            except InvalidDocument:
                continue
    return ingresses


class PodPositions:
    """`ReplicaPositions` in a cluster: asks each pod of a Service at its own address."""

    def __init__(
        self,
        cluster: Cluster,
        url_of: Callable[[str, str], str] | None = None,
        port: int = CONTRACT_PORT,
        bearers: Callable[[str, str], Sequence[str]] = lambda name, namespace: (),
    ) -> None:
        """`url_of` returns a Service's URL by its name and namespace. It is asked if no pod
        answers, as a mesh or NetworkPolicy may block them, and its answer stands for all pods.
        `bearers` returns the tokens that a Service's pods accept, by its name and namespace."""
        self._cluster = cluster
        self._url_of = url_of
        self._port = port
        self._bearers = bearers

    async def __call__(self, namespace: str, name: str) -> Mapping[str, int | None]:
        """Ask each pod of a receiver's Service how far it has read its contract; None: it doesn't
        answer. If no pod answers, asks the Service's URL instead."""
        labels = {"serving.knative.dev/service": name}
        urls = {
            pod["metadata"]["name"]: f"http://{url_host(pod['status']['podIP'])}:{self._port}"
            for pod in await self._cluster.list(CORE, "Pod", labels, namespace)
            if takes_requests(pod)
        }
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT)
        bearers = self._bearers(name, namespace)
        async with open_checked_session(timeout) as session:
            answers = await asyncio.gather(
                *(_request_position(session, pod_url, bearers) for pod_url in urls.values())
            )
            if self._url_of and answers and all(answer is None for answer in answers):
                url = self._url_of(name, namespace)
                urls, answers = {url: url}, [await _request_position(session, url, bearers)]
        return dict(zip(urls, answers, strict=True))


async def _request_position(
    session: aiohttp.ClientSession, url: str, bearers: Sequence[str]
) -> int | None:
    """Return the position in the contract topic that a receiver reports; None if it doesn't answer,
    or if its answer is invalid."""
    try:
        answer = await get_answer(session, f"{url}/contract", bearers, POSITION_BYTES)
        return None if answer is None else int(json.loads(answer)["position"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, OverflowError):
        return None


def url_host(address: str) -> str:
    """Return an IP address in the form of a URL's host: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


def takes_requests(pod: Document) -> bool:
    """Whether a receiver's pod is Ready and may get requests, even while it terminates."""
    status = pod.get("status") or {}
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status.get("conditions") or ()
    )
    return ready and bool(status.get("podIP"))


def _now() -> float:
    """Return the event loop's time (s)."""
    return asyncio.get_running_loop().time()
