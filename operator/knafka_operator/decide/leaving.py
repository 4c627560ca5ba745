"""Leaving: a Trigger or Subscription of another implementation's loses what we wrote into its
status. Pure.

Not here: whose Broker it is (`reconcile.brokers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knafka_operator.decide.dead_letters import DEAD_LETTERS
from knafka_operator.decide.effects import Effect, StopDelivery, WriteStatus
from knafka_operator.decide.status import (
    DELIVERING,
    OIDC_IDENTITY_CREATED,
    ROLLED_OUT,
    SUBSCRIPTION_CONDITIONS,
    TRIGGER_CONDITIONS,
)
from knafka_operator.decide.steps import Step
from knafka_operator.decide.trigger_conditions import LOOP_FREE
from knafka_operator.model.conditions import READY
from knafka_operator.model.resources import OURS


def leave(document: Mapping[str, Any]) -> tuple[Effect, ...]:
    """What is done for a Trigger whose Broker is another implementation's.

    It came before its Broker, so its status is ours; or its Broker goes to the other one, which
    then goes on with the group that the status names. What the other has written stays.
    """
    status = document.get("status") or {}
    patch: dict[str, Any] = {}
    annotations = status.get("annotations") or {}
    if any(each.startswith(OURS) for each in annotations):
        patch["annotations"] = {each: None for each in annotations if each.startswith(OURS)}
    types = {each.get("type") for each in status.get("conditions") or ()}
    beside = {DELIVERING, DEAD_LETTERS, LOOP_FREE, ROLLED_OUT, OIDC_IDENTITY_CREATED}
    words = types - beside
    # Knative Eventing's controller writes the same conditions into a Subscription.
    own = words == {READY, *SUBSCRIPTION_CONDITIONS} and "annotations" in patch
    if own or words == {READY, *TRIGGER_CONDITIONS}:
        written = (
            *("conditions", "observedGeneration", "subscriberUri", "deadLetterSinkUri"),
            *("subscriberCACerts", "deadLetterSinkCACerts"),
        )
        patch.update({each: None for each in written if each in status})
    return StopDelivery(), WriteStatus(Step.PUBLISH_STATUS, patch)
