"""EventPolicies as declared: Knative Eventing's rules about who may send events to Brokers and
KafkaChannels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from knafka.core.filters.filter_limits import DeclaredFilters
from knafka_operator.model.resources import Observed, Resource

POLICIES_VERSION: Final = "eventing.knative.dev/v1alpha1"
POLICY: Final = "EventPolicy"
POLICY_DEFINITION: Final = "eventpolicies.eventing.knative.dev"
"""Name of the CustomResourceDefinition; without it there are no policies."""


class Requirement(Observed):
    """One of a label selector's `matchExpressions`."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether an object's labels fulfil this requirement, by Kubernetes' rules."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return self.key not in labels or labels[self.key] not in self.values
            case "Exists":
                return self.key in labels
            case _:  # DoesNotExist
                return self.key not in labels


class PolicyReference(Observed):
    """The name of an object, in the policy's own namespace."""

    api_version: str = ""
    kind: str
    name: str


class PolicySelector(Observed):
    """Selects objects of a kind by their labels, in the policy's own namespace; empty: all of the
    kind."""

    api_version: str = ""
    kind: str
    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels has all of `match_labels` and fulfils all of
        `match_expressions`; an empty selector selects every object."""
        has_labels = all(labels.get(name) == value for name, value in self.match_labels.items())
        return has_labels and all(
            requirement.holds(labels) for requirement in self.match_expressions
        )


class PolicyTarget(Observed):
    """Objects that the policy protects: one by reference, or some by selector."""

    ref: PolicyReference | None = None
    selector: PolicySelector | None = None


class PolicySource(Observed):
    """A sender that the policy admits: by the object that sends, or by the subject of its
    tokens."""

    ref: PolicyReference | None = None
    """An object with its own service account, which the policy's status names."""
    sub: str | None = None
    """The subject of the sender's tokens, with `*` at the end for any continuation."""


class PolicyTargets(Observed):
    """The part of an EventPolicy's spec that says what the policy applies to."""

    to: tuple[PolicyTarget, ...] = ()
    """The policy's targets; empty: everything in its namespace."""


class EventPolicySpec(PolicyTargets):
    """The spec of an EventPolicy: whom it admits to what."""

    from_: tuple[PolicySource, ...] = Field(default=(), alias="from")
    """The senders that the policy admits; empty: none."""
    filters: DeclaredFilters = ()
    """Only events that these filters pass are admitted; empty: all."""


class EventPolicy(Resource):
    """An EventPolicy as declared. Its `spec` is parsed in `senders.event_policies`, since an
    invalid policy must admit no sender."""

    spec: Any = None
