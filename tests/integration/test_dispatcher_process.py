"""A real dispatcher process between a real Kafka and a real HTTP subscriber."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from support.functions import FunctionProcess
from support.kafka import Kafka, MakeTopic
from support.raw_headers import produce_with_raw_headers
from support.scripted import Arrival, ScriptedServer, raw
from support.trigger_world import Held, TriggerWorld, drained
from support.waiting import until

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import Delivery, Order, Sink
from knafka.core.drain import DrainRequest, Ended
from knafka.settings import DRAIN_AT_START, EGRESS, GRACE_PERIOD
from knafka_client.topics import dead_letters

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def world(kafka: Kafka, topic: MakeTopic, tmp_path: Path) -> TriggerWorld:
    return TriggerWorld(kafka, topic, tmp_path)


async def test_a_dead_letter_tells_why_there_was_no_response(world: TriggerWorld) -> None:
    """KN-DLV-08 has no words for it: a host that doesn't exist looked as one that is down."""
    with pytest.raises(OSError) as unresolved:  # noqa: PT011  # the resolver's words are the test
        socket.getaddrinfo("nowhere.invalid", 80)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"

        async def no_http(arrival: Arrival) -> bytes:
            return b"no HTTP\r\n\r\n"

        async with ScriptedServer(no_http) as server:
            answers = server.url.removeprefix("http://").rstrip("/")
            said = {
                f"http://{address}/": ("refused", f"no connection to {address}: "),
                "http://nowhere.invalid/": (
                    "refused",
                    f"no connection to nowhere.invalid: {unresolved.value}",
                ),
                server.url: ("broken", f"{answers} sent no valid HTTP response: "),
            }
            logs = []
            for url in said:
                world.send("1")
                async with world.dispatcher(url) as function:
                    assert (await drained(function)).dead_lettered == 1
                logs.append(function.log)
    admin = KafkaAdmin({"bootstrap.servers": world.kafka.bootstrap_servers})
    shown = await dead_letters.read_dead_letters(admin, world.egress("http://unused/"), 10)
    for letter, log, (url, (reason, why)) in zip(shown, logs, said.items(), strict=True):
        assert (letter.destination, letter.reason, letter.code) == (url, reason, "")
        assert letter.error.startswith(why)
        assert f"  error: {why}" in letter.text()
        assert why in log


async def test_what_is_for_a_url_of_another_scheme_is_dead_lettered(world: TriggerWorld) -> None:
    """As upstream: any absolute URL is taken, and every attempt fails."""
    async with ScriptedServer() as server:
        sink = Sink(url=server.url)
        delivery = Delivery(retry=1, backoff_delay=0.05)
        world.send("1")
        async with world.dispatcher(
            "bad://uri", delivery=delivery, dead_letter_sink=sink
        ) as function:
            assert (await drained(function)).dead_lettered == 1
        world.send("2")
        async with world.dispatcher("bad://uri") as function:
            assert (await drained(function)).dead_lettered == 1
    (arrival,) = server.arrivals
    (letter,) = (await world.letters()).values()
    unsupported = b"unsupported scheme bad: want http or https"
    assert (arrival.id, arrival.headers["ce-knafkaattempts"], letter["id"]) == ("1", "2", "2")
    for story in ({name[3:]: each for name, each in arrival.headers.items()}, letter):
        assert story["knativeerrordest"] == "bad://uri"
        assert story["knafkareason"] == "refused"
        assert base64.b64decode(story["knativeerrordata"]) == unsupported
    assert await world.lag() == 0


