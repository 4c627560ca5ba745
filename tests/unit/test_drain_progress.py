"""What a drain leaves to the next: attempts, waits, and what is settled ahead; on fake time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from support.drains import (
    DEAD,
    GROUP,
    TOPIC,
    NoTopics,
    Request,
    ScriptedSubscriber,
    World,
    id_of,
    response,
    until,
)
from support.memory.records import Marker

from knafka.core.contract import BackoffPolicy, Delivery, Order
from knafka.core.dead_letter import parse_attempt_log
from knafka.core.drain import COMMIT_INTERVAL
from knafka.core.errors import DeliveryError
from knafka.core.events.kafka_binding import Envelope
from knafka.core.progress import MAX_DELIVERIES, MAX_METADATA
from knafka.dispatcher.engine import drain as drains
from knafka.ports.subscriber import Response

pytestmark = pytest.mark.looptime


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours pass here; what a read waits decides how long that takes."""
    monkeypatch.setattr(drains, "READ_TIMEOUT", 20.0)


def attribute(letter: Envelope, name: str) -> str:
    return letter.attributes[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delivery", "answer_takes"),
    [
        pytest.param(
            Delivery(retry=10, backoff_delay=600, timeout=1200), 0.0,
            id="10 x PT10M", marks=pytest.mark.integration,
        ),
        pytest.param(Delivery(retry=10, backoff_delay=1), 0.0, id="retry 10"),
        pytest.param(
            Delivery(retry=5, backoff_delay=30, backoff_policy=BackoffPolicy.LINEAR), 0.0,
            id="linear",
        ),
        pytest.param(Delivery(retry=2, backoff_delay=1, timeout=600), 601.0, id="hangs for 600 s"),
    ],
)  # fmt: skip
async def test_a_retry_policy_ends_as_declared_however_often_the_dispatcher_is_killed(
    delivery: Delivery, answer_takes: float
) -> None:
    """Fault 1: what outlasts a drain never ended, and what was beside it was repeated."""

    async def answer(request: Request) -> Response:
        if id_of(request) != "bad":
            return response()
        await asyncio.sleep(answer_takes)
        return response(503)

    world = World(answer, delivery=delivery)
    world.send("bad", "bad")
    killed = 0
    sent = 0
    running = world.begin(world.drain(), idle=60)
    while not world.records_of(DEAD):
        for _ in range(20):
            world.send(f"good-{sent}", f"key-{sent}")
            sent += 1
        attempts = world.subscriber.ids.count("bad")
        await asyncio.sleep(60 if answer_takes or delivery.backoff_delay > 60 else 3)
        settled = not world.subscriber.under_way
        if killed < 3 and attempts > 2 * killed and (settled or answer_takes):
            killed += 1
            await world.kill(running)
            running = world.begin(world.drain(), idle=60)
    await running
    assert killed == 3 or answer_takes
    attempts = world.subscriber.ids.count("bad")
    torn = killed if answer_takes else 0
    assert delivery.retry + 1 <= attempts <= delivery.retry + 1 + torn
    (letter,) = world.events_of(DEAD)
    assert delivery.retry + 1 <= int(attribute(letter, "knafkaattempts")) <= attempts
    assert torn or attribute(letter, "knafkaattempts") == str(attempts)
    assert attribute(letter, "knafkareason") == ("timeout" if answer_takes else "status")
    others = Counter(each for each in world.subscriber.ids if each != "bad")
    assert sum(others.values()) == len(others) == sent, "nothing beside it is delivered twice"


async def test_waits_are_as_declared_over_kills_and_never_shorter() -> None:
    async def fail(request: Request) -> Response:
        return response(500)

    world = World(fail, delivery=Delivery(retry=4, backoff_delay=100))
    world.send("1")
    for seconds in (50, 120, 500):
        running = world.begin(world.drain())
        await asyncio.sleep(seconds)
        await world.kill(running)
    await world.run()
    waits = [
        b - a for a, b in zip(world.subscriber.times, world.subscriber.times[1:], strict=False)
    ]
    assert len(waits) == 4
    for wait, declared in zip(waits, (100, 200, 400, 800), strict=True):
        assert declared <= wait < declared + 10


