"""Issuer: who signs service accounts' tokens on this machine, as the API server does on a cluster.

    DATA/issuer/signing.key   made once, by the first `knafka up --require-auth`; whoever reads it
                              may send as anybody, so nobody but the user may
    token(account, audience)  what `kubectl create token` gives
    DISCOVERY, JWKS           what receivers ask for, over TLS on loopback (`issuer_server`)

Tokens are good across restarts: the key is kept, and the issuer has one name.
Not here: what a token must say (`knafka.core.auth_tokens`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from knafka.core.errors import KnafkaError
from knafka_local.tokens.accounts import ServiceAccount

ISSUER: Final = "https://issuer.knafka.internal"
"""A name, as the API server's is: nobody looks it up."""
ALGORITHM: Final = "RS256"
"""The API server's."""
RSA_BITS: Final = 2048
KEY_FILE: Final = "signing.key"


class BadIssuer(KnafkaError):
    """The issuer's key isn't there, or can't be used; the text says what to do."""


class Issuer:
    """Signs service accounts' tokens with one key."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        digest = hashlib.sha256(public).digest()
        self._key_id = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        """As the API server derives it."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """The one whose key is there. Raises `BadIssuer`."""
        try:
            return cls(_read(folder / KEY_FILE))
        except FileNotFoundError:
            raise BadIssuer(
                f"there is no issuer in {folder}: start one with `knafka up --require-auth`"
            ) from None

    @classmethod
    def made_in(cls, folder: Path) -> Self:
        """The one whose key is there, made if there is none. Raises `BadIssuer`."""
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if not (folder / KEY_FILE).exists():
                _write(folder / KEY_FILE)
        except OSError as error:
            raise BadIssuer(f"{folder} can't be written ({error}): choose --data-dir DIR") from None
        return cls.of(folder)

    def token(
        self,
        account: ServiceAccount,
        audiences: Sequence[str],
        lifetime: float,
        now: float | None = None,
    ) -> str:
        """A token of `account` for `audiences`, good for `lifetime` seconds."""
        issued = int(time.time() if now is None else now)
        claims = {
            "iss": ISSUER,
            "sub": account.subject,
            "aud": list(audiences),
            "iat": issued,
            "nbf": issued,
            "exp": issued + int(lifetime),
            "jti": str(uuid.uuid4()),
            "kubernetes.io": {
                "namespace": account.namespace,
                "serviceaccount": {"name": account.name},
            },
        }
        return jwt.encode(claims, self._key, ALGORITHM, headers={"kid": self._key_id})

    @property
    def discovery(self) -> bytes:
        """The issuer's discovery document (OpenID Connect Discovery 1.0, 4.2)."""
        return json.dumps(
            {
                "issuer": ISSUER,
                "jwks_uri": f"{ISSUER}/openid/v1/jwks",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": [ALGORITHM],
            }
        ).encode()

    @property
    def jwks(self) -> bytes:
        """The issuer's public key as a JWKS (RFC 7517)."""
        public = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        key = {**public, "use": "sig", "alg": ALGORITHM, "kid": self._key_id}
        return json.dumps({"keys": [key]}).encode()


class TokenSender:
    """Shows tokens of one account for one audience, a new one when half of its life is over."""

    LIFETIME: Final = 3600.0

    def __init__(self, issuer: Issuer, account: ServiceAccount, audience: str) -> None:
        self._issuer, self._account, self._audience = issuer, account, audience
        self._line, self._until = b"", 0.0

    def header(self) -> bytes:
        """The header line of a request."""
        if (now := time.time()) >= self._until:
            token = self._issuer.token(self._account, [self._audience], self.LIFETIME, now)
            self._line = f"authorization: Bearer {token}\r\n".encode()
            self._until = now + self.LIFETIME / 2
        return self._line


def _read(file: Path) -> rsa.RSAPrivateKey:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise BadIssuer(_unusable(file, type(error).__name__)) from None
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < RSA_BITS:
        raise BadIssuer(_unusable(file, f"want an RSA key of {RSA_BITS} bits or more"))
    return key


def _unusable(file: Path, why: str) -> str:
    return (
        f"{file} can't be used ({why}): delete it and start `knafka up --require-auth`, which "
        "makes another; tokens that it has signed are good no more"
    )


def _write(file: Path) -> None:
    """Make a key; who reads the file sees all of it or none."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    unfinished = file.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(pem)
    unfinished.replace(file)
