"""Converts Sensors of Argo Events to Knafka's, and lists what can't be converted.

In all functions, `path` is the place of a value in Argo's Sensor, as notes and errors name it.
Functions with a parameter `converted` append their notes to its `lost` or `changed`.
Argo's events have the name of the EventSource as `source` and the name of the event as `subject`,
so a converted dependency filters by these attributes. Pure: returns a document and notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from knafka.core.errors import InvalidDocument
from knafka_operator.model.sensors import parse_go_duration

ARGO: Final = "argoproj.io/v1alpha1"
"""apiVersion of Argo's Sensors."""
ARGO_SENSOR_KIND: Final = "Sensor"
"""Kind of a Sensor, Argo's and ours."""

ARGO_DEFAULT_STEPS: Final = 5
"""Argo's number of attempts for a retryStrategy without `steps`."""

CRON_FIELDS: Final = 5
"""Number of fields of a cron expression: minute, hour, day, month, weekday."""
CRON_DAY: Final = 2
CRON_WEEKDAY: Final = 4
"""Indices of the fields for the day of the month and for the day of the week."""
_ANY_VALUE: Final = ("*", "?", "*/1", "?/1")
"""Cron fields that match every value."""

Document = Mapping[str, Any]

_CONTEXT_ATTRIBUTES: Final = frozenset(
    {"id", "source", "specversion", "type", "datacontenttype", "subject"}
)
"""Attributes that a context filter of Argo's compares, in lower case; it ignores `time`."""


@dataclass(slots=True)
class ArgoConversion:
    """A Sensor of ours, with notes on the conversion."""

    document: dict[str, Any]
    lost: list[str] = field(default_factory=list)
    """A sentence for each part that was left out."""
    changed: list[str] = field(default_factory=list)
    """A sentence for each part that is written differently or has another meaning here."""


def convert_sensor(
    argo: Document, broker: str = "default", channel: str | None = None
) -> ArgoConversion:
    """Convert Argo's Sensor to one of ours that evaluates the events of the Broker `broker`, or of
    the KafkaChannel `channel` if one is named.

    Raises `InvalidDocument` if `argo` is no valid Sensor.
    """
    if (argo.get("apiVersion"), argo.get("kind")) != (ARGO, ARGO_SENSOR_KIND):
        raise InvalidDocument("", f"must be a Sensor of {ARGO}")
    argo_metadata = _object_field(argo, "metadata")
    name = argo_metadata.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidDocument("metadata.name", "is not set")
    spec = _object_field(argo, "spec")
    converted = ArgoConversion({})  # the document is set below; notes are added meanwhile
    metadata = {"name": name}
    if namespace := argo_metadata.get("namespace"):
        metadata["namespace"] = _to_text(namespace, "metadata.namespace")
    for field_name in ("labels", "annotations"):
        if argo_metadata.get(field_name):
            converted.changed.append(f"metadata.{field_name}: left out, add yours by hand")
    if event_bus := spec.get("eventBusName"):
        bus = f"the Broker {broker}" if channel is None else f"the KafkaChannel {channel}"
        converted.changed.append(f"spec.eventBusName: {event_bus!s:.80}; here the bus is {bus}")
    converted.document = {
        "apiVersion": "knafka.dev/v1alpha1",
        "kind": ARGO_SENSOR_KIND,
        "metadata": metadata,
        "spec": {
            **({"broker": broker} if channel is None else {"channel": channel}),
            "dependencies": [
                _convert_dependency(dependency, converted)
                for dependency in _list_field(spec, "dependencies", "spec", required=True)
            ],
            "triggers": [
                trigger
                for declared in _list_field(spec, "triggers", "spec", required=True)
                if (trigger := _convert_trigger(declared, converted)) is not None
            ],
        },
    }
    _note_unknown_fields(spec, {"dependencies", "triggers", "eventBusName"}, "spec", converted)
    if not converted.document["spec"]["triggers"]:
        converted.lost.append("spec.triggers: none could be converted, so add one by hand")
    return converted


# Reading fields: each function raises `InvalidDocument` for a value of another type


