"""Who owns a Broker's topic (naming.md: dash-joined names collide; issue 4: owned by UID)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.memory.admin import MemoryAdmin
from support.memory.log import MemoryLog

from knafka.ports.log import TopicDescription
from knafka_operator.decisions.effects import Annotate, CreateTopic
from knafka_operator.decisions.steps import Step
from knafka_operator.kafka.topics import TOPIC_ID, drift, may_delete_topic, topic_effects
from knafka_operator.model.resources import TOPIC_STATUS
from knafka_operator.model.topics import Topic, TopicRefused

WANTED = Topic("orders", 4, 1, {"retention.ms": "1000"})
RECORDING = Annotate(Step.RECORD_TOPIC, {TOPIC_STATUS: "orders", TOPIC_ID: ""})
MAKING = CreateTopic(WANTED, TOPIC_STATUS, TOPIC_ID)


@pytest.fixture
def admin() -> MemoryAdmin:
    return MemoryAdmin(MemoryLog())


def _status(topic: str = WANTED.name, id_: str | None = None) -> dict[str, str]:
    """The annotations of a Broker's status that keep this."""
    return {} if id_ is None else {TOPIC_STATUS: topic, TOPIC_ID: id_}


async def _found(admin: MemoryAdmin) -> TopicDescription:
    found = await admin.describe_topic(WANTED.name)
    assert found is not None
    return found


def test_a_topic_is_made_after_its_name_was_written_down() -> None:
    assert topic_effects(WANTED, None, {}) == (RECORDING, MAKING)


def test_an_operator_that_died_before_it_made_the_topic_makes_it() -> None:
    assert topic_effects(WANTED, None, _status(id_="")) == (MAKING,)


async def test_an_operator_that_died_after_it_made_the_topic_knows_it_again(
    admin: MemoryAdmin,
) -> None:
    await admin.ensure_topic("orders", 4, 1, {})
    made = topic_effects(WANTED, await _found(admin), _status(id_=""), disputed=False)
    assert made == (MAKING,), "which writes its id down"


async def test_a_topic_that_has_records_is_not_taken_for_one_that_was_just_made(
    admin: MemoryAdmin,
) -> None:
    """Who may write a status may write an empty id beside somebody else's topic."""
    await admin.ensure_topic("orders", 4, 1, {})
    with pytest.raises(TopicRefused, match="was not made for this object"):
        topic_effects(WANTED, await _found(admin), _status(id_=""), disputed=True)


async def test_a_topic_that_is_there_is_left_alone(admin: MemoryAdmin) -> None:
    await admin.ensure_topic("orders", 1, 1, {})
    found = await _found(admin)
    assert topic_effects(WANTED, found, _status(id_=found.id)) == ()


async def test_somebody_elses_topic_is_not_adopted(admin: MemoryAdmin) -> None:
    await admin.ensure_topic("orders", 4, 1, {})
    with pytest.raises(TopicRefused, match="exists and was not made for this object") as refused:
        topic_effects(WANTED, await _found(admin), {})
    assert refused.value.reason == "TopicNotOurs"


async def test_somebody_elses_topic_is_used_as_it_is_when_it_is_declared_external(
    admin: MemoryAdmin,
) -> None:
    await admin.ensure_topic("orders", 7, 1, {})
    external = replace(WANTED, external=True)
    assert topic_effects(external, await _found(admin), {}) == ()
    assert drift(external, await _found(admin)) == ()


def test_an_external_topic_must_exist() -> None:
    with pytest.raises(TopicRefused, match="does not exist"):
        topic_effects(replace(WANTED, external=True), None, {})


async def test_a_topic_that_somebody_made_anew_is_not_ours(admin: MemoryAdmin) -> None:
    await admin.ensure_topic("orders", 1, 1, {})
    with pytest.raises(TopicRefused) as refused:
        topic_effects(WANTED, await _found(admin), _status(id_="another"))
    assert refused.value.reason == "TopicReplaced"
    assert not may_delete_topic(await _found(admin), "another", used=False, claimed=False)


def test_a_topic_that_somebody_deleted_is_made_again() -> None:
    assert topic_effects(WANTED, None, _status(id_="before")) == (MAKING,)


async def test_after_another_topic_only_the_id_says_that_this_is_its_own(
    admin: MemoryAdmin,
) -> None:
    """From before it named an external one; an empty id belongs to the other name."""
    await admin.ensure_topic("orders", 4, 1, {})
    found = await _found(admin)
    assert topic_effects(WANTED, found, _status("legacy", found.id)) == ()
    for id_ in ("", "another"):
        with pytest.raises(TopicRefused):
            topic_effects(WANTED, found, _status("legacy", id_))
    expected = (RECORDING, MAKING)
    assert topic_effects(WANTED, None, _status("legacy", "another")) == expected


async def test_only_the_topic_that_was_made_for_a_broker_may_be_deleted_with_it(
    admin: MemoryAdmin,
) -> None:
    await admin.ensure_topic("orders", 4, 1, {})
    found = await _found(admin)
    assert may_delete_topic(found, found.id, used=True, claimed=False)
    assert may_delete_topic(found, "", used=False, claimed=False)
    assert not may_delete_topic(found, "", used=True, claimed=False)
    assert not may_delete_topic(found, found.id, used=True, claimed=True)
    assert not may_delete_topic(found, "", used=False, claimed=True)
    assert not may_delete_topic(found, None, used=False, claimed=False)
    assert not may_delete_topic(None, found.id, used=False, claimed=False)


async def test_what_has_drifted_is_told_and_left_alone(admin: MemoryAdmin) -> None:
    await admin.ensure_topic("orders", 4, 1, WANTED.config)
    found = await _found(admin)
    assert drift(WANTED, found) == []
    declared = Topic("orders", 8, 1, {"retention.ms": "2000", "segment.ms": "5"})
    assert drift(declared, found) == [
        "partitions: 4, declared 8",
        "retention.ms: 1000, declared 2000",
        "segment.ms: not set, declared 5",
    ]
    assert topic_effects(declared, found, _status(id_=found.id)) == ()
