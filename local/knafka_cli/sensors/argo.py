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
SENSOR_KIND: Final = "Sensor"

ARGOS_STEPS: Final = 5
"""Attempts of a retryStrategy that doesn't say how many."""

Document = Mapping[str, Any]

_CONTEXT: Final = frozenset({"id", "source", "specversion", "type", "datacontenttype", "subject"})
"""Attributes that a context filter of Argo's compares, its fields in lower case; `time` isn't."""


@dataclass(slots=True)
class Converted:
    """A Sensor of ours, and what it lacks of Argo's."""

    document: dict[str, Any]
    lost: list[str] = field(default_factory=list)
    """One sentence for each part that isn't carried over."""
    changed: list[str] = field(default_factory=list)
    """One sentence for each part that is written otherwise, or that means something else here."""


def convert(argo: Document, broker: str = "default", channel: str | None = None) -> Converted:
    """Argo's Sensor on this bus, a KafkaChannel if one is named. Raises `InvalidDocument` for what
    is none."""
    if (argo.get("apiVersion"), argo.get("kind")) != (ARGO, SENSOR_KIND):
        raise InvalidDocument("", f"want a Sensor of {ARGO}")
    described = _object(argo, "metadata")
    name = described.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidDocument("metadata.name", "is not set")
    spec = _object(argo, "spec")
    converted = Converted({})
    metadata = {"name": name}
    if namespace := described.get("namespace"):
        metadata["namespace"] = _text(namespace, "metadata.namespace")
    for dropped in ("labels", "annotations"):
        if described.get(dropped):
            converted.changed.append(f"metadata.{dropped}: left out, add to it what is yours")
    bus = f"the Broker {broker}" if channel is None else f"the KafkaChannel {channel}"
    if event_bus := spec.get("eventBusName"):
        converted.changed.append(f"spec.eventBusName: {event_bus!s:.80}; here the bus is {bus}")
    converted.document = {
        "apiVersion": "knafka.dev/v1alpha1",
        "kind": SENSOR_KIND,
        "metadata": metadata,
        "spec": {
            **({"broker": broker} if channel is None else {"channel": channel}),
            "dependencies": [
                _dependency(dependency, converted)
                for dependency in _list(spec, "dependencies", "spec", required=True)
            ],
            "triggers": [
                trigger
                for declared in _list(spec, "triggers", "spec", required=True)
                if (trigger := _trigger(declared, converted)) is not None
            ],
        },
    }
    _leave_out(spec, {"dependencies", "triggers", "eventBusName"}, "spec", converted)
    if not converted.document["spec"]["triggers"]:
        converted.lost.append("spec.triggers: none is left, so this is no Sensor yet")
    return converted


# What a document may be wrong in: each raises `InvalidDocument`


def _object(document: Document, name: str, path: str = "") -> Document:
    """Empty where it isn't set."""
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidDocument(_join(path, name), "want an object")
    return value


def _list(
    document: Document, name: str, path: str, *, required: bool = False
) -> Sequence[Document]:
    """Empty where it isn't set and may be left out."""
    value = document.get(name)
    if value is None and not required:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidDocument(_join(path, name), "want a list of objects")
    return value


