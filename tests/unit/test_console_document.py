"""The console's documents, and its source of a `knafka up` (local/knafka_console)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml
from support.console import letter, row, subscription, trigger
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog, MemoryWriter

from knafka.core.contract import Egress, Kafka, Sink
from knafka.core.dead_letter import Failure, Origin, dead_letter_of
from knafka.core.delivery import Reason
from knafka.core.documents import parse
from knafka.core.events import json_format
from knafka.core.events.event import Event
from knafka.core.events.kafka_binding import to_record
from knafka.core.names import replay_topic
from knafka_client.declared import triggers
from knafka_client.declared.manifests import DeclaredObjects, Manifests
from knafka_client.state.installation import RunningState
from knafka_client.state.snapshot import BrokerRow, ConditionRow, Snapshot, TriggerRow
from knafka_console.model import snapshot_document
from knafka_console.model.document import Action, EventName, Health
from knafka_console.model.source import NotFound, TriggerName
from knafka_console.sources.dead_letter_topics import DeadLetterTopics
from knafka_console.sources.installation_console import REPORT_FILE, InstallationConsole
from knafka_operator.kafka import egresses
from knafka_operator.model.resources import Destination

OPEN = ConditionRow("Delivering", "False", "SubscriberUnavailable", "refused", "Warning")
ORDER = json_format.read(b'{"specversion":"1.0","id":"1","source":"/shop","type":"order"}')
MAIL = TriggerName("default", "mail")
MANIFEST = """\
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata:
  name: mail
spec:  # as it is
  broker: shop
  filters:
    - exact: {type: order}
    - cesql: subject = 'x'
  delivery: {retry: 3}
  subscriber: {uri: "http://mail.test/"}
---
apiVersion: messaging.knative.dev/v1
kind: Subscription
metadata:
  name: mail
spec:  # of a channel
  channel: {apiVersion: messaging.knative.dev/v1, kind: KafkaChannel, name: orders}
  subscriber: {uri: "http://posted.test/"}
  reply: {uri: "http://answers.test/"}
