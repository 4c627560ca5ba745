"""A report on its way to people: the bounded copy in Kafka, and the event that tells of it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import Mock

import pytest
from cloudevents.http import CloudEvent
from hypothesis import given
from hypothesis import strategies as st
from support.reports import MADE, sample_group, sample_groups, sample_report

from knafka.core.events import json_format
from knafka_jobs.job_errors import JobError
from knafka_jobs.report import announce, served_report
from knafka_jobs.report.publish import MAX_PROBLEM_CHARACTERS, publish
from knafka_jobs.report.report_document import Group, Report

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat"
NAMED = {"namespace": "shop", "broker": "main"}


def report_of(groups: list[Group]) -> Report:
    return sample_report(*groups).model_copy(update=NAMED)


def test_what_fits_is_served_whole() -> None:
    made = report_of(sample_groups(20))
    assert Report.model_validate_json(served_report.fit_report(made, 1_000_000)) == made


@given(st.integers(min_value=0, max_value=60_000))
def test_a_report_is_cut_to_the_limit_and_says_what_it_leaves_out(limit: int) -> None:
    made = report_of(sample_groups(60))
    value = served_report.fit_report(made, limit)
    found = Report.model_validate_json(value)
    assert found.totals == made.totals, "the sums are of all"
    assert found.groups == () or len(gzip.compress(value, 6)) <= limit
    ids = [each.id for each in made.groups]
    assert [each.id for each in found.groups] == ids[: len(found.groups)]
    if found.cut is None:
        assert found == made
    else:
        assert found.cut.groups == len(made.groups) - len(found.groups)
        whole = made.groups[: len(found.groups)]
        left = sum(len(each.examples) for each in whole) - found.cut.examples
        assert left == sum(len(each.examples) for each in found.groups)
        assert all(each.examples for each in found.groups if each.events)


def test_the_json_is_bounded_however_well_it_compresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_report, "MAX_JSON_BYTES", 100_000)
    value = served_report.fit_report(report_of(sample_groups(200)), 10_000_000)
    assert 20_000 < len(value) <= 100_000


class Kafka:
    """A `KafkaClient` whose topic is there once it was made, and has this limit."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.made: list[tuple[Any, ...]] = []
        self.written: list[tuple[str, bytes, bytes]] = []
        self.topics = lambda names: dict.fromkeys(names if self.made else ())

    def create_topic(self, *topic: Any) -> None:
        self.made.append(topic)

    def record_limit(self, _: str) -> int | None:
        return self.limit

    def write(self, topic: str, key: bytes, value: bytes, *_: Any) -> None:
        self.written.append((topic, key, value))


def write(kafka: Kafka, made: Report) -> None:
    client: Any = kafka
    served_report.write_served_report(client, made, "kept", 3)


def test_an_archives_report_is_one_record_of_a_compacted_topic_of_its_broker() -> None:
    kafka, made = Kafka(), report_of(sample_groups(3))
    write(kafka, made)
    write(kafka, made)
    ((topic, partitions, replication, config),) = kafka.made
    assert topic.startswith("knafka-reports-shop-main-")
    assert (partitions, replication) == (1, 3)
    assert config["cleanup.policy"] == "compact"
    assert [each[:2] for each in kafka.written] == [(topic, b"shop/kept")] * 2
    assert Report.model_validate_json(kafka.written[0][2]) == made


def test_a_topic_that_takes_less_gets_less() -> None:
    kafka = Kafka(limit=served_report.BATCH_OVERHEAD_BYTES + 8_000)
    write(kafka, report_of(sample_groups(100)))
    assert len(gzip.compress(kafka.written[0][2], 6)) <= 8_000


def test_the_event_tells_totals_and_where_the_report_is() -> None:
    made = report_of([sample_group(n, trigger="mail" if n else "bill") for n in range(3)])
    told = announce.announcement_event(made, "kept", "https://console.example.com/")
    assert told == announce.announcement_event(made, "kept", "https://console.example.com"), (
        "the same event"
    )
    event = json_format.read(json.dumps(told).encode())
    assert event.attributes["id"] == made.id
    assert event.attributes["type"] == "dev.knafka.deadletters.reported"
    assert event.attributes["source"] == "/apis/v1/namespaces/shop/deadletterarchives/kept"
    assert event.attributes["subject"] == "main"
    data = told["data"]
    assert data["totals"]["unresolved"] == made.totals.unresolved
    assert data["url"] == "https://console.example.com/report?of=shop/kept"
    unresolved = {each["trigger"]: each["unresolved"] for each in data["triggers"]}
    assert sum(unresolved.values()) == made.totals.unresolved
    assert "url" not in announce.announcement_event(made, "kept", "")["data"]


