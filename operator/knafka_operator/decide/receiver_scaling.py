"""Receiver scaling: how many pods a Broker's own annotations may ask of its receiver. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from knafka_operator.decide.services import KNATIVE_AUTOSCALING, MIN_SCALE
from knafka_operator.model.maxima import MOST, Maxima
from knafka_operator.model.resources import annotation_path

_PODS: Final = frozenset({"minscale", "maxscale", "initialscale", "activationscale"})
"""Knative's annotations that are numbers of pods; it takes `min-scale` and `minScale`."""


def least_pods(annotations: Mapping[str, str], default: int) -> int:
    """The least pods of a Broker's receiver that its annotations ask for; 0 for what is no
    number, which Knative refuses."""
    text = annotations.get(MIN_SCALE, str(default)).strip()
    return int(text) if text.isdecimal() else 0


def check_receiver_scaling(annotations: Mapping[str, str], maxima: Maxima) -> None:
    """What a Broker's `autoscaling.knative.dev/...` annotations ask for.

    Raises `InvalidDocument`; what is no number Knative refuses.
    """
    for key, text in annotations.items():
        name = key.removeprefix(KNATIVE_AUTOSCALING).lower().replace("-", "")
        if not key.startswith(KNATIVE_AUTOSCALING) or name not in _PODS:
            continue
        digits = text.strip()
        if digits.isascii() and digits.isdigit():
            asked = int(digits) if len(digits) < len(str(MOST)) else MOST
            maxima.check_scale(asked, annotation_path(key))
