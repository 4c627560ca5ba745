"""Trigger checks: what must hold of others before a Trigger, Sensor or archive is Ready. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from knafka_operator.decide import admission
from knafka_operator.decide.status import NotReady, is_ready, why_not_ready
from knafka_operator.model.family import Family
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import Trigger


class FoundBroker(Protocol):
    """A Broker that has its topic."""

    @property
    def ready(self) -> str: ...

    @property
    def why_not(self) -> str: ...


def check_broker(
    family: Family,
    broker: str,
    stopped: str | None,
    found: FoundBroker | None,
    stored: Mapping[str, Any] | None,
) -> None:
    """KN-TRG-01, KN-SUB-01: the Broker or channel of this name must be Ready; raises `NotReady`.

    `stopped` says why that may not use its topic; `stored` is its document, where it has no topic.
    """
    name, short = f'{family.broker} "{broker}"', family.short
    if stopped is not None:
        message = f"{name} is not Ready: ExternalTopicNotAllowed {stopped}"
        raise NotReady(f"{short}NotReady", message)
    if found is None:
        if stored is None:
            raise NotReady(f"{short}DoesNotExist", f"{name} does not exist")
        raise NotReady(
            f"{short}NotConfigured",
            f"{name} has no topic yet: {why_not_ready(stored)}",
            transient=True,
        )
    if found.ready != "True":
        message = f"{name} is not Ready: {found.why_not}"
        raise NotReady(f"{short}NotReady", message, transient=found.ready != "False")


def check_dependency(trigger: Trigger, found: Mapping[str, Any] | None) -> None:
    """KN-TRG-13: what the annotation names must be Ready first."""
    reference = admission.dependency(trigger.metadata)
    if reference is None:
        return
    named = f"{reference.kind:.100} {trigger.metadata.namespace}/{reference.name:.253}"
    if found is None:
        raise NotReady("DependencyDoesNotExist", f"{named} does not exist")
    if not is_ready(found):
        raise NotReady("DependencyNotReady", f"{named} is not Ready: {why_not_ready(found)}")


def check_min_scale(asked: int, has: int, others: int, maxima: Maxima) -> None:
    """What a namespace may have run always; what a Trigger `has` already it keeps.

    `others` is what the others of its namespace have. Raises `NotReady`.
    """
    if asked > has and asked + others > maxima.namespace_min_scale:
        raise NotReady(
            "NamespaceMinScale",
            f"min-scale {asked} and the {others} of its namespace's others are more than the "
            f"{maxima.namespace_min_scale} pods that a namespace may have run always "
            "(KNAFKA_MAX_NAMESPACE_MIN_SCALE): declare less, here or there",
        )
