"""A report on its way to people: the bounded copy in Kafka, and the event that tells of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reports import MADE, sample_group, sample_groups, sample_report

from knafka.core import json_format
from knafka_jobs.errors import JobError
from knafka_jobs.report import announce, served
from knafka_jobs.report.document import Group, Report

NAMED = {"namespace": "shop", "broker": "main"}


def report_of(groups: list[Group]) -> Report:
    return sample_report(*groups).model_copy(update=NAMED)


def test_what_fits_is_served_whole() -> None:
    made = report_of(sample_groups(20))
    assert Report.model_validate_json(served.fitted(made, 1_000_000)) == made


@given(st.integers(min_value=0, max_value=60_000))
def test_a_report_is_cut_to_the_limit_and_says_what_it_leaves_out(limit: int) -> None:
    made = report_of(sample_groups(60))
    value = served.fitted(made, limit)
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
    monkeypatch.setattr(served, "MAX_JSON", 100_000)
    value = served.fitted(report_of(sample_groups(200)), 10_000_000)
    assert 20_000 < len(value) <= 100_000


class Kafka:
    """A `KafkaClient` whose topic is there once it was made, and has this limit."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.made: list[tuple[Any, ...]] = []
        self.written: list[tuple[str, bytes, bytes]] = []
        self.topics = lambda names: dict.fromkeys(names if self.made else ())

    def create(self, *topic: Any) -> None:
        self.made.append(topic)

    def record_limit(self, _: str) -> int | None:
        return self.limit

    def write(self, topic: str, key: bytes, value: bytes, *_: Any) -> None:
        self.written.append((topic, key, value))


def write(kafka: Kafka, made: Report) -> None:
    client: Any = kafka
    served.write(client, made, "kept", 3)


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
    kafka = Kafka(limit=served.OVERHEAD + 8_000)
    write(kafka, report_of(sample_groups(100)))
    assert len(gzip.compress(kafka.written[0][2], 6)) <= 8_000


def test_the_event_tells_totals_and_where_the_report_is() -> None:
    made = report_of([sample_group(n, trigger="mail" if n else "bill") for n in range(3)])
    told = announce.event_of(made, "kept", "https://console.example.com/")
    assert told == announce.event_of(made, "kept", "https://console.example.com"), "the same event"
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
    assert "url" not in announce.event_of(made, "kept", "")["data"]


def test_the_event_is_small_and_holds_nothing_of_what_failed() -> None:
    text = json.dumps(announce.event_of(report_of(sample_groups(2000)), "kept", ""))
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
    monkeypatch.setattr(announce, "PAUSE", 0.01)
    found = Receiver()
    thread = Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


EVENT = announce.event_of(sample_report().model_copy(update=NAMED), "kept", "")


def test_the_event_is_sent_again_until_the_broker_takes_it(broker: Receiver) -> None:
    broker.answers = [503, 404, 202]
    announce.send(broker.url, EVENT)
    assert [json_format.read(each).attributes["id"] for each in broker.bodies] == [EVENT["id"]] * 3
    assert broker.types[0].startswith("application/cloudevents+json")


def test_an_event_that_is_refused_is_sent_once(broker: Receiver) -> None:
    broker.answers = [403]
    with pytest.raises(JobError, match=r"shop/main did not take the event: status 403"):
        announce.send(broker.url, EVENT)
    assert len(broker.bodies) == 1


def test_a_broker_that_is_away_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announce, "PAUSE", 0.01)
    with pytest.raises(JobError, match="did not take the event"):
        announce.send("http://127.0.0.1:1/shop/main", EVENT)


def test_the_moment_is_the_reports() -> None:
    assert EVENT["time"] == MADE.isoformat()
