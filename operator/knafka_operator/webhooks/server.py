"""Webhook server: kopf's https server, which the API server asks before it stores an object, and
the server's certificate. `handlers` has the answers.

The certificate is our own: one for all replicas, kept in a Secret and renewed before it expires.
Webhooks fail open: an object that wasn't checked gets a condition in its status.

Not here: checks (`brokers.admission`), registration at the API server (`registration`), and
certificates of a mesh or cert-manager, which may be in the same Secret.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import kopf
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from knafka_operator.model.cluster import Cluster, decode_secret
from knafka_operator.model.resources import CORE

SERVICE: Final = "knafka-webhook"
"""Name of the Service that leads to the webhooks of all replicas."""
WEBHOOK_SECRET: Final = "knafka-webhook-certificate"
"""Name of the Secret with the webhooks' certificate."""
WEBHOOK_PORT: Final = 9443
"""The port at which each replica serves its webhooks."""

VALID_FOR: Final = timedelta(days=3650)
"""How long a new certificate is valid."""
RENEW_BEFORE: Final = timedelta(days=90)
"""A certificate is renewed this long before it expires."""

Pem = dict[str, str]
"""`ca.crt`, `tls.crt` and `tls.key`, as Kubernetes' own Secrets have them."""


async def ensure_certificate(cluster: Cluster, namespace: str, now: datetime) -> Pem:
    """Return the webhooks' certificate from its Secret in `namespace`. If there is none, or if it
    expires within `RENEW_BEFORE` of `now`, create a new one and store it there. Raises
    `ClusterError`."""
    stored = await cluster.get(CORE, "Secret", namespace, WEBHOOK_SECRET)
    if stored is not None:
        pem = dict(decode_secret(stored))
        if pem.get("tls.crt") and _read_expiry(pem["tls.crt"]) > now + RENEW_BEFORE:
            return pem
    pem = make_certificate(f"{SERVICE}.{namespace}.svc", now)
    manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": WEBHOOK_SECRET, "namespace": namespace},
        "type": "kubernetes.io/tls",
        "data": {key: base64.b64encode(text.encode()).decode() for key, text in pem.items()},
    }
    if stored is not None:
        await cluster.apply(manifest)
    elif not await cluster.create(manifest):
        return await ensure_certificate(cluster, namespace, now)  # another replica was first
    return pem


def make_certificate(host: str, now: datetime) -> Pem:
    """Create a certificate for `host` that is valid for `VALID_FOR` from `now`, and the authority
    that signs it; the authority's key isn't kept."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "knafka-webhook-ca")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])

    def certificate_builder(name: x509.Name, public_key: Any) -> x509.CertificateBuilder:
        """Return the builder of a certificate for `name`. The certificate is valid from an hour
        ago, as clocks may differ, until `VALID_FOR` from now."""
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + VALID_FOR)
        )

    authority = (
        certificate_builder(issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([x509.DNSName(host)])
    signed = (
        certificate_builder(subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return {
        "ca.crt": authority.public_bytes(serialization.Encoding.PEM).decode(),
        "tls.crt": signed.public_bytes(serialization.Encoding.PEM).decode(),
        "tls.key": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    }


class ServiceServer:
    """kopf's webhook server behind a Kubernetes Service, which the API server calls instead of a
    URL."""

    def __init__(self, namespace: str, pem: Pem, serves: Callable[[], object]) -> None:
        """`pem` has the certificate and its key; `serves` is called as soon as requests are
        answered."""
        self._namespace = namespace
        self._pem = pem
        self._serves = serves

    async def __call__(self, fn: Any) -> AsyncIterator[Any]:
        """Serve the webhooks as kopf's server protocol wants it; yields the configuration with
        which they are registered."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in self._pem.items():
                (Path(folder) / name).write_text(text)
            server = kopf.WebhookServer(
                port=WEBHOOK_PORT,
                certfile=f"{folder}/tls.crt",
                pkeyfile=f"{folder}/tls.key",
                cafile=f"{folder}/ca.crt",
            )
            async for configuration in server(fn):
                self._serves()
                yield {
                    "service": {"name": SERVICE, "namespace": self._namespace, "port": 443},
                    "caBundle": configuration["caBundle"],
                }


def _read_expiry(pem: str) -> datetime:
    """Return when a certificate in PEM form expires; the earliest `datetime` if it is malformed."""
    try:
        return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
