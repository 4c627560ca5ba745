"""Checks Sensors in files for `knafka check`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.core.filters.predicates import never_true
from knafka_cli.checks.impossible import contradictions
from knafka_cli.shared.cesql_calls import missing_functions
from knafka_operator.model.maxima import UNLIMITED_MAXIMA
from knafka_operator.model.resources import Destination
from knafka_operator.model.sensors import KNAFKA, SENSOR, Sensor
from knafka_operator.sensors.limits import held_limits, oversized_firings
from knafka_operator.sensors.scaling import sensor_autoscaling


def is_sensor(document: object) -> bool:
    """Whether a document declares a Sensor."""
    return isinstance(document, dict) and (
        (document.get("apiVersion"), document.get("kind")) == (KNAFKA, SENSOR)
    )


def parse_sensor(document: Mapping[str, Any]) -> Sensor:
    """Return the Sensor that a document declares. Raises `InvalidDocument`."""
    return parse(Sensor, document)


def errors(sensor: Sensor) -> list[str]:
    """Return a sentence for each error in a Sensor: invalid annotations, filters that no event can
    match, and unknown CESQL functions."""
    problems: list[str] = []
    # Each function reads some annotations, and raises an error for an invalid one.
    for read_annotations in (partial(sensor_autoscaling, maxima=UNLIMITED_MAXIMA), held_limits):
        try:
            read_annotations(sensor)
        except InvalidDocument as error:
            problems.append(str(error))
    for number, dependency in enumerate(sensor.spec.dependencies):
        path = f"spec.dependencies[{number}].filters"
        problems += [
            f"{filter_path}: {problem}"
            for filter_path, problem in never_true(dependency.filters, path)
        ]
        problems += missing_functions(dependency.filters, path)
        problems += contradictions(dependency.filters, path)
    return problems


def warnings(sensor: Sensor) -> list[str]:
    """Return a sentence for each probable mistake in a Sensor: a dependency that no trigger uses, a
    filter that is ignored, and a firing that may be too large to send."""
    sentences = []
    used_names = frozenset[str]().union(*(rule.condition.names for rule in sensor.spec.rules()))
    for number, dependency in enumerate(sensor.spec.dependencies):
        if dependency.name not in used_names:
            sentences.append(
                f"spec.dependencies[{number}]: no trigger's conditions name {dependency.name}"
            )
        if dependency.filters and dependency.filter.attributes:
            sentences.append(f"spec.dependencies[{number}].filter is ignored, since filters is set")
    for number, warning in oversized_firings(sensor.spec):
        sentences.append(f"spec.triggers[{number}].conditions: {warning}")
    return sentences


def destinations(sensor: Sensor) -> Mapping[str, Destination | None]:
    """Return the destinations that a Sensor sends to, by their path in its document; None for one
    that isn't set."""
    by_path: dict[str, Destination | None] = {}
    for number, trigger in enumerate(sensor.spec.triggers):
        path = f"spec.triggers[{number}]"
        by_path[f"{path}.subscriber"] = trigger.subscriber
        by_path[f"{path}.reply"] = trigger.reply
        by_path[f"{path}.delivery.deadLetterSink"] = trigger.delivery.dead_letter_sink
        if trigger.dlq_trigger is not None:
            by_path[f"{path}.dlqTrigger.subscriber"] = trigger.dlq_trigger.subscriber
    return by_path
