"""EventPolicies: who may send to which Brokers and KafkaChannels, as Knative Eventing has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from knafka.core.filter_limits import DeclaredFilters
from knafka_operator.model.resources import Observed, Resource

POLICIES_VERSION: Final = "eventing.knative.dev/v1alpha1"
POLICY: Final = "EventPolicy"
POLICY_DEFINITION: Final = "eventpolicies.eventing.knative.dev"
"""The CustomResourceDefinition; where there is none, there are no policies."""


class Requirement(Observed):
    """One of a label selector's `matchExpressions`."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels fulfil it, as Kubernetes has it."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return self.key not in labels or labels[self.key] not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


class PolicyReference(Observed):
    api_version: str = ""
    kind: str
    name: str


class PolicySelector(Observed):
    api_version: str = ""
    kind: str
    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is meant; without terms, each is."""
        equal = all(labels.get(name) == value for name, value in self.match_labels.items())
        return equal and all(each.holds(labels) for each in self.match_expressions)


class PolicyTarget(Observed):
    ref: PolicyReference | None = None
    selector: PolicySelector | None = None


class PolicySource(Observed):
    ref: PolicyReference | None = None
    """Something with a service account of its own, which the policy's status names."""
    sub: str | None = None


class EventPolicySpec(Observed):
    to: tuple[PolicyTarget, ...] = ()
    """Empty: everything in its namespace."""
    from_: tuple[PolicySource, ...] = Field(default=(), alias="from")
    filters: DeclaredFilters = ()


class EventPolicy(Resource):
    """One as it is declared; its `spec` is read where it is decided what applies, as one that can't
    be read lets nobody through."""

    spec: Any = None
