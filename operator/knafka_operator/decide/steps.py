"""Steps: the effects that a decision asks for, each before what needs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from knafka.core.errors import KnafkaError
from knafka_operator.decide.effects import Effect
from knafka_operator.decide.status import NotReady


class Steps:
    """`failed` has the effects that failed last time, and why."""

    def __init__(self, failed: Mapping[type[Any], KnafkaError]) -> None:
        self._failed = failed
        self.effects: list[Effect] = []

    def first(self, *needed: Effect) -> NoReturn:
        """Have these run first; raises what they failed with, else `NotReady`."""
        for each in needed:
            if (error := self._failed.get(type(each))) is not None:
                raise error
        self.effects.extend(needed)
        raise NotReady("Waiting", "what it needs is being created", transient=True)