async def test_a_kill_repeats_about_a_second_whatever_is_in_backoff() -> None:
    """Fault 3: 20,000 of 20,000 were delivered twice."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.01)
        return response(503 if id_of(request) == "bad" else 200)

    world = World(answer, delivery=Delivery(retry=10, backoff_delay=600))
    world.send("bad", "bad")
    for number in range(5000):
        world.send(str(number), f"key-{number}")
    running = world.begin(world.drain())
    await until(lambda: len(world.subscriber.posts) >= 3000)
    committed = len(world.subscriber.posts)
    await world.kill(running)
    again = world.begin(world.drain())
    await until(lambda: len(set(world.subscriber.answered)) == 5001)
    again.cancel()
    await asyncio.wait({again})
    repeated = len(world.subscriber.posts) - len(set(world.subscriber.ids))
    per_second = 100 / 0.01
    assert repeated <= per_second * COMMIT_INTERVAL
    assert repeated < committed or committed < per_second


async def test_a_partition_that_goes_takes_along_what_is_settled_ahead() -> None:
    """Fault 9: scaling from 0 to 3 repeated 4-5 %."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(600 if id_of(request) == "slow" else 0.01)
        return response()

    world = World(answer, partitions=2)
    world.store_at(1, "slow", "slow")
    for number in range(1000):
        world.store_at(number % 2, str(number), f"key-{number}")
    first = world.begin(world.drain(), idle=5)
    await until(lambda: len(world.subscriber.answered) >= 500)
    other = ScriptedSubscriber(world.subscriber.answer)
    second = world.begin(world.drain(other), idle=5)
    await asyncio.gather(first, second)
    posted = Counter(world.subscriber.ids + other.ids)
    twice = {each for each, count in posted.items() if count > 1}
    assert len(posted) == 1001
    assert twice == {"slow"}, "it was in flight"


async def test_who_goes_on_hands_on_what_it_has_not_read_yet() -> None:
    async def answer(request: Request) -> Response:
        return response(503 if id_of(request).startswith("bad") else 200)

    world = World(answer, delivery=Delivery(retry=3, backoff_delay=100))
    for number in range(100):
        world.send(f"bad-{number}" if number % 20 == 0 else str(number), str(number))
    for _ in range(5):
        running = world.begin(world.drain(), stop_after=1.5)
        await running
    await world.run(stop_after=2_000)
    posted = Counter(world.subscriber.ids)
    assert {posted[str(number)] for number in range(100) if number % 20} == {1}
    assert {posted[f"bad-{number}"] for number in range(0, 100, 20)} == {4}


@pytest.mark.parametrize("later", [["new"], []], ids=["a later record", "the end alone"])
async def test_a_record_that_compaction_removed_in_its_backoff_holds_no_commit(
    later: list[str],
) -> None:
    async def answer(request: Request) -> Response:
        return response(500 if id_of(request) == "removed" else 200)

    world = World(answer, delivery=Delivery(retry=5, backoff_delay=100))
    world.send("removed", "k")
    world.send("other", "x")
    await world.run(stop_after=5)
    assert world.committed == {0: 0}
    world.log.topics[TOPIC][0][0] = Marker(TOPIC, 0, 0, None, None, None)
    for event in later:
        world.send(event, "k")
    drain = world.drain()
    running = world.begin(drain, idle=60)
    await until(lambda: world.committed == {0: 2 + len(later)})
    assert not drain.partitions[0].restored, "no state is left that waits for its record"
    drain.stop()
    await running
    await world.run()
    assert Counter(world.subscriber.ids) == Counter(["removed", "other", *later])


async def test_an_edited_policy_begins_its_retries_anew_and_keeps_the_count_of_attempts() -> None:
    async def fail(request: Request) -> Response:
        return response(500)

    world = World(fail, delivery=Delivery(retry=10, backoff_delay=36_000))
    world.send("1")
    await world.run(stop_after=5)
    world.egress = world.egress.model_copy(update={"delivery": Delivery(retry=1, backoff_delay=1)})
    await world.run()
    assert world.subscriber.times[-1] < 60, "it doesn't wait for what was declared before"
    (letter,) = world.events_of(DEAD)
    assert attribute(letter, "knafkaattempts") == "3"


async def test_a_dispatcher_that_goes_on_knows_the_last_attempt_of_the_one_before() -> None:
    """Those before it are counted, and not told one by one."""
    answers = iter([500, 502, 503, 400])

    async def fail(request: Request) -> Response:
        return response(next(answers))

    world = World(fail, delivery=Delivery(retry=3, backoff_delay=10))
    world.send("1")
    await world.run(stop_after=15)
    await world.run()
    (letter,) = world.events_of(DEAD)
    assert attribute(letter, "knafkaattempts") == "4"
    told = parse_attempt_log(attribute(letter, "knafkaattemptlog"))
    assert [result for _, result in told] == ["502", "503", "400"]
    assert told[-1][0] == attribute(letter, "knafkalasttime")


