"""Authentication: whether senders must show a token, as Knative Eventing's ConfigMap says. Pure.

    ConfigMap config-features   authentication-oidc          enabled: every Broker and KafkaChannel
                                default-authorization-mode   who may send where no policy says so

Not here: what is done with a token (`knafka.receiver.authentication`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from knafka.core.contract import AuthorizationMode, Ingress
from knafka_operator.decide.event_policies import (
    AppliedPolicy,
    applied_policies,
    policies_in_status,
    policies_ready,
)
from knafka_operator.model.conditions import Condition
from knafka_operator.model.features import feature, is_enabled
from knafka_operator.model.resources import ConfigMap, Resource

OIDC: Final = "authentication-oidc"
MODE: Final = "default-authorization-mode"
_MODES: Final[tuple[str, ...]] = get_args(AuthorizationMode)


@dataclass(frozen=True, slots=True)
class Authentication:
    """What holds for every Broker and KafkaChannel."""

    is_on: bool = False
    mode: AuthorizationMode = "allow-same-namespace"
    """Upstream's default."""
    policies: tuple[Mapping[str, Any], ...] = ()
    """EventPolicies of the namespace, whatever they are about."""

    @classmethod
    def of(cls, features: ConfigMap | None) -> Authentication:
        """By `config-features`; None: there is none. Raises `InvalidDocument` that names it."""
        if not is_enabled(features, OIDC):
            return NO_AUTHENTICATION
        mode = feature(features, MODE, _MODES, NO_AUTHENTICATION.mode)
        return cls(True, cast(AuthorizationMode, mode))

    def applied_to(self, resource: Resource) -> tuple[AppliedPolicy, ...]:
        """The policies that apply to it."""
        return applied_policies(self.policies, resource) if self.is_on else ()

    def demanded(self, ingress: Ingress, resource: Resource) -> Ingress:
        """The contract's entry of a Broker or KafkaChannel with what its senders must show."""
        if not self.is_on:
            return ingress
        return ingress.model_copy(
            update={
                "audience": audience_of(resource),
                "policies": tuple(each.policy for each in self.applied_to(resource)),
                "default_authorization": self.mode,
            }
        )

    def status_of(self, resource: Resource, before: Mapping[str, Any]) -> dict[str, Any]:
        """`status.policies`; null takes it away from a status that had it."""
        if self.is_on:
            return {"policies": policies_in_status(self.applied_to(resource))}
        return {"policies": None} if "policies" in before else {}

    def condition_of(self, resource: Resource) -> Condition | None:
        """Whether the policies hold; None: nobody is asked who they are."""
        return policies_ready(self.applied_to(resource), self.mode) if self.is_on else None


NO_AUTHENTICATION: Final = Authentication()
"""Upstream's default: everybody may send."""


def audience_of(resource: Resource) -> str:
    """For whom senders' tokens are, in upstream's form: `GROUP/KIND/NAMESPACE/NAME` in lower
    case."""
    group = resource.api_version.partition("/")[0]
    metadata = resource.metadata
    return f"{group}/{resource.kind}/{metadata.namespace}/{metadata.name}".lower()


def address_of(url: str, audience: str | None) -> Mapping[str, Any]:
    """What `status.address` says."""
    return {"name": "http", "url": url, **({} if audience is None else {"audience": audience})}


def addresses_of(
    addresses: Sequence[Mapping[str, Any]], before: Mapping[str, Any]
) -> dict[str, Any]:
    """`status.addresses`, where there is more to say than plain http in `status.address`; null
    takes it away from a status that had it."""
    if any(each["name"] != "http" or each.keys() - {"name", "url"} for each in addresses):
        return {"addresses": list(addresses)}
    return {"addresses": None} if "addresses" in before else {}