def _text(value: Any, path: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidDocument(path, "want a text")
    return str(value)


def _flag(document: Document, name: str, path: str) -> bool:
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidDocument(_join(path, name), "want true or false")
    return bool(value)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _leave_out(document: Document, known: set[str], path: str, converted: Converted) -> None:
    converted.lost += [f"{path}.{name}: not carried over" for name in document if name not in known]


# Dependencies


def _dependency(argo: Document, converted: Converted) -> dict[str, Any]:
    name = _text(argo.get("name", ""), "spec.dependencies.name")
    path = f"dependency {name}"
    exact_values = {
        attribute: _text(argo[key], f"{path}.{key}")
        for key, attribute in (("eventSourceName", "source"), ("eventName", "subject"))
        if argo.get(key)
    }
    filters = _object(argo, "filters", path)
    context: dict[str, str] = {}
    for key, value in _object(filters, "context", f"{path}.filters").items():
        if (attribute := str(key).lower()) not in _CONTEXT:
            converted.lost.append(f"{path}.filters.context.{key}: not carried over")
        elif value:
            context[attribute] = _text(value, f"{path}.filters.context.{key}")
    # Both must match there: of one attribute with two values, no event does.
    both = {
        name: value for name, value in context.items() if exact_values.get(name, value) != value
    }
    for attribute, value in both.items():
        converted.changed.append(
            f"{path}.filters.context.{attribute}: {value:.80}, and by its EventSource"
            f" {exact_values[attribute]:.80}: no event has both, here and there"
        )
    exact_values.update({name: value for name, value in context.items() if name not in both})
    for key in filters:
        if key in ("data", "exprs", "script"):
            converted.lost.append(
                f"{path}.filters.{key}: filters see attributes only, never an event's data"
            )
        elif key == "time":
            converted.lost.append(f"{path}.filters.time: not carried over")
        elif key in ("dataLogicalOperator", "exprLogicalOperator"):
            pass  # of what is left out
        elif key != "context":
            converted.lost.append(f"{path}.filters.{key}: not carried over")
    # With one kind of filter, `or` and `and` are the same; without one, its default is `and`.
    operator = str(argo.get("filtersLogicalOperator") or "and").lower()
    kinds = [kind for kind in ("exprs", "data", "context", "time", "script") if filters.get(kind)]
    if operator != "and" and kinds != ["context"] and kinds:
        converted.lost.append(
            f"{path}.filtersLogicalOperator: {operator:.80} of {', '.join(kinds)}: here all that is"
            " carried over must match"
        )
    _leave_out(
        argo,
        {"name", "eventSourceName", "eventName", "filters", "filtersLogicalOperator"},
        path,
        converted,
    )
    exact = [{"exact": values} for values in (exact_values, both) if values]
    return {"name": name, **({"filters": exact} if exact else {})}


# Triggers


def _trigger(argo: Document, converted: Converted) -> dict[str, Any] | None:
    template = _object(argo, "template", "spec.triggers")
    name = _text(template.get("name", ""), "spec.triggers.template.name")
    path = f"trigger {name}"
    url = _url(template, path, converted)
    if url is None:
        return None
    _leave_out(template, {"name", "conditions", "conditionsReset", "http"}, path, converted)
    known = {"template", "retryStrategy", "rateLimit", "atLeastOnce", "dlqTrigger"}
    _leave_out(argo, known, path, converted)
    trigger: dict[str, Any] = {"name": name}
    if template.get("conditions"):
        trigger["conditions"] = _text(template["conditions"], f"{path}.conditions")
    if resets := list(_resets(_list(template, "conditionsReset", path), path, converted)):
        trigger["conditionsReset"] = resets
    # Argo's default is at most once (BUS-5), and ours isn't.
    trigger["atLeastOnce"] = _flag(argo, "atLeastOnce", path)
    trigger["subscriber"] = {"uri": url}
    trigger["retryStrategy"] = _retries(_object(argo, "retryStrategy", path), path, converted)
    if limit := _object(argo, "rateLimit", path):
        trigger["rateLimit"] = _rate_limit(limit, path, converted)
    if dead_letters := _object(argo, "dlqTrigger", path):
        path = f"{path}.dlqTrigger"
        _leave_out(dead_letters, {"template", "atLeastOnce"}, path, converted)
        sink = _url(_object(dead_letters, "template", path), path, converted)
        if sink is not None:
            trigger["dlqTrigger"] = {"subscriber": {"uri": sink}}
    return trigger


def _url(template: Document, path: str, converted: Converted) -> str | None:
    if template.get("http") is None:
        known = {"name", "conditions", "conditionsReset"}
        kinds = ", ".join(str(name) for name in template if name not in known) or "nothing"
        converted.lost.append(f"{path}: it does {kinds}, and only http is carried over")
        return None
    http = _object(template, "http", path)
    if str(http.get("method", "POST")).upper() != "POST":
        converted.lost.append(f"{path}.http.method: events are sent with POST")
    if http.get("payload") or http.get("parameters"):
        converted.lost.append(
            f"{path}.http.payload: the body is the array of the events, whole and as they came"
        )
    _leave_out(http, {"url", "method", "payload", "parameters"}, f"{path}.http", converted)
    return _text(http.get("url", ""), f"{path}.http.url")


def _resets(
    resets: Sequence[Document], path: str, converted: Converted
) -> Iterator[dict[str, Any]]:
    path = f"{path}.conditionsReset"
    for reset in resets:
        by_time = _object(reset, "byTime", path)
        if not by_time:
            converted.lost.append(f"{path}: only byTime is carried over")
            continue
        written = {
            key: _text(by_time[key], f"{path}.byTime.{key}")
            for key in ("cron", "timezone")
            if by_time.get(key)
        }
        if (cron := written.get("cron")) and (same := _cron(cron)) != cron:
            written["cron"] = same
            converted.changed.append(
                f"{path}.byTime.cron: {cron:.80} is written {same:.80}: with both a day and a"
                " weekday Argo takes either, and here a field that begins with * asks for both"
            )
        yield {"byTime": written}


def _cron(cron: str) -> str:
    """The same times: to Argo's parser `*/2` is no `*`, and to ours it is."""
    fields = cron.split()
    if len(fields) != 5 or fields[2] in _ANY or fields[4] in _ANY:
        return cron
    for number, span in ((2, "1-31"), (4, "0-6")):
        parts = fields[number].split(",")
        fields[number] = ",".join(
            span + part[1:] if part[:2] in ("*/", "?/") else part for part in parts
        )
    return " ".join(fields)


_ANY: Final = ("*", "?", "*/1", "?/1")


def _retries(argo: Document, path: str, converted: Converted) -> dict[str, Any]:
    if not argo:
        # Without it a delivery has more attempts than one.
        return {"steps": 1}
    path = f"{path}.retryStrategy"
    steps = argo.get("steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
        raise InvalidDocument(f"{path}.steps", "want a whole number")
    retries: dict[str, Any] = {"steps": steps if steps is not None and steps > 0 else ARGOS_STEPS}
    if argo.get("duration") is not None:
        retries["duration"] = _duration(argo["duration"], path)
    factor = _number(argo.get("factor", 1))
    if factor == 2:
        retries["factor"] = 2
    elif factor != 1:
        converted.lost.append(
            f"{path}.factor: {factor:g}; here each wait is longer by the first one (1), or twice"
            " as long (2)"
        )
    elif retries["steps"] > 2:
        converted.changed.append(
            f"{path}.factor: 1; there all waits are equal, and here each is longer by the first one"
        )
    if argo.get("jitter"):
        converted.lost.append(f"{path}.jitter: not carried over")
    _leave_out(argo, {"steps", "duration", "factor", "jitter"}, path, converted)
    return retries


def _rate_limit(argo: Document, path: str, converted: Converted) -> dict[str, Any]:
    _leave_out(argo, {"unit", "requestsPerUnit"}, f"{path}.rateLimit", converted)
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
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_number or (isinstance(value, str) and value.isascii() and value.isdecimal()):
        return f"{int(value)}ns"
    if not isinstance(value, str) or go_seconds(value) is None:
        raise InvalidDocument(f"{path}.duration", f"invalid value: {value!s:.80}: want one as 10s")
    return str(value)
