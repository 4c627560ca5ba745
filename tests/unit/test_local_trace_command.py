"""What `knafka trace` prints, and when it fails; Kafka is in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog
from typer.testing import CliRunner

from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.dead_letter import Attempt, Failure, Origin, dead_letter_of
from knafka.core.delivery import Outcome, Reason
from knafka.core.errors import LogError
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.ports.log import OffsetAndMetadata, Record
from knafka_cli.command_line import app
from knafka_cli.events import searching, trace_command, tracing, zipkin
from knafka_cli.events.searching import TopicSearch
from knafka_cli.events.zipkin import ZipkinError
from knafka_client.state.installation import Installation, RunningState

KAFKA = Kafka(bootstrap_servers="k:1")
RUNNING = RunningState(
    pid=1,
    url="http://127.0.0.1:1",
    bootstrap_servers="k:1",
    ingresses=tuple(
        Ingress(namespace="shop", broker=each, topic=each, kafka=KAFKA) for each in ("main", "more")
    ),
    egresses=tuple(
        Egress(
            namespace="shop", broker=broker, trigger=trigger, topic=broker, group=trigger,
            dead_letter_topic=f"dead-{trigger}", kafka=KAFKA, subscriber=Sink(url="http://s/"),
        )
        for broker, trigger in (("main", "mail"), ("main", "audit"), ("more", "other"))
    ),
)  # fmt: skip


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """What runs has this log in Kafka's place."""
    found = MemoryLog()
    found.create("main")
    found.create("more")

    def run(_: Any, search: TopicSearch, wanted: Any, since: float, progress: Any) -> None:
        records = [record for each in found.topics[search.topic] for record in each]
        search.offsets_total = len(records)
        search.covers_topic = since == 0
        for record in reversed(records):
            if record.value() == b"interrupt":
                raise KeyboardInterrupt
            search.offsets_read += 1
            search.matching_records += [record] if wanted(record) else []
        progress(search)

    def ask_kafka(_: Any, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(ask(MemoryAdmin(found)))

    def committed_in(_: Any) -> tracing.ReadCommits:
        return lambda group, topic, partitions: dict.fromkeys(partitions, OffsetAndMetadata(1))

    monkeypatch.setattr(Installation, "read_state", lambda _: RUNNING)
    monkeypatch.setattr(searching, "run_search", run)
    monkeypatch.setattr(trace_command, "ask_kafka", ask_kafka)
    monkeypatch.setattr(tracing, "commits_reader", committed_in)
    return found


def store(
    memory: MemoryLog, topic: str, data: bytes, source: str = "/shop", traceparent: str = ""
) -> None:
    about = {"specversion": "1.0", "id": "1", "source": source, "type": "order"}
    draft = to_record(Event(about, data))
    beside = [("traceparent", traceparent.encode())] if traceparent else []
    memory.store(topic, draft.key, draft.value, [*draft.headers, *beside])


def knafka(*arguments: str, data: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["trace", *arguments, "--data-dir", str(data)])
    return result.exit_code, result.stdout, result.stderr


def test_each_record_is_printed_with_the_triggers_of_its_broker(
    memory: MemoryLog, tmp_path: Path
) -> None:
    store(memory, "main", b"1")
    store(memory, "main", b"2", source="/other")
    store(memory, "more", b"1")
    code, printed, _ = knafka("1", data=tmp_path)
    assert code == 0
    assert printed.count("order 1 from /") == 3
    assert ", at main/0/0" in printed
    assert "shop/mail   settled  no dead letter: delivered" in printed
    assert "shop/audit  waiting  it is next" in printed
    assert printed.count("shop/other") == 1
    _, printed, _ = knafka("1", "--broker", "shop/main", "--source", "/shop", data=tmp_path)
    assert printed.count("order 1 from /shop") == 1
    assert "shop/other" not in printed


def test_json_is_one_object(memory: MemoryLog, tmp_path: Path) -> None:
    store(memory, "main", b"1")
    code, printed, _ = knafka("1", "--json", data=tmp_path)
    found = json.loads(printed)
    assert (code, found["complete"]) == (0, True)
    (event,) = found["events"]
    assert (event["id"], event["topic"], event["partition"], event["offset"]) == ("1", "main", 0, 0)
    assert [each["state"] for each in event["deliveries"]] == ["settled", "settled"]


def test_json_with_a_delivery_of_which_kafka_says_nothing_is_not_complete(
    memory: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create("dead-audit")
    read_last = MemoryAdmin.read_last

    async def fail_for_audit(admin: MemoryAdmin, topic: str, limit: int) -> Sequence[Record]:
        if topic == "dead-audit":
            raise LogError(f"partition 0 of {topic} has no leader")
        return await read_last(admin, topic, limit)

    monkeypatch.setattr(MemoryAdmin, "read_last", fail_for_audit)
    store(memory, "main", b"1")
    found = json.loads(knafka("1", "--json", data=tmp_path)[1])
    (event,) = found["events"]
    assert [each["state"] for each in event["deliveries"]] == ["settled", "unknown"]
    assert found["complete"] is False


def test_an_event_that_is_not_there_says_where_it_may_be(memory: MemoryLog, tmp_path: Path) -> None:
    code, _, said = knafka("1", data=tmp_path)
    assert code == 1
    assert "no event 1 is in main, more since " in said
    assert "--since 7d" in said
    code, _, said = knafka("1", "--since", "start", data=tmp_path)
    assert code == 1
    assert "it was not accepted, or Kafka has deleted it by now" in said
    assert "--since" not in said


def test_a_dead_letter_outlives_its_event(memory: MemoryLog, tmp_path: Path) -> None:
    """Kafka deletes what is old from the Broker's topic; dead letters are kept."""
    memory.create("dead-mail")
    about = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}
    draft = to_record(Event(about, b"1"))
    failure = Failure("http://s/", Reason.STATUS, 3, 0.0, 1.5, 500)
    headers, value = dead_letter_of(
        draft.headers, draft.value, failure, Origin("shop", "main", "mail", "main", 0, 0)
    )
    memory.store("dead-mail", draft.key, value, headers)
    code, _, said = knafka("1", data=tmp_path)
    assert code == 1
    assert "its dead letter is kept: mail: order 1 from /shop (status 500)" in said


def test_what_was_found_until_ctrl_c_is_shown(memory: MemoryLog, tmp_path: Path) -> None:
    memory.store("main", None, b"interrupt", [])
    store(memory, "main", b"1")
    code, printed, said = knafka("1", "--broker", "shop/main", data=tmp_path)
    assert code == 0
    assert "order 1 from /shop" in printed
    assert "interrupted: 1 older records of main were not searched" in said


def test_a_search_that_was_interrupted_at_once_says_nothing_of_the_event(
    memory: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "run_search", interrupt)
    code, _, said = knafka("1", "--broker", "shop/main", "--since", "start", data=tmp_path)
    assert code == 1
    assert "interrupted: main was not searched" in said
    assert "no event 1 was found in main before the search was interrupted" in said
    code, printed, _ = knafka("1", "--broker", "shop/main", "--json", data=tmp_path)
    assert json.loads(printed)["complete"] is False


def test_a_time_that_is_none_is_refused(memory: MemoryLog, tmp_path: Path) -> None:
    assert knafka("1", "--since", "yesterday", data=tmp_path)[0] == 2


def test_the_trace_it_came_with_is_linked_to_zipkin_if_it_is_sampled(
    memory: MemoryLog, tmp_path: Path
) -> None:
    id_ = "0af7651916cd43dd8448eb211c80319c"
    store(memory, "main", b"1", traceparent=f"00-{id_}-b7ad6b7169203331-01")
    at = ("--zipkin-url", "http://zipkin:9411/")
    assert (
        f"trace {id_} (sampled), http://zipkin:9411/zipkin/traces/{id_}\n"
        in knafka("1", *at, data=tmp_path)[1]
    )
    assert f"trace {id_} (sampled)\n" in knafka("1", data=tmp_path)[1]
    store(memory, "more", b"1", traceparent=f"00-{id_}-b7ad6b7169203331-00")
    assert f"trace {id_} (not sampled)\n" in knafka("1", *at, data=tmp_path)[1]
    store(memory, "more", b"1", source="/bad", traceparent="nonsense")
    assert "trace " not in knafka("1", "--source", "/bad", data=tmp_path)[1]


def test_the_subscriptions_of_a_channel_are_said_by_that_name(
    memory: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a channel and a Broker of one name has nothing to do with the other."""
    memory.create("of-channel")
    channel = Ingress(
        namespace="shop", broker="main", kind="KafkaChannel", topic="of-channel", kafka=KAFKA
    )
    mail = Egress(
        namespace="shop", broker="main", trigger="mail", kind="Subscription", topic="of-channel",
        group="s", dead_letter_topic="dead-s", kafka=KAFKA, subscriber=Sink(url="http://s/"),
        reply=Sink(url="http://reply/"),
    )  # fmt: skip
    running = RUNNING.model_copy(
        update={
            "ingresses": (*RUNNING.ingresses, channel), "egresses": (*RUNNING.egresses, mail),
        }
    )  # fmt: skip
    monkeypatch.setattr(Installation, "read_state", lambda _: running)
    store(memory, "of-channel", b"1")
    for name in ("channel/shop/main", "channel/main"):
        code, printed, _ = knafka("1", "--broker", name, "-n", "shop", data=tmp_path)
        assert code == 0
        assert "by channel/shop/main, at of-channel/0/0" in printed
        assert "SUBSCRIPTION" in printed
        assert "TRIGGER" not in printed
        assert (
            "subscription/shop/mail  settled  no dead letter: delivered; a reply, if it had one, "
            "was taken by http://reply/" in printed
        )
    found = json.loads(knafka("1", "--json", data=tmp_path)[1])
    (event,) = found["events"]
    assert event["broker"] == "channel/shop/main"
    assert [each["trigger"] for each in event["deliveries"]] == ["subscription/shop/mail"]


def test_each_attempt_is_shown_with_what_a_zipkin_has_of_them(
    memory: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.create("dead-mail")
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    store(memory, "main", b"1", traceparent=traceparent)
    about = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order"}
    draft = to_record(Event(about, b"1"))
    log = [Attempt(0.0, Outcome(500)), Attempt(1.5, Outcome(503))]
    failure = Failure("http://s/", Reason.STATUS, 2, 0.0, 1.5, 503, log=log)
    origin = Origin("shop", "main", "mail", "main", 0, 0)
    headers, value = dead_letter_of(draft.headers, draft.value, failure, origin)
    memory.store("dead-mail", draft.key, value, headers)
    asked = list[tuple[str, str]]()

    def spans_of(url: str, trace_id: str) -> list[Any]:
        asked.append((url, trace_id))
        if url == "http://none":
            raise ZipkinError("no answer")
        tags = {"messaging.destination": "trigger:audit.shop", "http.response.status_code": "202"}
        return [{"name": "attempt", "timestamp": 2_000_000, "duration": 1000, "tags": tags}]

    monkeypatch.setattr(zipkin, "fetch_spans", spans_of)
    lines = knafka("1", data=tmp_path)[1].splitlines()
    assert "1970-01-01T00:00:00.000Z  shop/mail  attempt      500" in lines
    assert "1970-01-01T00:00:01.500Z  shop/mail  attempt      503" in lines
    assert asked == []
    code, printed, _ = knafka("1", "--zipkin-url", "http://z", data=tmp_path)
    assert code == 0
    assert asked == [("http://z", "a" * 32)]
    assert "1970-01-01T00:00:02.000Z  shop/audit  attempt      202 in 1 ms" in printed
    assert "1970-01-01T00:00:01.500Z  shop/mail   attempt      503" in printed
    code, printed, said = knafka("1", "--zipkin-url", "http://none", data=tmp_path)
    assert (code, "shop/mail  attempt      503" in printed) == (0, True)
    assert "knafka: the spans are not shown: no answer" in said
