"""What `knafka tail` shows, how it is filtered, and how it ends; Kafka is in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.memory.records import MemoryRecord
from typer.testing import CliRunner

from knafka.core.contract import Egress, Ingress, Kafka, Sink
from knafka.core.errors import LogError
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.core.filters.declared_filters import AttributesFilter
from knafka.ports.log import Record
from knafka_cli.command_line import app
from knafka_cli.events import tailing
from knafka_cli.events.tailing import TailStart, TopicsMissing
from knafka_client.declared import cluster_source
from knafka_client.declared.declared_source import DeclaredView
from knafka_client.state.installation import Installation, RunningState

KAFKA = Kafka(bootstrap_servers="k:1")
RUNNING = RunningState(
    pid=1,
    url="http://127.0.0.1:1",
    bootstrap_servers="k:1",
    ingresses=(
        *(
            Ingress(namespace="shop", broker=each, topic=each, kafka=KAFKA)
            for each in ("main", "more")
        ),
        Ingress(
            namespace="shop", broker="main", kind="KafkaChannel", topic="of-channel", kafka=KAFKA
        ),
    ),
    egresses=(
        Egress(
            namespace="shop", broker="main", trigger="mail", kind="Subscription",
            topic="of-channel", group="s", dead_letter_topic="dead-of-channel", kafka=KAFKA,
            subscriber=Sink(url="http://s/"),
        ),
        *(
        Egress(
            namespace="shop", broker="main", trigger=name, topic="main", group=name,
            dead_letter_topic=f"dead-{name}", kafka=KAFKA, subscriber=Sink(url="http://s/"),
            filter=AttributesFilter(attributes={"type": type_}),
        )
        for name, type_ in (("mail", "order"), ("audit", ""))
        ),
    ),
)  # fmt: skip


def record(topic: str, offset: int, **attributes: str) -> MemoryRecord:
    about = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order", **attributes}
    draft = to_record(Event(about, b"data"))
    return MemoryRecord(topic, 0, offset, draft.key, draft.value, draft.headers, 1_700_000_000_000)


RECORDS = {
    "main": [
        record("main", 0, id="1"),
        record("main", 1, id="2", type="payment"),
        MemoryRecord("main", 0, 2, None, b"", [("ce_id", b"\xff")]),
        record("main", 3, id="3", source="/other"),
    ],
    "of-channel": [record("of-channel", 0, id="7"), record("of-channel", 1, id="8", type="any")],
    "dead-of-channel": [record("dead-of-channel", 0, id="9", knafkareason="status")],
    "more": [record("more", 0, id="4")],
    "dead-mail": [record("dead-mail", 0, id="5", knafkareason="status")],
    "dead-audit": [record("dead-audit", 0, id="6", knafkareason="timeout")],
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TailStart]:
    """What of the past was asked for; after the last record somebody presses Ctrl-C."""
    asked: list[TailStart] = []

    def records(
        _: Mapping[str, Any], topics: Sequence[str], tail: TailStart, __: object
    ) -> Iterator[Record]:
        asked.append(tail)
        found = [each for topic in topics for each in RECORDS.get(topic, [])]
        if not found:
            raise TopicsMissing(topics)
        yield from found
        raise KeyboardInterrupt

    monkeypatch.setattr(Installation, "read_state", lambda _: RUNNING)
    monkeypatch.setattr(tailing, "tail_records", records)
    return asked


def knafka(*arguments: str, data: Path) -> tuple[int, list[str], str]:
    """Exit code, the events' ids, and what was said on stderr."""
    result = CliRunner().invoke(app, ["tail", *arguments, "-o", "json", "--data-dir", str(data)])
    ids = [json.loads(line)["id"] for line in result.stdout.splitlines()]
    return result.exit_code, ids, result.stderr


def test_ctrl_c_ends_it_as_a_shell_has_it(asked: list[TailStart], tmp_path: Path) -> None:
    assert knafka("shop/main", data=tmp_path)[:2] == (130, ["1", "2", "3"])
    assert asked == [TailStart()]


def test_the_limit_ends_it_well(asked: list[TailStart], tmp_path: Path) -> None:
    assert knafka("shop/main", "--limit", "2", data=tmp_path)[:2] == (0, ["1", "2"])


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["broker/shop/main"], ["1", "2", "3"]),
        (["main", "-n", "shop"], ["1", "2", "3"]),
        (["trigger/shop/mail"], ["1", "3"]),
        (["trigger/mail", "-n", "shop"], ["1", "3"]),
        (["--trigger", "shop/mail"], ["1", "3"]),
        (["shop/main", "--trigger", "shop/mail"], ["1", "3"]),
        (["shop/main", "--filter", 'type = "payment"'], ["2"]),
        (["shop/main", "--filter", "type = 'order'", "--filter", "id = '3'"], ["3"]),
        (["trigger/shop/mail", "--filter", "type = 'payment'"], []),
        (["shop/main", "--attribute", "type=order", "--attribute", "source=/other"], ["3"]),
        (["shop/main", "--attribute", "subject"], []),
        (["shop/main", "--dead-letters"], ["5", "6"]),
        (["trigger/shop/mail", "--dead-letters"], ["5"]),
        (["channel/shop/main"], ["7", "8"]),
        (["channel/main", "-n", "shop"], ["7", "8"]),
        (["channel/shop/main", "--dead-letters"], ["9"]),
        (["subscription/shop/mail"], ["7", "8"]),
        (["subscription/mail", "-n", "shop", "--dead-letters"], ["9"]),
        (["--trigger", "subscription/shop/mail", "--attribute", "type=any"], ["8"]),
        (["channel/shop/main", "--trigger", "subscription/shop/mail"], ["7", "8"]),
    ],
)
def test_only_what_is_asked_for_is_shown(
    asked: list[TailStart], tmp_path: Path, arguments: list[str], ids: list[str]
) -> None:
    assert knafka(*arguments, data=tmp_path)[:2] == (130, ids)


