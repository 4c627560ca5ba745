"""`knafka trace`: what became of an event, from what Kafka holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter
from support.memory.records import MemoryRecord

from knafka.core import names
from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.dead_letter import Attempt, Failure, Origin, dead_letter_of
from knafka.core.delivery import Outcome, Reason
from knafka.core.errors import LogError
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.core.filters.declared_filters import AttributesFilter, Exact
from knafka.core.names import replay_topic
from knafka.core.progress import DeliveryStage, DeliveryState, Progress, encode, policy_of
from knafka.ports.log import Commits, OffsetAndMetadata, Record
from knafka_cli.events.searching import holds_event_with, is_traceable
from knafka_cli.events.steps import TraceStep, merge_steps
from knafka_cli.events.tracing import Trace, TracedState, offset_state, trace_record
from knafka_client.topics.dead_letters import read_dead_letters
from knafka_client.topics.replaying import choose_dead_letters, send_again

ATTRIBUTES = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}
FAILURE = Failure("http://mail/", Reason.STATUS, 3, 0.0, 1.5, 500, b"no")
REPLAYS = replay_topic("shop", "main", "mail")


def egress(trigger: str = "mail", wants: str = "order", sink: Sink | None = None) -> Egress:
    return Egress(
        namespace="shop", broker="main", trigger=trigger, topic="t", group=f"group-{trigger}",
        dead_letter_topic=f"dead-{trigger}", kafka=Kafka(bootstrap_servers="k:1"),
        subscriber=Sink(url="http://mail/"), filter=AttributesFilter(),
        filters=(Exact(exact={"type": wants}),), dead_letter_sink=sink,
    )  # fmt: skip


class Log:
    """A Broker's topic with one event in it, and what its Triggers have made of that."""

    def __init__(self) -> None:
        self.memory = MemoryLog()
        self.memory.create("t")
        self.admin = MemoryAdmin(self.memory)
        draft = to_record(Event(ATTRIBUTES, b'{"n": 1}'))
        self.record = self.memory.store("t", draft.key, draft.value, draft.headers)

    def committed(self, group: str, topic: str, partitions: Collection[int]) -> Commits:
        kept = self.memory.group(group).committed
        return {each: kept[topic, each] for each in partitions if (topic, each) in kept}

    def settle(self, group: str, topic: str, behind: int, metadata: str = "") -> None:
        self.memory.group(group).committed[topic, 0] = OffsetAndMetadata(behind, metadata)

    def fail(
        self, topic: str = "t", offset: int = 0, at: float = 1.5, log: Sequence[Attempt] = ()
    ) -> None:
        """The event, or what was sent again of it, became a dead letter."""
        self.memory.create("dead-mail")
        origin = Origin("shop", "main", "mail", topic, 0, offset)
        failure = replace(FAILURE, last_attempt=at, log=log)
        draft = to_record(Event(ATTRIBUTES, b'{"n": 1}'))
        headers, value = dead_letter_of(draft.headers, draft.value, failure, origin)
        self.memory.store("dead-mail", draft.key, value, headers)

    async def replay(self) -> None:
        chosen = await choose_dead_letters(self.admin, [egress()], ["1"], {})
        await send_again(self.admin, MemoryWriter(self.memory), chosen)

    async def trace(self, *egresses: Egress, paused: Sequence[str] = ()) -> Trace:
        wanted = egresses or (egress(),)
        return await trace_record(
            self.admin, self.committed, self.record, "shop/main", wanted, paused
        )


async def test_the_event_is_told_with_its_place_and_every_trigger() -> None:
    log = Log()
    log.settle("group-mail", "t", 1)
    found = await log.trace(egress(), egress("audit", wants="payment"))
    assert (found.id, found.type, found.source, found.broker) == (
        "1",
        "order",
        "/shop",
        "shop/main",
    )
    assert (found.topic, found.partition, found.offset) == ("t", 0, 0)
    mail, audit = found.deliveries
    assert (mail.trigger, mail.state, mail.detail) == (
        "shop/mail",
        TracedState.SETTLED,
        "no dead letter: delivered",
    )
    assert (audit.trigger, audit.state) == ("shop/audit", TracedState.NOT_WANTED)
    assert audit.clauses == ("filters[0].exact.type: the event has 'order', want 'payment'",)
    assert audit.detail == audit.clauses[0]


async def test_what_waits_says_so_and_why() -> None:
    log = Log()
    (found,) = (await log.trace()).deliveries
    assert (found.state, found.detail) == (
        TracedState.WAITING,
        "nothing of its partition is settled",
    )
    log.settle("group-mail", "t", 0)
    (found,) = (await log.trace(paused=["shop/mail"])).deliveries
    assert (found.state, found.detail) == (TracedState.WAITING, "the Trigger is paused; it is next")