def _object_field(document: Document, name: str, path: str = "") -> Document:
    """Return the object in a field; empty if the field isn't set. Raises `InvalidDocument`."""
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidDocument(_join_path(path, name), "must be an object")
    return value


def _list_field(
    document: Document, name: str, path: str, *, required: bool = False
) -> Sequence[Document]:
    """Return the list of objects in a field. A field that isn't set is an empty list, or an error
    if `required` is True. Raises `InvalidDocument`."""
    value = document.get(name)
    if value is None and not required:
        return ()
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InvalidDocument(_join_path(path, name), "must be a list of objects")
    return value


def _to_text(value: Any, path: str) -> str:
    """Return a value as text. Raises `InvalidDocument` for anything but a string or a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidDocument(path, "must be a text")
    return str(value)


def _flag_field(document: Document, name: str, path: str) -> bool:
    """Return the boolean in a field; False if the field isn't set. Raises `InvalidDocument`."""
    value = document.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidDocument(_join_path(path, name), "must be true or false")
    return bool(value)


def _join_path(path: str, name: str) -> str:
    """Return the path of a field below `path`."""
    return f"{path}.{name}" if path else name


def _note_unknown_fields(
    document: Document, known_fields: set[str], path: str, converted: ArgoConversion
) -> None:
    """Note as lost each field of `document`, the object at `path`, that isn't among
    `known_fields`."""
    converted.lost += [
        f"{path}.{name}: not carried over" for name in document if name not in known_fields
    ]


# Dependencies


def _convert_dependency(argo: Document, converted: ArgoConversion) -> dict[str, Any]:
    """Convert a dependency: the names of its EventSource and event, and its context filter, become
    exact filters. Raises `InvalidDocument`."""
    name = _to_text(argo.get("name", ""), "spec.dependencies.name")
    path = f"dependency {name}"
    exact_values = {
        attribute: _to_text(argo[key], f"{path}.{key}")
        for key, attribute in (("eventSourceName", "source"), ("eventName", "subject"))
        if argo.get(key)
    }
    filters = _object_field(argo, "filters", path)
    context: dict[str, str] = {}
    for key, value in _object_field(filters, "context", f"{path}.filters").items():
        if (attribute := str(key).lower()) not in _CONTEXT_ATTRIBUTES:
            converted.lost.append(f"{path}.filters.context.{key}: not carried over")
        elif value:
            context[attribute] = _to_text(value, f"{path}.filters.context.{key}")
    # With Argo, the EventSource's or event's name and the context filter must both match: if they
    # require different values of an attribute, no event matches.
    conflicting = {
        attribute: value
        for attribute, value in context.items()
        if exact_values.get(attribute, value) != value
    }
    for attribute, value in conflicting.items():
        converted.changed.append(
            f"{path}.filters.context.{attribute}: {value:.80}, but its EventSource sets"
            f" {exact_values[attribute]:.80}: no event matches both, neither here nor with Argo"
        )
    exact_values.update({key: value for key, value in context.items() if key not in conflicting})
    _note_lost_filters(argo, filters, path, converted)
    _note_unknown_fields(
        argo,
        {"name", "eventSourceName", "eventName", "filters", "filtersLogicalOperator"},
        path,
        converted,
    )
    exact = [{"exact": values} for values in (exact_values, conflicting) if values]
    return {"name": name, **({"filters": exact} if exact else {})}


def _note_lost_filters(
    argo: Document, filters: Mapping[str, Any], path: str, converted: ArgoConversion
) -> None:
    """Note as lost all of a dependency's `filters` but the context filter, and an operator other
    than `and` that joins several filters. `argo` is the dependency, and `path` its path."""
    for key in filters:
        if key in ("data", "exprs", "script"):
            converted.lost.append(
                f"{path}.filters.{key}: filters see attributes only, never an event's data"
            )
        elif key == "time":
            converted.lost.append(f"{path}.filters.time: not carried over")
        elif key in ("dataLogicalOperator", "exprLogicalOperator"):
            pass  # they only combine filters that aren't converted
        elif key != "context":
            converted.lost.append(f"{path}.filters.{key}: not carried over")
    operator = str(argo.get("filtersLogicalOperator") or "and").lower()
    kinds = [kind for kind in ("exprs", "data", "context", "time", "script") if filters.get(kind)]
    # `or` means the same as `and` if there is a context filter only, or no filter.
    if operator != "and" and kinds and kinds != ["context"]:
        converted.lost.append(
            f"{path}.filtersLogicalOperator: {operator:.80} of {', '.join(kinds)}: here all"
            " converted filters must match"
        )


