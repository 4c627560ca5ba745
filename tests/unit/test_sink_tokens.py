"""When a token for a destination is asked for, sent and given up (issue 38, decision 0040)."""

from __future__ import annotations

import pytest

from knafka.core.tokens.auth_tokens import MAX_TOKEN_BYTES
from knafka.core.tokens.sink_tokens import (
    FIRST_REFUSAL_PAUSE,
    FIRST_RETRY_WAIT,
    LAST_REFUSAL_PAUSE,
    LAST_RETRY_WAIT,
    MARGIN,
    REFUSAL_RESET_TIME,
    IssuedToken,
    SinkToken,
)

HOUR = 3600.0


def issued(value: bytes = b"one", life: float = HOUR, at: float = 0.0) -> SinkToken:
    token = SinkToken()
    assert token.store_issued(IssuedToken(value, life), at)
    return token


def test_one_is_asked_for_when_there_is_none() -> None:
    token = SinkToken()
    assert token.current(0.0) is None
    assert token.is_due(0.0)


def test_it_is_renewed_when_four_fifths_of_its_life_are_over_and_used_meanwhile() -> None:
    token = issued()
    assert not token.is_due(0.79 * HOUR)
    assert token.is_due(0.8 * HOUR)
    assert token.current(HOUR - MARGIN - 1) == b"one"
    assert token.current(HOUR - MARGIN) is None, "it would end on its way"


def test_those_that_began_together_are_not_renewed_together() -> None:
    early = SinkToken(jitter=1.0)
    early.store_issued(IssuedToken(b"one", HOUR), 0.0)
    assert early.is_due(0.71 * HOUR)
    assert not issued().is_due(0.71 * HOUR)


def test_a_request_that_failed_is_made_again_later_each_time() -> None:
    """The API server is away: what lives is used on."""
    token = issued()
    now, waits = 0.8 * HOUR, []
    for _ in range(6):
        token.note_failure(now)
        wait = next(each for each in range(1, 100) if token.is_due(now + each))
        waits.append(float(wait))
        now += wait
    assert waits == [FIRST_RETRY_WAIT, 2.0, 4.0, 8.0, LAST_RETRY_WAIT, LAST_RETRY_WAIT]
    assert token.current(now) == b"one"
    token.store_issued(IssuedToken(b"two", HOUR), now)
    token.note_failure(now)
    assert token.is_due(now + HOUR)
    assert not token.is_due(now + 1), "it lives, and the failures before are forgotten"


def test_one_that_is_refused_is_renewed_at_once_and_used_until_there_is_another() -> None:
    """A sink answers 401 after a key was rotated."""
    token = issued()
    assert not token.is_due(5.0)
    assert token.note_refusal(b"one", 5.0)
    assert token.is_due(5.0)
    assert token.current(5.0) == b"one"
    assert token.note_refusal(b"one", 6.0), "another is still to come"
    token.store_issued(IssuedToken(b"two", HOUR), 6.0)
    assert token.note_refusal(b"one", 6.0), "there is another one to try"
    assert token.current(6.0) == b"two"


def test_a_sink_that_takes_no_token_costs_few_requests() -> None:
    token, asked = issued(), 0
    now = 0.0
    while now < 10 * LAST_REFUSAL_PAUSE:
        value = token.current(now) or b""
        if token.note_refusal(value, now):
            asked += 1
            token.store_issued(IssuedToken(b"%d" % asked, 10 * HOUR), now)
        now += 1.0
    assert asked <= 15, "one for each 401 would be 3,000"


def test_refusals_long_ago_are_forgotten() -> None:
    token = issued(life=100 * HOUR)
    for at in (0.0, FIRST_REFUSAL_PAUSE):
        assert token.note_refusal(token.current(at) or b"", at)
        token.store_issued(IssuedToken(b"t%d" % at, 100 * HOUR), at)
    later = FIRST_REFUSAL_PAUSE * 4 + REFUSAL_RESET_TIME
    assert token.note_refusal(token.current(later) or b"", later)
    token.store_issued(IssuedToken(b"new", 100 * HOUR), later)
    assert not token.note_refusal(b"new", later + FIRST_REFUSAL_PAUSE - 1)
    assert token.note_refusal(b"new", later + FIRST_REFUSAL_PAUSE)


@pytest.mark.parametrize(
    "given",
    [
        IssuedToken(b"", HOUR),
        IssuedToken(b"a b", HOUR),
        IssuedToken(b"a\r\nce-id: forged", HOUR),
        IssuedToken("é".encode(), HOUR),
        IssuedToken(b"x" * (MAX_TOKEN_BYTES + 1), HOUR),
        IssuedToken(b"x", 0.5),
        IssuedToken(b"x", -HOUR),
        IssuedToken(b"x", float("nan")),
    ],
    ids=str,
)
def test_what_can_not_be_sent_counts_as_none(given: IssuedToken) -> None:
    token = issued()
    assert not token.store_issued(given, 5.0)
    assert token.current(5.0) == b"one"
    fresh = SinkToken()
    assert not fresh.store_issued(given, 5.0)
    assert fresh.current(5.0) is None
    assert not fresh.is_due(5.0), "nor is it asked for at once again"


def test_no_token_is_shown() -> None:
    assert "secret" not in f"{IssuedToken(b'secret', 1.0)} {IssuedToken(b'secret', 1.0)!r}"
    assert "secret" not in repr(issued(b"secret"))
