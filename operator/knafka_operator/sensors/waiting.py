"""Sensor waiting: builds the part of a Sensor's status about held events, and what their triggers
wait for. Pure.

A Sensor's trigger holds events, by correlation key, until they make its condition true.

    drains' reports, by partition -> status.waiting: an entry for each trigger, with its oldest keys

It is bounded: a Sensor may hold a million keys, and its status goes to every watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from knafka.core.drain import Waiting
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.rules import Rule
from knafka.core.times import kubernetes_timestamp

MAX_SHOWN_TRIGGERS: Final = 20
"""Most triggers shown, the oldest first."""
MAX_OLDEST_KEYS: Final = 3
"""Most keys shown of each trigger."""

WaitingStatus = list[dict[str, Any]]
"""The value of `status.waiting`: an entry for each shown trigger."""


def waiting_status(sensor: SensorContract, held: Iterable[Waiting]) -> WaitingStatus:
    """Return `status.waiting`: which events each of a Sensor's triggers holds and waits for, and
    since when. `held` are the held events, as drains report them. Only triggers with held events
    are shown, at most `MAX_SHOWN_TRIGGERS`: those that have waited longest, the longest first."""
    rules = {rule.name: rule for rule in sensor.rules()}
    held_by_trigger: dict[str, list[Waiting]] = {}
    for waiting in held:
        if waiting.trigger in rules:
            held_by_trigger.setdefault(waiting.trigger, []).append(waiting)
    statuses = [
        _trigger_status(rules[name], held_events) for name, held_events in held_by_trigger.items()
    ]
    return sorted(statuses, key=lambda status: (status["since"], status["trigger"]))[
        :MAX_SHOWN_TRIGGERS
    ]


def waiting_lines(trigger_statuses: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Return `trigger_statuses`, the value of a Sensor's `status.waiting`, as text for users: a
    line for each shown key of a trigger, and one with the number of the trigger's other keys."""
    lines = []
    for trigger_status in trigger_statuses:
        for key_status in trigger_status["oldest"]:
            name = "/".join(filter(None, (trigger_status["trigger"], key_status.get("key"))))
            held, awaited = ", ".join(key_status["has"]), ", ".join(key_status["waitsFor"])
            waiting_text = f", waits for {awaited}" if awaited else ""
            lines.append(f"{name} has {held}{waiting_text} since {key_status['since']}")
        if (hidden_keys := trigger_status["keys"] - len(trigger_status["oldest"])) > 0:
            lines.append(f"{trigger_status['trigger']} holds {hidden_keys} more keys")
    return lines


def _trigger_status(rule: Rule, held: Sequence[Waiting]) -> dict[str, Any]:
    """Return the status entry of a trigger that holds events: the number of keys with held events,
    the oldest keys (at most `MAX_OLDEST_KEYS`), and since when the oldest waits. `held` has one
    report of each partition (at least one), which counts its keys and names only the oldest."""
    oldest = sorted(held, key=lambda waiting: waiting.since)[:MAX_OLDEST_KEYS]
    return {
        "trigger": rule.name,
        "keys": sum(waiting.keys for waiting in held),
        "since": _since(oldest[0]),
        "oldest": [_key_status(rule, waiting) for waiting in oldest],
    }


def _key_status(rule: Rule, waiting: Waiting) -> dict[str, Any]:
    """Return the status entry of one key: which dependencies have events, and for which the trigger
    waits. `!NAME` in `waitsFor`: the trigger waits until events of NAME can no longer cancel it."""
    condition = rule.condition
    missing = sorted(condition.wanted.keys() - set(waiting.has))
    # If nothing is missing, it waits for the end of the time in which unwanted events may arrive.
    awaited = missing or [f"!{name}" for name in sorted(condition.unwanted)]
    status = {"has": list(waiting.has), "waitsFor": awaited, "since": _since(waiting)}
    return status if waiting.key is None else {"key": waiting.key, **status}


def _since(waiting: Waiting) -> str:
    """Return since when a key's events wait, as text (RFC 3339)."""
    return kubernetes_timestamp(waiting.since // 1000)  # `since` is in ms
