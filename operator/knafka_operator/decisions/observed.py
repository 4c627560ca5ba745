"""Observed: base class of what a reconciliation reads for an object, with the results of its
effects.

    decide(observed) -> effects --run--> observed.after(effect, result) -> decide(observed) ...

Not here: what a kind reads besides (the `decide` of each).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NoReturn, Self

from knafka.core.errors import KnafkaError
from knafka_operator.decisions.effects import (
    Annotate,
    ApplyReceiver,
    ApplyService,
    CreateTopic,
    Delete,
    Effect,
)
from knafka_operator.decisions.status import NotReady
from knafka_operator.decisions.steps import Step
from knafka_operator.model.cluster import status_annotations


@dataclass(frozen=True)
class ObservedObject:
    """A stored object, and the results of effects that have run since it was read."""

    document: Mapping[str, Any]
    _: KW_ONLY
    written: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the status that effects have written."""
    revision: str | None = None
    """The Ready Revision of the object's function; None: its Service wasn't applied yet, or isn't
    Ready."""
    failed: Mapping[Step, KnafkaError] = field(default_factory=dict)
    """The error of each step that failed."""

    @property
    def annotations(self) -> dict[str, str]:
        """Return the annotations of the object's status, including those that effects have
        written."""
        return {**status_annotations(self.document), **self.written}

    def after(self, effect: Effect, result: Any) -> Self:
        """Return a copy that includes the result of an effect; for an effect whose result isn't
        kept, the object itself. Kinds extend it by their own effects."""
        match effect:
            case Annotate(annotations=written) | Delete(annotations=written):
                return self.with_annotations(written)
            case CreateTopic(topic, name_key, id_key):
                return self.with_annotations({name_key: topic.name, id_key: result.id})
            case ApplyService() | ApplyReceiver():
                return replace(self, revision=result)
        return self

    def with_annotations(self, written: Mapping[str, str]) -> Self:
        """Return a copy in which these annotations of the status are written."""
        return replace(self, written={**self.written, **written})

    def with_failure(self, effect: Effect, error: KnafkaError) -> Self:
        """Return a copy that records the error of a failed effect."""
        return replace(self, failed={**self.failed, effect.step: error})


class Needed:
    """Collects the effects that a decision needs before it can continue."""

    def __init__(self, failed: Mapping[Step, KnafkaError]) -> None:
        """`failed` has the error of each step that failed since the object was read."""
        self._failed = failed
        self.effects: list[Effect] = []
        """The effects requested so far."""

    def run_first(self, *effects: Effect) -> NoReturn:
        """Request these effects, and end the part of the decision that needs them by an error: a
        transient `NotReady`. If an effect's step has failed before, nothing is requested, and the
        error of that step is raised instead."""
        for effect in effects:
            if (error := self._failed.get(effect.step)) is not None:
                raise error
        self.effects.extend(effects)
        raise NotReady("Waiting", "what it needs is being created", transient=True)
