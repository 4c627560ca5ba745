"""Senders with tokens, and the issuer whose keys a receiver knows."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from knafka.clients.kubernetes.api_server_keys import parse_keys
from knafka.ports.signing_keys import SigningKey

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
AUDIENCE: Final = "eventing.knative.dev/broker/ns/broker"
SENDER: Final = "system:serviceaccount:ns:shop"
NOW: Final = 1_800_000_000.0
RSA_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY: Final = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY: Final = rsa.generate_private_key(public_exponent=65537, key_size=2048)
"""Not the issuer's, until a test says so."""
KEY_ID: Final = "one"
EC_KEY_ID: Final = "two"
OF_FORMER_TESTS: Final = ("knafka.clients.kafka", "librdkafka", "py4j")
"""Names of loggers."""


def jwk(key: Any, key_id: str, **more: Any) -> dict[str, Any]:
    """The public key as a JWKS lists it."""
    algorithm: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    public = algorithm.to_jwk(key.public_key(), as_dict=True)
    return {**public, "kid": key_id, "use": "sig", **more}


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


KEYS: Final = jwks(jwk(RSA_KEY, KEY_ID, alg="RS256"), jwk(EC_KEY, EC_KEY_ID, alg="ES256"))


class Keys:
    """`SigningKeys` in memory."""

    def __init__(self, document: bytes = KEYS, issuer: str | None = ISSUER) -> None:
        self.issuer = issuer
        self.generation = 1
        self.keys = parse_keys(document)
        self.may_read = False
        self.found = 0
        """Keys that were looked for."""
        self.verified = 0
        """Signatures that were looked at."""

    def find(self, key_id: str) -> SigningKey | None:
        self.found += 1
        key = self.keys.get(key_id)
        return None if key is None else _Counted(key, self)

    def request_read(self, issued: float) -> bool:
        return self.may_read

    def rotate(self, document: bytes) -> None:
        self.keys, self.generation = parse_keys(document), self.generation + 1


class BelievingKeys(Keys):
    """Has every signature hold, for tests that need thousands of senders and no cryptography."""

    def find(self, key_id: str) -> SigningKey | None:
        self.found += 1
        return _Believing()


class _Believing:
    algorithms = frozenset({"RS256"})

    def verify(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        return True


class _Counted:
    def __init__(self, key: SigningKey, keys: Keys) -> None:
        self._key, self._keys = key, keys
        self.algorithms = key.algorithms

    def verify(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        self._keys.verified += 1
        return self._key.verify(algorithm, signed, signature)


def claims(**more: Any) -> dict[str, Any]:
    """What a good token says; None takes a claim away."""
    usual = {"iss": ISSUER, "sub": SENDER, "aud": [AUDIENCE], "exp": NOW + 600, "nbf": NOW}
    return {name: value for name, value in {**usual, **more}.items() if value is not None}


def token(key: Any = RSA_KEY, key_id: str | None = KEY_ID, **more: Any) -> bytes:
    """A signed token; `more` are claims."""
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    head = {} if key_id is None else {"kid": key_id}
    return jwt.encode(claims(**more), key, algorithm=algorithm, headers=head).encode()


def encoded(part: object) -> bytes:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def unsigned(head: object, body: object | None = None, signature: bytes = b"signature") -> bytes:
    """A token with this head and no signature that holds."""
    return b".".join(
        [encoded(head), encoded(claims() if body is None else body), encoded(signature)]
    )


def believed(**more: Any) -> bytes:
    """A token that `BelievingKeys` believe."""
    return unsigned({"alg": "RS256", "kid": KEY_ID}, claims(**more))


def bearer(given: bytes) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"authorization", b"Bearer " + given),)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, but by what former tests left: a client of Kafka logs from its own thread,
    an object of Spark when it is collected."""
    return [each.message for each in caplog.records if not each.name.startswith(OF_FORMER_TESTS)]
