"""Leaving: removes Knafka's part of the status of a Trigger or Subscription that another
implementation serves. Pure.

Not here: whose Broker it is (`brokers.kind`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knafka_operator.decisions.effects import Effect, StopDelivery, WriteStatus
from knafka_operator.decisions.status import (
    DELIVERING,
    OIDC_IDENTITY_CREATED,
    ROLLED_OUT,
    SUBSCRIPTION_CONDITIONS,
    TRIGGER_CONDITIONS,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.dispatchers.conditions import LOOP_FREE
from knafka_operator.dispatchers.dead_letters import DEAD_LETTERS_TYPE
from knafka_operator.model.conditions import READY
from knafka_operator.model.resources import KNAFKA_PREFIX


def effects_of_leaving(document: Mapping[str, Any]) -> tuple[Effect, ...]:
    """Return the effects for a Trigger whose Broker another implementation serves: stop delivering,
    and remove Knafka's annotations and conditions from the status. What the other implementation
    wrote stays, and so does the group, with which it continues.

    Such a Trigger was created before its Broker, or its Broker was taken over from Knafka.
    """
    status = document.get("status") or {}
    patch: dict[str, Any] = {}
    annotations = status.get("annotations") or {}
    if any(key.startswith(KNAFKA_PREFIX) for key in annotations):
        patch["annotations"] = {key: None for key in annotations if key.startswith(KNAFKA_PREFIX)}
    types = {condition.get("type") for condition in status.get("conditions") or ()}
    informational = {DELIVERING, DEAD_LETTERS_TYPE, LOOP_FREE, ROLLED_OUT, OIDC_IDENTITY_CREATED}
    main_types = types - informational
    # Knative Eventing's controller writes the same conditions into a Subscription: they are ours
    # only if Knafka's annotations are there, too.
    are_of_subscription = main_types == {READY, *SUBSCRIPTION_CONDITIONS} and "annotations" in patch
    if are_of_subscription or main_types == {READY, *TRIGGER_CONDITIONS}:
        fields = (
            "conditions",
            "observedGeneration",
            "subscriberUri",
            "deadLetterSinkUri",
            "subscriberCACerts",
            "deadLetterSinkCACerts",
        )
        patch.update({key: None for key in fields if key in status})
    return StopDelivery(), WriteStatus(Step.PUBLISH_STATUS, patch)
