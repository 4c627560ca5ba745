"""A console to look at: a source in memory, and a server of it on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from knafka.core.events.event import Event
from knafka_client.sockets import HOST, listen, port_of
from knafka_client.state.snapshot import BrokerRow, ConditionRow, Snapshot, TriggerRow
from knafka_client.topics.dead_letters import StoredDeadLetter
from knafka_console.model import snapshot_document
from knafka_console.model.document import (
    Action,
    ChosenEvent,
    ConsoleState,
    EventName,
    Failures,
    FilterVerdict,
    ReplayResult,
    TriggerDetails,
)
from knafka_console.model.source import ArchiveReports, Forbidden, NotFound, TriggerName
from knafka_console.web.server import ConsoleServer
from knafka_operator.model.channels import KAFKA_CHANNEL_VERSIONS, MESSAGING
from knafka_operator.model.family import CHANNELS
from knafka_operator.model.resources import EVENTING, Trigger, parse_resource

READY = ConditionRow("Ready", "True")


COMMANDS = {"Show them": "knafka dead-letters show default/audit", "Report": "knafka report"}


def trigger(name: str, broker: str = "shop", **spec: Any) -> Trigger:
    """A Trigger as it is declared, of the namespace `default`."""
    found = parse_resource(
        {
            "apiVersion": EVENTING,
            "kind": "Trigger",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"broker": broker, "subscriber": {"uri": f"http://{name}.test/"}, **spec},
        }
    )
    assert isinstance(found, Trigger)
    return found


def subscription(name: str, channel: str = "orders") -> Trigger:
    """A Subscription as it is declared, read as a Trigger."""
    of = {"apiVersion": KAFKA_CHANNEL_VERSIONS[0], "kind": "KafkaChannel", "name": channel}
    return CHANNELS.read_trigger(
        {
            "apiVersion": MESSAGING,
            "kind": "Subscription",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"channel": of, "subscriber": {"uri": f"http://{name}.test/"}},
        }
    )


def row(name: str, **values: Any) -> TriggerRow:
    """A Trigger as it was observed."""
    found = TriggerRow(f"default/{name}", "shop", 0, most_replicas=4, decision="nothing waits")
    return replace(found, **{"conditions": (READY,), **values})


def letter(number: int, **values: Any) -> StoredDeadLetter:
    """A dead letter of a subscriber that answered 500."""
    time = "2026-01-31T12:00:00Z"
    found = StoredDeadLetter(
        f"order-{number}", "com.example.order.placed", "/shop", "status", "400", "1",
        time, time, "http://mail.test/", "no such customer", '{"amount": 40}', "",
        f"shop/0/{number}",
    )  # fmt: skip
    return replace(found, **values)


class MemorySource:
    """A source whose parts are set from outside; what was asked of it is kept."""

    def __init__(self, triggers: Sequence[Trigger] = (), rows: Sequence[TriggerRow] = ()) -> None:
        self.triggers = list(triggers)
        self.rows = list(rows)
        self.brokers = [BrokerRow("default/shop", "http://127.0.0.1:8080/default/shop")]
        self.letters: list[StoredDeadLetter] = []
        self.may: Sequence[Action] = tuple(Action)
        self.problems: tuple[str, ...] = ()
        self.asked = 0
        """How often for the state."""
        self.busy: set[tuple[str, str]] = set()
        """Kind and name of each that has had ten events more whenever the state is asked for: so a
        page that is looked at late still shows a rate."""
        self.replayed: list[tuple[str, tuple[EventName, ...]]] = []
        self.page: bytes | None = None
        self.reports: ArchiveReports | None = None

    def set(self, name: str, kind: str = "Trigger", **values: Any) -> None:
        """Have a Trigger's or Subscription's row changed."""
        row = self._row(kind, name)
        self.rows[self.rows.index(row)] = replace(row, **values)

    def _row(self, kind: str, name: str) -> TriggerRow:
        who = kind, f"default/{name}"
        return next(each for each in self.rows if (each.kind, each.name) == who)

    async def state(self) -> ConsoleState:
        self.asked += 1
        for kind, name in self.busy:
            self.set(name, kind, delivered=self._row(kind, name).delivered + 10)
        snapshot = Snapshot("127.0.0.1:9092", tuple(self.brokers), tuple(self.rows), self.problems)
        found = snapshot_document.state_document(snapshot, self.triggers, "/work/.knafka")
        return found.model_copy(update={"archives": self.reports is not None})

    async def details(self, trigger: TriggerName) -> TriggerDetails:
        found = self._find(trigger)
        return snapshot_document.details_document(
            found, (READY,), "shop.yaml, document 2", self.may
        )

    async def failures(self, trigger: TriggerName) -> Failures:
        self._find(trigger)
        report = "report" if self.page else ""
        return snapshot_document.failures_document(self.letters, 200, COMMANDS, report)

    async def verdicts(self, event: Event) -> Sequence[FilterVerdict]:
        asked = [each for each in self.triggers if each.kind == "Trigger"]
        return snapshot_document.verdicts(asked, event)

    async def pause(self, trigger: TriggerName, *, paused: bool) -> str:
        if Action.PAUSE not in self.may:
            raise Forbidden("you may not change Triggers")
        self._find(trigger)
        self.set(trigger.name, trigger.kind, paused=paused)
        return f"{trigger} {'is paused' if paused else 'goes on'}"

    async def replay(
        self, trigger: TriggerName, events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        self._find(trigger)
        if not dry_run:
            self.replayed.append((str(trigger), tuple(events)))
        chosen = tuple(ChosenEvent(about=f"{trigger.name}: {each.id}") for each in events)
        return ReplayResult(chosen=chosen, replay="" if dry_run else "replay-1")

    async def report(self) -> bytes | None:
        return self.page

    def _find(self, trigger: TriggerName) -> Trigger:
        for each in self.triggers:
            if (each.kind, each.id) == (trigger.kind, trigger.id):
                return each
        raise NotFound(f"there is no {trigger.kind} {trigger.id}")


@contextmanager
def served(source: MemorySource) -> Iterator[str]:
    """Serve it on a thread; gives the URL."""
    listener = listen()
    host = f"{HOST}:{port_of(listener)}"
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        server = await ConsoleServer.start(listener, [host], lambda _: source)
        started.set()
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert started.wait(10)
        yield f"http://{host}/"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
        listener.close()
