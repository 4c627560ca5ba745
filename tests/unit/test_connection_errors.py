"""What librdkafka tells of a connection, in words for a person. The texts are librdkafka's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from knafka.core.kafka_settings.connection_errors import ConnectionErrors


@dataclass(frozen=True)
class Error:
    code: str
    text: str

    def name(self) -> str:
        return self.code

    def str(self) -> str:
        return self.text


DOWN = Error("_ALL_BROKERS_DOWN", "1/1 brokers are down")
PASSWORD = Error("_AUTHENTICATION", "k:1/bootstrap: SASL authentication error: Invalid username")
UNKNOWN_CA = Error("_SSL", "k:1/bootstrap: SSL handshake failed: certificate verify failed")
PLAIN_LISTENER = Error("_SSL", "SSL handshake failed: Disconnected: to a PLAINTEXT listener?")
ALERT = Error("_TRANSPORT", "Receive failed: SSL routines::ssl/tls alert bad certificate")
NOBODY = Error("_TRANSPORT", "k:1/bootstrap: Connect to k:1 failed: Connection refused")


@pytest.mark.parametrize(
    ("told", "refusal"),
    [
        ([PASSWORD], f"authentication failed: {PASSWORD.text}"),
        ([PASSWORD, DOWN], f"authentication failed: {PASSWORD.text}"),
        ([UNKNOWN_CA], f"TLS failed: {UNKNOWN_CA.text}"),
        ([ALERT, DOWN], f"TLS failed, Kafka refuses our certificate or misses one: {ALERT.text}"),
        ([NOBODY, UNKNOWN_CA], f"TLS failed: {UNKNOWN_CA.text}"),
    ],
    ids=["password", "then all are down", "CA", "alert", "after another"],
)
def test_what_waiting_will_not_mend_is_a_refusal(told: list[Error], refusal: str) -> None:
    errors = ConnectionErrors()
    for error in told:
        errors.record(error)
    assert errors.refusal == str(errors) == refusal


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ([], ""),
        ([NOBODY, DOWN], NOBODY.text),
        ([PLAIN_LISTENER], PLAIN_LISTENER.text),
        ([PASSWORD, NOBODY], NOBODY.text),
        ([DOWN], "every connection ends without a reason, as with a wrong security protocol"),
    ],
    ids=["nothing", "nobody there", "a listener without TLS", "mended", "no reason"],
)
def test_what_may_pass_is_told_and_is_no_refusal(told: list[Error], text: str) -> None:
    errors = ConnectionErrors()
    for error in told:
        errors.record(error)
    assert errors.refusal is None
    assert str(errors) == text


def test_what_is_forgotten_is_told_no_more() -> None:
    errors = ConnectionErrors()
    errors.record(PASSWORD)
    errors.forget()
    assert (str(errors), errors.refusal) == ("", None)


NO_TOKEN = Error(
    "_AUTHENTICATION",
    "Failed to acquire SASL OAUTHBEARER token: Could not resolve host: login.example.com",
)


def test_that_there_is_no_token_is_known_until_kafka_answers() -> None:
    """librdkafka says it once, maybe before anything is asked, and tries again in silence."""
    errors = ConnectionErrors()
    errors.record(NO_TOKEN)
    errors.forget()
    assert errors.refusal == f"authentication failed: {NO_TOKEN.text}"
    errors.record(NOBODY)
    assert errors.refusal is None
    errors.record(NO_TOKEN)
    errors.forget_all()
    assert (str(errors), errors.refusal) == ("", None)


ACQUIRE = "Failed to acquire SASL OAUTHBEARER token: "
UNSHOWN = f"{ACQUIRE}the token endpoint answered with an error: "


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ('{"error":"invalid_client","error_description":"EC2 keys"}', f"{UNSHOWN}invalid_client"),
        ('{"error" : "invalid_scope"}', f"{UNSHOWN}invalid_scope"),
        ('{"error":"EC2 keys"}', None),
        ('{"AccessKeyId":"EC2 keys"}', None),
        ("EC2 keys", None),
        ("<html>EC2 keys", None),
        ("Could not resolve host: l.test", f"{ACQUIRE}Could not resolve host: l.test"),
        ("Failed to connect to 127.0.0.1 port 1: no", f"{ACQUIRE}Failed to connect to 127.0.0.1"),
        ("Failed to parse JSON response at 0/15", f"{ACQUIRE}Failed to parse JSON response"),
        ("Response is not JSON encoded: text/plain", f"{ACQUIRE}Response is not JSON encoded"),
    ],
)
def test_what_a_token_endpoint_answers_is_not_shown(answer: str, shown: str | None) -> None:
    """A Secret names any URL, and a status has readers who may not ask that."""
    errors = ConnectionErrors()
    errors.record(Error("_AUTHENTICATION", f"{ACQUIRE}{answer}"))
    refusal = errors.refusal or ""
    assert refusal.startswith(f"authentication failed: {shown or UNSHOWN}")
    assert "EC2" not in refusal


def test_an_error_has_an_end() -> None:
    errors = ConnectionErrors()
    errors.record(Error("_AUTHENTICATION", "SASL authentication error: " + 10_000 * "x"))
    assert len(errors.refusal or "") < 600


BROKEN = Error("_TRANSPORT", "k:1/bootstrap: Send failed: Broken pipe (after 0ms in state UP)")
NO_NAME = Error("_RESOLVE", "Failed to resolve 'kafka:9092': Name or service not known")


@pytest.mark.parametrize(
    ("told", "is_unreachable"),
    [
        ([], False),
        ([NOBODY], True),
        ([NOBODY, DOWN], True),
        ([NO_NAME, DOWN], True),
        ([DOWN], False),
        ([BROKEN, DOWN], False),
        ([NOBODY, BROKEN], False),
        ([PASSWORD, DOWN], False),
        ([ALERT, DOWN], False),
        ([UNKNOWN_CA], False),
    ],
    ids=str,
)
def test_only_where_nobody_listens_kafka_may_be_merely_away(
    told: list[Error], is_unreachable: bool
) -> None:
    """A receiver is ready then (issue 13, item 0); with a setting that is wrong it must not be."""
    errors = ConnectionErrors()
    for error in told:
        errors.record(error)
        errors.forget()
    assert errors.is_unreachable == is_unreachable
