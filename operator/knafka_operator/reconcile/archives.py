"""Archives: from DeadLetterArchives to the Jobs that keep their dead letters in tables.

    observe (Broker, storage, what waits, its Jobs, the Lease) -> decide (`decide.archive`) -> act

Jobs and Leases are asked for only where there may be one, so an archive at rest costs nothing but
its share of a look at Kafka.

Not here: hearing of changes (`engine.controller`), and any decision, which is a pure function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from knafka.core import addresses, names
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decide import archive as deciding
from knafka_operator.decide import archive_manifests as manifests
from knafka_operator.decide import archive_runs
from knafka_operator.decide import status as statuses
from knafka_operator.decide.archive import ObservedArchive
from knafka_operator.decide.archive_manifests import BATCH, COORDINATION
from knafka_operator.decide.effects import Create, Effect
from knafka_operator.decide.status import EXPECTED, NotReady
from knafka_operator.decide.steps import Step
from knafka_operator.model.archives import ARCHIVE, OF_ARCHIVE, DeadLetterArchive, Storage
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.family import BROKERS
from knafka_operator.model.identity import Identity
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.operations import OF_OPERATION
from knafka_operator.model.resources import CORE
from knafka_operator.model.sensors import KNAFKA
from knafka_operator.model.settings import Settings
from knafka_operator.reconcile.effects import Effects
from knafka_operator.reconcile.kind import Kind, Reconciler
from knafka_operator.reconcile.operations import Operations, jobs_of, last_pods
from knafka_operator.reconcile.state import States
from knafka_operator.reconcile.work_queue import Key
from knafka_operator.scale.dead_letters import DeadLetters, Waiting
from knafka_operator.scale.kafka_clusters import KafkaCluster

Observed = ObservedArchive[KafkaCluster]

AT_WORK: Final = ("Queued", "Running", "Ending", "Failing")
"""Phases of an archive that is looked at in its own time, though it isn't Ready."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(eq=False, slots=True)
class _Record:
    """One archive, beyond what is stored of it."""

    of: Identity
    waiting: Waiting = field(default_factory=Waiting)
    kafka: KafkaCluster | None = None
    """Where its group is: its Broker may go before it does."""
    group: str = ""
    at_rest: bool = False
    """Whether there was no Job of its own and no Lease when that was last asked."""
    again: float = deciding.LOOK


