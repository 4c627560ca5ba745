"""When Kafka counts as away (issue 13, item 0): never by doubt alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from knafka.clients.kafka.reachability import (
    MAX_ACKNOWLEDGEMENT_SILENCE,
    REACHABILITY_CHECK_TIMEOUT,
    RENEW_INTERVAL,
    Reachability,
)
from knafka.core.errors import LogError

pytestmark = pytest.mark.looptime


class Kafka:
    """Answers or not; `asked` counts."""

    def __init__(self) -> None:
        self.problem: LogError | None = None
        self.asked = 0
        self.told = 0
        self.renewed = 0
        self.in_flight = 0
        self.reachability = Reachability(self.ask, self.on_away, self.renew)

    async def ask(self, timeout: float) -> None:
        self.asked += 1
        if (problem := self.problem) is not None:
            await asyncio.sleep(timeout)
            raise problem

    def on_away(self) -> None:
        self.told += 1

    def renew(self) -> None:
        self.renewed += 1

    @property
    def away(self) -> bool:
        return self.reachability.away is not None


@pytest.fixture
async def kafka() -> AsyncIterator[Kafka]:
    made = Kafka()
    yield made
    made.reachability.close()


async def test_where_all_brokers_are_down_one_question_without_an_answer_is_enough(
    kafka: Kafka,
) -> None:
    kafka.problem = LogError("connection refused")
    kafka.reachability.note_all_down()
    await asyncio.sleep(REACHABILITY_CHECK_TIMEOUT + 0.1)
    assert kafka.away
    assert kafka.told == 1


async def test_a_kafka_that_answers_is_not_away_whatever_its_connections_did(kafka: Kafka) -> None:
    kafka.reachability.note_all_down()
    await asyncio.sleep(3600)
    assert not kafka.away
    assert kafka.asked == 1


async def test_nothing_acknowledged_for_a_while_is_reason_to_ask_until_it_answers(
    kafka: Kafka,
) -> None:
    """As of a Kafka that is frozen: it takes connections and answers nothing."""
    kafka.in_flight, kafka.problem = 1, LogError("timed out")
    kafka.reachability.watch(lambda: kafka.in_flight)
    await asyncio.sleep(MAX_ACKNOWLEDGEMENT_SILENCE + 2 * REACHABILITY_CHECK_TIMEOUT + 1)
    assert kafka.away
    kafka.in_flight = 0
    await asyncio.sleep(60)
    assert kafka.away
    assert kafka.told == 1
    kafka.problem = None
    await asyncio.sleep(REACHABILITY_CHECK_TIMEOUT + 1)
    assert not kafka.away


async def test_one_question_without_an_answer_may_have_been_put_to_the_one_broker_that_hangs(
    kafka: Kafka,
) -> None:
    kafka.problem = LogError("timed out")
    kafka.reachability.doubt()
    await asyncio.sleep(REACHABILITY_CHECK_TIMEOUT + 0.1)
    kafka.problem = None
    await asyncio.sleep(REACHABILITY_CHECK_TIMEOUT)
    assert not kafka.away
    assert kafka.told == 0


async def test_a_kafka_that_acknowledges_is_not_away_though_it_answers_nothing(
    kafka: Kafka,
) -> None:
    kafka.problem = LogError("timed out")
    kafka.reachability.doubt()
    for _ in range(100):
        await asyncio.sleep(1)
        kafka.reachability.note_acknowledgement()
        assert not kafka.away


async def test_an_acknowledgement_ends_being_away_at_once(kafka: Kafka) -> None:
    kafka.problem = LogError("connection refused")
    kafka.reachability.note_all_down()
    await asyncio.sleep(60)
    assert kafka.away
    kafka.reachability.note_acknowledgement()
    assert not kafka.away


async def test_a_client_that_kafka_does_not_answer_is_renewed_again_and_again(
    kafka: Kafka,
) -> None:
    """It may have lost its brokers, while Kafka is there (`kafka_liveness`)."""
    kafka.problem = LogError("timed out")
    kafka.reachability.note_all_down()
    await asyncio.sleep(RENEW_INTERVAL)
    assert kafka.away
    assert kafka.renewed == 0
    await asyncio.sleep(2 * REACHABILITY_CHECK_TIMEOUT + 1)
    assert kafka.renewed == 1
    await asyncio.sleep(RENEW_INTERVAL + 2 * REACHABILITY_CHECK_TIMEOUT)
    assert kafka.renewed == 2
    kafka.problem = None
    await asyncio.sleep(3600)
    assert kafka.renewed == 2


async def test_a_kafka_that_refuses_us_is_there(kafka: Kafka) -> None:
    kafka.problem = LogError("authentication failed", retriable=False)
    kafka.reachability.note_all_down()
    await asyncio.sleep(60)
    assert not kafka.away


async def test_nothing_in_flight_or_acknowledged_in_time_is_no_reason_to_ask(kafka: Kafka) -> None:
    kafka.in_flight = 1
    kafka.reachability.watch(lambda: kafka.in_flight)
    for _ in range(10):
        await asyncio.sleep(1)
        kafka.reachability.note_acknowledgement()
    kafka.in_flight = 0
    await asyncio.sleep(60)
    assert kafka.asked == 0
