"""Certificates: checks whether clients could connect to a Broker's receiver with the certificate in
its Secret.

    tls.crt, tls.key, ca.crt of a Secret in cert-manager's form, the host, the time -> `Https`

Pure. Imported only if a Secret is named, as it needs a library for certificates.

Not here: serving TLS (`knafka.tls_listener`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from knafka_operator.decisions.status import NotReady
from knafka_operator.functions.receiver_services import min_receiver_pods
from knafka_operator.functions.services import MIN_SCALE
from knafka_operator.installation.settings import Settings
from knafka_operator.model.resources import Broker, are_certificates
from knafka_operator.senders.encryption import TLS_SECRET, Https, tls_host


def https_of_secret(
    broker: Broker, name: str, secret: Mapping[str, str] | None, settings: Settings, now: datetime
) -> Https:
    """Return the https address of a Broker's receiver that terminates TLS itself, with the
    certificate in the Secret `name`. `secret` has the decoded values of that Secret, None: it
    doesn't exist; `now` is the time at which the certificate must not have expired. Raises
    `NotReady` if clients couldn't connect with this certificate, or if the receiver may scale to
    zero."""
    host, namespace = tls_host(broker, settings), broker.metadata.namespace
    secret_text = f"Secret {namespace}/{name:.253}"
    if secret is None:
        raise NotReady(
            "TLSSecretNotFound",
            f"{secret_text} does not exist: have cert-manager make it for {host}, or make it with "
            "tls.crt, tls.key and ca.crt",
        )
    if missing := [key for key in ("tls.crt", "tls.key") if not secret.get(key, "").strip()]:
        raise _invalid_secret(secret_text, f"it has no {' and no '.join(missing)}")
    try:
        certificate = x509.load_pem_x509_certificate(secret["tls.crt"].encode())
        certificate_hosts = _certificate_hosts(certificate)
    except ValueError:
        raise _invalid_secret(secret_text, "tls.crt is no certificate in PEM form") from None
    if problem := _key_problem(certificate, secret["tls.key"]):
        raise _invalid_secret(secret_text, problem)
    if now >= certificate.not_valid_after_utc:
        until = certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ")
        raise NotReady(
            "CertificateExpired",
            f"the certificate in {secret_text} expired at {until}: have it renewed",
        )
    if not any(_matches_host(certificate_host, host) for certificate_host in certificate_hosts):
        first_hosts = ", ".join(certificate_hosts[:5]) or "no host"
        raise NotReady(
            "CertificateForOtherHost",
            f"the certificate in {secret_text} is for {first_hosts:.500}: want one for {host}",
        )
    authorities = secret.get("ca.crt", "").strip()
    if authorities and not are_certificates(authorities):
        raise _invalid_secret(secret_text, "ca.crt holds no certificates in PEM form")
    if min_receiver_pods(broker.metadata.annotations, 0) < 1:
        raise NotReady(
            "TLSNeedsMinScale",
            f"its receiver ends TLS itself, past Knative, which then wakes no pod: annotate it "
            f'{MIN_SCALE}: "1", or more for more pods, or remove {TLS_SECRET}',
        )
    return Https(f"https://{host}", f"{authorities}\n" if authorities else None, name)


def _invalid_secret(secret_text: str, problem: str) -> NotReady:
    """Return the error for a Secret that can't be used for TLS; `secret_text` names the Secret."""
    return NotReady(
        "TLSSecretInvalid", f"{secret_text}: {problem}: want it as cert-manager writes it"
    )


def _certificate_hosts(certificate: x509.Certificate) -> Sequence[str]:
    """Return the DNS names for which a certificate is valid; empty if it names none. Raises
    `ValueError` if its extensions are malformed."""
    try:
        alternative_names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return []
    return alternative_names.value.get_values_for_type(x509.DNSName)


def _matches_host(name: str, host: str) -> bool:
    """Whether a certificate for `name` is valid for `host`; in `name`, `*` stands for any first
    label."""
    name = name.lower()
    if name.startswith("*."):
        return name[1:] == host[host.index(".") :]  # all but the first label
    return name == host


def _key_problem(certificate: x509.Certificate, key: str) -> str:
    """Return the problem with `key`, a private key in PEM form, as a message for users; empty: the
    key fits the certificate."""
    try:
        private_key = load_pem_private_key(key.encode(), None)
    except (ValueError, TypeError):
        return "tls.key is no private key in PEM form without a password"
    except UnsupportedAlgorithm as error:
        return f"tls.key is of a kind that is not supported ({error})"
    if private_key.public_key() != certificate.public_key():
        return "tls.key is not the key of tls.crt"
    return ""
