"""Observed: what an object of any kind was found to be, and what effects have brought about since.

    decide(observed) -> effects --run--> observed.after(effect, result) -> decide(observed) ...

Not here: what a kind reads besides (`broker`, `channel`, `trigger`, `sensor`, `archive`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NoReturn, Self

from knafka.core.errors import KnafkaError
from knafka_operator.decide.effects import (
    Annotate,
    ApplyReceiver,
    ApplyService,
    CreateTopic,
    Delete,
    Effect,
)
from knafka_operator.decide.status import NotReady
from knafka_operator.decide.steps import Step


@dataclass(frozen=True)
class Observed:
    """An object as it is stored, and what became of effects since."""

    document: Mapping[str, Any]
    _: KW_ONLY
    written: Mapping[str, str] = field(default_factory=dict)
    """What effects have added to the annotations of its status."""
    revision: str | None = None
    """Its function's that is Ready, once its Service was applied."""
    failed: Mapping[Step, KnafkaError] = field(default_factory=dict)
    """Steps that failed, and why."""

    @property
    def annotations(self) -> dict[str, str]:
        """Those of its status, as they stand by now."""
        return {**((self.document.get("status") or {}).get("annotations") or {}), **self.written}

    def after(self, effect: Effect, result: Any) -> Self:
        """The same once an effect has run and come to that result."""
        match effect:
            case Annotate(annotations=written) | Delete(annotations=written):
                return self.with_annotations(written)
            case CreateTopic(topic, name_key, id_key):
                return self.with_annotations({name_key: topic.name, id_key: result.id})
            case ApplyService() | ApplyReceiver():
                return replace(self, revision=result)
        return self

    def with_annotations(self, written: Mapping[str, str]) -> Self:
        return replace(self, written={**self.written, **written})

    def with_failure(self, effect: Effect, error: KnafkaError) -> Self:
        """The same once an effect has failed."""
        return replace(self, failed={**self.failed, effect.step: error})


class Needed:
    """The effects that a decision asks for, each before what needs it."""

    def __init__(self, failed: Mapping[Step, KnafkaError]) -> None:
        """`failed` are the steps that failed last time, and why."""
        self._failed = failed
        self.effects: list[Effect] = []

    def first(self, *effects: Effect) -> NoReturn:
        """Have these run first; raises what one of them failed with, else `NotReady`."""
        for each in effects:
            if (error := self._failed.get(each.step)) is not None:
                raise error
        self.effects.extend(effects)
        raise NotReady("Waiting", "what it needs is being created", transient=True)