@pytest.mark.conformance(
    "KN-DP-06", "KN-DP-10", "KN-DP-11", "KN-DLV-05", "KN-CHN-03", "KN-CHN-08", "DSP-1"
)
@pytest.mark.parametrize("mode", [None, "binary", "json"])
async def test_an_event_is_delivered_with_its_headers_in_the_format_asked_for(
    world: TriggerWorld, mode: str | None
) -> None:
    """KN-DP-06, KN-DP-10, KN-DP-11, KN-DLV-05."""
    passed = [("traceparent", TRACEPARENT.encode()), ("knative-x", b"y")]
    data = b'{"a":  1}'
    world.send("1", key="é", data=data, passed=passed, datacontenttype="application/json")
    delivery = Delivery.model_validate({"format": mode})
    async with (
        ScriptedServer() as server,
        world.dispatcher(server.url, delivery=delivery) as function,
    ):
        assert (await drained(function)).delivered == 1
    (arrival,) = server.arrivals
    headers = arrival.headers
    assert headers["prefer"] == "reply"
    assert headers["kn-namespace"] == "ns"
    assert headers["traceparent"] == TRACEPARENT
    assert headers["knative-x"] == "y"
    if mode == "json":
        assert headers["content-type"] == "application/cloudevents+json"
        assert not any(name.startswith("ce-") for name in headers)
        assert data in arrival.body
        assert json.loads(arrival.body) == {
            "specversion": "1.0", "id": "1", "source": "/s", "type": "t", "subject": "é",
            "datacontenttype": "application/json", "data": {"a": 1},
            "knativekafkapartition": "0", "knativekafkaoffset": "0",
        }  # fmt: skip
    else:
        assert headers["content-type"] == "application/json"
        assert headers["ce-subject"] == "%C3%A9"
        assert arrival.body == data


@pytest.mark.conformance("KN-BRK-11")
async def test_a_reply_comes_back_through_the_brokers_topic(world: TriggerWorld) -> None:
    """KN-BRK-11: all Triggers get it, the one that replied included."""
    document = b'{"specversion":"1.0","id":"r2","source":"/r","type":"answer","data":[1]}'
    replies = {
        "1": raw(200, b"hello", ce_specversion="1.0", ce_id="r1", ce_source="/r", ce_type="answer"),
        "2": raw(200, document, content_type="application/cloudevents+json"),
        "3": raw(202, b"no", ce_specversion="1.0", ce_id="r3", ce_source="/r", ce_type="answer"),
    }

    async def script(arrival: Arrival) -> bytes:
        return replies.get(arrival.id) or raw(204)

    world.send("1", "2", "3")
    async with ScriptedServer(script) as server, world.dispatcher(server.url) as function:
        progress = await drained(function)
    assert (progress.delivered, progress.replied) == (5, 2)
    assert sorted(each.id for each in server.arrivals) == ["1", "2", "3", "r1", "r2"]
    assert {each.id: each.body for each in server.arrivals if each.id[0] == "r"} == {
        "r1": b"hello",
        "r2": b"[1]",
    }
    assert await world.lag() == 0


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (Order.KEY, ["a1", "b1", "b2", "a1", "a2"]),
        (Order.PARTITION, ["a1", "a1", "b1", "a2", "b2"]),
        (Order.NONE, ["a1", "b1", "a2", "b2", "a1"]),
    ],
)
async def test_what_a_failing_event_holds_back(
    world: TriggerWorld, order: Order, expected: list[str]
) -> None:
    failures = iter([raw(503)])

    async def script(arrival: Arrival) -> bytes:
        return next(failures, raw(200)) if arrival.id == "a1" else raw(200)

    world.send("a1", "b1", "a2", "b2")
    delivery = Delivery(retry=3, backoff_delay=0.5)
    async with (
        ScriptedServer(script) as server,
        world.dispatcher(server.url, delivery=delivery, order=order, max_in_flight=1) as function,
    ):
        assert (await drained(function)).delivered == 4
    assert [each.id for each in server.arrivals] == expected
    assert await world.lag() == 0


@pytest.mark.conformance("KN-DLV-09")
async def test_what_can_not_be_read_or_is_as_large_as_may_be_is_dead_lettered_all_the_same(
    world: TriggerWorld,
) -> None:
    """CE-K8; KN-DLV-09. A dead letter is larger than its event, and the limit is the event's."""
    undecodable: Any = [("ce_id", None), ("x", b"\xff")]
    world.store(b"k", undecodable, b"\x00raw")
    world.send("large", data=b"x" * 999_000)

    async def script(arrival: Arrival) -> bytes:
        return raw(400, b"x" * 5000)

    async with ScriptedServer(script) as server, world.dispatcher(server.url) as function:
        progress = await drained(function, DrainRequest(idle=1, budget=15))
    assert (progress.dead_lettered, progress.ended) == (2, Ended.IDLE)
    assert [each.id for each in server.arrivals] == ["large"]
    first, second = await world.records(world.dead)
    assert (first.value(), len(second.value())) == (b"\x00raw", 999_000)
    assert first.headers()[:2] == undecodable
    assert await world.lag() == 0


