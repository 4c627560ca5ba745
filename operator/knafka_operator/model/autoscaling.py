"""Autoscaling: reads a Trigger's annotations about scaling and pausing. What is scaled are drains:
in each, one dispatcher process reads the Trigger's events as a member of its consumer group, and
delivers them.

    autoscaling.eventing.knative.dev/   min-scale, max-scale, lag-threshold,
                                        activation-lag-threshold, polling-interval, cooldown-period
    knafka.dev/paused                   no drains

Not here: how many drains follow from that (`scale.decide`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from knafka.core.errors import InvalidDocument
from knafka_operator.model.maxima import LARGEST_INT32, UNLIMITED_MAXIMA, Maxima
from knafka_operator.model.resources import (
    AUTOSCALING,
    PAUSED_ANNOTATION,
    RATE_LIMIT,
    annotation_path,
    parse_whole_number,
)

KEDA_CLASS: Final = "keda.autoscaling.knative.dev"
"""Upstream's default class: scale on lag by these annotations, as Knafka does."""
DISABLED: Final = "disabled"
"""The class of a Trigger that isn't scaled: it always has one drain."""

_FIELDS_AND_MINIMA: Final[Mapping[str, tuple[str, int]]] = {
    "min-scale": ("min_scale", 0),
    "max-scale": ("max_scale", 1),
    "lag-threshold": ("lag_threshold", 1),
    "activation-lag-threshold": ("activation_lag_threshold", 0),
    "polling-interval": ("polling_interval", 1),
    "cooldown-period": ("cooldown_period", 0),
}
"""The field that each annotation sets, and its smallest allowed value."""


@dataclass(frozen=True, slots=True)
class Autoscaling:
    """How a Trigger scales; the defaults are upstream's."""

    min_scale: int = 0
    """Drains held even without lag."""
    max_scale: int = 50
    """Most drains; also limited by the number of partitions."""
    lag_threshold: int = 100
    """Records of lag for each drain."""
    activation_lag_threshold: int = 0
    """Records of lag up to which a Trigger without drains isn't woken."""
    polling_interval: float = 10.0
    """Seconds between two reads of the lag."""
    cooldown_period: float = 30.0
    """Seconds without work after which a drain ends."""
    paused: bool = False
    """Whether no drains are opened, regardless of the other fields."""
    may_rest: bool = True
    """Whether drains end while the Trigger's filter passes no events (`scale.filter_rest`)."""

    @classmethod
    def from_annotations(
        cls,
        annotations: Mapping[str, str],
        defaults: Autoscaling,
        maxima: Maxima = UNLIMITED_MAXIMA,
    ) -> Autoscaling:
        """Return the autoscaling that a Trigger's annotations declare; absent annotations get the
        value in `defaults`. With the class `disabled` there is exactly one drain, with a rate limit
        at most one. Raises `InvalidDocument` for an invalid value, or one above `maxima`.
        """
        declared: dict[str, Any] = {}
        for key, (name, minimum) in _FIELDS_AND_MINIMA.items():
            if (text := annotations.get(AUTOSCALING + key)) is not None:
                path = annotation_path(AUTOSCALING + key)
                declared[name] = parse_whole_number(text, path, minimum, LARGEST_INT32)
                if key in ("min-scale", "max-scale"):
                    maxima.check_scale(declared[name], path)
        # A default above the maximum is lowered, not refused: the user didn't declare it.
        declared.setdefault("max_scale", min(defaults.max_scale, maxima.scale))
        autoscaling = replace(defaults, **declared, paused=_is_paused(annotations))
        if autoscaling.min_scale > autoscaling.max_scale:
            raise InvalidDocument(
                annotation_path(AUTOSCALING + "min-scale"),
                f"invalid value: {autoscaling.min_scale}: want at most max-scale, "
                f"{autoscaling.max_scale}",
            )
        if _is_disabled(annotations):
            return replace(autoscaling, min_scale=1, max_scale=1)
        if RATE_LIMIT in annotations:
            # Each drain would use the whole rate, so there is at most one.
            return replace(autoscaling, min_scale=min(autoscaling.min_scale, 1), max_scale=1)
        return autoscaling


def _is_disabled(annotations: Mapping[str, str]) -> bool:
    """Whether the annotations switch scaling off, by the class `DISABLED`; False if the class is
    `KEDA_CLASS` or absent. Raises `InvalidDocument` for any other class."""
    scaling_class = annotations.get(AUTOSCALING + "class", KEDA_CLASS)
    if scaling_class not in (KEDA_CLASS, DISABLED):
        raise InvalidDocument(
            annotation_path(AUTOSCALING + "class"),
            f"invalid value: {scaling_class:.80}: want {KEDA_CLASS} or {DISABLED}",
        )
    return scaling_class == DISABLED


def _is_paused(annotations: Mapping[str, str]) -> bool:
    """Whether the annotation `knafka.dev/paused` is "true"; False if it is absent. Raises
    `InvalidDocument` for any value but "true" and "false"."""
    text = annotations.get(PAUSED_ANNOTATION, "false")
    if text not in ("true", "false"):
        raise InvalidDocument(
            annotation_path(PAUSED_ANNOTATION), f'invalid value: {text:.80}: want "true" or "false"'
        )
    return text == "true"


DEFAULT_AUTOSCALING: Final = Autoscaling()
"""The autoscaling of a Trigger without annotations about it."""