"""
EGRESS = Egress(
    namespace="default", broker="shop", trigger="mail", topic="t", group="g",
    dead_letter_topic="dead", kafka=Kafka(bootstrap_servers="k:1"),
    subscriber=Sink(url="http://mail.test/"),
)  # fmt: skip
SUBSCRIBED = EGRESS.model_copy(
    update={"broker": "orders", "kind": "Subscription", "dead_letter_topic": "dead-mail"}
)
REPLAYS = replay_topic("default", "shop", "mail")
SUBSCRIPTION = TriggerName("default", "mail", "Subscription")


@pytest.mark.parametrize(
    ("values", "health"),
    [
        ({"refused": "BrokerDoesNotExist: no", "paused": True}, Health.NOT_READY),
        ({"error": "SubscriberUnavailable: no", "conditions": (OPEN,)}, Health.UNAVAILABLE),
        ({"error": "DrainFailed: Kafka is away", "paused": False}, Health.TROUBLED),
        ({"paused": True, "lag": 3}, Health.PAUSED),
        ({"replicas": 2}, Health.DELIVERING),
        ({}, Health.RESTING),
    ],
)
def test_a_triggers_health_is_the_worst_that_applies(
    values: dict[str, object], health: Health
) -> None:
    """KN-DP-05: that its circuit is open is a health of its own."""
    found, why = snapshot_document.health_of(row("mail", **values))
    assert found is health
    assert why, "each comes with words"


def test_the_state_joins_what_is_observed_with_what_is_declared() -> None:
    snapshot = Snapshot(
        "127.0.0.1:9092",
        (BrokerRow("default/shop", "http://h/default/shop", 5, 1),),
        (row("mail", lag=None, delivered=7, dead_lettered=2), TriggerRow("default/gone", "shop")),
        ("a file is broken",),
    )
    mail = trigger("mail", filters=[{"exact": {"type": "order"}}])
    found = snapshot_document.state_document(snapshot, [mail], "/data")
    assert found.problems == ("a file is broken",)
    (broker,) = found.brokers
    assert (broker.namespace, broker.name, broker.accepted, broker.rejected) == (
        "default", "shop", 5, 1,
    )  # fmt: skip
    first, second = found.triggers
    assert (first.filters, first.subscriber) == ("type=order", "http://mail.test/")
    assert (first.lag, first.delivered, first.dead_lettered) == (None, 7, 2)
    assert (second.filters, second.broker) == ("", "shop"), "it isn't declared any more"


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        ([{"exact": {"a": "1", "b": "2"}}, {"suffix": {"c": "3"}}], "a=1 and b=2 and c=*3"),
        ([{"not": {"exact": {"a": "1"}}}], "not a=1"),
        ([{"not": {"exact": {"a": "1", "b": "2"}}}], "not (a=1 and b=2)"),
        ([{"not": {"any": [{"prefix": {"a": "1"}}, {"exact": {"b": "2"}}]}}], "not (a=1* or b=2)"),
        ([{"cesql": "a = 1 OR b = 2"}], "a = 1 OR b = 2"),
        ([{"not": {"cesql": "a = 1 OR b = 2"}}], "not (a = 1 OR b = 2)"),
        ([{"exact": {"c": "3"}}, {"cesql": "a = 1 OR b = 2"}], "c=3 and (a = 1 OR b = 2)"),
    ],
)
def test_a_line_of_filters_has_parentheses_where_it_would_be_misread(
    filters: list[dict[str, object]], text: str
) -> None:
    assert triggers.filters_text(trigger("mail", filters=filters)) == text


def test_channels_and_subscriptions_are_beside_brokers_and_triggers_of_their_names() -> None:
    """KN-CHN-01: two kinds may share a name; neither is taken for the other."""
    snapshot = Snapshot(
        "k:1",
        (
            BrokerRow("default/shop", "http://h/default/shop", 5),
            BrokerRow("default/shop", "http://c/default/shop", 2, kind="KafkaChannel"),
        ),
        (
            row("mail", lag=1),
            replace(row("mail", lag=7, delivered=2), kind="Subscription"),
        ),
    )
    declared = [trigger("mail", filters=[{"exact": {"type": "order"}}]), subscription("mail")]
    found = snapshot_document.state_document(snapshot, declared, "/data")
    assert [(each.kind, each.url) for each in found.brokers] == [
        ("Broker", "http://h/default/shop"),
        ("KafkaChannel", "http://c/default/shop"),
    ]
    of_broker, of_channel = found.triggers
    assert (of_broker.kind, of_broker.lag, of_broker.filters) == ("Trigger", 1, "type=order")
    assert (of_channel.kind, of_channel.lag, of_channel.filters) == ("Subscription", 7, "")
    assert of_channel.subscriber == "http://mail.test/"


def test_a_subscription_says_its_order_and_where_replies_go() -> None:
    """KN-CHN-11: a Subscription is `ordered` unless it says otherwise. KN-SUB-02: without a reply
    address, replies are discarded."""
    found = snapshot_document.details_document(subscription("mail"), (), "", (Action.PAUSE,))
    assert (found.order, found.reply, found.filters) == ("ordered", "", "")
    assert found.may == (Action.PAUSE,)
    reply = parse(Destination, {"uri": "http://answers.test/"})
    found = snapshot_document.details_document(subscription("mail"), (), "", (), reply)
    assert found.reply == "http://answers.test/"


def test_filters_are_shown_as_they_are_written() -> None:
    wanted = [{"exact": {"type": "order"}}, {"not": {"cesql": "subject = 'x'"}}]
    found = snapshot_document.details_document(trigger("mail", filters=wanted), (), "shop.yaml")
    assert yaml.safe_load(found.filters) == {"filters": wanted}
    old = snapshot_document.details_document(
        trigger("mail", filter={"attributes": {"type": "a"}}), (), ""
    )
    assert yaml.safe_load(old.filters) == {"filter": {"attributes": {"type": "a"}}}
    assert snapshot_document.details_document(trigger("mail"), (), "").filters == ""


def test_who_gets_an_event_is_said_with_the_clause_that_refuses_it() -> None:
    mail = trigger("mail", filters=[{"exact": {"type": "order"}}])
    stock = trigger("stock", filters=[{"prefix": {"type": "re"}}])
    yes, no = snapshot_document.verdicts([mail, stock], ORDER)
    assert (yes.gets_it, yes.why_not) == (True, ())
    assert not no.gets_it
    (clause,) = no.why_not
    assert clause.startswith("filters[0].prefix.type:")
    assert clause.endswith("want 're'")


def test_failures_are_the_newest_first_and_counted_by_reason_unless_sent_again() -> None:
    letters = [letter(1), letter(2, code="500"), letter(3), letter(4, replayed="2026-02-01")]
    found = snapshot_document.failures_document(letters, 4, {})
    assert [each.id for each in found.last] == ["order-4", "order-3", "order-2", "order-1"]
    assert [(each.reason, each.count) for each in found.reasons] == [
        ("status 400", 2),
        ("status 500", 1),
    ]
    assert not found.is_all, "as many as were asked for: there may be more"
    assert snapshot_document.failures_document(letters, 5, {}).is_all


@dataclass
class FakeUp:
    """What runs, of one file; in place of a `Supervisor`."""

    file: Path

    @property
    def declared(self) -> DeclaredObjects:
        return Manifests([self.file]).read()

    @property
    def state(self) -> RunningState:
        return RunningState(pid=1, url="", bootstrap_servers="k:1", egresses=(EGRESS, SUBSCRIBED))

    def snapshot(self) -> Snapshot:
        return Snapshot(
            "k:1",
            (BrokerRow("default/shop"), BrokerRow("default/orders", kind="KafkaChannel")),
            (row("mail"), replace(row("mail"), kind="Subscription", conditions=(OPEN,))),
        )


@pytest.fixture
def memory() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def local(tmp_path: Path, memory: MemoryLog) -> InstallationConsole:
    file = tmp_path / "shop.yaml"
    file.write_text(MANIFEST)
    letters = DeadLetterTopics(lambda _: MemoryAdmin(memory), lambda _: MemoryWriter(memory))
    return InstallationConsole(FakeUp(file), tmp_path, letters)


def fail(memory: MemoryLog, id_: str, source: str = "/shop", topic: str = "dead") -> None:
    """Have an event become a dead letter."""
    memory.create(topic)
    draft = to_record(Event({**ORDER.attributes, "id": id_, "source": source}, b"{}"))
    failure = Failure("http://mail.test/", Reason.STATUS, 1, 0.0, 0.0, 400, b"no")
    headers, value = dead_letter_of(
        draft.headers, draft.value, failure, Origin("default", "shop", "mail", "t", 0, 1)
    )
    memory.store(topic, draft.key, value, headers)


async def test_pausing_writes_the_annotation_into_the_file_and_nothing_else(
    local: InstallationConsole, tmp_path: Path
) -> None:
    """The console does what `knafka trigger pause` does."""
    file = tmp_path / "shop.yaml"
    assert str(file) in await local.pause(MAIL, paused=True)
    assert 'knafka.dev/paused: "true"' in file.read_text()
    assert "# as it is" in file.read_text()
    assert "already" in await local.pause(MAIL, paused=True)
    await local.pause(MAIL, paused=False)
    assert 'knafka.dev/paused: "false"' in file.read_text()


async def test_what_a_page_names_is_sent_again_however_long_its_name(
    local: InstallationConsole, memory: MemoryLog
) -> None:
    for ending in ("a", "b"):
        fail(memory, "1" * 300 + ending, "/shop/\u200b" + "s" * 300)
    shown = (await local.failures(MAIL)).last[0]
    chosen = EventName(id=shown.id, source=shown.source)
    done = await local.replay(MAIL, [chosen], dry_run=False)
    assert [each.obstacle for each in done.chosen] == [""]
    left = [each.id for each in (await local.failures(MAIL)).last if not each.replayed]
    assert left == ["1" * 300 + "a"]


async def test_a_local_trigger_says_where_it_is_declared(
    local: InstallationConsole, tmp_path: Path
) -> None:
    found = await local.details(MAIL)
    assert str(tmp_path / "shop.yaml") in found.declared_in
    assert "cesql" in found.filters
    assert yaml.safe_load(found.delivery) == {"delivery": {"retry": 3}}
    assert [each.type for each in found.conditions] == ["Ready"]
    state, _ = (await local.state()).triggers
    assert state.subscriber == "http://mail.test/"


async def test_a_subscription_is_opened_and_paused_and_its_trigger_of_that_name_is_not(
    local: InstallationConsole, tmp_path: Path
) -> None:
    found = await local.details(SUBSCRIPTION)
    assert (found.reply, found.order) == ("http://answers.test/", "ordered")
    assert [each.type for each in found.conditions] == ["Delivering"]
    assert found.may == tuple(Action), "its user may do all"
    _, state = (await local.state()).triggers
    assert (state.kind, state.subscriber) == ("Subscription", "http://posted.test/")

    await local.pause(SUBSCRIPTION, paused=True)
    first, second = (tmp_path / "shop.yaml").read_text().split("---")
    assert "paused" not in first
    assert 'knafka.dev/paused: "true"' in second


async def test_a_subscriptions_dead_letters_are_sent_again_where_its_dispatcher_looks(
    local: InstallationConsole, memory: MemoryLog
) -> None:
    """CHN-32: its replay topic has its channel's name in it, as the operator knows it."""
    fail(memory, "1", topic="dead-mail")
    wanted = [EventName(id="1", source="/shop")]
    assert (await local.replay(SUBSCRIPTION, wanted, dry_run=False)).replay
    topic = egresses.replay_topic(SUBSCRIBED)
    assert sum(map(len, memory.topics[topic])) == 1
    failures = await local.failures(SUBSCRIPTION)
    (found,) = failures.last
    assert found.replayed
    assert "knafka dead-letters show subscription/default/mail" in failures.commands.values()
    mails = await local.failures(MAIL)
    assert mails.last == ()
    assert "knafka dead-letters show default/mail" in mails.commands.values()