def test_what_is_settled_ahead_of_the_position_is_known() -> None:
    metadata, _ = encode(5, Progress([(7, 9)]), 0)
    committed = OffsetAndMetadata(5, metadata)
    states = [offset_state(offset, committed) for offset in range(4, 11)]
    assert [state for state, _ in states] == [
        *[TracedState.SETTLED, TracedState.WAITING, TracedState.WAITING],
        *[TracedState.SETTLED, TracedState.SETTLED, TracedState.WAITING, TracedState.WAITING],
    ]
    assert states[1][1] == "it is next"
    assert states[2][1] == "1 before it aren't settled"
    assert states[5][1] == "2 before it aren't settled"


@pytest.mark.parametrize(
    ("stage", "where"),
    [
        (DeliveryStage.SUBSCRIBER, ""),
        (DeliveryStage.SINK, ", now at the dead letter sink"),
        (DeliveryStage.TOPIC, ", now to be kept as a dead letter"),
    ],
)
def test_what_is_tried_again_says_when(stage: DeliveryStage, where: str) -> None:
    failed = Outcome(500)
    delivery = DeliveryState(stage, 1, 2, 0.0, 1.0, 61.0, failed)
    metadata, _ = encode(5, Progress((), {6: delivery}), 0)
    state, detail = offset_state(6, OffsetAndMetadata(5, metadata))
    assert state is TracedState.RETRYING
    assert detail == (
        f"2 attempts{where}, the last 1970-01-01T00:00:01.000Z (500), "
        "the next 1970-01-01T00:01:01.000Z"
    )


def test_the_result_of_an_attempt_that_is_not_over_is_not_known() -> None:
    delivery = DeliveryState(DeliveryStage.SUBSCRIBER, 1, 2, 0.0, 1.0, 61.0)
    metadata, _ = encode(5, Progress((), {6: delivery}), 0)
    assert (
        "the last 1970-01-01T00:00:01.000Z, the next"
        in offset_state(6, OffsetAndMetadata(5, metadata))[1]
    )


async def test_what_is_tried_again_shows_its_last_attempt() -> None:
    log = Log()
    delivery = DeliveryState(DeliveryStage.SUBSCRIBER, 2, 2, 0.0, 1.0, 61.0, Outcome(503))
    metadata, _ = encode(0, Progress((), {0: delivery}), policy_of(egress()))
    log.settle("group-mail", "t", 0, metadata)
    (found,) = (await log.trace()).deliveries
    assert found.steps == (TraceStep("1970-01-01T00:00:01.000Z", "attempt", "503"),)


async def test_a_dead_letter_shows_each_attempt_then_itself_and_what_was_sent_again() -> None:
    log = Log()
    log.settle("group-mail", "t", 1)
    attempts = [Attempt(0.0, Outcome(500)), Attempt(1.5, Outcome(failure=Reason.TIMEOUT))]
    log.fail(log=attempts)
    await log.replay()
    (found,) = (await log.trace()).deliveries
    assert found.steps[:2] == [
        TraceStep("1970-01-01T00:00:00.000Z", "attempt", "500"),
        TraceStep("1970-01-01T00:00:01.500Z", "attempt", "timeout"),
    ]
    assert [(each.what, each.result) for each in found.steps[2:]] == [
        ("dead letter", "status 500, at dead-mail/0/0"),
        ("sent again", "waiting"),
    ]
    (letter,) = found.dead_letters
    assert "  attempt 1970-01-01T00:00:01.500Z: timeout" in letter.text().splitlines()


def test_of_an_attempt_that_is_known_twice_the_span_is_shown() -> None:
    at = [f"1970-01-01T00:00:0{number}.000Z" for number in range(4)]
    kept = [
        TraceStep(at[0], "attempt", "500"),
        TraceStep(at[2], "attempt", "500"),
        TraceStep("?", "attempt", "?"),
    ]
    span = TraceStep("1970-01-01T00:00:02.004Z", "attempt", "500 in 3 ms")
    reply = TraceStep(at[3], "reply", "202")
    assert merge_steps([*kept, TraceStep(at[3], "dead letter", "")], [span, reply]) == [
        kept[0], span, TraceStep(at[3], "dead letter", ""), reply, kept[2],
    ]  # fmt: skip


async def test_a_sink_may_have_taken_what_has_no_dead_letter() -> None:
    log = Log()
    log.settle("group-mail", "t", 1)
    (found,) = (await log.trace(egress(sink=Sink(url="http://sink/")))).deliveries
    assert (
        found.detail == "no dead letter: delivered, or taken by the dead letter sink http://sink/"
    )


