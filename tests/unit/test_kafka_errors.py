"""librdkafka's errors as ours: what may be tried again, and what says that there is no topic."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError

from knafka.clients.kafka.kafka_client import log_error, log_error_of


@pytest.mark.parametrize(
    ("code", "retriable", "too_large", "unknown_topic"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, False, True, False),
        (KafkaError.INVALID_RECORD, False, False, False),
        (KafkaError.POLICY_VIOLATION, False, False, False),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, True, False, True),
        (KafkaError._UNKNOWN_TOPIC, True, False, True),
        (KafkaError._UNKNOWN_PARTITION, True, False, True),
        (KafkaError._MSG_TIMED_OUT, True, False, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, True, False, False),
        (KafkaError.NOT_ENOUGH_REPLICAS, True, False, False),
    ],
)
def test_an_error_says_what_may_be_done_about_it(
    code: int, retriable: bool, too_large: bool, unknown_topic: bool
) -> None:
    error = log_error_of(KafkaError(code))
    assert (error.retriable, error.too_large) == (retriable, too_large)
    assert error.unknown_topic == unknown_topic


def test_the_same_error_of_many_attempts_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        for port in range(9092, 9192):
            text = f"127.0.0.1:{port}/bootstrap: Connect failed: Connection refused"
            log_error(KafkaError(KafkaError._TRANSPORT, text))
    assert len(caplog.records) == 1


def test_neither_a_log_nor_an_error_shows_what_a_token_endpoint_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = 'Failed to acquire SASL OAUTHBEARER token: {"AccessKeyId": "EC2 keys"}'
    error = KafkaError(KafkaError._AUTHENTICATION, text)
    log_error(error)
    assert "EC2 keys" not in f"{caplog.text}{log_error_of(error)}"