async def test_a_record_whose_header_name_is_not_utf8_is_dead_lettered_and_the_others_go_on(
    world: TriggerWorld,
) -> None:
    """CE-K8. confluent-kafka raises a SystemError for it, and crashes where it is asked again."""
    world.send("1")
    headers = [(b"ce_id", b"2"), (b"name\xff", b"x"), (b"ce_source", b"/s")]
    produce_with_raw_headers(world.kafka.bootstrap_servers, world.topic, headers, b"\x00raw")
    world.send("3")
    async with ScriptedServer() as server, world.dispatcher(server.url) as function:
        progress = await drained(function)
        _, metrics = await function.get("/metrics")
    assert (progress.ended, progress.delivered, progress.dead_lettered) == (Ended.IDLE, 2, 1)
    assert sorted(each.id for each in server.arrivals) == ["1", "3"]
    (letter,) = await world.records(world.dead)
    assert letter.value() == b"\x00raw"
    told = dict(letter.headers())
    assert told["ce_knafkareason"] == b"undecodable-record"
    assert told["ce_knafkaoffset"] == b"1"
    assert b"headers can't be read" in base64.b64decode(told["ce_knativeerrordata"])
    assert "ce_id" not in told
    assert b"knafka_delivery_failures_total{broker=" in metrics
    assert b'code="",namespace="ns",reason="undecodable-record",trigger="trigger"} 1.0\n' in metrics
    assert "can't be read" in function.log
    assert await world.lag() == 0


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
async def test_a_drain_leaves_no_lag_behind_a_transactions_marker(
    world: TriggerWorld, commit: bool
) -> None:
    """With a lag for ever its Trigger would never sleep again."""
    world.send("1")
    await asyncio.to_thread(world.transact, 2, commit=commit)
    async with ScriptedServer() as server, world.dispatcher(server.url) as function:
        progress = await drained(function)
        assert (progress.ended, progress.read) == (Ended.IDLE, 3 if commit else 1)
        assert await world.lag() == 0
        # Also where nothing but a marker is new.
        await asyncio.to_thread(world.transact, 1, commit=False)
        assert await world.lag() == 2
        progress = await drained(function)
        assert (progress.ended, progress.read) == (Ended.IDLE, 0)
        assert await world.lag() == 0
        world.send("5")
        assert (await drained(function)).delivered == 1


async def test_requests_that_are_no_drain_and_two_at_once(world: TriggerWorld) -> None:
    async with ScriptedServer() as server, world.dispatcher(server.url) as function:
        await function.ready()
        bad = b'{"idle": "soon"}'
        assert await post(function, bad) == (
            400,
            b"idle: invalid value: soon: want an ISO-8601 duration, such as PT0.2S or PT5M\n",
        )
        assert (await function.get("/drain"))[0] == 405
        assert (await function.get("/else"))[0] == 404
        held = Held(function)
        await until(lambda: held.lines)
        assert (await post(function, b""))[0] == 409
        world.send("1")
        await until(lambda: server.answered)
        await until(lambda: held.lines[-1].delivered == 1)
        assert held.lines[-1].partitions == (0,)
        status, metrics = await function.get("/metrics")
        assert status == 200
        delivered = b'outcome="delivered",trigger="trigger"} 1.0\n'
        assert delivered in metrics
        await held.hang_up()


async def test_a_caller_that_hangs_up_frees_the_partitions_for_the_next_at_once(
    world: TriggerWorld,
) -> None:
    """The group does not wait for the 10 s of a session."""
    async with (
        ScriptedServer() as server,
        world.dispatcher(server.url) as first,
        world.dispatcher(server.url) as second,
    ):
        await asyncio.gather(first.ready(), second.ready())
        held = Held(first)
        await until(lambda: held.lines and held.lines[-1].partitions)
        world.send("1")
        await until(lambda: server.answered == ["1"])
        await held.hang_up()
        world.send("2")
        following = Held(second)
        await until(lambda: server.answered == ["1", "2"], within=8)
        await following.hang_up()
        again = Held(first)
        world.send("3")
        await until(lambda: len(server.answered) == 3, within=8)
        await again.hang_up()
    assert server.answered == ["1", "2", "3"]