# Triggers


def _convert_trigger(argo: Document, converted: ArgoConversion) -> dict[str, Any] | None:
    """Convert an HTTP trigger to one with a subscriber; None for a trigger of any other kind, which
    is noted as lost. Raises `InvalidDocument`."""
    template = _object_field(argo, "template", "spec.triggers")
    name = _to_text(template.get("name", ""), "spec.triggers.template.name")
    path = f"trigger {name}"
    url = _template_url(template, path, converted)
    if url is None:
        return None
    _note_unknown_fields(
        template, {"name", "conditions", "conditionsReset", "http"}, path, converted
    )
    known_fields = {"template", "retryStrategy", "rateLimit", "atLeastOnce", "dlqTrigger"}
    _note_unknown_fields(argo, known_fields, path, converted)
    trigger: dict[str, Any] = {"name": name}
    if template.get("conditions"):
        trigger["conditions"] = _to_text(template["conditions"], f"{path}.conditions")
    if resets := list(
        _convert_resets(_list_field(template, "conditionsReset", path), path, converted)
    ):
        trigger["conditionsReset"] = resets
    # Argo's default is at most once (BUS-5), ours is at least once.
    trigger["atLeastOnce"] = _flag_field(argo, "atLeastOnce", path)
    trigger["subscriber"] = {"uri": url}
    trigger["retryStrategy"] = _convert_retries(
        _object_field(argo, "retryStrategy", path), path, converted
    )
    if rate_limit := _object_field(argo, "rateLimit", path):
        trigger["rateLimit"] = _convert_rate_limit(rate_limit, path, converted)
    if dlq_trigger := _object_field(argo, "dlqTrigger", path):
        dlq_path = f"{path}.dlqTrigger"
        _note_unknown_fields(dlq_trigger, {"template", "atLeastOnce"}, dlq_path, converted)
        dlq_template = _object_field(dlq_trigger, "template", dlq_path)
        dlq_url = _template_url(dlq_template, dlq_path, converted)
        if dlq_url is not None:
            trigger["dlqTrigger"] = {"subscriber": {"uri": dlq_url}}
    return trigger


def _template_url(template: Document, path: str, converted: ArgoConversion) -> str | None:
    """Return the URL of a trigger template's HTTP request, and note what is lost of the request;
    None if the template does something else, which is noted as lost. Raises `InvalidDocument`."""
    if template.get("http") is None:
        known_fields = {"name", "conditions", "conditionsReset"}
        kinds = ", ".join(str(name) for name in template if name not in known_fields) or "nothing"
        converted.lost.append(f"{path}: it does {kinds}, but only http can be converted")
        return None
    http = _object_field(template, "http", path)
    if str(http.get("method", "POST")).upper() != "POST":
        converted.lost.append(f"{path}.http.method: events are sent with POST")
    if http.get("payload") or http.get("parameters"):
        converted.lost.append(
            f"{path}.http.payload: the body is always the array of the whole events"
        )
    _note_unknown_fields(
        http, {"url", "method", "payload", "parameters"}, f"{path}.http", converted
    )
    return _to_text(http.get("url", ""), f"{path}.http.url")


def _convert_resets(
    resets: Sequence[Document], path: str, converted: ArgoConversion
) -> Iterator[dict[str, Any]]:
    """Yield the converted resets of a trigger's conditions. Other resets than `byTime` are noted as
    lost, and rewritten cron expressions as changed. `path` is the path of the trigger."""
    path = f"{path}.conditionsReset"
    for reset in resets:
        by_time = _object_field(reset, "byTime", path)
        if not by_time:
            converted.lost.append(f"{path}: only byTime is carried over")
            continue
        reset_time = {
            key: _to_text(by_time[key], f"{path}.byTime.{key}")
            for key in ("cron", "timezone")
            if by_time.get(key)
        }
        if (cron := reset_time.get("cron")) and (equivalent := _equivalent_cron(cron)) != cron:
            reset_time["cron"] = equivalent
            converted.changed.append(
                f"{path}.byTime.cron: {cron:.80} becomes {equivalent:.80}: with a day and a weekday"
                " Argo fires on either, but here a field that begins with * requires both"
            )
        yield {"byTime": reset_time}


