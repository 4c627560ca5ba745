"""What the scaler decides from a lag, and what the annotations say about it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support.scaling import SCALING

from knafka.core.errors import InvalidDocument
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.resources import AUTOSCALING
from knafka_operator.scale.decide import (
    Cause,
    Scale,
    decide_scale,
    scale_for_expected_event,
    scale_to_keep_offsets,
)

EACH = "one dispatcher per 100"


@pytest.mark.conformance("CHN-28", "DSP-6")
@pytest.mark.parametrize(
    ("lag", "partitions", "autoscaling", "held", "scale"),
    [
        (0, 10, SCALING, 0, Scale(0, "nothing waits")),
        (0, 10, SCALING, 3, Scale(0, "nothing waits")),
        (1, 10, SCALING, 0, Scale(1, f"1 event waiting; {EACH}")),
        (100, 10, SCALING, 0, Scale(1, f"100 events waiting; {EACH}")),
        (101, 10, SCALING, 0, Scale(2, f"101 events waiting; {EACH}")),
        (
            2000,
            10,
            SCALING,
            0,
            Scale(10, f"2000 events waiting; {EACH}, at most 10 (its topic's partitions)"),
        ),
        (9000, 99, SCALING, 0, Scale(50, f"9000 events waiting; {EACH}, at most 50 (max-scale)")),
        (0, 10, Autoscaling(min_scale=2), 0, Scale(2, "nothing waits, at least 2 (min-scale)")),
        (
            1,
            10,
            Autoscaling(min_scale=2),
            0,
            Scale(2, f"1 event waiting; {EACH}, at least 2 (min-scale)"),
        ),
        (0, 1, Autoscaling(min_scale=2), 0, Scale(1, "nothing waits, at least 2 (min-scale)")),
        (120, 10, Autoscaling(min_scale=2, paused=True), 2, Scale(0, "paused; 120 events waiting")),
        (
            5,
            0,
            SCALING,
            0,
            Scale(0, f"5 events waiting; {EACH}, at most 0 (its topic's partitions)"),
        ),
        (
            5,
            10,
            Autoscaling(activation_lag_threshold=5),
            0,
            Scale(0, "5 events waiting; it starts when more than 5 wait"),
        ),
        (6, 10, Autoscaling(activation_lag_threshold=5), 0, Scale(1, f"6 events waiting; {EACH}")),
        (5, 10, Autoscaling(activation_lag_threshold=5), 1, Scale(1, f"5 events waiting; {EACH}")),
    ],
)
def test_a_decision_comes_with_its_reason(
    lag: int, partitions: int, autoscaling: Autoscaling, held: int, scale: Scale
) -> None:
    """CHN-28: never more drains than partitions."""
    assert decide_scale(lag, partitions, autoscaling, held) == scale


@pytest.mark.parametrize(
    ("lag", "autoscaling", "cause", "shared"),
    [
        (0, SCALING, Cause.NO_LAG, Cause.NO_LAG),
        (5, SCALING, Cause.LAG, Cause.LAG),
        (500, SCALING, Cause.PARTITIONS, Cause.LAG),
        (300, Autoscaling(max_scale=2), Cause.MAX_SCALE, Cause.LAG),
        (0, Autoscaling(min_scale=2), Cause.MIN_SCALE, Cause.MIN_SCALE),
        (5, Autoscaling(paused=True), Cause.PAUSED, Cause.PAUSED),
        (5, Autoscaling(activation_lag_threshold=5), Cause.ACTIVATION, Cause.ACTIVATION),
    ],
)
def test_a_decision_names_what_it_went_by_for_metrics(
    lag: int, autoscaling: Autoscaling, cause: Cause, shared: Cause
) -> None:
    assert decide_scale(lag, 4, autoscaling, 0).cause is cause
    assert decide_scale(lag, 4, autoscaling, 0, shared=True).cause is shared


def test_what_lag_did_not_ask_for_has_a_cause_of_its_own() -> None:
    nothing = decide_scale(0, 4, SCALING, 0)
    assert scale_to_keep_offsets(nothing, 4, shared=False).cause is Cause.KEEPING_OFFSETS
    assert scale_for_expected_event(shared=True).cause is Cause.PREWARM


def annotated(**values: str) -> Mapping[str, str]:
    return {AUTOSCALING + key.replace("_", "-"): value for key, value in values.items()}


def test_annotations_go_over_the_defaults() -> None:
    """naming.md: autoscaling annotations."""
    defaults = Autoscaling(polling_interval=0.5)
    assert Autoscaling.from_annotations({}, defaults) == defaults
    given = annotated(
        min_scale="1",
        max_scale="5",
        lag_threshold="10",
        activation_lag_threshold="3",
        polling_interval="7",
        cooldown_period="0",
    )
    assert Autoscaling.from_annotations(given, defaults) == Autoscaling(1, 5, 10, 3, 7, 0)


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        ("min-scale", "-1", "-1: want a whole number from 0 to 2147483647"),
        ("max-scale", "0", "0: want a whole number from 1 to 2147483647"),
        ("lag-threshold", "0", "0: want a whole number from 1 to 2147483647"),
        ("polling-interval", "0", "0: want a whole number from 1 to 2147483647"),
        ("polling-interval", "10s", "10s: want a whole number from 1 to 2147483647"),
        ("cooldown-period", "", ": want a whole number from 0 to 2147483647"),
        ("min-scale", "51", "51: want at most max-scale, 50"),
        ("class", "hpa", "hpa: want keda.autoscaling.knative.dev or disabled"),
    ],
)
def test_garbage_in_an_annotation_is_refused(annotation: str, value: str, problem: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        Autoscaling.from_annotations({AUTOSCALING + annotation: value}, SCALING)
    assert raised.value.path == f"metadata.annotations.{AUTOSCALING}{annotation}"
    assert raised.value.problem == f"invalid value: {problem}"


def test_a_trigger_that_opts_out_of_scaling_has_one_drain_always() -> None:
    """As upstream: one replica unless something scales it."""
    fixed = Autoscaling.from_annotations({AUTOSCALING + "class": "disabled"}, SCALING)
    assert decide_scale(0, 10, fixed, 0).replicas == decide_scale(10**6, 10, fixed, 1).replicas == 1
