"""The mark of a commit's topic, and what the metadata behind it speak of."""

from __future__ import annotations

import pytest
from confluent_kafka import Uuid
from hypothesis import given
from hypothesis import strategies as st

from knafka.core.commit_metadata import (
    described_until,
    is_of_another_topic,
    mark,
    mark_after_restart,
    short_id,
    unmark,
)
from knafka.core.delivery import Outcome
from knafka.core.progress import (
    MARK_LENGTH,
    MAX_METADATA,
    SUBSCRIBER,
    DeliveryState,
    Progress,
    encode,
)
from knafka.core.sensor.order import Place, Routed, Taken
from knafka.core.sensor.records import bus_metadata, commit_metadata

ID = "U/MGQ+ZUTR2_-xyzABCDEF"
STATE = DeliveryState(SUBSCRIBER, 1, 1, 1.0, 1.0, 2.0, Outcome(500))


@given(st.text(max_size=MAX_METADATA - MARK_LENGTH))
def test_metadata_come_out_of_their_mark_as_they_went_in(metadata: str) -> None:
    marked = mark(metadata, short_id(ID))
    assert len(marked) == len(metadata) + MARK_LENGTH
    assert unmark(marked) == (short_id(ID), metadata)


def test_clients_that_write_ids_with_different_letters_agree_on_the_mark() -> None:
    other = ID.replace("/", "_").replace("+", "-")
    assert ID != other
    assert short_id(ID) == short_id(other)
    assert unmark(f"@{ID[:11]}:x") == unmark(f"@{other[:11]}:x") == (short_id(ID), "x")


@pytest.mark.parametrize("topic_id", ["", str(Uuid(0, 0))])
def test_an_id_that_kafka_did_not_send_names_no_topic(topic_id: str) -> None:
    assert short_id(topic_id) == ""


@pytest.mark.parametrize("topic", ["", short_id(ID)])
def test_metadata_without_room_for_a_mark_or_without_an_id_get_none(topic: str) -> None:
    metadata = "x" * (MAX_METADATA - MARK_LENGTH + bool(topic))
    assert mark(metadata, topic) == metadata
    assert unmark(metadata) == ("", metadata)


@pytest.mark.parametrize("metadata", ["", "k1:AAAA", '{"@until": 1}', "@", "@mine:", "NONE", "@@:"])
def test_metadata_that_have_no_mark_name_no_topic(metadata: str) -> None:
    assert unmark(metadata) == ("", metadata)


def test_a_commit_is_of_another_topic_only_if_both_are_known() -> None:
    topic, other = short_id(ID), short_id(ID[::-1])
    assert is_of_another_topic(other, topic)
    assert not is_of_another_topic(topic, topic)
    assert not is_of_another_topic("", topic)
    assert not is_of_another_topic(topic, "")


def test_a_partition_that_lost_its_log_has_no_mark_until_its_topic_is_known_to_be_another() -> None:
    assert mark_after_restart("old", "old") == ""
    assert mark_after_restart("old", "") == ""
    assert mark_after_restart("", "old") == "", "it may have lost its log twice"
    assert mark_after_restart("old", "new") == "new"


@pytest.mark.parametrize(
    ("metadata", "until"),
    [
        ("", 5),
        (encode(5, Progress([(7, 9), (12, 20)]), 0)[0], 20),
        (encode(5, Progress([(7, 9)], {5: STATE, 30: STATE}), 0)[0], 31),
        ("k1:broken", 5),
        (commit_metadata({"t": 3}, 17, Taken(40, Place(1))), 40),
        (commit_metadata({"t": 3}, 17, Taken(4, Place(1))), 5),
        (commit_metadata({"t": 3}, None), 5),
        (bus_metadata(Routed(99, True)), 5),
        ("of another tool", None),
    ],
)
def test_what_metadata_speak_of_ends_behind_its_last_record(
    metadata: str, until: int | None
) -> None:
    assert described_until(5, metadata) == until
