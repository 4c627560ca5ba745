"""What a Trigger's status says of its dead letters, how often it is written, and what it costs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.memory.admin import MemoryAdmin
from support.operator_world import OperatorWorld, condition, running_operator

from knafka.core import names
from knafka.core.contract import Egress
from knafka.core.drain import DrainProgress
from knafka.core.errors import LogError
from knafka_operator.kafka.dead_letter_topics import DEAD_LETTER_TOPIC_ID, RETENTION_ANNOTATION
from knafka_operator.model.identity import Identity
from knafka_operator.runtime.metrics import operator_metrics

pytestmark = pytest.mark.looptime

WHO = ("shop", "orders")
TOPIC = names.dead_letter_topic("shop", "default", "orders")
DAY = 86_400.0
SOON = 65
"""Seconds within which a topic that nobody has reported is found."""


@dataclass
class _Watched:
    world: OperatorWorld
    written: list[dict[str, Any]] = field(default_factory=list)
    """The statuses that were written."""
    events: list[str] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    """Requests to Kafka, by method."""

    def follow(self) -> None:
        """Reconcile what is enqueued, and hear of what that writes."""
        operator = self.world.operator
        tasks = set()

        def enqueue(key: tuple[str, str, str]) -> None:
            task = asyncio.create_task(self.reconcile(key[1], key[2]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        operator.dead_letters.enqueue = enqueue
        operator.dead_letters.on_first_dead_letters = lambda document, message: self.events.append(
            message
        )

    async def reconcile(self, namespace: str, name: str) -> None:
        self.written.append(dict(await self.world.reconcile_trigger(namespace, name)))
        document = self.world.document("Trigger", namespace, name)
        self.world.operator.on_trigger(document, gone=False)

    def egress(self) -> Egress:
        watched = self.world.operator.triggers.watched[Identity(*WHO)]
        return watched.egress

    def bury(self, count: int = 1) -> None:
        """As a dispatcher does."""
        settings = self.egress().dead_letter_settings
        self.world.log.create(TOPIC, settings.partitions, 1, settings.config)
        for _ in range(count):
            self.world.log.store(TOPIC, None, b"{}", [])

    async def set_by_hand(self, retention: str) -> None:
        await MemoryAdmin(self.world.log).set_topic_config(TOPIC, {"retention.ms": retention})

    @property
    def retention(self) -> str:
        return self.world.log.descriptions[TOPIC].config["retention.ms"]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.document("Trigger", *WHO)["status"]
        return found

    def told(self) -> Any:
        return condition(self.status(), "DeadLetters")

    async def set_retention(self, text: str) -> None:
        self.world.declare_trigger(*WHO, annotations={RETENTION_ANNOTATION: text})
        await self.reconcile(*WHO)
        await asyncio.sleep(SOON)


def _samples(watched: _Watched, name: str) -> list[Any]:
    (found,) = [each for each in operator_metrics(watched.world.operator) if each.name == name]
    return list(found.samples)


@asynccontextmanager
async def _watched() -> AsyncIterator[_Watched]:
    async with running_operator() as world:
        watched = _Watched(world)

        def seen(when: str, call: str) -> None:
            if when == "before":
                watched.asked[call] += 1

        world._seen = seen
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        world.declare_trigger(*WHO)
        watched.follow()
        await watched.reconcile(*WHO)
        yield watched


async def test_a_trigger_without_dead_letters_says_nothing_of_them() -> None:
    async with _watched() as watched:
        await asyncio.sleep(SOON)
        assert "DeadLetters" not in [each["type"] for each in watched.status()["conditions"]]
        assert (len(watched.written), watched.events) == (1, [])


async def test_a_status_says_how_many_dead_letters_wait_since_when_and_stays_ready() -> None:
    async with _watched() as watched:
        watched.bury(3)
        await asyncio.sleep(SOON)
        told = watched.told()
        assert (told["status"], told["severity"]) == ("False", "Warning")
        assert told["reason"] == "DeadLettersWait"
        since = time.strftime("%Y-%m-%dT%H:", time.gmtime())
        assert told["message"].startswith(f"3 dead letters wait in the topic {TOPIC}, the oldest")
        assert since[:11] in told["message"]
        assert condition(watched.status(), "Ready")["status"] == "True"
        assert len(watched.events) == 1
        assert watched.events[0].startswith("3 dead letters wait")


async def test_a_dead_letter_that_a_dispatcher_reports_is_in_the_status_within_seconds() -> None:
    async with _watched() as watched:
        await asyncio.sleep(7)
        kafka = watched.world.operator.triggers.watched[Identity(*WHO)].kafka
        (scaled,) = kafka.scaler._triggers.values()
        watched.bury()
        scaled.ended_counts = scaled.ended_counts.model_copy(update={"dead_lettered": 1})
        await asyncio.sleep(5.1)
        assert watched.told()["message"].startswith("1 dead letter waits")


async def test_a_number_that_grows_each_second_is_written_once_a_minute() -> None:
    async with _watched() as watched:
        watched.bury()
        await asyncio.sleep(SOON)
        before = len(watched.written)
        for _ in range(600):
            watched.bury()
            await asyncio.sleep(1)
        assert 9 <= len(watched.written) - before <= 11
        assert len(watched.events) == 1, "one Event for all"


async def test_when_none_waits_any_more_the_condition_is_true_and_the_next_is_an_event() -> None:
    async with _watched() as watched:
        watched.bury(2)
        await asyncio.sleep(SOON)
        watched.world.log.topics[TOPIC] = [[]]
        await asyncio.sleep(6)
        assert watched.told()["status"] == "True"
        watched.bury()
        await asyncio.sleep(6)
        assert watched.told()["status"] == "False"
        assert len(watched.events) == 2


async def test_of_a_topic_that_somebody_has_deleted_none_waits_any_more() -> None:
    async with _watched() as watched:
        watched.bury()
        await asyncio.sleep(SOON)
        await MemoryAdmin(watched.world.log).delete_topic(TOPIC)
        await asyncio.sleep(6)
        assert watched.told()["status"] == "True"


async def test_an_age_that_is_not_known_shortens_no_retention() -> None:
    async with _watched() as watched:
        watched.bury()
        await watched.set_by_hand("-1")
        watched.world.kafka_failures["first_timestamps"] = LogError("it is away")
        await asyncio.sleep(SOON)
        assert watched.retention == "-1"
        del watched.world.kafka_failures["first_timestamps"]
        await asyncio.sleep(6)
        assert watched.retention == str(round(30 * DAY * 1000))


async def test_a_kafka_that_refuses_to_alter_is_asked_once() -> None:
    async with _watched() as watched:
        refused = LogError("not authorized", retriable=False)
        watched.world.kafka_failures["set_topic_config"] = refused
        watched.bury()
        await watched.set_by_hand("-1")
        await asyncio.sleep(600)
        assert watched.asked["set_topic_config"] == 1
        assert watched.told()["reason"] == "DeadLettersWait"


async def test_another_operator_tells_of_no_first_dead_letter_again() -> None:
    async with _watched() as watched:
        watched.bury()
        await asyncio.sleep(SOON)
        await watched.world.restart()
        watched.follow()
        await watched.world.reconcile_broker("shop")
        await watched.reconcile(*WHO)
        assert watched.told()["status"] == "False", "what isn't known yet stays as it was"
        await asyncio.sleep(SOON)
        assert watched.told()["status"] == "False"
        assert len(watched.events) == 1


async def test_half_of_its_retention_before_it_expires_a_dead_letter_is_told_of() -> None:
    async with _watched() as watched:
        watched.bury()
        await asyncio.sleep(SOON)
        watched.world.operator.dead_letters.clock = lambda: time.time() + 16 * DAY
        await asyncio.sleep(6)
        assert watched.told()["reason"] == "DeadLettersExpire"
        assert "Kafka may delete it from " in watched.told()["message"]
        await watched.set_retention("forever")
        assert watched.told()["reason"] == "DeadLettersWait"


async def test_metrics_have_number_age_retention_and_reasons() -> None:
    async with _watched() as watched:
        assert _samples(watched, "knafka_dead_letters") == []
        watched.bury(2)
        kafka = watched.world.operator.triggers.watched[Identity(*WHO)].kafka
        (scaled,) = kafka.scaler._triggers.values()
        letters = {"status 503": 2, "timeout": 1}
        scaled.ended_counts = DrainProgress(dead_lettered=3, dead_letters=letters)
        await asyncio.sleep(6)
        labels = {"namespace": "shop", "broker": "default", "trigger": "orders"}
        assert _samples(watched, "knafka_dead_letters") == [(labels, 2)]
        assert _samples(watched, "knafka_dead_letters_retention_seconds") == [(labels, 30 * DAY)]
        ((_, age),) = _samples(watched, "knafka_dead_letters_oldest_age_seconds")
        assert 0 <= age < 60
        assert _samples(watched, "knafka_dead_lettered_total") == [
            ({**labels, "reason": "status", "code": "503"}, 2),
            ({**labels, "reason": "timeout", "code": ""}, 1),
        ]


async def test_a_topic_of_ours_follows_its_retention() -> None:
    async with _watched() as watched:
        watched.bury()
        assert watched.retention == str(round(30 * DAY * 1000))
        await asyncio.sleep(SOON)
        annotations = watched.status()["annotations"]
        assert annotations[RETENTION_ANNOTATION] == watched.retention
        assert annotations[DEAD_LETTER_TOPIC_ID] == watched.world.log.descriptions[TOPIC].id
        await watched.set_retention("P90D")
        assert watched.retention == str(round(90 * DAY * 1000))
        await watched.set_retention("P10D")
        assert watched.retention == str(round(10 * DAY * 1000))
        assert watched.asked["set_topic_config"] == 2


async def test_a_topic_that_an_earlier_release_made_gets_a_retention() -> None:
    async with _watched() as watched:
        watched.bury()
        await watched.set_by_hand("-1")
        await asyncio.sleep(SOON)
        assert watched.retention == str(round(30 * DAY * 1000))


async def test_an_upgrade_deletes_no_dead_letter_that_is_older_than_the_retention() -> None:
    """Who has kept them for years is told, and decides."""
    async with _watched() as watched:
        watched.world.operator.dead_letters.clock = lambda: time.time() + 31 * DAY
        watched.bury()
        await watched.set_by_hand("-1")
        await asyncio.sleep(SOON)
        assert watched.retention == "-1"
        assert watched.told()["reason"] == "RetentionNotApplied"
        watched.world.log.topics[TOPIC] = [[]]
        await asyncio.sleep(SOON)
        assert watched.retention == str(round(30 * DAY * 1000))


@pytest.mark.parametrize(
    "theirs",
    [
        {"retention.ms": "-1"},
        {"retention.ms": "60000", "cleanup.policy": "delete", "retention.bytes": "-1"},
        {},
    ],
)
async def test_a_topic_that_somebody_else_made_is_never_altered(theirs: dict[str, str]) -> None:
    async with _watched() as watched:
        watched.world.log.create(TOPIC, 1, 1, theirs)
        watched.bury()
        await asyncio.sleep(SOON)
        await watched.set_retention("P10D")
        assert watched.world.log.descriptions[TOPIC].config == theirs
        assert watched.told()["reason"] == "DeadLettersWait"


async def test_a_topic_that_keeps_for_ever_is_not_shortened_below_what_it_has() -> None:
    async with _watched() as watched:
        await watched.set_retention("forever")
        watched.bury()
        await asyncio.sleep(SOON)
        assert watched.status()["annotations"][RETENTION_ANNOTATION] == "-1"
        watched.world.operator.dead_letters.clock = lambda: time.time() + 31 * DAY
        await watched.set_retention("P30D")
        assert watched.retention == "-1"
        assert watched.told()["reason"] == "RetentionNotApplied"
        await watched.set_retention("P60D")
        assert watched.retention == str(round(60 * DAY * 1000))


@pytest.mark.parametrize("by_hand", ["-1", "7776000000"])
async def test_a_retention_that_somebody_has_set_by_hand_stays(by_hand: str) -> None:
    async with _watched() as watched:
        watched.bury()
        await asyncio.sleep(SOON)
        await watched.set_by_hand(by_hand)
        await watched.set_retention("P10D")
        assert watched.retention == by_hand


@pytest.mark.integration
@pytest.mark.slow
async def test_hundreds_of_triggers_cost_no_more_requests_than_one() -> None:
    """Without dead letters none of their topics is asked for but once a minute."""
    async with running_operator() as world:
        asked = Counter[str]()

        def seen(when: str, call: str) -> None:
            if when == "before":
                asked[call] += 1

        world._seen = seen
        world.declare_broker("shop")
        await world.reconcile_broker("shop")
        for number in range(300):
            world.declare_trigger("shop", f"t{number}")
            await world.reconcile_trigger("shop", f"t{number}")
        asked.clear()
        await asyncio.sleep(600)
        assert asked["ranges_of_all"] <= 121
        assert asked["first_timestamps"] == asked["describe_topic"] == 0
