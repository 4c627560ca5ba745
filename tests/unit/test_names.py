"""Names of topics and groups: upstream's where upstream has one, and collision-free where not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knafka.core import names

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
OBJECT = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", fullmatch=True)


@pytest.mark.conformance("KN-BRK-19")
def test_a_brokers_topic_and_a_triggers_group_have_upstreams_names() -> None:
    """naming.md; KN-BRK-19."""
    assert names.broker_topic("shop", "orders") == "knative-broker-shop-orders"
    assert names.trigger_group("shop", "mail") == "knative-trigger-shop-mail"


def test_upstreams_names_can_collide_so_owners_are_checked() -> None:
    """Trap 6: kept as upstream has it, and so known to be ambiguous."""
    assert names.broker_topic("a-b", "c") == names.broker_topic("a", "b-c")


def test_dead_letter_topics_of_different_triggers_differ_where_dashes_would_collide() -> None:
    """Trap 6."""
    assert names.dead_letter_topic("a-b", "c", "d") != names.dead_letter_topic("a", "b-c", "d")
    assert names.dead_letter_topic("a", "b-c", "d") != names.dead_letter_topic("a", "b", "c-d")


def test_a_dead_letter_topic_is_readable_and_stable() -> None:
    """Its name is derived anew at each reconciliation: a change would orphan the dead letters."""
    name = "knafka-dead-letters-shop-orders-mail-2af70bf00d"
    assert names.dead_letter_topic("shop", "orders", "mail") == name


@given(LABEL, OBJECT, OBJECT)
def test_every_dead_letter_topic_is_one_that_kafka_takes(ns: str, broker: str, t: str) -> None:
    """At most 249 characters, however long the parts are."""
    name = names.dead_letter_topic(ns, broker, t)
    assert names.is_topic(name)
    assert name.startswith(names.DEAD_LETTERS)


def test_two_long_names_with_one_beginning_stay_apart() -> None:
    long = "x" * 253
    one, other = (names.dead_letter_topic("shop", long, long + end) for end in ("a", "b"))
    assert one != other
    assert len(one) == len(other) == names.MAX_LENGTH


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "-"])
def test_kafka_takes_these_as_topics(name: str) -> None:
    assert names.is_topic(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a:b"])
def test_kafka_takes_none_of_these_as_topics(name: str) -> None:
    assert not names.is_topic(name)


@pytest.mark.parametrize(
    "parent", ["default", "a.b", "9lives", "a" * 63, "a" * 253, "1." + "-x" * 60, "a" * 50 + ".b"]
)
def test_a_child_is_part_of_a_host_name(parent: str) -> None:
    child = names.child(parent, "-kn-receiver")
    assert re.fullmatch(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", child)
    assert child.endswith("-kn-receiver")


def test_a_childs_name_begins_with_its_parents_as_long_as_that_fits_into_a_label() -> None:
    """63 characters. Services that are there would be made anew under another name."""
    assert names.child("a" * 60, "-kn") == "a" * 60 + "-kn"
    assert names.child("a" * 61, "-kn") != "a" * 61 + "-kn"


def test_two_parents_never_share_a_child() -> None:
    parents = ["a.b", "a-b", "k-a-b", "a" * 70, "a" * 71, "9", "k-9"]
    assert len({names.child(each, "-x") for each in parents}) == len(parents)


def test_colliding_names_have_distinct_ones_beside_them() -> None:
    """naming.md: `a-b`/`c` and `a`/`b-c` join to the same."""
    assert names.broker_topic("a-b", "c") == names.broker_topic("a", "b-c")
    assert names.distinct_broker_topic("a-b", "c") != names.distinct_broker_topic("a", "b-c")
    assert names.distinct_trigger_group("a-b", "c") != names.distinct_trigger_group("a", "b-c")