@dataclass(eq=False)
class Archives(Reconciler[Observed, deciding.ArchiveDecision, _Record], Kind):
    """All DeadLetterArchives."""

    api_version = KNAFKA
    left = "its Job, its Lease or its group in Kafka may be there still"

    settings: Settings
    cluster: Cluster
    states: States
    effects: Effects
    is_our_broker: Callable[[Document], bool]
    now: Callable[[], datetime] = _now
    _dead_letters: DeadLetters = field(default_factory=DeadLetters)
    _records: dict[str, _Record] = field(default_factory=dict)
    """By UID."""
    operations: Operations = field(init=False)
    """What else is asked of their tables."""

    def __post_init__(self) -> None:
        self.operations = Operations(self.cluster, self.effects, lambda: self.now())

    def remember(self, document: Document) -> object:
        return self.record_of(document)

    def at(self) -> str:
        return archive_runs.written(self.now())

    async def forget(self, document: Document) -> None:
        self._records.pop(document["metadata"].get("uid", ""), None)

    def on_job(self, job: Document) -> list[Key]:
        """A Job as it is now, or was last: the archive, and the operation, that it is of."""
        labels, keys = job["metadata"].get("labels") or {}, list[Key]()
        if (record := self._records.get(labels.get(OF_ARCHIVE, ""))) is not None:
            record.at_rest = False
            keys.append((ARCHIVE, *record.of))
        if (key := self.operations.on_job(labels.get(OF_OPERATION, ""))) is not None:
            keys.append(key)
        return keys

    def again(self, document: Document, now: Mapping[str, Any]) -> float | None:
        """Also one that isn't Ready is looked at in its own time: what waits for it grows."""
        is_ready = statuses.summary(now["conditions"]).get("status") == "True"
        waits = not is_ready and now.get("phase") not in AT_WORK
        return None if waits else self.record_of(document).again

    async def delete(self, document: Document) -> None:
        """End its Job, let go of the Lease, and forget its group; the tables stay.

        Raises `NotReady` while a pod of its Job is there still, `LogError` and `ClusterError`.
        """
        record = self.record_of(document)
        jobs = await self._jobs(document)
        for each in jobs:
            if "deletionTimestamp" not in each["metadata"]:
                await self.cluster.delete(BATCH, "Job", *Identity.of(each))
        if jobs and (left := await self._jobs(document)):
            message = f"Job {left[0]['metadata']['name']} is being ended"
            raise NotReady("Waiting", message, transient=True)
        if (lease := await self._lease(document)) is not None:
            if lease["spec"].get("holderIdentity") == deciding.holder(document):
                await self.cluster.delete(COORDINATION, "Lease", *Identity.of(lease))
        if record.kafka is not None and record.group:
            await record.kafka.topics.delete_group(record.group)

    # Observe.

    def record_of(self, document: Document) -> _Record:
        uid = document["metadata"].get("uid", "")
        if (record := self._records.get(uid)) is None:
            record = self._records[uid] = _Record(Identity.of(document))
        return record

    async def observe(self, document: Document, record: _Record) -> Observed:
        declared = _parsed(document, self.settings.maxima)
        seen: Observed = ObservedArchive(document, declared, document.get("status") or {})
        if isinstance(seen.archive, DeadLetterArchive):
            seen = await self._observe_declared(seen, seen.archive, record)
        if not record.at_rest or self.decide(seen, record).effects:
            seen = await self._with_jobs(seen, record)
        return seen

    def stored_status(self, seen: Observed) -> Mapping[str, Any]:
        return seen.status

    def decide(self, seen: Observed, record: _Record) -> deciding.ArchiveDecision:
        decision = deciding.decide(seen, self.settings, self.now())
        record.again = decision.again
        return decision

    async def _observe_declared(
        self, seen: Observed, archive: DeadLetterArchive, record: _Record
    ) -> Observed:
        broker = Identity(archive.metadata.namespace, archive.spec.broker)
        state, stored = self.states.broker_state(broker), None
        if state is None:
            stored = await self.cluster.get(BROKERS.broker_version, BROKERS.broker, *broker)
        storage, uid = await self._storage(archive)
        mine = archive.metadata.uid, manifests.root(broker.namespace, archive.spec.storage), uid
        group = names.archive_group(broker.namespace, archive.metadata.name, *mine, broker.name)
        seen = replace(
            seen,
            broker=state,
            stored_broker=stored,
            ours=stored is None or self.is_our_broker(stored),
            storage=storage,
            group=group,
        )
        return await self._with_operations(await self._counted(seen, record))

    async def _with_operations(self, seen: Observed) -> Observed:
        """The operation whose turn is next. Raises `ClusterError`."""
        operation, again = await self.operations.next(Identity.of(seen.document))
        return replace(seen, next_operation=operation, operations_again=again)

    async def _counted(self, seen: Observed, record: _Record) -> Observed:
        """With how many dead letters wait."""
        archive, state = seen.archive, seen.broker
        if not isinstance(archive, DeadLetterArchive) or state is None or seen.storage is not None:
            return seen
        record.kafka, record.group = state.kafka, seen.group
        broker = archive.metadata.namespace, archive.spec.broker
        try:
            waiting = await self._dead_letters.waiting(
                state.kafka, *broker, seen.group, record.waiting
            )
        except EXPECTED as error:
            return replace(seen, waiting=error)
        return replace(seen, waiting=waiting)

    async def _storage(self, archive: DeadLetterArchive) -> tuple[KnafkaError | None, str]:
        """What is wrong with it, and the UID of its claim: another claim has no tables."""
        storage, namespace = archive.spec.storage, archive.metadata.namespace
        if storage.claim is not None:
            name = storage.claim.name
            claim = await self.cluster.get(CORE, "PersistentVolumeClaim", namespace, name)
            if claim is None:
                message = f"PersistentVolumeClaim {name} does not exist"
                return NotReady("ClaimDoesNotExist", message), ""
            modes = (claim.get("spec") or {}).get("accessModes") or ()
            if archive.spec.executors and "ReadWriteMany" not in modes:
                message = (
                    f"PersistentVolumeClaim {name} is for one node ({', '.join(modes)}): executors "
                    "need ReadWriteMany, or an object store"
                )
                return NotReady("ClaimNotShared", message), ""
            return None, str(claim["metadata"].get("uid", ""))
        why = addresses.refusal_of_url(storage.endpoint)
        if why is not None and not self.settings.local_addresses:
            return NotReady("EndpointNotAllowed", f"endpoint {storage.endpoint:.200}: {why}"), ""
        return await self._credentials(storage, namespace), ""

    async def _credentials(self, storage: Storage, namespace: str) -> KnafkaError | None:
        if storage.credentials is None:
            return None
        name = storage.credentials.name
        secret = await self.cluster.get(CORE, "Secret", namespace, name)
        if secret is None:
            return NotReady("CredentialsNotFound", f"Secret {name} does not exist")
        if missing := set(manifests.TOKENS[:2]) - set(secret.get("data") or {}):
            message = f"Secret {name} has no {', '.join(sorted(missing))}"
            return NotReady("CredentialsIncomplete", message)
        return None

    async def _with_jobs(self, seen: Observed, record: _Record) -> Observed:
        """Its Jobs, their pods, and the Lease for its tables. Raises `ClusterError`."""
        document = seen.document
        jobs = await self._jobs(document)
        pods, judged = await last_pods(self.cluster, jobs), await self.operations.judge(jobs)
        lease = await self._lease(document)
        record.at_rest = not jobs and lease is None
        gone = lease is not None and await self._is_gone(
            str(lease["spec"].get("holderIdentity") or "")
        )
        seen = replace(
            seen,
            jobs=tuple(jobs),
            pods=pods,
            unrecorded=judged.unrecorded,
            unwanted=judged.unwanted,
            lease=lease,
            holder_is_gone=gone,
            address=await self._address(seen),
        )
        return await self._with_operations(seen)

    async def _address(self, seen: Observed) -> str:
        """Of its Broker, as that says."""
        if not isinstance(seen.archive, DeadLetterArchive):
            return ""
        broker = seen.archive.metadata.namespace, seen.archive.spec.broker
        stored = await self.cluster.get(BROKERS.broker_version, BROKERS.broker, *broker)
        address = ((stored or {}).get("status") or {}).get("address") or {}
        return str(address.get("url") or "")

    async def _jobs(self, document: Document) -> list[Document]:
        metadata = document["metadata"]
        return await jobs_of(
            self.cluster, OF_ARCHIVE, metadata.get("uid", ""), metadata["namespace"]
        )

    async def _lease(self, document: Document) -> Document | None:
        storage = (document.get("spec") or {}).get("storage") or {}
        namespace = document["metadata"]["namespace"]
        try:
            of = manifests.root(namespace, parse(Storage, storage))
        except InvalidDocument:
            return None
        leases = COORDINATION, "Lease", self.settings.namespace
        return await self.cluster.get(*leases, names.archive_lease(namespace, of))

    async def _is_gone(self, holder: str) -> bool:
        """Whether a holder is an archive that isn't any more, and has no Job."""
        namespace, _, rest = holder.partition("/")
        name, _, uid = rest.rpartition("/")
        if not (namespace and name and uid):
            return True  # none of ours, or nobody
        there = await self.cluster.get(KNAFKA, ARCHIVE, namespace, name)
        if there is not None and there["metadata"].get("uid") == uid:
            return False
        return not await self.cluster.list(BATCH, "Job", {OF_ARCHIVE: uid}, namespace)

    # Effects.

    async def follow_up(self, effect: Effect, seen: Observed, record: _Record) -> Observed:
        match effect.step:
            case Step.RECORD_RUN:
                record.waiting.forget()
                return await self._counted(seen, record)
            case Step.APPLY_ACCOUNT:
                return seen
        if isinstance(effect, Create):
            labels = effect.manifest["metadata"].get("labels") or {}
            self.operations.on_job(labels.get(OF_OPERATION, ""))
        return await self._with_jobs(seen, record)


def _parsed(document: Document, maxima: Maxima) -> DeadLetterArchive | InvalidDocument:
    try:
        archive = parse(DeadLetterArchive, document)
        maxima.check_job_timeout(archive.spec.timeout, "spec.timeout")
        return archive
    except InvalidDocument as error:
        return error
