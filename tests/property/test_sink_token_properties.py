"""Tokens for destinations, whatever the API server and the destinations do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from knafka.core.tokens.sink_tokens import EXPIRATION, LAST_RETRY_WAIT, IssuedToken, SinkToken

WAITS = st.floats(0.0, 4000.0, allow_nan=False)
STEPS = st.lists(
    st.tuples(WAITS, st.sampled_from(["issued", "failed", "refused", "refused before"])),
    max_size=60,
)
LIVES = st.sampled_from([0.0, 1.0, 60.0, 600.0, float(EXPIRATION), 86_400.0])


@given(STEPS, st.lists(LIVES, min_size=1), st.floats(0.0, 1.0))
def test_no_token_is_sent_after_its_end_and_none_is_missing_for_long(
    steps: list[tuple[float, str]], lives: list[float], jitter: float
) -> None:
    token, now, number = SinkToken(jitter), 1000.0, 0
    ends: dict[bytes, float] = {}
    for wait, step in steps:
        now += wait
        match step:
            case "issued":
                number += 1
                value, life = b"t%d" % number, lives[number % len(lives)]
                ends[value] = now + life
                assert token.store_issued(IssuedToken(value, life), now) == (life >= 1.0)
            case "failed":
                token.note_failure(now)
            case "refused":
                token.note_refusal(token.current(now) or b"", now)
            case _:
                assert token.note_refusal(b"another", now)
        current = token.current(now)
        assert current is None or now < ends[current]
        assert current is not None or token.is_due(now + LAST_RETRY_WAIT)


@given(st.lists(st.floats(0.0, 30.0), min_size=1, max_size=200))
def test_401s_lead_to_fewer_and_fewer_requests(waits: list[float]) -> None:
    token, now, asked = SinkToken(), 0.0, list[float]()
    token.store_issued(IssuedToken(b"t", 1e9), now)
    for wait in waits:
        now += wait
        if token.note_refusal(token.current(now) or b"", now):
            asked.append(now)
            token.store_issued(IssuedToken(b"t%d" % len(asked), 1e9), now)
    pauses = [after - before for before, after in pairwise(asked)]
    assert all(pause >= min(10.0 * 2**number, 300.0) for number, pause in enumerate(pauses))