async def test_the_attempt_under_way_is_not_taken_for_the_one_that_failed_before() -> None:
    """A dispatcher that is killed meanwhile leaves nothing behind about how it ended."""

    async def fail(request: Request) -> Response:
        if len(world.subscriber.ids) == 2:
            await asyncio.sleep(1000)
        return response(500)

    world = World(fail, delivery=Delivery(retry=3, backoff_delay=10, timeout=2000))
    world.send("1")
    running = world.begin(world.drain())
    await asyncio.sleep(15)
    await world.kill(running)
    await world.run()
    (letter,) = world.events_of(DEAD)
    assert attribute(letter, "knafkaattempts") == "5"
    assert len(parse_attempt_log(attribute(letter, "knafkaattemptlog"))) == 3


async def test_an_event_on_its_way_to_the_sink_goes_on_there() -> None:
    async def fail(request: Request) -> Response:
        return response(500, b"no")

    world = World(fail, delivery=Delivery(retry=1, backoff_delay=100), sink=True)
    world.send("1")
    await world.run(stop_after=105)
    await world.run()
    urls = [post.request.target.url for post in world.subscriber.posts]
    assert urls == ["http://subscriber.test/"] * 2 + ["http://sink.test/"] * 2
    (letter,) = world.events_of(DEAD)
    assert attribute(letter, "knativeerrorcode") == "500"
    assert attribute(letter, "knafkaattempts") == "2"


async def test_a_dead_letter_that_was_not_written_is_written_by_the_next() -> None:
    async def refuse(request: Request) -> Response:
        raise DeliveryError("refused", "nobody there")

    world = World(refuse, delivery=Delivery(retry=0))
    world.send("1")
    topics, world.topics = world.topics, NoTopics()
    await world.run(stop_after=30)
    world.topics = topics
    await world.run()
    (letter,) = world.events_of(DEAD)
    assert world.subscriber.ids == ["1"]
    assert attribute(letter, "knafkareason") == "refused"


@pytest.mark.integration
@pytest.mark.slow
async def test_no_more_deliveries_begin_than_a_commit_can_tell_of() -> None:
    """Run-ahead is bounded by what fits (docs/reference/delivery.md)."""

    async def answer(request: Request) -> Response:
        return response(500 if id_of(request).startswith("bad") else 200)

    world = World(answer, max_in_flight=10, delivery=Delivery(retry=1, backoff_delay=1000))
    for number in range(400):
        world.send(f"bad-{number}", f"key-{number}")
    running = world.begin(world.drain())
    await asyncio.sleep(900)
    assert MAX_DELIVERIES <= len(world.subscriber.posts) <= MAX_DELIVERIES + 10
    committed = world.log.group(GROUP).committed[TOPIC, 0]
    assert 0 < len(committed.metadata) <= MAX_METADATA
    progress = await running
    assert progress.dead_lettered == 400
    assert {each: 2 for each in world.subscriber.ids} == dict(Counter(world.subscriber.ids))


@pytest.mark.slow
async def test_what_runs_ahead_of_many_slow_keys_stays_within_what_a_commit_can_tell_of() -> None:
    slow_one = asyncio.Event()

    async def answer(request: Request) -> Response:
        if id_of(request).startswith("slow"):
            await slow_one.wait()
        return response()

    world = World(answer, max_in_flight=50)
    # Every other record waits behind the one key that is slow: as many ranges as records.
    for number in range(8000):
        world.send(f"slow-{number}" if number % 2 else str(number), "slow" if number % 2 else None)
    running = world.begin(world.drain())
    await asyncio.sleep(60)
    committed = world.log.group(GROUP).committed[TOPIC, 0]
    assert len(committed.metadata) <= MAX_METADATA
    ahead = len(world.subscriber.answered)
    await world.kill(running)
    before = len(world.subscriber.posts)
    again = world.begin(world.drain())
    await asyncio.sleep(60)
    repeated = len(world.subscriber.posts) - before
    assert repeated < ahead
    slow_one.set()
    await again
    assert len(set(world.subscriber.ids)) == 8000


@pytest.mark.parametrize("order", list(Order))
async def test_order_within_a_key_survives_kills_in_a_backoff(order: Order) -> None:
    async def answer(request: Request) -> Response:
        count = Counter(world.subscriber.ids)[id_of(request)]
        return response(500 if count < 3 else 200)

    world = World(answer, order=order, delivery=Delivery(retry=5, backoff_delay=10))
    for number in range(6):
        world.send(f"{number % 2}-{number}", str(number % 2))
    for _ in range(6):
        running = world.begin(world.drain())
        await asyncio.sleep(25)
        await world.kill(running)
    await world.run()
    delivered = [each for each in dict.fromkeys(world.subscriber.ids)]
    assert set(Counter(world.subscriber.ids).values()) <= {3, 4}
    if order is not Order.NONE:
        for key in "01":
            mine = [each for each in delivered if each.startswith(key)]
            assert mine == sorted(mine)
