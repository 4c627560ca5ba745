"""Which failures are meant, and which of them can be sent again: said once.

    Selection --conditions--> column, operator, value --> Spark's columns   (replay.plan)
                                                      --> SQL of DataFusion (lookup.plan)

Pure, without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from knafka.core import names
from knafka.core.dead_letter import OMITTED
from knafka.core.delivery import Reason
from knafka_jobs.options import Selection
from knafka_jobs.schema import TRIGGER


class Condition(NamedTuple):
    """What a column of `failures` has to be; null never is."""

    column: str
    operator: Literal["=", ">=", "<", "in"]
    value: str | int | datetime | tuple[str, ...]


def conditions(selection: Selection) -> list[Condition]:
    """All that a selection says, but for its `where`, which is SQL of Spark's."""
    wanted: dict[str, Any] = {
        name: getattr(selection, name)
        for name in ("trigger", "destination", "code", "summary", "type", "source", "id")
    }
    if selection.broker is not None:
        wanted |= {"namespace": selection.broker.namespace, "broker": selection.broker.name}
    if selection.reason is not None:
        wanted["reason"] = selection.reason.value
    found = [Condition(name, "=", value) for name, value in wanted.items() if value is not None]
    if selection.ids is not None:
        found.append(Condition("id", "in", selection.ids))
    if selection.since is not None:
        found.append(Condition("last_failed", ">=", selection.since))
    if selection.until is not None:
        found.append(Condition("last_failed", "<", selection.until))
    return found


REPLAYABLE: Final = (
    f"reason <> '{Reason.UNDECODABLE.value}' AND resolved IS NULL AND namespace <> ''"
    " AND trigger <> ''"
    f" AND trigger NOT LIKE '{names.SENSORS}%'"
)
"""Which of `failures` can be sent again: unresolved events of a known Trigger, and of no Sensor,
which reads no replays. Besides, they must
have their data (`STUB_HEADER`) and not be on their way (`PENDING`)."""

LIKELY_STUB: Final = "data_bytes IS NULL"
"""Of `failures` and `records`: those that may lack their data; only their headers say it."""

STUB_HEADER: Final = f"ce_{OMITTED}"
"""Header of a dead letter whose event was too large to be kept."""

PENDING: Final = "outcome IS NULL"
"""Which of `sent` aren't settled yet."""


SHOWN: Final = 20
"""Events that a dry run names: the first ones by `SHOWN_ORDER`."""
SHOWN_ORDER: Final = ("first_failed", "failure_id")
SHOWN_COLUMNS: Final = (*TRIGGER, "id", "source", "type", "reason", "code")

TriggerName: TypeAlias = tuple[str, str, str]
"""Namespace, Broker, name."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a replay would send."""

    triggers: dict[TriggerName, int]
    """Events by Trigger."""
    left_out: int
    """Events that were selected, but are undecodable, without data, resolved or pending."""
    events: list[dict[str, Any]]
    """The first of them: `SHOWN_COLUMNS`."""

    @property
    def count(self) -> int:
        return sum(self.triggers.values())

    def document(self) -> dict[str, Any]:
        """What a dry run says."""
        return {
            "would_send": self.count,
            "left_out": self.left_out,
            "triggers": {"/".join(name): count for name, count in self.triggers.items()},
            "events": self.events,
        }
