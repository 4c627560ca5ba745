"""Receivers: those that many KafkaChannels share, one for each Kafka Secret (CHN-11, CHN-23).

    channel    contract (read once) -> topic -> Service (applied once for all) -> record, and
               awaited at every replica

Not here: what a channel's entry is (`decide.channel`), and the topic's reading and writing
(`contracts`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from knafka.core.contract import Ingress
from knafka.core.documents import parse_json
from knafka.core.errors import InvalidDocument
from knafka.ports.log import Record
from knafka_operator.decide.desired import Topic
from knafka_operator.decide.status import NotReady, is_ready
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.reconcile.contracts import Contract
from knafka_operator.reconcile.functions import apply_service
from knafka_operator.scale.kafka_clusters import KafkaCluster

APPLY_AGAIN: Final = 1.0
"""Seconds before a Service that isn't Ready is applied again: its channels ask for it together."""
READ_TIMEOUT: Final = 10.0
"""Seconds for every replica to have read what was written; after that the channel says so."""
LOOK_INTERVAL: Final = 0.1
CHECK_AGAIN: Final = 30.0
"""Seconds before it is asked again whether a contract's topic is as it was left."""
PORT: Final = 8080
ASK_TIMEOUT: Final = 2.0

Positions = Callable[[str, str], Awaitable[Mapping[str, int | None]]]
"""Namespace and name of a receiver's Service -> each replica that takes requests, and the position
to which it has read its contract; None: it doesn't say."""


@dataclass(eq=False)
class ReceiverRecord:
    """One receiver that channels share."""

    name: str
    """Of its Service."""
    contract: Contract[Ingress]
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    manifest: Mapping[str, Any] | None = None
    """As it was applied last."""
    revision: str | None = None
    """None: it isn't Ready."""
    problem: NotReady | None = None
    tried: float = -math.inf
    """By the event loop's clock."""
    read: int = 0
    """A position to which every replica is known to have read; one that starts later begins with
    all. 0 whenever the topic was read again: it may be another one."""
    checked: float = -math.inf
    written: dict[str, int] = field(default_factory=dict)
    """Positions behind what was written since, by path."""
    looking: asyncio.Lock = field(default_factory=asyncio.Lock)
    looked: float = -math.inf
    """When replicas were asked last."""
    replicas: Mapping[str, int | None] = field(default_factory=dict)
    """What they answered."""

    async def write(self, path: str, ingress: Ingress | None) -> None:
        """Put down an entry, or that there is none; raises `LogError`."""
        await self.contract.write(path, ingress)
        self.written[path] = self.contract.position

    def has_read(self, path: str) -> bool:
        """Whether every replica is known to have read what was written of it last."""
        return self.read >= self.written.get(path, self.contract.position)

    def forget_positions(self) -> None:
        """Its topic was read again, and may be another one."""
        self.read = 0
        self.written.clear()


