"""Archives: reconciles DeadLetterArchives, whose Jobs copy dead letters from Kafka into tables.

    observe (Broker, storage, waiting dead letters, Jobs, Lease)
        -> decide (`archives.decide`) -> act

Jobs and Leases are read only where one may exist, so an idle archive costs nothing but its share of
one Kafka request.

Not here: watching for changes (`engine.controller`), and decisions, which are pure functions
(`archives.decide`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from knafka.core import addresses, names
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.archives import decide as deciding
from knafka_operator.archives import manifests
from knafka_operator.archives import runs as archive_runs
from knafka_operator.archives.decide import ObservedArchive
from knafka_operator.archives.manifests import BATCH_VERSION, COORDINATION
from knafka_operator.archives.model import ARCHIVE, ARCHIVE_LABEL, DeadLetterArchive, Storage
from knafka_operator.archives.operation_model import OPERATION_LABEL
from knafka_operator.archives.operations import Operations, list_jobs, read_last_pods
from knafka_operator.archives.uncompacted import UncompactedCounts, UncompactedDeadLetters
from knafka_operator.decisions import status as statuses
from knafka_operator.decisions.effects import Create, Effect
from knafka_operator.decisions.status import EXPECTED, NotReady
from knafka_operator.decisions.steps import Step
from knafka_operator.engine.effects import Effects
from knafka_operator.engine.kind import Kind, Reconciler
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import KafkaCluster
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.family import BROKERS
from knafka_operator.model.identity import Identity, Key
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import CORE
from knafka_operator.model.sensors import KNAFKA
from knafka_operator.records.state import States

Observed = ObservedArchive[KafkaCluster]

WORKING_PHASES: Final = ("Queued", "Running", "Ending", "Failing")
"""Phases in which an archive that isn't Ready is reconciled again at the time that its last
decision set; in any other phase it is retried with the backoff of all objects that aren't Ready."""


def _now() -> datetime:
    """Return the time in UTC; tests replace this clock."""
    return datetime.now(UTC)


@dataclass(eq=False, slots=True)
class _ArchiveRecord:
    """What the operator keeps in memory about one archive."""

    archive: Identity
    waiting: UncompactedCounts = field(default_factory=UncompactedCounts)
    """The lag of the archive's group on each dead-letter topic when it was last read."""
    kafka: KafkaCluster | None = None
    """The Kafka with the archive's consumer group, kept because the archive's Broker may be deleted
    first; None: not known yet."""
    group: str = ""
    """The consumer group with which the archive's Jobs read dead letters; empty: not known yet."""
    is_known_idle: bool = False
    """Whether the archive had neither a Job nor a Lease when they were last read, and no Job of it
    has changed since."""
    requeue_after: float = deciding.RECHECK_SECONDS
    """Seconds until the next reconciliation, by the last decision."""


