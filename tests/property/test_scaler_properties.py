"""The scaler's decision, for every lag, partition count and setting."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.resources import AUTOSCALING
from knafka_operator.scale.decide import decide_scale

LAGS = st.integers(0, 10**12)
COUNTS = st.integers(0, 1000)


@st.composite
def settings(draw: st.DrawFn) -> Autoscaling:
    low = draw(st.integers(0, 60))
    return Autoscaling(
        min_scale=low,
        max_scale=draw(st.integers(max(low, 1), 200)),
        lag_threshold=draw(st.integers(1, 10_000)),
        activation_lag_threshold=draw(st.integers(0, 10_000)),
    )


@pytest.mark.conformance("CHN-28", "DSP-6")
@given(LAGS, COUNTS, settings(), COUNTS)
def test_a_decision_stays_within_its_limits(
    lag: int, partitions: int, autoscaling: Autoscaling, held: int
) -> None:
    """CHN-28; the partition count wins over everything, max-scale over the rest."""
    replicas = decide_scale(lag, partitions, autoscaling, held).replicas
    assert replicas <= min(autoscaling.max_scale, partitions)
    assert replicas >= min(autoscaling.min_scale, autoscaling.max_scale, partitions)


@given(LAGS, LAGS, COUNTS, settings(), COUNTS)
def test_more_lag_never_means_fewer_drains(
    one: int, other: int, partitions: int, autoscaling: Autoscaling, held: int
) -> None:
    low, high = sorted((one, other))
    fewer = decide_scale(low, partitions, autoscaling, held)
    assert fewer.replicas <= decide_scale(high, partitions, autoscaling, held).replicas


@given(st.integers(1, 10**12), st.integers(1, 1000), settings(), st.integers(1, 1000))
def test_a_trigger_that_drains_goes_on_until_its_lag_is_gone(
    lag: int, partitions: int, autoscaling: Autoscaling, held: int
) -> None:
    """The activation threshold is about waking only: nothing is left lying."""
    assert decide_scale(lag, partitions, autoscaling, held).replicas >= 1


@given(LAGS, COUNTS, settings(), COUNTS)
def test_where_nothing_limits_it_each_drain_has_its_share_and_none_is_spare(
    lag: int, partitions: int, autoscaling: Autoscaling, held: int
) -> None:
    replicas = decide_scale(lag, partitions, autoscaling, held).replicas
    threshold = autoscaling.lag_threshold
    if autoscaling.min_scale < replicas < min(autoscaling.max_scale, partitions):
        assert (replicas - 1) * threshold < lag <= replicas * threshold


@given(LAGS, COUNTS, settings(), COUNTS, st.booleans())
def test_a_shared_trigger_needs_a_drain_when_an_own_one_does_and_never_two(
    lag: int, partitions: int, autoscaling: Autoscaling, held: int, paused: bool
) -> None:
    autoscaling = replace(autoscaling, paused=paused)
    own = decide_scale(lag, partitions, autoscaling, held)
    shared = decide_scale(lag, partitions, autoscaling, held, shared=True)
    assert shared.replicas == min(own.replicas, 1)
    assert shared.reason.endswith(", in a shared dispatcher") == bool(shared.replicas)


@given(settings(), settings())
def test_settings_written_as_annotations_are_read_back(
    autoscaling: Autoscaling, defaults: Autoscaling
) -> None:
    annotations = {
        f"{AUTOSCALING}min-scale": str(autoscaling.min_scale),
        f"{AUTOSCALING}max-scale": str(autoscaling.max_scale),
        f"{AUTOSCALING}lag-threshold": str(autoscaling.lag_threshold),
        f"{AUTOSCALING}activation-lag-threshold": str(autoscaling.activation_lag_threshold),
    }
    assert Autoscaling.from_annotations(annotations, defaults) == autoscaling
