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
from knafka_operator.decide.status import NotReady
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.resources import CORE
from knafka_operator.reconcile.contracts import Contract
from knafka_operator.reconcile.functions import apply_service
from knafka_operator.scale.kafka_clusters import KafkaCluster

APPLY_AGAIN: Final = 1.0
"""Seconds before a Service that isn't Ready is applied again: its channels ask for it together."""
READ_TIMEOUT: Final = 10.0
"""Seconds for every replica to have read what was written; after that the channel says so."""
LOOK_INTERVAL: Final = 0.1
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
    all."""


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
        await record.contract.load()
        return record

    async def apply(self, record: ReceiverRecord, topic: Topic, manifest: Mapping[str, Any]) -> str:
        """Have its contract's topic, then its Service as it should be; gives its Revision.

        However many channels it has, it is applied once, and looked at again by whichever asks
        while it isn't Ready. Raises `NotReady`, `LogError`.
        """
        async with record.lock:
            if not record.contract.exists:
                await record.contract.create(topic)
            again = record.revision is None and _now() - record.tried >= APPLY_AGAIN
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

    async def until_read(self, record: ReceiverRecord, namespace: str) -> None:
        """Returns when every replica has read what was written; raises `NotReady`."""
        wanted, behind = record.contract.position, list[str]()
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                while record.read < wanted:
                    async with record.lock:
                        if record.read >= wanted:
                            return
                        behind = await self._look(record, namespace, wanted)
                    if behind:
                        await asyncio.sleep(LOOK_INTERVAL)
        except TimeoutError:
            raise NotReady(
                "ReceiverBehind",
                f"{len(behind)} replicas of {record.name} have not read offset {wanted} of topic "
                f"{record.contract.topic} yet: {', '.join(behind):.200}",
                transient=True,
            ) from None

    async def _look(self, record: ReceiverRecord, namespace: str, wanted: int) -> list[str]:
        """Ask every replica once; gives those that are behind."""
        end = record.contract.position
        found = await self.positions(namespace, record.name)
        # To the end that there is by now: whichever waits next need not ask.
        record.read = min((-1 if at is None else at for at in found.values()), default=end)
        return sorted(who for who, at in found.items() if at is None or at < wanted)


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
