"""Authentication: whether senders must show a token, as Knative Eventing's ConfigMap says. Pure.

    ConfigMap config-features   authentication-oidc          enabled: every Broker and KafkaChannel
                                default-authorization-mode   who may send where no policy says so

Not here: what is done with a token (`knafka.receiver.authentication`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from knafka.core.contract import AuthorizationMode, Ingress
from knafka.core.errors import InvalidDocument
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

    @classmethod
    def of(cls, features: ConfigMap | None) -> Authentication:
        """By `config-features`; None: there is none. Raises `InvalidDocument` that names it."""
        data = {} if features is None else features.data
        if data.get(OIDC, "").strip().lower() != "enabled":
            return NO_AUTHENTICATION
        mode = data.get(MODE, NO_AUTHENTICATION.mode).strip().lower()
        if mode not in _MODES:
            assert features is not None
            where = f"ConfigMap {features.metadata.namespace}/{features.metadata.name}"
            problem = f"{where}: data.{MODE}: invalid value: {mode:.80}: want {', '.join(_MODES)}"
            raise InvalidDocument("", problem)
        return cls(True, cast(AuthorizationMode, mode))

    def demanded(self, ingress: Ingress, resource: Resource) -> Ingress:
        """The contract's entry of a Broker or KafkaChannel with what its senders must show."""
        if not self.is_on:
            return ingress
        asked = {"audience": audience_of(resource), "default_authorization": self.mode}
        return ingress.model_copy(update=asked)


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


def addresses_of(address: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
    """`status.addresses`, where there is more to say than in `status.address`; null takes it away
    from a status that had it."""
    if "audience" in address:
        return {"addresses": [address]}
    return {"addresses": None} if "addresses" in before else {}
