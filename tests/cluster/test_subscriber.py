"""The subscriber of the cluster tests counts right; whatever they prove hangs on that."""

from __future__ import annotations

from typing import Any

from testcluster.subscribers.subscriber import read_event, summary


def event(identity: str, key: str | None = None, n: int | None = None) -> dict[str, Any]:
    return {"id": identity, "source": "/tests", "key": key, "n": n}


def test_a_second_arrival_is_a_duplicate_and_never_out_of_order() -> None:
    seen = [event("1", "a", 1), event("2", "a", 2), event("1", "a", 1), event("3", "a", 3)]
    assert summary(seen) == {"received": 4, "unique": 3, "duplicates": 1, "outOfOrder": {}}


def test_order_is_counted_for_each_key_by_itself() -> None:
    seen = [event("1", "a", 5), event("2", "b", 1), event("3", "a", 4), event("4")]
    assert summary(seen)["outOfOrder"] == {"a": 1}


def test_the_same_id_of_two_sources_is_two_events() -> None:
    seen = [event("1"), {**event("1"), "source": "/elsewhere"}]
    assert summary(seen)["duplicates"] == 0


def test_a_binary_event_is_read_with_its_attributes_decoded() -> None:
    headers = {
        "ce-id": "1", "ce-source": "/a", "ce-type": "t", "ce-subject": "caf%C3%A9",
        "content-type": "application/json",
    }  # fmt: skip
    found = read_event(headers, b'{"n": 7}')
    assert (found["id"], found["key"], found["n"], found["bytes"]) == ("1", "café", 7, 8)


def test_a_structured_event_is_read_by_its_partition_key_and_sequence() -> None:
    body = b'{"id":"1","source":"/a","type":"t","subject":"s","partitionkey":"k","sequence":"3"}'
    found = read_event({"content-type": "application/cloudevents+json"}, body)
    assert (found["id"], found["key"], found["n"]) == ("1", "k", 3)