def _equivalent_cron(cron: str) -> str:
    """Return a cron expression that names the same times here as `cron` does with Argo.

    If day and weekday are both limited, Argo fires on either. Here a field that begins with `*`, as
    in `*/2`, makes both required: such a field is written as `1-31/2`, or `0-6/2` for weekdays.
    """
    fields = cron.split()
    if len(fields) != CRON_FIELDS:
        return cron  # an invalid expression, which parsing the Sensor refuses
    if fields[CRON_DAY] in _ANY_VALUE or fields[CRON_WEEKDAY] in _ANY_VALUE:
        return cron
    for number, full_range in ((CRON_DAY, "1-31"), (CRON_WEEKDAY, "0-6")):
        parts = fields[number].split(",")
        fields[number] = ",".join(
            full_range + part[1:] if part[:2] in ("*/", "?/") else part for part in parts
        )
    return " ".join(fields)


def _convert_retries(argo: Document, path: str, converted: ArgoConversion) -> dict[str, Any]:
    """Convert a trigger's retry strategy `argo`, which is empty if the trigger has none. `path` is
    the path of the trigger. Raises `InvalidDocument`."""
    if not argo:
        # Without a strategy Argo makes one attempt, but the default here is several.
        return {"steps": 1}
    path = f"{path}.retryStrategy"
    steps = argo.get("steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
        raise InvalidDocument(f"{path}.steps", "must be a whole number")
    retries: dict[str, Any] = {
        "steps": steps if steps is not None and steps > 0 else ARGO_DEFAULT_STEPS
    }
    if argo.get("duration") is not None:
        retries["duration"] = _to_duration(argo["duration"], path)
    # Each wait is `factor` times the one before.
    factor = _to_number(argo.get("factor", 1))
    if factor == 2:
        retries["factor"] = 2
    elif factor != 1:
        converted.lost.append(
            f"{path}.factor: {factor:g}; here the waits grow by the first one (1) or double (2)"
        )
    elif retries["steps"] > 2:  # factor 1, and several waits
        converted.changed.append(
            f"{path}.factor: 1; with Argo all waits are equal, here each grows by the first one"
        )
    if argo.get("jitter"):
        converted.lost.append(f"{path}.jitter: not carried over")
    _note_unknown_fields(argo, {"steps", "duration", "factor", "jitter"}, path, converted)
    return retries


def _convert_rate_limit(argo: Document, path: str, converted: ArgoConversion) -> dict[str, Any]:
    """Convert a trigger's rate limit, whose fields have the same names here. `path` is the path
    of the trigger."""
    _note_unknown_fields(argo, {"unit", "requestsPerUnit"}, f"{path}.rateLimit", converted)
    return {name: argo[name] for name in ("unit", "requestsPerUnit") if name in argo}


def _to_number(value: Any) -> float:
    """Return an Amount of Argo's (a number, a text, or an object whose `value` is a number or text)
    as a float; 1 if it can't be read."""
    if isinstance(value, dict):
        value = value.get("value", 1)
    try:
        return float(value)
    except (TypeError, ValueError):
        return 1.0


def _to_duration(value: Any, path: str) -> str:
    """Return a duration of Argo's in Go's format, such as `10s`. The `value` is an Int64OrString: a
    number of nanoseconds, a text, or an object that has one of the two. `path` is the path of the
    retry strategy. Raises `InvalidDocument`."""
    if isinstance(value, dict):
        value = value.get("strVal") or value.get("int64Val") or 0
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_number or (isinstance(value, str) and value.isascii() and value.isdecimal()):
        return f"{int(value)}ns"
    if not isinstance(value, str) or parse_go_duration(value) is None:
        raise InvalidDocument(
            f"{path}.duration", f"invalid value: {value!s:.80}: give one such as 10s"
        )
    return str(value)
