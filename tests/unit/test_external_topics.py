"""Which topics that Knafka didn't make a Broker may use (issue 12, item 2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knafka.core import names
from knafka_operator.brokers.external_topics import external_topic_refusal, reserved_reason

WHERE = "ConfigMap knafka/kafka-broker-config"


def may(topic: str, allowed: str, namespace: str = "shop") -> bool:
    return external_topic_refusal(topic, namespace, allowed, WHERE) is None


@pytest.mark.parametrize(
    "topic",
    [
        names.broker_topic("prod", "default"),
        names.distinct_broker_topic("prod", "default"),
        names.dead_letter_topic("prod", "default", "mail"),
        names.replay_topic("prod", "default", "mail"),
        names.channel_topic("prod", "orders"),
        names.channel_topic("prod", "x" * 250),
        names.distinct_sensor_topic("prod", "default", "paid", "action"),
        "knative-broker-",
        "knafka-anything",
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
    ],
)
@pytest.mark.parametrize("allowed", ["*", "{namespace}", "knative-broker-*,knafka-*,__*"])
def test_what_is_ours_or_kafkas_own_is_never_allowed(topic: str, allowed: str) -> None:
    said = external_topic_refusal(topic, "prod", f"{allowed},{topic}", WHERE)
    assert said is not None
    assert topic in said
    assert "external.topics" not in said  # setting it would not help


@pytest.mark.parametrize(
    "topic", ["orders", "_schemas", "knative", "knafka", "my-knafka-x", "a__b"]
)
def test_a_name_that_only_looks_like_ours_is_for_the_installation_to_say(topic: str) -> None:
    assert reserved_reason(topic) is None
    assert not may(topic, "")
    assert may(topic, topic)
    assert may(topic, "*")


@pytest.mark.parametrize("allowed", ["", "  ", ",", "\n", " , \n,"], ids=repr)
def test_nothing_is_allowed_by_default(allowed: str) -> None:
    assert not may("orders", allowed)


@pytest.mark.parametrize(
    ("allowed", "topic", "namespace"),
    [
        ("orders", "orders", "shop"),
        ("a, orders", "orders", "shop"),
        ("a\n  orders\n", "orders", "shop"),
        ("a,\norders,", "orders", "shop"),
        ("orders.*", "orders.eu.v1", "shop"),
        ("*.v1", "orders.eu.v1", "shop"),
        ("o*s", "os", "shop"),
        ("{namespace}", "shop", "shop"),
        ("{namespace}.*", "shop.orders", "shop"),
        ("{namespace}_*", "team-a_orders", "team-a"),
        ("*.{namespace}", "orders.shop", "shop"),
        ("legacy-{namespace}", "legacy-team-a", "team-a"),
        ("{namespace}-orders.*", "shop-orders.v1", "shop"),
    ],
)
def test_what_a_pattern_matches_is_allowed(allowed: str, topic: str, namespace: str) -> None:
    assert may(topic, allowed, namespace)


@pytest.mark.parametrize(
    ("allowed", "topic", "namespace"),
    [
        ("orders", "orders2", "shop"),
        ("orders", "my-orders", "shop"),
        ("orders", "Orders", "shop"),
        ("orders.v1", "ordersxv1", "shop"),
        ("orders v1", "orders", "shop"),
        ("orders.*", "orders", "shop"),
        ("{namespace}", "other", "shop"),
        ("{namespace}.*", "team-a.orders", "team"),
        ("{namespace}.*", "shop-2.orders", "shop"),
        ("{namespace}.*", "{namespace}.orders", "shop"),
    ],
)
def test_what_no_pattern_matches_is_not(allowed: str, topic: str, namespace: str) -> None:
    said = external_topic_refusal(topic, namespace, allowed, WHERE)
    assert said is not None
    assert "external.topics" in said
    assert WHERE in said
    assert f"namespace {namespace}" in said


@pytest.mark.parametrize(
    "pattern",
    [
        "{namespace}-*",
        "{namespace}*",
        "*{namespace}",
        "*-{namespace}",
        "{namespace}-a*",
        "x.*-{namespace}.y",
        "{namespace}-{namespace}-*",
        "{name}",
        "{namespace",
        "order?",
        "order[s]",
        "order(s)",
        "orders|",
        "**/orders",
        "$HOME",
    ],
)
def test_a_pattern_that_would_surprise_allows_nothing_and_is_told(pattern: str) -> None:
    """`{namespace}-*` would give the namespace `team` what is the namespace `team-a`'s."""
    for topic in ("team", "team-a", "team-a-x", "x-team", "orders", "team-team-x"):
        said = external_topic_refusal(topic, "team", pattern, WHERE)
        assert said is not None
        assert pattern in said
    assert may("orders", f"{pattern}, orders", "team")


@pytest.mark.parametrize("namespace", ["", "*", "a.b", "A", "-", "a_b", "[a-z]", "{namespace}"])
def test_what_is_no_namespace_is_allowed_nothing(namespace: str) -> None:
    assert not may("orders", "*", namespace)


_NAMESPACES = st.from_regex(r"[ab]([-ab]{0,3}[ab])?", fullmatch=True)


@given(
    rest=st.text("*ab-._A", max_size=6),
    filled=st.text("ab-._A", max_size=4),
    one=_NAMESPACES,
    other=_NAMESPACES,
)
def test_a_separator_behind_the_namespace_keeps_namespaces_apart(
    rest: str, filled: str, one: str, other: str
) -> None:
    """A topic is then one namespace's, whatever follows."""
    topic = f"{one}.{rest}".replace("*", filled)
    assert may(topic, f"{{namespace}}.{rest}", one)
    assert one == other or not may(topic, f"{{namespace}}.{rest}", other)


def test_many_wildcards_cost_no_time() -> None:
    """A pattern must not be able to stop the operator."""
    assert not may("a" * 249, "*a" * 100 + "*b", "shop")


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True), st.text(max_size=20))
def test_every_brokers_own_topic_is_reserved(namespace: str, broker: str) -> None:
    """That is what keeps Brokers apart, also those that are not known yet."""
    assert reserved_reason(names.broker_topic(namespace, broker))
    assert reserved_reason(names.distinct_broker_topic(namespace, broker))


@pytest.mark.parametrize("what", ["trigger", "changelog", "action"])
def test_a_name_like_those_of_sensors_topics_is_allowed_in_full_only(what: str) -> None:
    """They have no beginning of their own, and the Sensor may be another cluster's."""
    topic = names.sensor_topic("prod", "default", "paid", what)
    for allowed in ("*", "prod*", f"*-{what}", "{namespace}.*,*"):
        said = external_topic_refusal(topic, "prod", allowed, WHERE)
        assert said is not None
        assert "Sensors' topics" in said
    assert may(topic, topic, "prod")
    assert may(topic, f"*,{topic}", "prod")
    assert external_topic_refusal(topic, "prod", f"*,{topic}", WHERE, {topic}) is not None, (
        "there is such a one"
    )
    assert may(f"orders-{what}", "*")


def test_a_sensors_consumer_group_is_no_topic() -> None:
    assert external_topic_refusal("shop-paid", "shop", "*", WHERE, {"shop-paid"}) is None
