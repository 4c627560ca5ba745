"""Acting: what was observed is decided on, and the effects run, until there are none.

    observed --decide--> effects --run, one after another, until one fails--> observed anew

Not here: what is decided (`decide`), and what each effect does (`brokers`, `channels`, `sensors`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, Self, TypeVar

from knafka.core.errors import KnafkaError
from knafka_operator.decide.effects import Effect
from knafka_operator.decide.status import EXPECTED


class Observed(Protocol):
    """What was observed of an object, and what became of effects since."""

    def with_failure(self, effect: Effect, error: KnafkaError) -> Self:
        """The same, with an effect that failed."""
        ...


class Decision(Protocol):
    """What is to be done next; it counts once that is nothing."""

    @property
    def effects(self) -> Sequence[Effect]: ...


S = TypeVar("S", bound=Observed)
D = TypeVar("D", bound=Decision)


async def act_as_decided(
    seen: S, decide: Callable[[S], D], run: Callable[[Effect, S], Awaitable[S]]
) -> tuple[S, D]:
    """Decide, and act, until there is nothing to do; gives what there is then, and the decision."""
    decision = decide(seen)
    while decision.effects:
        seen = await _act(decision.effects, seen, run)
        decision = decide(seen)
    return seen, decision


async def _act(effects: Iterable[Effect], seen: S, run: Callable[[Effect, S], Awaitable[S]]) -> S:
    """Run these until one fails; what there is then is observed again."""
    for effect in effects:
        try:
            seen = await run(effect, seen)
        except EXPECTED as error:
            return seen.with_failure(effect, error)
    return seen