@pytest.mark.conformance("KN-DLV-08")
async def test_a_dead_letter_is_told_with_what_was_sent_again_of_it() -> None:
    """KN-DLV-08."""
    log = Log()
    log.settle("group-mail", "t", 1)
    log.fail()
    log.fail(offset=9)
    (found,) = (await log.trace()).deliveries
    failed = "status 500 after 3 attempts, 1970-01-01T00:00:01.500Z"
    assert (found.state, found.detail) == (TracedState.DEAD_LETTER, failed)
    assert [each.position for each in found.dead_letters] == ["t/0/0"], "not another's"

    await log.replay()
    (found,) = (await log.trace()).deliveries
    (again,) = found.replays
    assert found.state is TracedState.WAITING
    assert found.detail == (f"{failed}; sent again {again.at}: nothing of its partition is settled")
    assert found.dead_letters[0].replayed == again.at
    log.settle(REPLAYS, REPLAYS, 1)
    (found,) = (await log.trace()).deliveries
    assert found.state is TracedState.SETTLED
    assert found.detail == f"{failed}; sent again {again.at}: delivered"

    log.fail(topic=REPLAYS, at=4e9)
    (found,) = (await log.trace()).deliveries
    assert [each.position for each in found.dead_letters] == ["t/0/0", f"{REPLAYS}/0/0"]
    assert found.state is TracedState.DEAD_LETTER
    assert found.detail == (
        f"{failed}; sent again {again.at}; status 500 after 3 attempts, 2096-10-02T07:06:40.000Z"
    )


async def test_a_subscriptions_reply_that_was_not_taken_says_where_it_should_have_gone() -> None:
    """KN-SUB-07; its replays have the topic that the operator has made for a Subscription."""
    log = Log()
    of_channel = names.of_channel("main")
    log.memory.create("dead-mail")
    failure = Failure("http://reply/", Reason.REPLY_NOT_DELIVERED, 3, 0.0, 1.5, 503)
    draft = to_record(Event(ATTRIBUTES, b""))
    origin = Origin("shop", of_channel, "mail", "t", 0, 0)
    headers, value = dead_letter_of(draft.headers, draft.value, failure, origin)
    log.memory.store("dead-mail", draft.key, value, headers)
    mail = egress().model_copy(update={"kind": "Subscription", "filters": ()})
    (found,) = (await log.trace(mail)).deliveries
    assert found.trigger == "subscription/shop/mail"
    assert found.detail.startswith("reply-not-delivered 503 to http://reply/ after 3 attempts")
    chosen = await choose_dead_letters(log.admin, [mail], ["1"], {})
    await send_again(log.admin, MemoryWriter(log.memory), chosen)
    assert len(log.memory.topics[replay_topic("shop", of_channel, "mail")]) == 1
    (found,) = (await log.trace(mail)).deliveries
    assert (found.state, len(found.replays)) == (TracedState.WAITING, 1)
    assert "sent again" in (await read_dead_letters(log.admin, mail, 1))[0].text()


async def test_a_trigger_of_which_kafka_says_nothing_hides_no_other() -> None:
    """As where a partition of its dead-letter topic has no leader."""
    log, unreadable = Log(), {"dead-audit"}

    class Halved(MemoryAdmin):
        async def read_last(self, topic: str, limit: int) -> Sequence[Record]:
            if topic in unreadable:
                raise LogError(f"partition 1 of {topic} has no leader")
            return await super().read_last(topic, limit)

    log.admin = Halved(log.memory)
    for name in ("dead-mail", "dead-audit"):
        log.memory.create(name)
    mail, audit = (await log.trace(egress(), egress("audit"))).deliveries
    assert mail.state is TracedState.WAITING
    assert (audit.state, audit.detail) == (
        TracedState.UNKNOWN,
        "partition 1 of dead-audit has no leader",
    )
    unreadable.add("dead-mail")
    with pytest.raises(LogError):
        await log.trace(egress(), egress("audit"))


async def test_where_dead_letters_were_taken_from_their_topic_it_may_have_been_one() -> None:
    """The compaction takes them into tables, and deletes them."""
    log = Log()
    log.settle("group-mail", "t", 1)
    log.memory.create("dead-mail")
    log.memory.transact("dead-mail", [], commit=True)
    (found,) = (await log.trace()).deliveries
    assert found.state is TracedState.SETTLED
    assert "knafka dead-letters report" in found.detail


def record(headers: list[tuple[str, bytes]] | None, value: bytes | None = None) -> MemoryRecord:
    return MemoryRecord("t", 0, 0, None, value, headers)


STRUCTURED = [("content-type", b"application/cloudevents+json; charset=UTF-8")]
DOCUMENT = b'{"specversion":"1.0","id":"\\u0031","source":"/shop","type":"order"}'


@pytest.mark.parametrize(
    ("source", "found"), [(None, True), ("/shop", True), ("/sho", False), ("", False)]
)
def test_an_event_is_found_by_id_and_source_in_both_modes(source: str | None, found: bool) -> None:
    """CE-K2: the headers of a structured event don't have its id."""
    is_it = holds_event_with("1", source)
    assert is_it(record(to_record(Event(ATTRIBUTES, b"1"))[1], b"1")) is found
    assert is_it(record([("Content-Type", STRUCTURED[0][1])], DOCUMENT)) is found
    assert not is_it(record(to_record(Event({**ATTRIBUTES, "id": "11"}, b""))[1]))


def test_what_is_no_event_is_passed_over() -> None:
    is_it = holds_event_with("1", None)
    assert not is_it(record(None, b"1"))
    assert not is_it(record(STRUCTURED, b"{"))
    assert is_it(record([("ce_id", b"1")]))
    assert not is_traceable(record([("ce_id", b"1")]))
