"""What a Sensor's triggers hold and wait for, as its status says it. Pure.

    what drains report, by partition -> status.waiting: a line for each trigger, the oldest keys

It is bounded: a Sensor may hold a million keys, and its status goes to every watch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from knafka.core.drain import Waiting
from knafka.core.sensor.contract import Sensor
from knafka.core.sensor.rules import Rule
from knafka.core.times import to_the_second

TRIGGERS: Final = 20
"""Those that are shown, the oldest first."""
OLDEST: Final = 3
"""Keys of each that are shown: of each partition the oldest one is known."""

Shown = list[dict[str, Any]]


def waiting(sensor: Sensor, held: Iterable[Waiting]) -> Shown:
    """What each trigger has and waits for, since when; one that holds nothing is left out."""
    rules = {each.name: each for each in sensor.rules()}
    found: dict[str, list[Waiting]] = {}
    for each in held:
        if each.trigger in rules:
            found.setdefault(each.trigger, []).append(each)
    shown = [_trigger(rules[name], of) for name, of in found.items()]
    return sorted(shown, key=lambda each: (each["since"], each["trigger"]))[:TRIGGERS]


def lines(shown: Iterable[Mapping[str, Any]]) -> Sequence[str]:
    """The same for people, a line for each trigger and key."""
    found = []
    for each in shown:
        for oldest in each["oldest"]:
            name = "/".join(filter(None, (each["trigger"], oldest.get("key"))))
            wanted = f", waits for {', '.join(oldest['waitsFor'])}" if oldest["waitsFor"] else ""
            found.append(f"{name} has {', '.join(oldest['has'])}{wanted} since {oldest['since']}")
        if (more := each["keys"] - len(each["oldest"])) > 0:
            found.append(f"{each['trigger']} holds {more} more keys")
    return found


def _trigger(rule: Rule, held: Sequence[Waiting]) -> dict[str, Any]:
    oldest = sorted(held, key=lambda each: each.since)[:OLDEST]
    return {
        "trigger": rule.name,
        "keys": sum(each.keys for each in held),
        "since": _since(oldest[0]),
        "oldest": [_key(rule, each) for each in oldest],
    }


def _key(rule: Rule, waiting: Waiting) -> dict[str, Any]:
    condition = rule.condition
    missing = sorted(condition.wanted.keys() - set(waiting.has))
    # What is complete waits for what is not to come.
    wanted = missing or [f"!{each}" for each in sorted(condition.unwanted)]
    shown = {"has": list(waiting.has), "waitsFor": wanted, "since": _since(waiting)}
    return shown if waiting.key is None else {"key": waiting.key, **shown}


def _since(waiting: Waiting) -> str:
    return to_the_second(waiting.since // 1000)