async def test_sigterm_in_the_middle_of_a_drain_finishes_and_commits(world: TriggerWorld) -> None:
    """Issue 3, item 8: nothing lost, nothing repeated, within 10 s."""
    ids = [f"{key}{number}" for number in range(100) for key in "abcde"]

    async def script(arrival: Arrival) -> bytes:
        await asyncio.sleep(0.02)
        return raw(200)

    world.send(*ids)
    async with ScriptedServer(script) as server:
        async with world.dispatcher(server.url) as function:
            held = Held(function)
            await until(lambda: len(server.answered) > 100)
            code = await function.terminate(within=10)
            progress = await held.ended()
        assert code in (0, -signal.SIGTERM)
        assert progress.ended is Ended.STOPPED
        assert 100 < progress.delivered == len(server.answered) < 500
        async with world.dispatcher(server.url) as function:
            await drained(function)
    assert sorted(server.answered) == sorted(ids)
    for key in "abcde":
        assert [each for each in server.answered if each[0] == key] == [
            each for each in ids if each[0] == key
        ]
    assert await world.lag() == 0


async def test_sigterm_with_a_subscriber_that_hangs_ends_in_time_and_commits_nothing(
    world: TriggerWorld,
) -> None:
    async def script(arrival: Arrival) -> bytes:
        if arrival.id != "a1":
            await asyncio.sleep(60)
        return raw(200)

    world.send("a1", "b1", "c1")
    async with ScriptedServer(script) as server, world.dispatcher(server.url) as function:
        held = Held(function)
        await until(lambda: len(server.arrivals) == 3)
        await function.terminate(within=10)
        assert (await held.ended()).ended is Ended.STOPPED
    assert await world.lag() == 2


@pytest.mark.parametrize(
    ("environment", "code", "said"),
    [
        pytest.param({}, 3, "KNAFKA_EGRESS: is not set", id="nothing"),
        pytest.param({EGRESS: "{"}, 3, "JSON", id="no JSON"),
        pytest.param({EGRESS: '{"namespace": "ns"}'}, 3, "missing field(s): broker", id="fields"),
        pytest.param({"PORT": "http"}, 2, "PORT: invalid value: http", id="no port"),
    ],
)
async def test_a_dispatcher_with_a_broken_contract_says_so_in_one_line_and_ends(
    tmp_path: Path, environment: dict[str, str], code: int, said: str
) -> None:
    log = tmp_path / "log"
    environment = {"KNAFKA_LOG_LEVEL": "warning", **environment}
    async with FunctionProcess("knafka.dispatcher", environment, log) as function:
        async with asyncio.timeout(20):
            assert await function.process.wait() == code
        first, *others = function.log.splitlines()
        assert said in first
        assert "Traceback" not in function.log
        assert len(others) <= 1, "uvicorn adds that the start failed"


async def post(function: FunctionProcess, body: bytes) -> tuple[int, bytes]:
    """Status and body of a POST /drain that is not streamed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", function.port)
    writer.write(
        b"POST /drain HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    response = await reader.read()
    writer.close()
    head, _, rest = response.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    size, _, rest = rest.partition(b"\r\n")
    return int(head.split(b" ")[1]), rest[: int(size, 16)]


@pytest.mark.parametrize("how", ["held", "at start", "never asked"])
async def test_sigterm_with_nothing_under_way_takes_seconds_whatever_the_grace(
    world: TriggerWorld, how: str
) -> None:
    """Issue 30: a namespace that is deleted waits for the last of its pods."""
    async with ScriptedServer() as server:
        function = world.dispatcher(server.url)
        function.environment[GRACE_PERIOD] = "540"
        function.environment[DRAIN_AT_START] = "true" if how == "at start" else "false"
        async with function:
            await function.ready()
            held = Held(function) if how == "held" else None
            if how != "never asked":
                world.send("1")
                await until(lambda: server.answered == ["1"])
            code = await function.terminate(within=8)
            if held is not None:
                assert (await held.ended()).ended is Ended.STOPPED
        assert code in (0, -signal.SIGTERM)
