"""An operator that runs Sensors, between a cluster and a Kafka in memory, and what one fires."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from support.controlled import controller_of
from support.intercepted import Seen
from support.memory.log import MemoryLog
from support.memory.transactions import MemoryTransactions
from support.operator_world import OperatorWorld, condition

from knafka.core.contract import Egress
from knafka.core.documents import parse_json
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import read, to_record
from knafka.core.sensor.contract import SensorContract as SensorContract
from knafka.sensor.processor import Processor
from knafka_operator.model.resources import EVENTING, SERVING
from knafka_operator.model.sensors import KNAFKA, SENSOR
from knafka_operator.runtime.controller import ClusterController

BUS: Final = "knative-broker-shop-default"
OWN: Final = (
    "shop-default-paid-trigger",
    "shop-default-paid-changelog",
    "shop-default-paid-action",
)
GROUP: Final = "shop-paid"
CHILD: Final = "paid-ship"
ID: Final = "Sensor shop/paid"


def spec(**more: Any) -> dict[str, Any]:
    return {
        "dependencies": [
            {"name": each, "filter": {"attributes": {"type": each}}} for each in ("order", "pay")
        ],
        "triggers": [{"name": "ship", "subscriber": {"uri": "http://ship/"}, **more}],
    }


class SensorsWorld:
    """An operator that runs Sensors, and its controller; the Broker is there."""

    def __init__(self, seen: Seen = lambda when, call: None) -> None:
        self.inner = OperatorWorld(seen)
        self.controller: ClusterController

    async def start(self, *, enabled: bool = True) -> None:
        """Another operator takes over."""
        await self.inner.restart(sensors=enabled)
        self.controller = controller_of(self.inner)

    def declare(
        self, name: str = "paid", annotations: Mapping[str, str] | None = None, **declared: Any
    ) -> None:
        metadata = {"namespace": "shop", "name": name, "annotations": dict(annotations or {})}
        document = {"apiVersion": KNAFKA, "kind": SENSOR, "metadata": metadata}
        self.inner.cluster.put({**document, "spec": declared or spec()})

    def found(self, kind: str = SENSOR, name: str = "paid") -> dict[str, Any]:
        version = {SENSOR: KNAFKA, "Service": SERVING}.get(kind, EVENTING)
        return self.inner.cluster.objects[version, kind, "shop", name]

    def there(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.inner.cluster.of(kind)}

    async def turn(self, kind: str = SENSOR, name: str = "paid") -> Any:
        """One reconciliation, of what the controller has heard of before."""
        stored = next(
            (each for each in self.inner.cluster.of(kind) if each["metadata"]["name"] == name), None
        )
        if stored is not None and kind != SENSOR:
            self.inner.operator.on_change(stored, gone=False)
        return await self.controller.reconcile((kind, "shop", name))

    async def settle(self, name: str = "paid") -> None:
        """Until everything had its turn often enough."""
        for _ in range(3):
            for broker in sorted(self.there("Broker")):
                await self.turn("Broker", broker)
            await self.turn(SENSOR, name)
            for trigger in sorted(self.there("Trigger")):
                await self.turn("Trigger", trigger)

    def status(self, kind: str = SENSOR, name: str = "paid") -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.found(kind, name)["status"]
        return found

    def says(self, type_: str, kind: str = SENSOR, name: str = "paid") -> tuple[str, str]:
        found = condition(self.status(kind, name), type_)
        return found["status"], found.get("reason", "")

    def contract(self, name: str = "paid") -> SensorContract:
        (container,) = self.found("Service", f"{name}-kn-sensor")["spec"]["template"]["spec"][
            "containers"
        ]
        given = {each["name"]: each["value"] for each in container["env"]}
        return parse_json(SensorContract, given["KNAFKA_SENSOR"])

    def egress(self, name: str = CHILD) -> Egress:
        (container,) = self.found("Service", f"{name}-kn-dispatcher")["spec"]["template"]["spec"][
            "containers"
        ]
        given = {each["name"]: each["value"] for each in container["env"]}
        return parse_json(Egress, given["KNAFKA_EGRESS"])

    async def delete(self, name: str = "paid") -> None:
        """`kubectl delete`, and turns for what is going until it is gone."""
        self.inner.cluster.remove(KNAFKA, SENSOR, "shop", name)
        for _ in range(3):
            for trigger in sorted(self.there("Trigger")):
                await self.turn("Trigger", trigger)
            await self.turn(SENSOR, name)


@asynccontextmanager
async def ready_sensor() -> AsyncIterator[SensorsWorld]:
    """With a Broker and a Sensor, all of it Ready; what runs in it is ended."""
    world = SensorsWorld()
    await world.start()
    try:
        world.inner.declare_broker("shop")
        world.declare()
        await world.settle()
        yield world
    finally:
        await world.inner.operator.close()


def store(log: MemoryLog, bus: str, type_: str, id_: str, at: int = 1_000_000) -> None:
    """An event on the bus."""
    attributes = {"specversion": "1.0", "id": id_, "source": "/s", "type": type_}
    draft = to_record(Event(attributes, None))
    log.store(bus, draft.key, draft.value, draft.headers, timestamp=at)


def fired(contract: SensorContract, log: MemoryLog, *types: str) -> Event:
    """The only action that the Sensor's function makes of events of these types."""

    def open_log(claims: Processor) -> MemoryTransactions:
        topics = [contract.topic, contract.trigger_topic]
        return MemoryTransactions(log, contract.group, topics, claims, "0")

    processor = Processor(contract, open_log, monotonic=lambda: 0)
    for number, type_ in enumerate(types):
        store(log, contract.topic, type_, str(number), 1_000_000 + number)
    for each in range(10):
        processor.step(1_000_100 + 1_000 * each)  # past the grace
    records = (each for some in log.topics[contract.action_topic] for each in some)
    (action,) = [each for each in records if each.value() is not None]
    return read(action.headers(), action.value()).event
