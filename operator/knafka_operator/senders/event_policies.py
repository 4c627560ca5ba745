"""Event policies: selects the EventPolicies that apply to a Broker, channel or sink, and reports
them in its status. Pure.

    EventPolicies of a namespace, an object's kind, name and labels -> the policies that apply
    a policy that names senders by `sub` only                       -> senders as declared
    a policy with a `ref` among its senders                         -> senders from its status

An applying policy that is invalid or isn't Ready admits no sender. If the filters of all applying
policies are too large together, none of them admits a sender, and no filter is parsed.

Not here: the status of a policy, which Knative Eventing's controller writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from knafka.core.contract import Policy
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka.core.filters.filter_limits import MAX_FILTER_CHARACTERS, characters_of
from knafka_operator.decisions.status import EVENT_POLICIES_READY
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.event_policies import (
    POLICIES_VERSION,
    EventPolicySpec,
    PolicyTarget,
    PolicyTargets,
)
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
    is_too_large: bool = False
    """True: the filters of all policies that apply are too large together, so none of the policies
    admits a sender."""


class StoredPolicy:
    """An EventPolicy as stored. What it applies to, and whom it admits, is parsed when it is first
    asked for, and kept."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        """`document`: the stored object, which must not change any more."""
        self.document = document
        self.name = str(document["metadata"]["name"])

    def applies_to(self, resource: Resource) -> bool:
        """Whether the policy applies to a resource, by its name or its labels. One whose targets
        are invalid may apply to any."""
        targets = self._targets
        return not targets or any(_is_target(target, resource) for target in targets)

    @cached_property
    def _targets(self) -> tuple[PolicyTarget, ...]:
        """The targets; empty: the policy applies to everything, or its targets are invalid."""
        try:
            return parse(PolicyTargets, self.document.get("spec") or {}).to
        except InvalidDocument:
            return ()

    @cached_property
    def filter_characters(self) -> int:
        """Number of characters of the filters, at most a few more than `MAX_FILTER_CHARACTERS`."""
        spec = self.document.get("spec")
        filters = spec.get("filters") if isinstance(spec, Mapping) else None
        return characters_of(filters, MAX_FILTER_CHARACTERS + 1)

    def unparsed_size(self, resource: Resource) -> int:
        """Return about how many characters have to be parsed before `applied_policies` can decide
        about a resource; counting stops at `MAX_FILTER_CHARACTERS`."""
        is_parsed = "applied" in vars(self)
        if is_parsed or ("_targets" in vars(self) and not self.applies_to(resource)):
            return 0
        return self._spec_characters

    @cached_property
    def _spec_characters(self) -> int:
        """Number of characters of the spec; counting stops at `MAX_FILTER_CHARACTERS`."""
        return characters_of(self.document.get("spec"), MAX_FILTER_CHARACTERS)

    @cached_property
    def applied(self) -> AppliedPolicy:
        """The policy as it is applied. One that is invalid, or whose senders aren't known yet,
        admits nobody. To parse the largest filters takes 0.3 s."""
        not_ready = AppliedPolicy(self.name, NOBODY, is_ready=False)
        try:
            spec = parse(EventPolicySpec, self.document.get("spec") or {})
        except InvalidDocument:
            return not_ready
        if any(sender.ref is not None for sender in spec.from_):
            senders = _senders_in_status(self.document.get("status"))
            if senders is None:
                return not_ready
        else:
            senders = tuple(sender.sub for sender in spec.from_ if sender.sub is not None)
        return AppliedPolicy(self.name, Policy(subjects=senders, filters=spec.filters))


def applied_policies(
    policies: Iterable[StoredPolicy], resource: Resource
) -> tuple[AppliedPolicy, ...]:
    """Return the policies that apply to a resource, sorted by name; `policies` are all stored
    EventPolicies of its namespace."""
    applying = sorted(
        (policy for policy in policies if policy.applies_to(resource)),
        key=lambda policy: policy.name,
    )
    if sum(policy.filter_characters for policy in applying) > MAX_FILTER_CHARACTERS:
        # One receiver serves many objects, and must parse and evaluate the filters of all.
        return tuple(
            AppliedPolicy(policy.name, NOBODY, is_ready=False, is_too_large=True)
            for policy in applying
        )
    return tuple(policy.applied for policy in applying)


def policies_ready_condition(applied: tuple[AppliedPolicy, ...], mode: str) -> Condition:
    """Return the condition `EventPoliciesReady`, with upstream's reasons. `mode` is the
    authorization mode, which decides who may send where no policy applies."""
    if not applied:
        message = f'Default authz mode is "{mode}"'
        return Condition(EVENT_POLICIES_READY, Status.TRUE, "DefaultAuthorizationMode", message)
    if any(policy.is_too_large for policy in applied):
        message = (
            f"the filters of all {len(applied)} event policies that apply are too large together: "
            f"want at most {MAX_FILTER_CHARACTERS} characters; until then they admit nobody"
        )
        return Condition(EVENT_POLICIES_READY, Status.FALSE, "EventPoliciesTooLarge", message)
    if not_ready := [policy.name for policy in applied if not policy.is_ready]:
        message = f"event policies {', '.join(not_ready)} are not ready, and admit nobody"
        return Condition(EVENT_POLICIES_READY, Status.FALSE, "EventPoliciesNotReady", message)
    return Condition(EVENT_POLICIES_READY, Status.TRUE)


def policies_status(applied: tuple[AppliedPolicy, ...]) -> list[dict[str, str]]:
    """Return the value of `status.policies`: apiVersion and name of each applied policy that is
    ready."""
    ready = (policy for policy in applied if policy.is_ready)
    return [{"apiVersion": POLICIES_VERSION, "name": policy.name} for policy in ready]


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
