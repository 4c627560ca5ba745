"""The delivery decision: the data-plane table, retries, backoff and Retry-After."""

import pytest

from knafka.core.contract import BackoffPolicy, Delivery
from knafka.core.delivery import (
    MAX_BACKOFF,
    DeadLetter,
    Done,
    Outcome,
    Reason,
    Retry,
    backoff,
    decide,
    retry_after_seconds,
)

ONCE_MORE = Delivery(retry=1, backoff_delay=0.5)

RETRIED = [404, 408, 409, 429, 500, 502, 503, 504, 599, 600, 999]
NOT_RETRIED = [100, 101, 300, 301, 304, 307, 400, 401, 402, 403, 405, 406, 410, 413, 422, 451, 499]


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_every_2xx_is_delivered(status: int) -> None:
    assert decide(Outcome(status), 0, ONCE_MORE) == Done()


@pytest.mark.conformance("KN-DP-03")
@pytest.mark.parametrize("status", RETRIED)
def test_a_retriable_status_is_retried_and_then_a_dead_letter(status: int) -> None:
    assert decide(Outcome(status), 0, ONCE_MORE) == Retry(0.5)
    assert decide(Outcome(status), 1, ONCE_MORE) == DeadLetter(Reason.STATUS)


@pytest.mark.parametrize("status", NOT_RETRIED)
def test_any_other_status_is_a_dead_letter_at_once(status: int) -> None:
    assert decide(Outcome(status), 0, ONCE_MORE) == DeadLetter(Reason.STATUS)


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.REFUSED, Reason.BROKEN])
def test_no_response_is_retried(reason: Reason) -> None:
    assert decide(Outcome(failure=reason), 0, ONCE_MORE) == Retry(0.5)
    assert decide(Outcome(failure=reason), 1, ONCE_MORE) == DeadLetter(reason)


@pytest.mark.conformance("KN-DP-08")
def test_a_malformed_reply_is_a_failure_that_another_attempt_would_not_mend() -> None:
    """KN-DP-08."""
    outcome = Outcome(200, failure=Reason.MALFORMED_REPLY)
    assert decide(outcome, 0, ONCE_MORE) == DeadLetter(Reason.MALFORMED_REPLY)


@pytest.mark.conformance("KN-BRK-12")
def test_a_reply_that_could_not_be_stored_fails_the_whole_delivery_and_is_retried() -> None:
    """KN-BRK-12."""
    outcome = Outcome(200, failure=Reason.REPLY_NOT_STORED)
    assert decide(outcome, 0, ONCE_MORE) == Retry(0.5)


@pytest.mark.conformance("KN-DLV-01")
def test_without_retries_the_first_failure_is_final() -> None:
    """KN-DLV-01: retry counts the attempts after the first."""
    assert decide(Outcome(503), 0, Delivery(retry=0)) == DeadLetter(Reason.STATUS)


@pytest.mark.conformance("KN-DLV-02")
@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (BackoffPolicy.LINEAR, [0.2, 0.4, 0.6, 0.8]),
        (BackoffPolicy.EXPONENTIAL, [0.2, 0.4, 0.8, 1.6]),
    ],
)
def test_backoff_begins_with_the_declared_delay(policy: BackoffPolicy, waits: list[float]) -> None:
    """KN-DLV-02."""
    delivery = Delivery(retry=9, backoff_policy=policy, backoff_delay=0.2)
    assert [backoff(n, delivery) for n in (1, 2, 3, 4)] == pytest.approx(waits)


@pytest.mark.parametrize("policy", list(BackoffPolicy))
def test_backoff_is_bounded_however_many_retries(policy: BackoffPolicy) -> None:
    delivery = Delivery(retry=10**9, backoff_policy=policy, backoff_delay=1.0)
    assert backoff(10**9, delivery) == MAX_BACKOFF


def test_a_policy_without_a_formula_is_an_error() -> None:
    """A third one would else wait as an exponential one does, without a word."""
    delivery = Delivery.model_construct(backoff_policy="constant", backoff_delay=1.0)
    with pytest.raises(AssertionError, match="constant"):
        backoff(1, delivery)


def test_a_declared_delay_above_the_bound_is_kept() -> None:
    assert backoff(3, Delivery(backoff_delay=2 * MAX_BACKOFF)) == 2 * MAX_BACKOFF


def test_a_delay_of_zero_retries_at_once() -> None:
    """The peer's retries are disabled by it (peer.md, pain point 3)."""
    delivery = Delivery(retry=2, backoff_delay=0)
    assert decide(Outcome(503), 1, delivery) == Retry(0)


@pytest.mark.conformance("KN-DLV-04")
@pytest.mark.parametrize(
    ("retry_after_max", "asked", "wait"),
    [
        (None, 7.0, 0.5),
        (0.0, 7.0, 0.5),
        (30.0, 7.0, 7.0),
        (3.0, 7.0, 3.0),
        (30.0, 0.1, 0.5),
    ],
    ids=["no maximum: ignored", "zero: ignored", "honoured", "capped", "backoff is longer"],
)
def test_retry_after_waits_as_long_as_the_spec_says(
    retry_after_max: float | None, asked: float, wait: float
) -> None:
    """KN-DLV-04: max(backoff, min(Retry-After, max))."""
    delivery = Delivery(retry=3, backoff_delay=0.5, retry_after_max=retry_after_max)
    assert decide(Outcome(429, retry_after=asked), 0, delivery) == Retry(wait)
    assert decide(Outcome(503, retry_after=asked), 0, delivery) == Retry(wait)
    assert decide(Outcome(500, retry_after=asked), 0, delivery) == Retry(0.5)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"120", 120.0),
        (b" 0 ", 0.0),
        (b"Fri, 31 Dec 1999 23:59:59 GMT", 59.0),
        (b"Fri, 31 Dec 1999 23:00:00 GMT", 0.0),
        (b"-5", None),
        (b"soon", None),
        (b"", None),
        (b"1.5", None),
        (b"\xff\xfe", None),
        (b"9" * 400, 999_999_999_999.0),
        (b"Fri, 99 Dec 1999 23:59:59 GMT", None),
        (b"Friday, 31-Dec-99 23:59:59 GMT", 59.0),
        (b"Fri Dec 31 23:59:59 1999", 59.0),
        (b"Sat Jan  1 00:01:00 2000", 120.0),
        *(
            pytest.param(value.encode("latin-1"), None, id=what)
            for what, value in {
                "a year of eleven digits": "Fri, 31 Dec 99999999999 23:59:59 GMT",
                "a year of five digits": "Fri, 31 Dec 10000 23:59:59 GMT",
                "an hour beyond C's long": f"Fri, 31 Dec 1999 {'9' * 20}:59:59 GMT",
                "a zone beyond C's int": f"Fri, 31 Dec 1999 23:59:59 +{'9' * 23}",
                "a zone of more than a day": "Fri, 31 Dec 1999 23:59:59 +9999",
                "a day that is none": "Fri, 31 Feb 1999 23:59:59 GMT",
                "half a date": "Fri, 31 Dec",
                "commas only": ",,,",
                "a superscript digit": "\xb2",
                "digits with a sign": "+5",
                "a duration": "PT5S",
                "10,000 characters": "Fri, " * 2_000,
            }.items()
        ),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: bytes, seconds: float | None) -> None:
    """KN-DLV-04: one that can't be used is as none."""
    assert retry_after_seconds(value, now=946_684_740.0) == seconds
