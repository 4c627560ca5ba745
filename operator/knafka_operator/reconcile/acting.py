"""Acting: the effects that were decided, one after another, until one fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, Self, TypeVar

from knafka.core.errors import KnafkaError
from knafka_operator.decide.effects import Effect
from knafka_operator.decide.status import EXPECTED


class Observed(Protocol):
    """What was observed of an object, and what became of effects since."""

    def with_failure(self, effect: Effect, error: KnafkaError) -> Self:
        """The same, with an effect that failed."""
        ...


S = TypeVar("S", bound=Observed)


async def act(effects: Iterable[Effect], seen: S, run: Callable[[Effect, S], Awaitable[S]]) -> S:
    """Run these until one fails; what there is then is observed again."""
    for effect in effects:
        try:
            seen = await run(effect, seen)
        except EXPECTED as error:
            return seen.with_failure(effect, error)
    return seen
