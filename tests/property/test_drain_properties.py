"""At least once, and in order, whatever a subscriber answers and whoever joins, stops or hangs.

Each example plays minutes on a clock of its own, so none of them waits.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support import fake_clock
from support.drains import (
    DEAD,
    TOPIC,
    Answer,
    Request,
    ScriptedSubscriber,
    World,
    accept,
    id_of,
    response,
)
from support.examples import examples

from knafka.core.contract import Delivery, Order
from knafka.core.drain import Ended
from knafka.core.errors import DeliveryError
from knafka.ports.subscriber import Response

attempts = st.tuples(
    st.sampled_from([200, 202, 204, 404, 500, 503, 0]),
    st.sampled_from([0.0, 0.0, 0.0, 0.5, 2.0, 7.0]),
)
"""Status, 0 for none, and seconds until it comes."""

visits = st.lists(
    st.tuples(st.floats(0, 20), st.floats(0.1, 15)).map(lambda pair: (pair[0], sum(pair))),
    max_size=3,
)
"""When another drain joins and when it is stopped."""


def on_fake_time(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=fake_clock.new_event_loop) as runner:
        runner.run(play())


class Unsteady:
    """Answers as drawn, one after the other, and then 200 for ever."""

    def __init__(self, answers: list[tuple[int, float]]) -> None:
        self._answers = iter(answers)
        self.arrived: list[str] = []

    async def __call__(self, request: Request) -> Response:
        self.arrived.append(id_of(request))
        status, seconds = next(self._answers, (200, 0.0))
        await asyncio.sleep(seconds)
        if status == 0:
            raise DeliveryError("broken", "it hung up")
        return response(status)


def first_arrivals(arrived: list[str]) -> dict[str, list[int]]:
    by_key = defaultdict[str, list[int]](list)
    for each in dict.fromkeys(arrived):
        key, _, number = each.partition("-")
        by_key[key].append(int(number))
    return by_key


@settings(max_examples=examples(60), deadline=None)
@given(
    st.sampled_from(Order),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=30),
    st.lists(attempts, max_size=40),
    visits,
    st.integers(1, 8),
    st.sets(st.integers(0, 29)),
)
def test_every_event_is_delivered_and_first_arrivals_are_in_order(
    order: Order,
    keys: list[str],
    answers: list[tuple[int, float]],
    visits: list[tuple[float, float]],
    max_in_flight: int,
    markers: set[int],
) -> None:
    """Also between and behind transactions, whose markers no reader is given."""

    async def play() -> None:
        subscriber = Unsteady(answers)
        delivery = Delivery(retry=1000, backoff_delay=0.3, backoff_policy="linear")  # type: ignore[arg-type]
        world = World(
            subscriber, partitions=3, delivery=delivery, order=order, max_in_flight=max_in_flight
        )
        for number, key in enumerate(keys):
            world.send(f"{key}-{number}", key)
            if number in markers:
                world.log.transact(TOPIC, [], commit=True)

        async def visit(joins: float, stops: float) -> None:
            await asyncio.sleep(joins)
            drain = world.drain(ScriptedSubscriber(subscriber))
            running = world.begin(drain, idle=20)
            await asyncio.sleep(stops - joins)
            drain.stop()
            await running

        first = world.begin(world.drain(), idle=40)
        await asyncio.gather(*(visit(joins, stops) for joins, stops in visits))
        assert (await first).ended is Ended.IDLE

        wanted = {f"{key}-{number}" for number, key in enumerate(keys)}
        assert set(subscriber.arrived) == wanted
        assert world.records_of(DEAD) == []
        ends = {number: len(each) for number, each in enumerate(world.log.topics[TOPIC])}
        assert world.committed.items() >= {(n, end) for n, end in ends.items() if end}
        if order is not Order.NONE:
            for numbers in first_arrivals(subscriber.arrived).values():
                assert numbers == sorted(numbers)

    on_fake_time(play)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(attempts, min_size=1, max_size=30), st.integers(0, 3), st.booleans())
def test_every_event_is_delivered_or_dead_lettered_however_often_the_drain_is_cut_short(
    answers: list[tuple[int, float]], retry: int, sink: bool
) -> None:
    async def play() -> None:
        subscriber = Unsteady(answers)
        world = World(subscriber, delivery=Delivery(retry=retry, backoff_delay=0.5), sink=sink)
        for number in range(10):
            world.send(f"{number % 3}-{number}", str(number % 3))
        committed = 0
        for _ in range(100):
            ended = (await world.run(idle=1, stop_after=2.5)).ended
            assert world.committed.get(0, 0) >= committed, "a commit never goes back"
            committed = world.committed.get(0, 0)
            if ended is Ended.IDLE:
                break
        assert committed == 10
        succeeded = set(world.subscriber.answered)
        dead_lettered = {letter.attributes["id"] for letter in world.events_of(DEAD)}
        assert succeeded | dead_lettered == {f"{number % 3}-{number}" for number in range(10)}

    on_fake_time(play)


names = st.sampled_from(
    ["ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject", "ce_", "ce_Bad", "ce_time",
     "ce_datacontenttype", "content-type", "Content-Type", "traceparent", "other", ""]
)  # fmt: skip
values = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.sampled_from(
        [b"1.0", b"0.3", b"application/cloudevents+json", b"application/cloudevents-batch+json",
         b"application/cloudevents+avro", b"text/plain", "é\u2028".encode(), b"\r\nx: y", b"%"]
    ),
)  # fmt: skip
complete = [("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/"), ("ce_type", b"t")]
headers = st.one_of(
    st.none(),
    st.lists(st.tuples(names, values), max_size=8),
    st.lists(st.tuples(names, values), max_size=3).map(lambda more: complete + more),
)
documents = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.sampled_from(
        [b'{"specversion":"1.0","id":"1","source":"/","type":"t","data":1}', b"[" * 5000, b"{}"]
    ),
)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.tuples(headers, documents), max_size=5),
    st.sampled_from([None, "json", "binary"]),
    st.sampled_from([200, 400]),
    st.booleans(),
)
def test_no_record_whatsoever_stops_a_drain(
    records: list[tuple[Any, bytes | None]], mode: Any, status: int, sink: bool
) -> None:
    """CE-K8: what can't be read is dead-lettered, and what follows is delivered."""

    async def play() -> None:
        world = World(give(status), delivery=Delivery(format=mode), sink=sink)
        for each, value in records:
            world.log.store(TOPIC, None, value, each)
        progress = await world.run(idle=1)
        assert progress.ended is Ended.IDLE
        assert progress.delivered + progress.dead_lettered == len(records)
        assert world.committed.get(0, 0) == len(records)
        for post in world.subscriber.posts:
            assert b"\r\n\r\n" not in post.request.head
            assert post.request.header(b"x") is None, "a value has become a header"

    on_fake_time(play)


def give(status: int) -> Answer:
    async def answer(request: Request) -> Response:
        return response(status)

    return answer if status != 200 else accept
