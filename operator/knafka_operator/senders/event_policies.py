"""Event policies: selects the EventPolicies that apply to a Broker, channel or sink, and reports
them in its status. Pure.

    EventPolicies of a namespace, an object's kind, name and labels -> the policies that apply
    a policy that names senders by `sub` only                       -> senders as declared
    a policy with a `ref` among its senders                         -> senders from its status

An applying policy that is invalid or isn't Ready admits no sender.

Not here: the status of a policy, which Knative Eventing's controller writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from knafka.core.contract import Policy
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.decisions.status import EVENT_POLICIES_READY
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.event_policies import POLICIES_VERSION, EventPolicySpec, PolicyTarget
from knafka_operator.model.resources import Resource

NOBODY: Final = Policy()
"""A policy that admits no sender."""


@dataclass(frozen=True, slots=True)
class AppliedPolicy:
    """An EventPolicy that applies to a Broker, channel or sink."""

    name: str
    policy: Policy
    """The senders that it admits, in the form of the contract."""
    is_ready: bool = True
    """False: the policy's senders aren't known, so it admits no sender."""


def applied_policies(
    policies: Iterable[Mapping[str, Any]], resource: Resource
) -> tuple[AppliedPolicy, ...]:
    """Return the policies that apply to a resource, sorted by name; `policies` are all stored
    EventPolicies of its namespace."""
    applied_or_none = (_applied_policy(document, resource) for document in policies)
    applied = [policy for policy in applied_or_none if policy is not None]
    return tuple(sorted(applied, key=lambda policy: policy.name))


def policies_ready_condition(applied: tuple[AppliedPolicy, ...], mode: str) -> Condition:
    """Return the condition `EventPoliciesReady`, with upstream's reasons. `mode` is the
    authorization mode, which decides who may send where no policy applies."""
    if not applied:
        message = f'Default authz mode is "{mode}"'
        return Condition(EVENT_POLICIES_READY, Status.TRUE, "DefaultAuthorizationMode", message)
    if not_ready := [policy.name for policy in applied if not policy.is_ready]:
        message = f"event policies {', '.join(not_ready)} are not ready, and admit nobody"
        return Condition(EVENT_POLICIES_READY, Status.FALSE, "EventPoliciesNotReady", message)
    return Condition(EVENT_POLICIES_READY, Status.TRUE)


def policies_status(applied: tuple[AppliedPolicy, ...]) -> list[dict[str, str]]:
    """Return the value of `status.policies`: apiVersion and name of each applied policy that is
    ready."""
    ready = (policy for policy in applied if policy.is_ready)
    return [{"apiVersion": POLICIES_VERSION, "name": policy.name} for policy in ready]


def _applied_policy(document: Mapping[str, Any], resource: Resource) -> AppliedPolicy | None:
    """Return the stored EventPolicy `document` as it applies to `resource`; None: it doesn't apply.
    A policy that is invalid, or whose senders aren't known yet, admits nobody."""
    name = str(document["metadata"]["name"])
    try:
        spec = parse(EventPolicySpec, document.get("spec") or {})
    except InvalidDocument:
        return AppliedPolicy(name, NOBODY, is_ready=False)  # it may apply to any object
    if spec.to and not any(_is_target(target, resource) for target in spec.to):
        return None
    if any(sender.ref is not None for sender in spec.from_):
        senders = _senders_in_status(document.get("status"))
        if senders is None:
            return AppliedPolicy(name, NOBODY, is_ready=False)
    else:
        senders = tuple(sender.sub for sender in spec.from_ if sender.sub is not None)
    return AppliedPolicy(name, Policy(subjects=senders, filters=spec.filters))


def _is_target(target: PolicyTarget, resource: Resource) -> bool:
    """Whether an EventPolicy's target selects this object, by its name or its labels."""
    ref, selector = target.ref, target.selector
    if ref is not None and _is_kind(ref.api_version, ref.kind, resource):
        if ref.name.lower() == resource.metadata.name.lower():
            return True
    if selector is None or not _is_kind(selector.api_version, selector.kind, resource):
        return False
    return selector.selects(resource.metadata.labels)


def _is_kind(api_version: str, kind: str, resource: Resource) -> bool:
    """Whether a resource has this API group and kind, ignoring case and version."""

    def api_group(version: str) -> str:
        """Return the group of an apiVersion, in lower case."""
        return version.rpartition("/")[0].lower()

    is_same_group = api_group(api_version) == api_group(resource.api_version)
    return is_same_group and kind.lower() == resource.kind.lower()


def _senders_in_status(status: object) -> tuple[str, ...] | None:
    """Return the senders in `status`, the status of a stored policy; None: the policy isn't Ready,
    or its status is malformed."""
    if not isinstance(status, Mapping):
        return None
    conditions = status.get("conditions")
    senders = status.get("from") or []
    ready = isinstance(conditions, list) and any(
        isinstance(condition, Mapping)
        and (condition.get("type"), condition.get("status")) == ("Ready", "True")
        for condition in conditions
    )
    if not ready or not isinstance(senders, list):
        return None
    return tuple(sender for sender in senders if isinstance(sender, str))
