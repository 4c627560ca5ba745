"""Dead letters: builds the condition that reports a Trigger's waiting dead letters. Pure.

    DeadLetters: True     no dead letter waits
                 False    some wait: a warning that doesn't affect Ready

The message has the time of the oldest one and not its age, as an age would change every status.
Dead letters that were sent to a sink aren't counted. Not here: reading the topics
(`dead_letter_monitor`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from knafka.core.times import kubernetes_timestamp
from knafka_operator.model.conditions import Condition, Severity, Status

DEAD_LETTERS_TYPE: Final = "DeadLetters"
"""Type of the condition."""
WAIT: Final = "DeadLettersWait"
EXPIRE: Final = "DeadLettersExpire"
NOT_APPLIED: Final = "RetentionNotApplied"
"""Reasons of the condition: dead letters wait; Kafka may soon delete them; the topic doesn't have
the declared retention, as Kafka would delete them at once."""

EXPIRY_SHARE: Final = 0.5
"""Share of the retention after which the oldest dead letter is reported as expiring: 15 of 30 days.
The alert `KnafkaDeadLettersExpire` uses the same share."""


@dataclass(frozen=True, slots=True)
class WaitingDeadLetters:
    """The records of a Trigger's dead-letter topic at the last count."""

    topic: str
    records: int
    """The number of dead letters that wait."""
    oldest: float | None = None
    """When the oldest was stored, in seconds since 1970; None: not known, or there is none."""
    retention: float | None = None
    """Seconds for which the topic keeps a record; None: for ever, or unknown."""
    would_expire: bool = False
    """Whether the topic keeps its records for ever, as the declared retention would delete the
    oldest at once."""

    def oldest_age(self, now: float) -> float:
        """Return the age of the oldest dead letter at `now` (seconds since 1970), in seconds; 0 if
        there is none, or its age isn't known."""
        return max(0.0, now - self.oldest) if self.records and self.oldest is not None else 0.0


def dead_letters_condition(waiting: WaitingDeadLetters, now: float) -> Condition:
    """Return the condition `DeadLetters` at `now` (seconds since 1970): True if no dead letter
    waits, else False, as a warning."""
    if not waiting.records:
        return Condition(DEAD_LETTERS_TYPE, Status.TRUE, severity=Severity.WARNING)
    retention = waiting.retention
    reason, message = WAIT, waiting_sentence(waiting)
    if waiting.would_expire:
        reason = NOT_APPLIED
        message += (
            "; the topic keeps them for ever, as the oldest is older than the retention and would "
            "be deleted at once: replay or purge them, or set the topic's retention.ms"
        )
    elif retention is not None and waiting.oldest_age(now) >= EXPIRY_SHARE * retention:
        assert waiting.oldest is not None  # else its age would be 0
        reason = EXPIRE
        message += (
            f"; Kafka may delete it from {kubernetes_timestamp(waiting.oldest + retention)} on"
        )
    return Condition(DEAD_LETTERS_TYPE, Status.FALSE, reason, message, Severity.WARNING)


def waiting_sentence(waiting: WaitingDeadLetters) -> str:
    """Return a sentence with the number of waiting dead letters and the time of the oldest. It
    changes only when a dead letter is added or removed."""
    is_single = waiting.records == 1
    count_text = "1 dead letter waits" if is_single else f"{waiting.records} dead letters wait"
    oldest_text = ""
    if waiting.oldest is not None:
        oldest_text = (
            f", {'stored' if is_single else 'the oldest'} at {kubernetes_timestamp(waiting.oldest)}"
        )
    return f"{count_text} in the topic {waiting.topic}{oldest_text}"


def stored_condition(document: Mapping[str, Any]) -> Condition | None:
    """Return the condition `DeadLetters` from a stored object's status; None: the status has no
    valid one."""
    conditions = (document.get("status") or {}).get("conditions") or ()
    for condition in conditions:
        if isinstance(condition, Mapping) and condition.get("type") == DEAD_LETTERS_TYPE:
            reason, message = condition.get("reason", ""), condition.get("message", "")
            with suppress(ValueError):  # anyone who may write the status may have written it
                status = Status(condition.get("status", ""))
                return Condition(DEAD_LETTERS_TYPE, status, reason, message, Severity.WARNING)
    return None
