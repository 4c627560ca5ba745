"""Argo Events' Sensors as ours: what can be carried over of one, and what can't.

An event of Argo's has the name of its EventSource as `source`, and its event's as `subject`, so a
dependency filters by these here. Pure: a document in, a document and notes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from knafka.core.errors import InvalidDocument
from knafka_operator.model.sensors import go_seconds

ARGO: Final = "argoproj.io/v1alpha1"
SENSOR: Final = "Sensor"

Document = Mapping[str, Any]

_CONTEXT: Final = frozenset({"id", "source", "specversion", "type", "datacontenttype", "subject"})
"""Attributes that a context filter of Argo's compares, its fields in lower case; `time` isn't."""


@dataclass(slots=True)
class Converted:
    """A Sensor of ours, and what it lacks of Argo's."""

    document: dict[str, Any]
    lost: list[str] = field(default_factory=list)
    """One sentence for each part that isn't carried over."""


def convert(argo: Document, broker: str = "default", channel: str | None = None) -> Converted:
    """Argo's Sensor on this bus, a KafkaChannel if one is named. Raises `InvalidDocument` for what
    is none."""
    if (argo.get("apiVersion"), argo.get("kind")) != (ARGO, SENSOR):
        raise InvalidDocument("", f"want a Sensor of {ARGO}")
    name = (argo.get("metadata") or {}).get("name")
    if not isinstance(name, str):
        raise InvalidDocument("metadata.name", "is not set")
    spec = argo.get("spec") or {}
    found = Converted({})
    metadata = {"name": name}
    if namespace := argo["metadata"].get("namespace"):
        metadata["namespace"] = namespace
    found.document = {
        "apiVersion": "knafka.dev/v1alpha1",
        "kind": SENSOR,
        "metadata": metadata,
        "spec": {
            **({"broker": broker} if channel is None else {"channel": channel}),
            "dependencies": [_dependency(each, found) for each in _list(spec, "dependencies")],
            "triggers": [
                trigger
                for each in _list(spec, "triggers")
                if (trigger := _trigger(each, found)) is not None
            ],
        },
    }
    _leave_out(spec, {"dependencies", "triggers", "eventBusName"}, "spec", found)
    if not found.document["spec"]["triggers"]:
        found.lost.append("spec.triggers: none is left, so this is no Sensor yet")
    return found


def _list(spec: Document, name: str) -> Sequence[Document]:
    value = spec.get(name)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidDocument(f"spec.{name}", "want a list of objects")
    return value


def _leave_out(document: Document, known: set[str], path: str, found: Converted) -> None:
    found.lost += [f"{path}.{name}: not carried over" for name in document if name not in known]


# Dependencies


def _dependency(argo: Document, found: Converted) -> dict[str, Any]:
    name = str(argo.get("name", ""))
    path = f"dependency {name}"
    wanted = {
        attribute: str(argo[key])
        for key, attribute in (("eventSourceName", "source"), ("eventName", "subject"))
        if argo.get(key)
    }
    filters = argo.get("filters") or {}
    for key, value in (filters.get("context") or {}).items():
        if (attribute := str(key).lower()) not in _CONTEXT:
            found.lost.append(f"{path}.filters.context.{key}: not carried over")
        elif value:
            wanted[attribute] = str(value)
    for key in filters:
        if key in ("data", "exprs", "script"):
            found.lost.append(
                f"{path}.filters.{key}: filters see attributes only, never an event's data"
            )
        elif key == "time":
            found.lost.append(f"{path}.filters.time: not carried over")
        elif key in ("dataLogicalOperator", "exprLogicalOperator"):
            pass  # of what is left out
        elif key != "context":
            found.lost.append(f"{path}.filters.{key}: not carried over")
    # With one kind of filter, `or` and `and` are the same; without one, its default is `and`.
    operator = str(argo.get("filtersLogicalOperator") or "and").lower()
    kinds = [each for each in ("exprs", "data", "context", "time", "script") if filters.get(each)]
    if operator != "and" and kinds != ["context"] and kinds:
        found.lost.append(
            f"{path}.filtersLogicalOperator: {operator:.80} of {', '.join(kinds)}: here all that is"
            " carried over must match"
        )
    _leave_out(
        argo,
        {"name", "eventSourceName", "eventName", "filters", "filtersLogicalOperator"},
        path,
        found,
    )
    return {"name": name, **({"filters": [{"exact": wanted}]} if wanted else {})}


# Triggers