def test_the_event_is_small_and_holds_nothing_of_what_failed() -> None:
    text = json.dumps(announce.announcement_event(report_of(sample_groups(2000)), "kept", ""))
    assert len(text) < 4_000
    assert "customer" not in text
    assert "http://" not in text


class Receiver:
    """A Broker that answers as it is told."""

    def __init__(self) -> None:
        self.answers = [202]
        self.bodies: list[bytes] = []
        self.types: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                size = int(handler.headers["content-length"])
                self.bodies.append(handler.rfile.read(size))
                self.types.append(handler.headers["content-type"])
                handler.send_response(self.answers.pop(0) if self.answers else 202)
                handler.send_header("content-length", "0")
                handler.end_headers()

            def log_message(handler, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/shop/main"


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(announce, "FIRST_RETRY_PAUSE", 0.01)
    found = Receiver()
    thread = Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


EVENT = announce.announcement_event(sample_report().model_copy(update=NAMED), "kept", "")


def test_the_event_is_sent_again_until_the_broker_takes_it(broker: Receiver) -> None:
    broker.answers = [503, 404, 202]
    announce.send_event(broker.url, EVENT)
    assert [json_format.read(each).attributes["id"] for each in broker.bodies] == [EVENT["id"]] * 3
    assert broker.types[0].startswith("application/cloudevents+json")


def test_an_event_that_is_refused_is_sent_once(broker: Receiver) -> None:
    broker.answers = [403]
    with pytest.raises(JobError, match=r"shop/main did not take the event: status 403"):
        announce.send_event(broker.url, EVENT)
    assert len(broker.bodies) == 1


def test_a_broker_that_is_away_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "FIRST_RETRY_PAUSE", 0.01)
    with pytest.raises(JobError, match="did not take the event"):
        announce.send_event("http://127.0.0.1:1/shop/main", EVENT)


def test_an_answer_that_is_not_http_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is made and served by then: the Job must not fail."""
    monkeypatch.setattr(announce, "ANNOUNCE_ATTEMPTS", 1)

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"-ERR unknown command\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=answer, args=(listener,))
        thread.start()
        with pytest.raises(JobError, match="did not take the event: -ERR unknown command"):
            announce.send_event(f"http://127.0.0.1:{listener.getsockname()[1]}/", EVENT)
        thread.join()


def test_the_moment_is_the_reports() -> None:
    assert EVENT["time"] == MADE.isoformat()


def published(kafka: Kafka, made: Report, broker: str = "") -> dict[str, str]:
    client: Any = kafka
    return publish(client, made, "kept", 1, broker, "https://console.test", lambda _: None)


def test_a_report_is_served_and_its_broker_told(broker: Receiver) -> None:
    kafka, made = Kafka(), report_of(sample_groups(2))
    assert published(kafka, made, broker.url) == {}
    assert len(kafka.written) == 1
    assert json.loads(broker.bodies[0])["data"]["url"] == (
        "https://console.test/report?of=shop/kept"
    )


def test_what_keeps_a_report_from_people_is_noted_and_fails_nothing(
    broker: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run would make another report, and no better one."""
    kafka, made = Kafka(), report_of(sample_groups(2))
    monkeypatch.setattr(kafka, "write", Mock(side_effect=JobError("Kafka: no ACL " + "x" * 2000)))
    found = published(kafka, made, broker.url)
    assert found.keys() == {"notServed"}
    assert len(found["notServed"]) <= MAX_PROBLEM_CHARACTERS
    assert "url" not in json.loads(broker.bodies[0])["data"], "there is nothing to see"
    broker.answers = [401]
    assert published(Kafka(), made, broker.url).keys() == {"notAnnounced"}
    assert published(Kafka(), made) == {}, "nobody is to be told"


def test_the_examples_chat_is_told_what_the_event_says(
    broker: Receiver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """examples/chat: what it is tried with is what is sent."""
    spec = importlib.util.spec_from_file_location("chat", EXAMPLE / "subscriber" / "main.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    (line,) = (EXAMPLE / "events.ndjson").read_text().splitlines()
    tried, sent = (
        json.loads(line),
        announce.announcement_event(report_of(sample_groups(3)), "kept", "https://c"),
    )
    assert tried.keys() == sent.keys()
    assert tried["data"].keys() == sent["data"].keys()

    monkeypatch.setenv("CHAT_WEBHOOK", broker.url)
    attributes = {key: value for key, value in tried.items() if key != "data"}
    example.chat.__wrapped__(CloudEvent(attributes, tried["data"]))
    told = json.loads(broker.bodies[0])["text"]
    assert told == capsys.readouterr().out.strip()
    assert "25 events of default/default could not be delivered" in told
    assert told.endswith("https://console.example.com/report?of=default/kept")
    tried["data"]["totals"]["unresolved"] = 0
    assert example.sentence_of(tried["data"]).startswith("No event of default/default waits")
