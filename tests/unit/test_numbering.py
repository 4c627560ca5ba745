"""Partitions of several topics by one number each."""

from hypothesis import given
from hypothesis import strategies as st

from knafka.core.numbering import STRIDE, Numbering, partition_of
from knafka.ports.log import Lag
from knafka_operator.scale.lag_checks import merge_lags

TOPICS = ("a", "b", "c")


@given(st.sampled_from(TOPICS), st.integers(0, STRIDE - 1))
def test_a_number_is_one_partitions_and_the_first_topics_are_kafkas_own(
    topic: str, partition: int
) -> None:
    numbering = Numbering(TOPICS)
    number = numbering.number(topic, partition)
    assert (numbering.topic(number), partition_of(number)) == (topic, partition)
    if topic == TOPICS[0]:
        assert number == partition


def test_what_is_known_by_number_is_told_by_topic_and_back() -> None:
    numbering = Numbering(TOPICS)
    by_topic = {"a": {0: 1, 7: 2}, "b": {}, "c": {0: 3}}
    assert numbering.by_topic(numbering.by_number(by_topic)) == by_topic


def test_the_lag_on_several_topics_is_that_on_each_of_them() -> None:
    first = Lag({0: 1, 1: 2}, frozenset({1}), {0: 5, 1: 5})
    second = Lag({0: 4}, frozenset({0}), {0: 9})
    lag = merge_lags(("a", "b"), [first, second])
    assert lag.total == first.total + second.total
    assert lag.beyond_end == {1, STRIDE}
    assert Numbering(("a", "b")).by_topic(lag.settled) == {"a": first.settled, "b": second.settled}
