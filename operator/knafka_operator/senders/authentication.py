"""Authentication: whether senders must send a token, by Knative Eventing's ConfigMap. Pure.

    ConfigMap config-features   authentication-oidc          enabled: every Broker and KafkaChannel
                                default-authorization-mode   who may send where no policy applies

Not here: checking a token (`knafka.receiver.authentication`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from knafka.core.contract import AuthorizationMode, Ingress
from knafka_operator.model.conditions import Condition
from knafka_operator.model.features import feature_value, is_enabled
from knafka_operator.model.resources import ConfigMap, Resource
from knafka_operator.senders.event_policies import (
    AppliedPolicy,
    StoredPolicy,
    applied_policies,
    policies_ready_condition,
    policies_status,
)

OIDC: Final = "authentication-oidc"
"""Key of ConfigMap `config-features`: whether senders must send a token."""
AUTHORIZATION_MODE_FEATURE: Final = "default-authorization-mode"
"""Key of ConfigMap `config-features`: who may send where no policy applies."""
_AUTHORIZATION_MODES: Final[tuple[str, ...]] = get_args(AuthorizationMode)


@dataclass(frozen=True, slots=True)
class Authentication:
    """Authentication of senders: the settings of all Brokers and KafkaChannels, with the
    EventPolicies of one namespace."""

    is_on: bool = False
    """Whether senders must send a token."""
    mode: AuthorizationMode = "allow-same-namespace"
    """Who may send where no policy applies; this is upstream's default."""
    policies: tuple[StoredPolicy, ...] = ()
    """All EventPolicies of the namespace."""

    @classmethod
    def of(cls, features: ConfigMap | None) -> Authentication:
        """Return the authentication that ConfigMap `config-features` (None: it doesn't exist)
        declares, without any policies. Raises `InvalidDocument` with the ConfigMap's name."""
        if not is_enabled(features, OIDC):
            return NO_AUTHENTICATION
        mode = feature_value(
            features, AUTHORIZATION_MODE_FEATURE, _AUTHORIZATION_MODES, NO_AUTHENTICATION.mode
        )
        return cls(True, cast(AuthorizationMode, mode))

    def applied_policies_of(self, resource: Resource) -> tuple[AppliedPolicy, ...]:
        """Return the policies that apply to a Broker, channel or sink; empty if authentication is
        off, or if no policy applies."""
        return applied_policies(self.policies, resource) if self.is_on else ()

    def with_sender_rules(self, ingress: Ingress, resource: Resource) -> Ingress:
        """Return the contract entry `ingress` of a Broker, channel or sink, with the audience, the
        policies and the mode by which the receiver admits senders; unchanged if authentication is
        off."""
        if not self.is_on:
            return ingress
        return ingress.model_copy(
            update={
                "audience": audience_of(resource),
                "policies": tuple(applied.policy for applied in self.applied_policies_of(resource)),
                "default_authorization": self.mode,
            }
        )

    def policies_status(
        self, resource: Resource, previous_status: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the patch that sets `status.policies` to the policies that apply and are ready. If
        authentication is off, the patch removes the field (None) from a status that had it, and is
        empty for a status without it."""
        if self.is_on:
            return {"policies": policies_status(self.applied_policies_of(resource))}
        return {"policies": None} if "policies" in previous_status else {}

    def policies_condition(self, resource: Resource) -> Condition | None:
        """Return the condition `EventPoliciesReady`; None: authentication is off."""
        if not self.is_on:
            return None
        return policies_ready_condition(self.applied_policies_of(resource), self.mode)


NO_AUTHENTICATION: Final = Authentication()
"""Upstream's default: senders need no token."""


def audience_of(resource: Resource) -> str:
    """Return the audience that senders' tokens must have, in upstream's form:
    `GROUP/KIND/NAMESPACE/NAME` in lower case."""
    group = resource.api_version.partition("/")[0]
    metadata = resource.metadata
    return f"{group}/{resource.kind}/{metadata.namespace}/{metadata.name}".lower()


def http_address(url: str, audience: str | None) -> Mapping[str, Any]:
    """Return the http address `url` in the form of `status.address`, with the audience that
    senders' tokens must have; `audience` None: senders need no token."""
    return {"name": "http", "url": url, **({} if audience is None else {"audience": audience})}


def addresses_status(
    addresses: Sequence[Mapping[str, Any]], previous_status: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the patch that sets `status.addresses` to all addresses, if one of them is https or
    has an audience. Otherwise `status.address` says everything: the patch removes the field (None)
    from a status that had it, and is empty for a status without it."""
    if any(address["name"] != "http" or address.keys() - {"name", "url"} for address in addresses):
        return {"addresses": list(addresses)}
    return {"addresses": None} if "addresses" in previous_status else {}
