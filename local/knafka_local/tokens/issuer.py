"""Issuer: signs service accounts' tokens on this machine, as the API server does on a cluster.

    DATA/issuer/signing.key   made by the first `knafka up --require-auth`; only the user can read
                              it, since its holder can send as anybody
    token(account, audience)  makes a token, as `kubectl create token` does
    discovery, jwks           receivers read these, over TLS on loopback (`issuer_server`)

Tokens stay valid across restarts: the key is kept, and the issuer's name is constant.
Not here: what a token must say (`knafka.core.tokens.auth_tokens`).
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
"""The issuer's name in tokens (`iss`); nobody resolves it."""
ALGORITHM: Final = "RS256"
"""The signing algorithm, the same as the API server's."""
RSA_BITS: Final = 2048
"""Size of the signing key in bits."""
KEY_FILE: Final = "signing.key"
"""Name of the file with the private key, in the issuer's folder."""


class BadIssuer(KnafkaError):
    """The issuer's key doesn't exist or can't be used; the text says what to do."""


class Issuer:
    """Signs service accounts' tokens with one key."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        """Create the issuer that signs with `key`, which only its owner may know."""
        self._key = key
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        digest = hashlib.sha256(public).digest()
        self._key_id = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        """Names the key in tokens and in the JWKS (`kid`); derived as the API server derives it."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the issuer whose key is in `folder`. Raises `BadIssuer` if there is no key or it
        can't be used."""
        try:
            return cls(_read_key(folder / KEY_FILE))
        except FileNotFoundError:
            raise BadIssuer(
                f"there is no issuer in {folder}: start one with `knafka up --require-auth`"
            ) from None

    @classmethod
    def load_or_create(cls, folder: Path) -> Self:
        """Load the issuer whose key is in `folder`; without a key, make one. Raises `BadIssuer` if
        the folder can't be written or its key can't be used."""
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if not (folder / KEY_FILE).exists():
                _create_key(folder / KEY_FILE)
        except OSError as error:
            raise BadIssuer(f"{folder} can't be written ({error}): choose --data-dir DIR") from None
        return cls.load(folder)

    def token(
        self,
        account: ServiceAccount,
        audiences: Sequence[str],
        lifetime: float,
        now: float | None = None,
    ) -> str:
        """Return a signed token (JWT) of `account` for `audiences`, valid for `lifetime` seconds
        from `now` (seconds since the Unix epoch; None: the current time)."""
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
        """The issuer's discovery document (OpenID Connect Discovery 1.0, 4.2), as JSON."""
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
        """The issuer's public key as a JWKS (RFC 7517), as JSON."""
        public = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        key = {**public, "use": "sig", "alg": ALGORITHM, "kid": self._key_id}
        return json.dumps({"keys": [key]}).encode()


class TokenProvider:
    """Provides an account's token for one audience, and a new one when half of its life is over."""

    LIFETIME: Final = 3600.0
    """Seconds for which a token is valid."""

    def __init__(self, issuer: Issuer, account: ServiceAccount, audience: str) -> None:
        """Provide tokens of `account` that `audience` accepts, signed by `issuer`."""
        self._issuer, self._account, self._audience = issuer, account, audience
        self._header_line = b""
        """The header line with the current token; empty until the first is made."""
        self._renewal_time = 0.0
        """When to make another token, in seconds since the Unix epoch."""

    def header(self) -> bytes:
        """Return the `authorization` header line of a request, with CRLF. Makes a new token if half
        of the current one's life is over."""
        if (now := time.time()) >= self._renewal_time:
            token = self._issuer.token(self._account, [self._audience], self.LIFETIME, now)
            self._header_line = f"authorization: Bearer {token}\r\n".encode()
            self._renewal_time = now + self.LIFETIME / 2
        return self._header_line


def _read_key(file: Path) -> rsa.RSAPrivateKey:
    """Load the private key from its file. Raises `FileNotFoundError` if there is no file, and
    `BadIssuer` if it can't be read or isn't an RSA key of `RSA_BITS` or more."""
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise BadIssuer(_unusable_key_message(file, type(error).__name__)) from None
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size < RSA_BITS:
        raise BadIssuer(_unusable_key_message(file, f"want an RSA key of {RSA_BITS} bits or more"))
    return key


def _unusable_key_message(file: Path, reason: str) -> str:
    """Return the error message for a key file that can't be used, with what to do."""
    return (
        f"{file} can't be used ({reason}): delete it and start `knafka up --require-auth`, which "
        "makes another; tokens signed with the old key are then refused"
    )


def _create_key(file: Path) -> None:
    """Make a signing key and write it as PEM, readable by the user only. Other processes see the
    whole file or none, since it gets its name last. Raises `OSError`."""
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
