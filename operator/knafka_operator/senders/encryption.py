"""Encryption: decides the addresses of a Broker or KafkaChannel, and how it serves https. Pure.

    ConfigMap config-features   transport-encryption   disabled: http
                                                       permissive: https and http
                                                       strict: only https

    a Broker's annotation knafka.dev/tls-secret   its receiver terminates TLS, at a Service for that
    none                                          https by Knative Serving, if that has it

Not here: TLS (`knafka.tls_listener`), what makes a Secret usable (`certificates`), and reading it
(`senders.observe`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from knafka.core import names
from knafka.core.contract import Ingress
from knafka_operator.decisions.status import TRANSPORT_ENCRYPTED, NotReady
from knafka_operator.functions import receiver_services
from knafka_operator.functions.services import Manifest
from knafka_operator.installation.settings import Settings
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.features import feature_value
from knafka_operator.model.resources import KNAFKA_PREFIX, ConfigMap, Resource, are_certificates

ENCRYPTION: Final = "transport-encryption"
"""Key of ConfigMap `config-features`: the encryption mode."""
EncryptionMode: TypeAlias = Literal["disabled", "permissive", "strict"]
"""`disabled`: http; `permissive`: https and http; `strict`: only https."""
_ENCRYPTION_MODES: Final[tuple[str, ...]] = get_args(EncryptionMode)

TLS_SECRET: Final = f"{KNAFKA_PREFIX}tls-secret"
"""Annotation of a Broker: the Secret of its namespace, in cert-manager's form, with which its
receiver terminates TLS itself."""
RECEIVER_TLS_PORT: Final = 8443
"""The port of a receiver that terminates TLS itself."""
NO_HTTPS: Final = "HttpsNotServed"
"""Reason of a condition: Knative has no https address for a receiver."""


@dataclass(frozen=True, slots=True)
class Https:
    """A receiver's https address and its certificate authorities."""

    url: str
    """The address without a path."""
    ca_certs: str | None = None
    """PEM of the authorities to trust; None: the trust bundles', or the system's."""
    secret: str | None = None
    """The Secret with which the receiver terminates TLS itself; None: Knative does."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """Transport encryption, which is one setting for all Brokers and KafkaChannels."""

    mode: EncryptionMode = "disabled"

    @classmethod
    def of(cls, features: ConfigMap | None) -> Encryption:
        """Return the encryption that ConfigMap `config-features` (None: it doesn't exist) declares.
        Raises `InvalidDocument` with the ConfigMap's name."""
        return cls(
            cast(EncryptionMode, feature_value(features, ENCRYPTION, _ENCRYPTION_MODES, "disabled"))
        )

    @property
    def is_on(self) -> bool:
        """Whether receivers serve https."""
        return self.mode != "disabled"

    def with_encryption_rule(self, ingress: Ingress) -> Ingress:
        """Return the contract entry `ingress` with the rule to accept only https, if the mode is
        `strict`; else unchanged."""
        if self.mode != "strict":
            return ingress
        return ingress.model_copy(update={"encrypted_only": True})

    def addresses(
        self, http: Mapping[str, Any], path: str, https: Https | NotReady | None
    ) -> list[Mapping[str, Any]]:
        """Return all addresses of a receiver that the mode allows: its https address at `path`, if
        it has one, then `http`, its http address. The last one becomes `status.address`, as
        upstream's. Empty: the mode is `strict`, and there is no https address.

        `https` is None if https is off, or an error that explains why there is no https address.
        """
        all_addresses: list[Mapping[str, Any]] = []
        if isinstance(https, Https):
            https_address = {**http, "name": "https", "url": https.url + path}
            if https.ca_certs is not None:
                https_address["CACerts"] = https.ca_certs
            all_addresses.append(https_address)
        if self.mode != "strict":
            all_addresses.append(http)
        return all_addresses

    def encrypted_condition(self, https: Https | NotReady | None) -> Condition | None:
        """Return the condition `TransportEncrypted`; None: encryption is off. The condition is
        informational unless the mode is `strict`. `https` is the receiver's https address, or the
        error that explains why there is none."""
        if not self.is_on:
            return None
        severity = Severity.ERROR if self.mode == "strict" else Severity.INFO
        if isinstance(https, NotReady):
            status = Status.UNKNOWN if https.transient else Status.FALSE
            return Condition(TRANSPORT_ENCRYPTED, status, https.reason, str(https), severity)
        return Condition(TRANSPORT_ENCRYPTED, Status.TRUE, severity=severity)


NO_ENCRYPTION: Final = Encryption()
"""Upstream's default."""


def https_of_service(service: Mapping[str, Any] | None, name: str) -> Https:
    """Return the https address that Knative gives a function, without its CA certificates if they
    are unusable. `service` is the function's stored Knative Service, None: it doesn't exist; `name`
    is its name. Raises `NotReady` if there is no https address."""
    address = ((service or {}).get("status") or {}).get("address") or {}
    url = str(address.get("url") or "")
    if not url:
        raise NotReady(NO_HTTPS, f"Knative Service {name} has no address so far", transient=True)
    if not url.startswith("https://"):
        raise NotReady(
            NO_HTTPS,
            f"Knative Serving has no https address for Knative Service {name}: set "
            "cluster-local-domain-tls: Enabled in ConfigMap knative-serving/config-network, or, "
            f"for a Broker, annotate it {TLS_SECRET}: SECRET, with which its receiver ends TLS",
        )
    ca_certs = address.get("CACerts")
    if ca_certs and not are_certificates(str(ca_certs)):
        ca_certs = None
    return Https(url.rstrip("/"), str(ca_certs) if ca_certs else None)


def tls_service_name(broker: Resource) -> str:
    """Return the name of the Service that leads to the TLS port of a Broker's receiver."""
    return names.child(broker.metadata.name, "-kn-receiver-tls")


def tls_host(broker: Resource, settings: Settings) -> str:
    """Return the host of a Broker's own TLS Service, for which its certificate must be valid."""
    namespace, domain = broker.metadata.namespace, settings.cluster_domain
    return f"{tls_service_name(broker)}.{namespace}.svc.{domain}"


def tls_service(broker: Resource) -> Manifest:
    """Return the manifest of the Service that leads to the TLS port of the receiver's pods."""
    return receiver_services.receiver_pods_service(
        broker,
        tls_service_name(broker),
        {"name": "https", "port": 443, "targetPort": RECEIVER_TLS_PORT},
    )
