"""Defines which failures a selection includes, and which failures can be replayed.

    FailureSelection --conditions_of--> column, operator, value --> Spark's columns  (replay_plan)
                                                                --> SQL of DataFusion (lookup_plan)

Pure, without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from knafka.core import names
from knafka.core.dead_letter import OMITTED
from knafka.core.delivery import Reason
from knafka_jobs.command_options import FailureSelection
from knafka_jobs.schema import TRIGGER


class FailureCondition(NamedTuple):
    """A comparison that a column of `failures` has to pass; null never passes."""

    column: str
    operator: Literal["=", ">=", "<", "in"]
    value: str | int | datetime | tuple[str, ...]


def conditions_of(selection: FailureSelection) -> list[FailureCondition]:
    """Return the comparisons that a selection stands for; a selected failure passes all of them.
    The selection's field `where`, which is SQL for Spark, is left out."""
    # These fields are named as their columns.
    values: dict[str, Any] = {
        name: getattr(selection, name)
        for name in ("trigger", "destination", "code", "summary", "type", "source", "id")
    }
    if selection.broker is not None:
        values |= {"namespace": selection.broker.namespace, "broker": selection.broker.name}
    if selection.reason is not None:
        values["reason"] = selection.reason.value
    conditions = [
        FailureCondition(name, "=", value) for name, value in values.items() if value is not None
    ]
    if selection.ids is not None:
        conditions.append(FailureCondition("id", "in", selection.ids))
    if selection.since is not None:
        conditions.append(FailureCondition("last_failed", ">=", selection.since))
    if selection.until is not None:
        conditions.append(FailureCondition("last_failed", "<", selection.until))
    return conditions


REPLAYABLE: Final = (
    f"reason <> '{Reason.UNDECODABLE.value}' AND resolved IS NULL AND namespace <> ''"
    " AND trigger <> ''"
    f" AND trigger NOT LIKE '{names.SENSORS}%'"
)
"""SQL: the rows of `failures` that can be sent again: unresolved events of a known Trigger, but not
of a Sensor, which reads no replays. A replay also leaves out events without their data
(`STUB_HEADER`) and events that another replay has sent (`PENDING`)."""

LIKELY_STUB: Final = "data_bytes IS NULL"
"""SQL: the rows of `failures` and `records` whose event has no data, perhaps because they were left
out of the dead letter. Only the header `STUB_HEADER` tells whether they were."""

STUB_HEADER: Final = f"ce_{OMITTED}"
"""Header of a dead letter without the event's data, which was too large to be kept."""

PENDING: Final = "outcome IS NULL"
"""SQL: the rows of `sent` whose event is not settled yet."""


SHOWN_EVENTS: Final = 20
"""Largest number of events that a dry run lists: the first ones by `SHOWN_ORDER`."""
SHOWN_ORDER: Final = ("first_failed", "failure_id")
"""Columns by which a dry run's events are ordered."""
SHOWN_COLUMNS: Final = (*TRIGGER, "id", "source", "type", "reason", "code")
"""Columns of the events that a dry run lists."""

TriggerName: TypeAlias = tuple[str, str, str]
"""Namespace, Broker and name of a Trigger."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The events that a replay would send: the answer of a dry run."""

    triggers: dict[TriggerName, int]
    """Number of events by Trigger."""
    left_out: int
    """Number of selected events that can't be sent: those that aren't `REPLAYABLE`, lack their data
    or are `PENDING`."""
    events: list[dict[str, Any]]
    """The first `SHOWN_EVENTS` events: `SHOWN_COLUMNS` of each."""

    @property
    def count(self) -> int:
        """Number of events that a replay would send, over all Triggers."""
        return sum(self.triggers.values())

    def document(self) -> dict[str, Any]:
        """Return the preview as the JSON document that a dry run prints."""
        return {
            "would_send": self.count,
            "left_out": self.left_out,
            "triggers": {"/".join(name): count for name, count in self.triggers.items()},
            "events": self.events,
        }