@dataclass(eq=False)
class Receivers:
    """All of them, by name of their Services."""

    cluster: Cluster
    positions: Positions
    records: dict[str, ReceiverRecord] = field(default_factory=dict)

    async def at(self, name: str, kafka: KafkaCluster, topic: str) -> ReceiverRecord:
        """A receiver with its contract as it is read; raises `LogError`."""
        record = self.records.get(name)
        if record is None:
            contract = Contract(topic, kafka, entries, known=False)
            record = self.records[name] = ReceiverRecord(name, contract)
        elif record.contract.kafka.bootstrap_servers != kafka.bootstrap_servers:
            contract = Contract(topic, kafka, entries, known=False)
            record = self.records[name] = ReceiverRecord(name, contract)
        record.contract.kafka = kafka  # another one after its Secret was changed
        if not record.contract.known:
            record.forget_positions()
        await record.contract.load()
        return record

    def is_due(self, record: ReceiverRecord) -> bool:
        """Whether to `check` it, which one of its channels does for all."""
        now = _now()
        if now - record.checked < CHECK_AGAIN:
            return False
        record.checked = now
        return True

    async def check(self, record: ReceiverRecord) -> bool:
        """Whether its contract's topic has something else than was left; raises `LogError`."""
        changed = await record.contract.check()
        if changed:
            record.forget_positions()
        return changed

    async def apply(self, record: ReceiverRecord, topic: Topic, manifest: Mapping[str, Any]) -> str:
        """Have its contract's topic, then its Service as it should be; gives its Revision.

        However many channels it has, it is applied once, and looked at again by whichever asks
        while it isn't Ready. Raises `NotReady`, `LogError`.
        """
        async with record.lock:
            if not record.contract.exists:
                await record.contract.create(topic)
            again = await self._is_lost(record, manifest) or (
                record.revision is None and _now() - record.tried >= APPLY_AGAIN
            )
            if record.manifest != manifest or again:
                record.manifest, record.tried, record.problem = manifest, _now(), None
                record.revision = None
                try:
                    record.revision = await apply_service(self.cluster, manifest)
                except NotReady as error:
                    record.problem = error
        if record.revision is None:
            assert record.problem is not None
            raise record.problem
        return record.revision

    async def _is_lost(self, record: ReceiverRecord, manifest: Mapping[str, Any]) -> bool:
        """Whether a Service that was Ready has gone, or isn't Ready any more."""
        namespace = manifest["metadata"]["namespace"]
        there = await self.cluster.get(SERVING, "Service", namespace, record.name)
        return record.revision is not None and (there is None or not is_ready(there))

    async def until_read(self, record: ReceiverRecord, namespace: str, path: str) -> None:
        """Returns when every replica has read what was written of `path`; raises `NotReady`.

        However many channels wait, replicas are asked once in `LOOK_INTERVAL`.
        """
        wanted = record.written.get(path, record.contract.position)
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                while record.read < wanted:
                    async with record.looking:
                        if _now() - record.looked >= LOOK_INTERVAL and record.read < wanted:
                            await self._look(record, namespace)
                    if record.read < wanted:
                        await asyncio.sleep(LOOK_INTERVAL)
        except TimeoutError:
            answers = record.replicas.items()
            behind = sorted(who for who, at in answers if at is None or at < wanted)
            raise NotReady(
                "ReceiverBehind",
                f"{len(behind)} replicas of {record.name} have not read offset {wanted} of topic "
                f"{record.contract.topic} yet: {', '.join(behind):.200}",
                transient=True,
            ) from None

    async def _look(self, record: ReceiverRecord, namespace: str) -> None:
        """Ask every replica once."""
        end, record.looked = record.contract.position, _now()
        found = await self.positions(namespace, record.name)
        if any(at is not None and at > record.contract.position for at in found.values()):
            # Of the topic before this one, or of another one after it: what there is is asked.
            found = {
                who: at if at and at <= record.contract.position else None
                for who, at in found.items()
            }
            record.checked = -math.inf
        # To the end that there is by now: whichever waits next need not ask.
        # What was read before stays read: a replica that starts later begins with all.
        positions = (0 if at is None else at for at in found.values())
        record.read = max(record.read, min(positions, default=end))
        record.replicas = found


def entries(records: Iterable[Record]) -> dict[str, Ingress]:
    """What a receiver's contract says, by path; what can't be read is passed over, as receivers do,
    and is written anew when its channel is reconciled."""
    found: dict[str, Ingress] = {}
    for record in records:
        path, value = (record.key() or b"").decode("utf-8", "replace"), record.value()
        found.pop(path, None)
        if value is not None:
            try:
                found[path] = parse_json(Ingress, value.decode("utf-8", "replace"))
            except InvalidDocument:
                continue
    return found


class PodPositions:
    """`Positions` of a cluster: each pod of the Service is asked at its own address."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def __call__(self, namespace: str, name: str) -> Mapping[str, int | None]:
        labels = {"serving.knative.dev/service": name}
        pods = await self._cluster.list(CORE, "Pod", labels)
        asked = {
            each["metadata"]["name"]: str(each["status"]["podIP"])
            for each in pods
            if each["metadata"]["namespace"] == namespace and _takes_requests(each)
        }
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            answers = await asyncio.gather(*(_position(session, at) for at in asked.values()))
        return dict(zip(asked, answers, strict=True))


async def _position(session: aiohttp.ClientSession, address: str) -> int | None:
    host = f"[{address}]" if ":" in address else address
    try:
        async with session.get(f"http://{host}:{PORT}/contract") as response:
            return int((await response.json(content_type=None))["position"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
        return None


def _takes_requests(pod: Document) -> bool:
    """One that ends may still be sent some; one that starts reads everything before it is ready."""
    status = pod.get("status") or {}
    ready = any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in status.get("conditions") or ()
    )
    return ready and bool(status.get("podIP"))


def _now() -> float:
    return asyncio.get_running_loop().time()
