"""A roll-out of tracing: whatever changes meanwhile, nobody is left behind or rolled in vain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from knafka_operator.installation.tracing import FunctionTracing, Owner

OWNERS: list[Owner] = [("Trigger", "shop", f"t{number}") for number in range(5)]
STEPS = st.lists(st.one_of(st.sampled_from("abc"), st.just(None)), max_size=30)
"""A change to this rate, or the next owner's turn."""


@given(STEPS)
def test_each_turn_is_one_new_revision_and_the_last_change_reaches_all(
    steps: list[str | None],
) -> None:
    tracing = FunctionTracing({"rate": "a"})
    for step in (*steps, *[None] * len(OWNERS)):
        before = {owner: tracing.variables_of(owner) for owner in OWNERS}
        if step is not None:
            tracing.begin_rollout({"rate": step}, OWNERS)
            assert {owner: tracing.variables_of(owner) for owner in OWNERS} == before
        elif waiting := tracing.pending_owners:
            tracing.admit(waiting[0])
            changed = [owner for owner in OWNERS if tracing.variables_of(owner) != before[owner]]
            assert changed == waiting[:1]
    assert tracing.pending_owners == []
    assert all(tracing.variables_of(owner) == tracing.desired for owner in OWNERS)
