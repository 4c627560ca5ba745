"""ACLs: a refusal says what was refused, and what would allow it."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError

from knafka.clients.kafka.kafka_acls import explain_denials, name_missing_right
from knafka.clients.kafka.kafka_client import log_error_of
from knafka.core.errors import LogError

NEEDS: dict[str, Any] = {
    "topic": ("Read", "orders"),
    "group": ("Read", "knative-trigger-shop-mail"),
    "transaction": ("Write", "shop-paid-0"),
}


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "--operation Read --topic orders"),
        (
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            "--operation Read --group knative-trigger-shop-mail",
        ),
        (
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "--operation Write --transactional-id shop-paid-0",
        ),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, "--operation Create --cluster"),
    ],
)
def test_a_refusal_names_resource_and_operation_and_the_acl(code: int, needed: str) -> None:
    """Of several that one request needs, the one that Kafka means."""
    with pytest.raises(LogError) as caught, explain_denials(**NEEDS, cluster="Create"):
        raise log_error_of(KafkaError(code))
    told = str(caught.value)
    assert f"add the ACL `{needed}` for this user" in told
    assert KafkaError(code).str() in told
    assert caught.value.denied


def test_any_other_error_stays_as_it_is() -> None:
    for error in (LogError("away"), log_error_of(KafkaError(KafkaError._TIMED_OUT))):
        assert name_missing_right(error, **NEEDS) is error


def test_the_innermost_says_what_was_refused() -> None:
    denied = log_error_of(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    once = name_missing_right(denied, topic=("Describe", "orders"))
    assert name_missing_right(once, topic=("Read", "orders")) is once


def test_a_resource_that_nobody_named_is_left_unnamed() -> None:
    denied = log_error_of(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert name_missing_right(denied, topic=("Read", "orders")) is denied
