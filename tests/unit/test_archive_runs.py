"""Why the pod of an archive's job doesn't start."""

from __future__ import annotations

from typing import Any

import pytest

from knafka_operator.archives.runs import why_not_started


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"status": {"containerStatuses": [{"state": state}]}}


UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        pytest.param({}, "", id="nothing is known"),
        pytest.param(waiting("ContainerCreating"), "", id="it is being created"),
        pytest.param(
            waiting("ErrImagePull", "no such image"), "ErrImagePull no such image", id="its image"
        ),
        pytest.param(
            {"status": {"conditions": [{**UNSCHEDULED, "message": "0/1 nodes"}]}},
            "Unschedulable 0/1 nodes",
            id="no node",
        ),
        pytest.param({"status": {"conditions": [{"type": "Ready"}]}}, "", id="another condition"),
    ],
)
def test_a_pod_that_does_not_start_says_why(pod: dict[str, Any], why: str) -> None:
    assert why_not_started(pod) == why
