"""Receiver scaling: how many pods a Broker's own annotations may ask of its receiver. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from knafka_operator.functions.services import KNATIVE_AUTOSCALING, MIN_SCALE
from knafka_operator.model.maxima import LARGEST_INT32, Maxima
from knafka_operator.model.resources import annotation_path

_PODS: Final = frozenset({"minscale", "maxscale", "initialscale", "activationscale"})
"""Knative's annotations that are numbers of pods; it takes `min-scale` and `minScale`."""


def min_receiver_pods(annotations: Mapping[str, str], default: int) -> int:
    """The min-scale that a Broker's annotations ask for its receiver; 0 if it is no number, which
    Knative refuses."""
    text = annotations.get(MIN_SCALE, str(default)).strip()
    return int(text) if text.isdecimal() else 0


def check_receiver_scaling(annotations: Mapping[str, str], maxima: Maxima) -> None:
    """Check the numbers of pods in `autoscaling.knative.dev/...` annotations against the maxima.

    Raises `InvalidDocument`. Values that are no numbers are left for Knative to refuse.
    """
    for key, text in annotations.items():
        name = key.removeprefix(KNATIVE_AUTOSCALING).lower().replace("-", "")
        if not key.startswith(KNATIVE_AUTOSCALING) or name not in _PODS:
            continue
        digits = text.strip()
        if digits.isascii() and digits.isdigit():
            asked = int(digits) if len(digits) < len(str(LARGEST_INT32)) else LARGEST_INT32
            maxima.check_scale(asked, annotation_path(key))