async def test_only_the_event_of_that_source_is_sent_again(
    local: InstallationConsole, memory: MemoryLog
) -> None:
    """An id is unique for its source only."""
    fail(memory, "1")
    fail(memory, "1", "/other")
    wanted = [EventName(id="1", source="/shop")]
    tried = await local.replay(MAIL, wanted, dry_run=True)
    assert [each.obstacle for each in tried.chosen] == [""]
    assert (tried.replay, REPLAYS in memory.topics) == ("", False), "a dry run sends nothing"

    done = await local.replay(MAIL, wanted, dry_run=False)
    assert done.replay
    assert sum(map(len, memory.topics[REPLAYS])) == 1
    found = await local.failures(MAIL)
    assert {each.source: bool(each.replayed) for each in found.last} == {
        "/shop": True,
        "/other": False,
    }
    again = await local.replay(MAIL, wanted, dry_run=False)
    assert "sent again already" in again.chosen[0].obstacle
    assert again.replay == ""


async def test_the_last_report_is_linked_once_there_is_one(
    local: InstallationConsole, tmp_path: Path
) -> None:
    assert (await local.failures(MAIL)).report == ""
    assert await local.report() is None
    (tmp_path / REPORT_FILE).parent.mkdir()
    (tmp_path / REPORT_FILE).write_bytes(b"<p>")
    assert (await local.failures(MAIL)).report == "report"
    assert await local.report() == b"<p>"


async def test_a_trigger_that_is_not_there_is_not_found(local: InstallationConsole) -> None:
    nobody = TriggerName("default", "nobody")
    for asked in (
        local.details(nobody),
        local.failures(nobody),
        local.pause(nobody, paused=True),
        local.replay(nobody, (), dry_run=False),
    ):
        with pytest.raises(NotFound, match="default/nobody"):
            await asked