def test_a_record_without_an_event_is_said_whatever_is_asked_for(
    asked: list[TailStart], tmp_path: Path
) -> None:
    assert "no event at main/0/2: " in knafka("trigger/shop/mail", data=tmp_path)[2]


def test_the_past_is_asked_for_by_time_and_count(asked: list[TailStart], tmp_path: Path) -> None:
    knafka("shop/main", "--since", "1970-01-01T00:01:00Z", "--last", "3", data=tmp_path)
    assert asked == [TailStart(60.0, 3)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shop/main", "--filter", "type = = 'a'"], "--filter type = = 'a': "),
        (["shop/main", "--filter", "type = = 'a'"], "(at character 7)"),
        (["shop/main", "--filter", "UPPER(type)"], "UPPER(type) returns a string"),
        (["shop/main", "--filter", "SAME(type)"], "--filter SAME(type): there is no function SAME"),
        (["shop/main", "--attribute", "A-B=1"], "--attribute NAME=VALUE: "),
        (["shop/main", "--attribute", "type=a", "--attribute", "type=b"], "is given twice"),
        (["shop/main", "--since", "yesterday"], "'yesterday' is not a time"),
        (["shop/other"], "there is no Broker shop/other: there is shop/main, shop/more, "),
        (["trigger/shop/other"], "no Trigger shop/other: there is subscription/shop/mail, shop/"),
        (["trigger/shop/mail", "--trigger", "shop/mail"], "give one"),
        (["shop/more", "--trigger", "shop/mail"], "shop/mail is a Trigger of shop/main"),
        (
            ["channel/shop/main", "--trigger", "shop/mail"],
            "shop/mail is a Trigger of shop/main",
        ),
        (["subscription/shop/audit"], "there is no subscription/shop/audit: there is"),
        (
            ["subscription/mail", "--trigger", "mail"],
            "subscription/NAME and --trigger are the same",
        ),
        (["shop/main", "--bootstrap-servers", "k:1"], "name its --context"),
    ],
)
def test_what_cannot_be_answered_says_why(
    asked: list[TailStart], tmp_path: Path, arguments: list[str], said: str
) -> None:
    code, _, error = knafka(*arguments, data=tmp_path)
    assert code == 2
    assert said in error


def test_no_dead_letter_yet_is_said(asked: list[TailStart], tmp_path: Path) -> None:
    code, _, said = knafka("shop/more", "--dead-letters", data=tmp_path)
    assert code == 1
    assert "(a dead-letter topic is made with the first dead letter)" in said


def test_a_cluster_is_asked_by_its_context(
    asked: list[TailStart], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    class Source:
        def __init__(self, *arguments: Any, **more: Any) -> None:
            given.append((*arguments, more["bootstrap_servers"]))

        def read(self, namespace: str | None = None) -> DeclaredView:
            given.append(namespace)
            return DeclaredView(
                RUNNING.ingresses, RUNNING.egresses,
                {each: {"bootstrap.servers": "k:1"} for each in ("shop/main", "channel/shop/main")},
                problems=["one is broken"],
                unreached_hint="port-forward",
            )  # fmt: skip

    monkeypatch.setattr(cluster_source, "client_of", lambda *_: ("client", "own"))
    monkeypatch.setattr(cluster_source, "ClusterSource", Source)
    arguments = ("--context", "dev", "--bootstrap-servers", "k:2")
    code, ids, said = knafka("shop/main", *arguments, "--limit", "1", data=tmp_path)
    assert (code, ids, given) == (0, ["1"], [("client", "own", "k:2"), "shop"])
    assert "one is broken" in said
    for name in ("channel/shop/main", "subscription/shop/mail"):
        assert knafka(name, *arguments, "--limit", "1", data=tmp_path)[1] == ["7"]
        assert given.pop() == "shop"

    def unreached(*_: Any) -> Iterator[Record]:
        raise LogError("no answer")

    monkeypatch.setattr(tailing, "tail_records", unreached)
    result = CliRunner().invoke(app, ["tail", "shop/main", *arguments])
    assert "Kafka at k:1: no answer: port-forward" in str(result.exception)
