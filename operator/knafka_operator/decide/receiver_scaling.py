"""Receiver scaling: how many pods a Broker's own annotations may ask of its receiver. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from knafka_operator.decide.services import KNATIVE_AUTOSCALING
from knafka_operator.model.maxima import MOST, Maxima
from knafka_operator.model.resources import annotation_path

_PODS: Final = frozenset({"minscale", "maxscale", "initialscale", "activationscale"})
"""Knative's annotations that are numbers of pods; it takes `min-scale` and `minScale`."""


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
