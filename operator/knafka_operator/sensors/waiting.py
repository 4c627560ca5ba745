"""Sensor waiting: builds the part of a Sensor's status about held events, and what their triggers
wait for. Pure.

    drains' reports, by partition -> status.waiting: an entry for each trigger, with its oldest keys

It is bounded: a Sensor may hold a million keys, and its status goes to every watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from knafka.core.drain import Waiting
from knafka.core.sensor.contract import SensorContract
from knafka.core.sensor.rules import Rule
from knafka.core.times import to_the_second

MAX_TRIGGERS: Final = 20
"""Most triggers shown, the oldest first."""
MAX_OLDEST_KEYS: Final = 3
"""Most keys shown of each trigger."""

Shown = list[dict[str, Any]]


def waiting_status(sensor: SensorContract, held: Iterable[Waiting]) -> Shown:
    """Return `status.waiting`: which events each trigger holds and waits for, and since when;
    triggers without held events are left out."""
    rules = {each.name: each for each in sensor.rules()}
    found: dict[str, list[Waiting]] = {}
    for each in held:
        if each.trigger in rules:
            found.setdefault(each.trigger, []).append(each)
    shown = [_trigger_status(rules[name], of) for name, of in found.items()]
    return sorted(shown, key=lambda each: (each["since"], each["trigger"]))[:MAX_TRIGGERS]


def waiting_lines(shown: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """Return `status.waiting` as text for users, a line for each trigger and key."""
    found = []
    for each in shown:
        for oldest in each["oldest"]:
            name = "/".join(filter(None, (each["trigger"], oldest.get("key"))))
            wanted = f", waits for {', '.join(oldest['waitsFor'])}" if oldest["waitsFor"] else ""
            found.append(f"{name} has {', '.join(oldest['has'])}{wanted} since {oldest['since']}")
        if (more := each["keys"] - len(each["oldest"])) > 0:
            found.append(f"{each['trigger']} holds {more} more keys")
    return found


def _trigger_status(rule: Rule, held: Sequence[Waiting]) -> dict[str, Any]:
    oldest = sorted(held, key=lambda each: each.since)[:MAX_OLDEST_KEYS]
    return {
        "trigger": rule.name,
        "keys": sum(each.keys for each in held),
        "since": _since(oldest[0]),
        "oldest": [_key_status(rule, each) for each in oldest],
    }


def _key_status(rule: Rule, waiting: Waiting) -> dict[str, Any]:
    condition = rule.condition
    missing = sorted(condition.wanted.keys() - set(waiting.has))
    # A complete condition waits for the end of the time in which the unwanted events may arrive.
    wanted = missing or [f"!{each}" for each in sorted(condition.unwanted)]
    shown = {"has": list(waiting.has), "waitsFor": wanted, "since": _since(waiting)}
    return shown if waiting.key is None else {"key": waiting.key, **shown}


def _since(waiting: Waiting) -> str:
    return to_the_second(waiting.since // 1000)
