"""The dispatcher as an ASGI function: requests, streamed progress, its end; on fake time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from support.dispatchers import Exchange, Running, started
from support.drains import FAR, GROUP, TOPIC, Request, accept, response, until
from support.memory.log import MemoryReader

from knafka.core.contract import Delivery, Egress
from knafka.core.drain import Ended
from knafka.core.errors import InvalidDocument, LogError
from knafka.core.filters.declared_filters import CESQL
from knafka.dispatcher.engine.clients import Clients
from knafka.dispatcher.function import Dispatcher
from knafka.ports.subscriber import Response
from knafka.settings import EGRESS

pytestmark = pytest.mark.looptime


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    here = await started()
    yield here
    await here.dispatcher.stop()


async def hang(request: Request) -> Response:
    await asyncio.sleep(FAR)
    return response()


async def test_a_drain_streams_its_progress_every_second_and_says_how_it_ended(
    running: Running,
) -> None:
    running.world.send("1")
    exchange = running.drain(idle="PT5S")
    await exchange.task
    assert exchange.status == 200
    *others, last = exchange.lines
    assert all(line.ended is None for line in others)
    assert len(others) >= 5
    assert max(b - a for a, b in zip(exchange.times, exchange.times[1:], strict=False)) < 1.01
    assert (last.ended, last.delivered) == (Ended.IDLE, 1)
    assert exchange.times[0] < 0.01, "the head and a first line come at once"


async def test_a_drain_may_be_asked_for_without_a_body(running: Running) -> None:
    exchange = await running.answer("POST", "/drain")
    assert exchange.lines[-1].ended is Ended.IDLE
    assert 30 <= exchange.times[-1] < 32


async def test_a_request_may_come_in_parts(running: Running) -> None:
    exchange = await running.answer("POST", "/drain", b'{"bud', b'get": "PT2S"}')
    assert exchange.lines[-1].ended is Ended.BUDGET


async def test_a_second_drain_at_the_same_time_is_refused(running: Running) -> None:
    first = running.drain(idle="PT5S")
    await until(lambda: first.status)
    assert (await running.answer("POST", "/drain")).status == 409
    await first.task
    assert (await running.answer("POST", "/drain")).status == 200


async def test_of_two_drains_asked_for_at_once_one_is_refused(running: Running) -> None:
    both = running.drain(idle="PT1S"), running.drain(idle="PT1S")
    await asyncio.gather(*(each.task for each in both))
    assert sorted(each.status for each in both) == [200, 409]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b"{", "JSON", id="no JSON"),
        pytest.param(b"[]", "want an object", id="no object"),
        pytest.param(b"\xff", "JSON", id="no UTF-8"),
        pytest.param(b'{"idel": "PT1S"}', "idel: unknown field", id="unknown field"),
        pytest.param(b'{"idle": "-PT1S"}', "idle: ", id="a negative duration"),
        pytest.param(b'{"idle": -1}', "idle: ", id="a negative number"),
        pytest.param(b'{"idle": NaN}', "idle", id="NaN"),
        pytest.param(b'{"idle": null}', "idle: ", id="null"),
        pytest.param(b'{"budget": "PT0S"}', "budget: ", id="no budget"),
        pytest.param(b'{"budget": "PT10000H"}', "budget: ", id="a budget of a year"),
        pytest.param(b'{"budget": "soon"}', "budget: ", id="no duration"),
        pytest.param(b" " * 100_000, "too large", id="too large"),
    ],
)
async def test_a_bad_request_is_answered_400_with_the_reason(
    running: Running, body: bytes, said: str
) -> None:
    exchange = await running.answer("POST", "/drain", body)
    assert exchange.status == 400
    assert said in exchange.body.decode()
    assert exchange.body.count(b"\n") == 1
    assert GROUP not in running.world.log.groups


@pytest.mark.conformance("KN-DP-13")
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/drain", 405),
        ("PUT", "/drain", 405),
        ("GET", "/", 404),
        ("POST", "/", 404),
        ("POST", "/drain/", 404),
        ("GET", "/health/liveness", 200),
        ("GET", "/health/readiness", 200),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("POST", "/healthz", 404),
    ],
)
async def test_other_requests(running: Running, method: str, path: str, status: int) -> None:
    """FN-4, KN-DP-13."""
    assert (await running.answer(method, path)).status == status


@pytest.mark.parametrize("parts", [[], [b'{"idle":', b""][:1]], ids=["nothing said", "half said"])
async def test_a_caller_that_hangs_up_before_it_has_asked_starts_no_drain(
    running: Running, parts: list[bytes]
) -> None:
    exchange = Exchange(running.dispatcher, "POST", "/drain", *parts, *([b""] if parts else []))
    if parts:
        exchange._parts.get_nowait()
        exchange._parts.get_nowait()
        exchange._parts.put_nowait({"type": "http.request", "body": parts[0], "more_body": True})
    exchange.hang_up()
    await exchange.task
    assert exchange.status == 0
    assert GROUP not in running.world.log.groups


async def test_an_interrupt_ends_the_drain_and_nothing_new_begins(running: Running) -> None:
    exchange = running.drain(idle="PT1H")
    await until(lambda: exchange.status)
    running.dispatcher.interrupt()
    await exchange.task
    assert exchange.lines[-1].ended is Ended.STOPPED
    assert (await running.answer("POST", "/drain")).status == 503
    assert (await running.answer("GET", "/health/readiness")).status == 503
    assert (await running.answer("GET", "/health/liveness")).status == 200


async def test_it_is_alive_until_only_a_new_process_could_store_anything(
    running: Running,
) -> None:
    """UX-3."""
    assert (await running.answer("GET", "/health/liveness")).status == 200
    running.writer.failure = LogError("no certificate")
    assert running.dispatcher.alive() == (False, "no certificate")
    assert (await running.answer("GET", "/health/liveness")).status == 503


async def test_an_interrupt_without_a_drain_is_nothing_special(running: Running) -> None:
    running.dispatcher.interrupt()
    assert running.dispatcher.ready() == (False, "ending")
    assert running.dispatcher.alive() == (True, "alive")


async def test_stopping_waits_for_the_drain_to_leave() -> None:
    running = await started(hang)
    running.world.send("1")
    exchange = running.drain(idle="PT1H")
    await until(lambda: running.world.subscriber.posts)
    await running.dispatcher.stop()
    assert running.world.log.groups[GROUP].members == []
    await exchange.task
    assert exchange.lines[-1].ended is Ended.STOPPED


async def test_a_response_cut_short_by_the_server_does_not_cut_the_drain_short() -> None:
    """uvicorn cancels what is still being answered when its own patience ends."""

    async def slow(request: Request) -> Response:
        await asyncio.sleep(2)
        return response()

    running = await started(slow)
    running.world.send("1")
    exchange = running.drain(idle="PT1H")
    await until(lambda: running.world.subscriber.posts)
    exchange.task.cancel()
    await running.dispatcher.stop()
    assert running.world.committed == {0: 1}
    assert running.world.log.groups[GROUP].members == []
    with pytest.raises(asyncio.CancelledError):
        await exchange.task


async def test_drains_in_sequence_share_their_clients(running: Running) -> None:
    for each in "12":
        running.world.send(each)
        exchange = running.drain(idle="PT1S")
        await exchange.task
        assert exchange.lines[-1].delivered == 1
    assert running.connected == 1
    assert running.world.subscriber.ids == ["1", "2"]


async def test_a_bug_ends_a_drain_as_failed_and_the_next_one_can_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    running = await started(accept)
    running.world.send("1")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryReader, "_take", stumble)
        exchange = running.drain(idle="PT1S")
        await exchange.task
    last = exchange.lines[-1]
    assert (last.ended, last.error) == (Ended.FAILED, "ZeroDivisionError: division by zero")
    again = running.drain(idle="PT1S")
    await again.task
    assert (again.lines[-1].ended, again.lines[-1].delivered) == (Ended.IDLE, 1)


@pytest.mark.conformance("KN-DP-15")
async def test_metrics_count_what_drains_did_and_do() -> None:
    """KN-DP-15."""
    answers = iter([503, 200])

    async def answer(request: Request) -> Response:
        return response(next(answers, 200))

    running = await started(answer, delivery=Delivery(retry=1, backoff_delay=0.1))
    where = 'broker="broker",{}namespace="ns",{}trigger="trigger"'

    def of(outcome: str) -> str:
        return where.format("", f'outcome="{outcome}",')

    async def metrics() -> list[str]:
        exchange = await running.answer("GET", "/metrics")
        assert exchange.status == 200
        return exchange.body.decode().splitlines()

    assert f"knafka_dispatcher_events_total{{{of('read')}}} 0.0" in await metrics()
    for number in (1, 2):
        running.world.send(str(number))
        exchange = running.drain(idle="PT3S")
        await until(lambda: len(running.world.subscriber.answered) > number)  # noqa: B023
        delivered = f"knafka_dispatcher_events_total{{{of('delivered')}}} {number}.0"
        assert delivered in await metrics(), "while it goes on"
        await exchange.task
        assert delivered in await metrics(), "and when it is over"
    failures = (
        "knafka_delivery_failures_total{"
        + where.format('code="503",', 'reason="status",')
        + "} 1.0"
    )
    assert failures in await metrics()


@pytest.mark.conformance("KN-DP-15")
async def test_metrics_tell_how_long_it_took_and_what_waits() -> None:
    """KN-DP-15: durations of attempts, latency from Kafka to delivery, and what is held now."""
    answers = iter([503, 200])

    async def answer(request: Request) -> Response:
        return response(next(answers, 200))

    running = await started(answer, delivery=Delivery(retry=1, backoff_delay=5.0))
    running.world.send("1")
    exchange = running.drain(idle="PT3S")

    async def metric(name: str) -> float:
        text = (await running.answer("GET", "/metrics")).body.decode()
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith(f"{name}{{")
        )

    await until(lambda: running.world.subscriber.answered)
    assert await metric("kn_eventing_dispatch_latency_seconds_count") == 1
    assert await metric("kn_eventing_process_latency_seconds_count") == 0, "it failed"
    assert await metric("knafka_dispatcher_backoff_events") == 1
    assert await metric("knafka_dispatcher_unsettled_events") == 1
    assert await metric("knafka_dispatcher_rebalances_total") == 1
    await exchange.task
    assert await metric("kn_eventing_dispatch_latency_seconds_count") == 2
    assert await metric("kn_eventing_process_latency_seconds_count") == 1
    assert await metric("knafka_dispatcher_backoff_events") == 0
    assert await metric("knafka_dispatcher_oldest_event_age_seconds") == 0
    assert await metric("kn_eventing_dispatch_in_flight_requests") == 0


@pytest.mark.conformance("DSP-16", "DSP-17", "DSP-18")
async def test_a_pod_says_while_it_lives_how_far_its_consumers_are_also_where_that_is_zero() -> (
    None
):
    """DSP-16 to DSP-18: as the operator does, by the offsets that it would commit."""
    running = await started(partitions=2)

    async def consumed() -> dict[str, float]:
        text = (await running.answer("GET", "/metrics")).body.decode()
        assert "# HELP eventing_kafka_consumed_msg_count Consumed Message Count" in text
        assert "# TYPE eventing_kafka_consumed_msg_count gauge" in text
        prefix = f'eventing_kafka_consumed_msg_count{{consumer="{GROUP}",partition="'
        lines = [line for line in text.splitlines() if line.startswith(prefix)]
        assert all(line.partition("}")[0].endswith(f',topic="{TOPIC}"') for line in lines)
        return {
            line.removeprefix(prefix).partition('"')[0]: float(line.rpartition(" ")[2])
            for line in lines
        }

    assert await consumed() == {}, "it has no partitions yet"
    running.world.store_at(1, "1")
    running.world.store_at(1, "2")
    exchange = running.drain(idle="PT3S")
    await until(lambda: len(running.world.subscriber.answered) == 2)
    assert await consumed() == {"0": 0, "1": 2}
    await exchange.task
    assert await consumed() == {}, "they are its no longer: the operator has them on"
    exchange = running.drain(idle="PT3S")
    await asyncio.sleep(1)
    assert await consumed() == {"0": 0, "1": 2}, "before it has read anything"
    await exchange.task


async def test_metrics_count_filters_that_fail() -> None:
    running = await started(filters=(CESQL(cesql="absent = 'x'"),))
    running.world.send("1")
    await running.drain(idle="PT1S").task
    labels = 'broker="broker",kind="missingAttribute",namespace="ns",trigger="trigger"'
    exchange = await running.answer("GET", "/metrics")
    assert f"knafka_filter_errors_total{{{labels}}} 1.0" in exchange.body.decode().splitlines()


@pytest.mark.parametrize(
    "environment", [{}, {EGRESS: ""}, {EGRESS: "{"}, {EGRESS: '{"namespace": "ns"}'}]
)
async def test_a_dispatcher_with_a_broken_contract_connects_to_nothing(
    environment: dict[str, str],
) -> None:
    def connect(egress: Egress) -> Clients:
        raise AssertionError

    with pytest.raises(InvalidDocument):
        await Dispatcher(connect).start(environment)


async def test_a_new_dispatcher_has_opened_nothing() -> None:
    """FN-2: functions-framework makes it in a process that forks."""
    dispatcher = Dispatcher()
    assert dispatcher.alive() == (True, "alive")
    assert dispatcher.state() == {}


@pytest.mark.slow
def test_a_cold_start_imports_no_admin_client() -> None:
    """It is for the first dead letter, which most dispatchers never see."""
    loaded = "import knafka.dispatcher.__main__, sys; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    modules = set(ran.stdout.split())
    assert "knafka.dispatcher.function" in modules
    assert not modules & {"knafka.clients.kafka.admin.kafka_admin", "confluent_kafka.admin"}