@dataclass(eq=False)
class Archives(Reconciler[Observed, deciding.ArchiveDecision, _ArchiveRecord], Kind):
    """Reconciles all DeadLetterArchives."""

    api_version = KNAFKA
    left_behind = "its Job, its Lease or its group in Kafka may still exist"
    """For users: what may still exist if a deletion was given up."""

    settings: Settings
    cluster: Cluster
    states: States
    effects: Effects
    is_our_broker: Callable[[Document], bool]
    """Returns whether Knafka serves the Broker with this document."""
    now: Callable[[], datetime] = _now
    """Returns the time in UTC."""
    _dead_letters: UncompactedDeadLetters = field(default_factory=UncompactedDeadLetters)
    """Counts waiting dead letters."""
    _records: dict[str, _ArchiveRecord] = field(default_factory=dict)
    """The record of each archive, by its UID."""
    operations: Operations = field(init=False)
    """Reconciles the operations on the archives' tables."""

    def __post_init__(self) -> None:
        # Through a lambda, so that a clock that a test sets later counts here, too.
        self.operations = Operations(self.cluster, self.effects, lambda: self.now())

    def remember(self, document: Document) -> object:
        """Create the archive's record if it has none, by which `on_job` finds the archive of a
        changed Job; returns the record."""
        return self.ensure_record(document)

    def timestamp(self) -> str:
        """Return the time now, RFC 3339."""
        return archive_runs.timestamp(self.now())

    async def forget(self, document: Document) -> None:
        """Drop what the operator has in memory about a deleted archive."""
        self._records.pop(document["metadata"].get("uid", ""), None)

    def on_job(self, job: Document) -> list[Key]:
        """Record that a Job has changed, so that its archive's Jobs are read again. Returns the
        keys of its archive and its operation, as far as they are known."""
        labels, keys = job["metadata"].get("labels") or {}, list[Key]()
        if (record := self._records.get(labels.get(ARCHIVE_LABEL, ""))) is not None:
            record.is_known_idle = False
            keys.append((ARCHIVE, *record.archive))
        if (key := self.operations.on_job(labels.get(OPERATION_LABEL, ""))) is not None:
            keys.append(key)
        return keys

    def requeue_after(self, document: Document, new_status: Mapping[str, Any]) -> float | None:
        """Return the seconds until the archive is reconciled again, as last decided. None: the
        archive isn't Ready and its phase isn't in `WORKING_PHASES`, so it is retried with the
        default backoff."""
        is_ready = statuses.ready_condition(new_status["conditions"]).get("status") == "True"
        if is_ready or new_status.get("phase") in WORKING_PHASES:
            return self.ensure_record(document).requeue_after
        return None

    async def delete(self, document: Document) -> None:
        """Delete an archive's Jobs, the Lease if the archive holds it, and the consumer group if
        its Kafka is known; the tables stay.

        Raises `NotReady` while a Job still exists, `LogError` and `ClusterError`.
        """
        record = self.ensure_record(document)
        jobs = await self._list_jobs(document)
        for job in jobs:
            if "deletionTimestamp" not in job["metadata"]:
                await self.cluster.delete(BATCH_VERSION, "Job", *Identity.of(job))
        if jobs and (remaining_jobs := await self._list_jobs(document)):
            message = f"Job {remaining_jobs[0]['metadata']['name']} is being ended"
            raise NotReady("Waiting", message, transient=True)
        lease = await self._read_lease(document)
        own_holder = deciding.lease_holder(document)
        if lease is not None and lease["spec"].get("holderIdentity") == own_holder:
            await self.cluster.delete(COORDINATION, "Lease", *Identity.of(lease))
        if record.kafka is not None and record.group:
            await record.kafka.topics.delete_group(record.group)

    # Observe.

    def ensure_record(self, document: Document) -> _ArchiveRecord:
        """Return the archive's record, creating it if needed."""
        uid = document["metadata"].get("uid", "")
        if (record := self._records.get(uid)) is None:
            record = self._records[uid] = _ArchiveRecord(Identity.of(document))
        return record

    async def observe(self, document: Document, record: _ArchiveRecord) -> Observed:
        """Read what the decision needs; Jobs and the Lease only if one may exist, or if the
        decision has effects. Raises `ClusterError`."""
        declared = _parse_or_error(document, self.settings.maxima)
        observed: Observed = ObservedArchive(document, declared, document.get("status") or {})
        if isinstance(observed.archive, DeadLetterArchive):
            observed = await self._observe_declared(observed, observed.archive, record)
        if not record.is_known_idle or self.decide(observed, record).effects:
            observed = await self._with_jobs(observed, record)
        return observed

    def stored_status(self, observed: Observed) -> Mapping[str, Any]:
        """Return the archive's stored status, including what effects have written."""
        return observed.status

    def decide(self, observed: Observed, record: _ArchiveRecord) -> deciding.ArchiveDecision:
        """Decide what to do from `observed`, and record when to reconcile again."""
        decision = deciding.decide(observed, self.settings, self.now())
        record.requeue_after = decision.requeue_after
        return decision

    async def _observe_declared(
        self, observed: Observed, archive: DeadLetterArchive, record: _ArchiveRecord
    ) -> Observed:
        """Return `observed` with everything that only a valid archive has: the state of its Broker
        and storage, its consumer group, waiting dead letters and the operation that may run next.
        Raises `ClusterError`."""
        broker = Identity(archive.metadata.namespace, archive.spec.broker)
        state, stored = self.states.broker_state(broker), None
        if state is None:
            stored = await self.cluster.get(BROKERS.broker_version, BROKERS.broker, *broker)
        storage_problem, claim_uid = await self._find_storage_problem(archive)
        # Other tables have another group, which reads all dead letters again.
        table_ids = (
            archive.metadata.uid,
            manifests.storage_root(broker.namespace, archive.spec.storage),
            claim_uid,
            broker.name,
        )
        group = names.archive_group(broker.namespace, archive.metadata.name, *table_ids)
        observed = replace(
            observed,
            broker=state,
            stored_broker=stored,
            is_broker_ours=stored is None or self.is_our_broker(stored),
            storage_problem=storage_problem,
            group=group,
        )
        return await self._with_next_operation(await self._with_waiting_count(observed, record))

    async def _with_next_operation(self, observed: Observed) -> Observed:
        """Return `observed` with the operation that may run now, and the seconds until another one
        may. Raises `ClusterError`."""
        archive = Identity.of(observed.document)
        operation, seconds = await self.operations.find_next_operation(archive)
        return replace(observed, next_operation=operation, next_operation_in=seconds)

    async def _with_waiting_count(self, observed: Observed, record: _ArchiveRecord) -> Observed:
        """Return `observed` with the number of waiting dead letters, or with the expected error
        (`EXPECTED`) of reading it; also put the archive's Kafka and group into `record`. If the
        archive, its Broker or its storage can't be used, return `observed` and record nothing."""
        archive, state = observed.archive, observed.broker
        if (
            not isinstance(archive, DeadLetterArchive)
            or state is None
            or observed.storage_problem is not None
        ):
            return observed
        record.kafka, record.group = state.kafka, observed.group
        broker = archive.metadata.namespace, archive.spec.broker
        try:
            waiting = await self._dead_letters.count_uncompacted(
                state.kafka, *broker, observed.group, record.waiting
            )
        except EXPECTED as error:
            return replace(observed, waiting=error)
        return replace(observed, waiting=waiting)

    async def _find_storage_problem(
        self, archive: DeadLetterArchive
    ) -> tuple[KnafkaError | None, str]:
        """Return the problem with an archive's storage (None: the storage is usable), and the UID
        of its PersistentVolumeClaim (empty: there is no claim, or a problem). The UID tells a new
        claim, which has no tables, from an older one of the same name. Raises `ClusterError`."""
        storage, namespace = archive.spec.storage, archive.metadata.namespace
        if storage.claim is None:
            return await self._find_object_store_problem(storage, namespace), ""
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

    async def _find_object_store_problem(
        self, storage: Storage, namespace: str
    ) -> KnafkaError | None:
        """Return the problem with an object store's endpoint or credentials; None: there is none.
        Raises `ClusterError`."""
        refusal = addresses.refusal_of_url(storage.endpoint)
        if refusal is not None and not self.settings.local_addresses:
            message = f"endpoint {storage.endpoint:.200}: {refusal}"
            return NotReady("EndpointNotAllowed", message)
        return await self._find_credentials_problem(storage, namespace)

    async def _find_credentials_problem(
        self, storage: Storage, namespace: str
    ) -> KnafkaError | None:
        """Return the error if the Secret with the store's keys is missing or incomplete; None: the
        Secret is usable, or the storage needs none. Raises `ClusterError`."""
        if storage.credentials is None:
            return None
        name = storage.credentials.name
        secret = await self.cluster.get(CORE, "Secret", namespace, name)
        if secret is None:
            return NotReady("CredentialsNotFound", f"Secret {name} does not exist")
        required_keys = set(manifests.STORE_KEY_NAMES[:-1])  # the last one is optional
        if missing := required_keys - set(secret.get("data") or {}):
            message = f"Secret {name} has no {', '.join(sorted(missing))}"
            return NotReady("CredentialsIncomplete", message)
        return None

    async def _with_jobs(self, observed: Observed, record: _ArchiveRecord) -> Observed:
        """Return `observed` with the archive's Jobs, their pods, the Lease of the tables, the
        Broker's address and the next operation. Raises `ClusterError`."""
        document = observed.document
        jobs = await self._list_jobs(document)
        pods = await read_last_pods(self.cluster, jobs)
        verdicts = await self.operations.find_job_verdicts(jobs)
        lease = await self._read_lease(document)
        record.is_known_idle = not jobs and lease is None
        holder_is_gone = lease is not None and await self._is_holder_gone(
            str(lease["spec"].get("holderIdentity") or "")
        )
        observed = replace(
            observed,
            jobs=tuple(jobs),
            pods=pods,
            unrecorded=verdicts.unrecorded,
            unwanted=verdicts.unwanted,
            lease=lease,
            holder_is_gone=holder_is_gone,
            address=await self._read_broker_address(observed),
        )
        return await self._with_next_operation(observed)

    async def _read_broker_address(self, observed: Observed) -> str:
        """Return the URL in the status of the archive's Broker; empty if the archive is invalid, or
        the Broker has no address. Raises `ClusterError`."""
        if not isinstance(observed.archive, DeadLetterArchive):
            return ""
        broker = observed.archive.metadata.namespace, observed.archive.spec.broker
        stored = await self.cluster.get(BROKERS.broker_version, BROKERS.broker, *broker)
        address = ((stored or {}).get("status") or {}).get("address") or {}
        return str(address.get("url") or "")

    async def _list_jobs(self, document: Document) -> list[Document]:
        """Return the stored Jobs of the archive and of its operations, in the order of their runs.
        Raises `ClusterError`."""
        metadata = document["metadata"]
        return await list_jobs(
            self.cluster, ARCHIVE_LABEL, metadata.get("uid", ""), metadata["namespace"]
        )

    async def _read_lease(self, document: Document) -> Document | None:
        """Return the stored Lease of the archive's tables, also if another archive holds it; None:
        there is none, or the storage is invalid. Raises `ClusterError`."""
        storage = (document.get("spec") or {}).get("storage") or {}
        namespace = document["metadata"]["namespace"]
        try:
            storage_root = manifests.storage_root(namespace, parse(Storage, storage))
        except InvalidDocument:
            return None
        # All Leases are in the operator's namespace.
        lease_location = COORDINATION, "Lease", self.settings.namespace
        return await self.cluster.get(*lease_location, names.archive_lease(namespace, storage_root))

    async def _is_holder_gone(self, holder: str) -> bool:
        """Whether `holder`, the holder of a Lease in the form `NAMESPACE/NAME/UID`, is a deleted
        archive whose Jobs are gone; also True for a text that names no archive. Raises
        `ClusterError`."""
        namespace, _, name_and_uid = holder.partition("/")
        name, _, uid = name_and_uid.rpartition("/")
        if not (namespace and name and uid):
            return True
        archive = await self.cluster.get(KNAFKA, ARCHIVE, namespace, name)
        if archive is not None and archive["metadata"].get("uid") == uid:
            return False
        return not await self.cluster.list(BATCH_VERSION, "Job", {ARCHIVE_LABEL: uid}, namespace)

    # Effects.

    async def follow_up(
        self, effect: Effect, observed: Observed, record: _ArchiveRecord
    ) -> Observed:
        """Read again what the effect has changed, and return `observed` with it: the number of
        waiting dead letters after a recorded run, nothing after an applied account, else Jobs and
        Lease. Raises `ClusterError`."""
        match effect.step:
            case Step.RECORD_RUN:
                record.waiting.forget()
                return await self._with_waiting_count(observed, record)
            case Step.APPLY_ACCOUNT:
                return observed
        if isinstance(effect, Create):
            # If a Job of an operation was created, its operation must read its Jobs again. The
            # archive's own Jobs, and Leases, have no such label.
            labels = effect.manifest["metadata"].get("labels") or {}
            self.operations.on_job(labels.get(OPERATION_LABEL, ""))
        return await self._with_jobs(observed, record)


def _parse_or_error(document: Document, maxima: Maxima) -> DeadLetterArchive | InvalidDocument:
    """Return the parsed archive; if it is invalid, or its timeout exceeds that of `maxima`, the
    installation's, return the error."""
    try:
        archive = parse(DeadLetterArchive, document)
        maxima.check_job_timeout(archive.spec.timeout, "spec.timeout")
        return archive
    except InvalidDocument as error:
        return error