def _trigger(argo: Document, found: Converted) -> dict[str, Any] | None:
    template = argo.get("template") or {}
    name = str(template.get("name", ""))
    path = f"trigger {name}"
    url = _url(template, path, found)
    if url is None:
        return None
    _leave_out(template, {"name", "conditions", "conditionsReset", "http"}, path, found)
    known = {"template", "retryStrategy", "rateLimit", "atLeastOnce", "dlqTrigger"}
    _leave_out(argo, known, path, found)
    trigger: dict[str, Any] = {"name": name}
    if template.get("conditions"):
        trigger["conditions"] = template["conditions"]
    if resets := list(_resets(template.get("conditionsReset") or (), path, found)):
        trigger["conditionsReset"] = resets
    # Argo's default is at most once (BUS-5), and ours isn't.
    trigger["atLeastOnce"] = bool(argo.get("atLeastOnce", False))
    trigger["subscriber"] = {"uri": url}
    if retries := _retries(argo.get("retryStrategy") or {}, path, found):
        trigger["retryStrategy"] = retries
    if limit := argo.get("rateLimit"):
        trigger["rateLimit"] = _rate_limit(limit, path, found)
    if dead_letters := argo.get("dlqTrigger"):
        path = f"{path}.dlqTrigger"
        _leave_out(dead_letters, {"template", "atLeastOnce"}, path, found)
        sink = _url(dead_letters.get("template") or {}, path, found)
        if sink is not None:
            trigger["dlqTrigger"] = {"subscriber": {"uri": sink}}
    return trigger


def _url(template: Document, path: str, found: Converted) -> str | None:
    http = template.get("http")
    if not isinstance(http, dict):
        known = {"name", "conditions", "conditionsReset"}
        kinds = ", ".join(each for each in template if each not in known) or "nothing"
        found.lost.append(f"{path}: it does {kinds}, and only http is carried over")
        return None
    if str(http.get("method", "POST")).upper() != "POST":
        found.lost.append(f"{path}.http.method: events are sent with POST")
    if http.get("payload") or http.get("parameters"):
        found.lost.append(
            f"{path}.http.payload: the body is the array of the events, whole and as they came"
        )
    _leave_out(http, {"url", "method", "payload", "parameters"}, f"{path}.http", found)
    return str(http.get("url", ""))


def _resets(resets: Sequence[Any], path: str, found: Converted) -> Iterator[dict[str, Any]]:
    for each in resets:
        if isinstance(each, dict) and isinstance(by_time := each.get("byTime"), dict):
            yield {
                "byTime": {key: by_time[key] for key in ("cron", "timezone") if by_time.get(key)}
            }
        else:
            found.lost.append(f"{path}.conditionsReset: only byTime is carried over")


def _retries(argo: Document, path: str, found: Converted) -> dict[str, Any]:
    if not argo:
        return {}
    path = f"{path}.retryStrategy"
    retries: dict[str, Any] = {"steps": max(1, int(argo.get("steps", 1)))}
    if "duration" in argo:
        retries["duration"] = _duration(argo["duration"], path)
    factor = _number(argo.get("factor", 1))
    if factor == 2:
        retries["factor"] = 2
    elif factor != 1 or retries["steps"] > 2:
        found.lost.append(
            f"{path}.factor: {factor:g}; here each wait is longer by the first one (1), or twice"
            " as long (2)"
        )
    if argo.get("jitter"):
        found.lost.append(f"{path}.jitter: not carried over")
    return retries


def _rate_limit(argo: Document, path: str, found: Converted) -> dict[str, Any]:
    _leave_out(argo, {"unit", "requestsPerUnit"}, f"{path}.rateLimit", found)
    return {name: argo[name] for name in ("unit", "requestsPerUnit") if name in argo}


def _number(value: Any) -> float:
    """Argo's Amount: a number, its text, or an object that holds it."""
    if isinstance(value, dict):
        value = value.get("value", 1)
    try:
        return float(value)
    except (TypeError, ValueError):
        return 1.0


def _duration(value: Any, path: str) -> str:
    """Argo's Int64OrString: nanoseconds, or Go's text of a duration, which it becomes."""
    if isinstance(value, dict):
        value = value.get("strVal") or value.get("int64Val") or 0
    if isinstance(value, int) or str(value).isdecimal():
        return f"{int(value)}ns"
    if go_seconds(str(value)) is None:
        raise InvalidDocument(f"{path}.duration", f"invalid value: {value!s:.80}: want one as 10s")
    return str(value)
