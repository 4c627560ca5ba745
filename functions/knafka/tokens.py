"""Signs the tokens for AWS MSK, which librdkafka can't fetch by itself: it calls back for a token,
and again before that token expires.

Our own keys in a client's configuration say which tokens the client needs
(`core.kafka_settings.kafka_oauth`); they are removed here. AWS's library is an extra
(docs/decisions/0020), and imported only if a Secret needs it.

Not here: OIDC, whose tokens librdkafka fetches by itself.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from knafka.core.errors import InvalidDocument, LogError
from knafka.core.kafka_settings.kafka_oauth import MSK_REGION, MSK_ROLE_ARN, REGION, TOKEN_PROVIDER

log = logging.getLogger(__name__)

SIGNER: Final = "aws-msk-iam-sasl-signer-python"
"""The package with AWS's library."""
REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
"""Environment variables in which AWS's tools look for the region; EKS sets the first for a service
account with a role."""
SESSION: Final = "knafka"
"""The session's name when a role is assumed; AWS's audit log shows it."""
TOKEN_SHARING_SECONDS: Final = 60.0
"""Seconds for which newly opened clients share a token, or a quarter of the token's life if that is
less. A token is valid for fifteen minutes, and with a role each token costs a request to AWS."""

Token: TypeAlias = tuple[str, float]
"""A token, and when it expires (seconds since the Unix epoch)."""

_shared: dict[tuple[str, str | None], tuple[float, Token]] = {}
"""The last signed token and the time of its signature (Unix epoch), by region and role."""


def with_tokens(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration for librdkafka, with our keys replaced by a callback that fetches
    tokens.

    A configuration without our keys is returned as it is. Raises `InvalidDocument` for a Secret
    that can't work here, and `LogError` if there is no token: librdkafka's client would wait for it
    for ten seconds, and not say why.
    """
    client_settings = dict(configuration)
    region, role = client_settings.pop(MSK_REGION, None), client_settings.pop(MSK_ROLE_ARN, None)
    if region is not None:
        client_settings["oauth_cb"] = _msk_token_callback(region or _aws_region(), role)
    return client_settings


def _aws_region() -> str:
    """Return the AWS region that the environment names. Raises `InvalidDocument` if it names
    none."""
    for name in REGIONS:
        if region := os.environ.get(name):
            return region
    raise InvalidDocument(
        REGION, f"missing in the Secret for Kafka, and {' and '.join(REGIONS)} aren't set either"
    )


def _msk_token_callback(region: str, role: str | None) -> Callable[[str], Token]:
    """Return the callback by which librdkafka requests tokens, in its own thread. The first token
    is fetched already now (`_shared_token`), so that errors show at once. `role` is as in
    `_open_signer`. Raises `InvalidDocument` if AWS's library is missing, and `LogError` if there is
    no token."""
    sign = _open_signer(region, role)
    prefetched = [_shared_token(region, role, sign)]

    def next_token(_: str) -> Token:
        """Return the prefetched token at the first call, later a newly signed one. If there is no
        token, log and raise the `LogError`."""
        if prefetched:
            return prefetched.pop()
        try:
            return sign()
        except LogError as error:
            log.warning("Kafka: %s", error)  # librdkafka learns only that there was an error
            raise

    return next_token


def _shared_token(region: str, role: str | None, sign: Callable[[], Token]) -> Token:
    """Return the last signed token for this region and role (None: no role is assumed) while
    clients may share it, else a newly signed one by `sign`, which later clients share. Raises
    `LogError`."""
    now = time.time()
    if (shared := _shared.get((region, role))) is not None:
        signed_at, token = shared
        quarter_of_life = (token[1] - signed_at) / 4
        if now - signed_at <= min(TOKEN_SHARING_SECONDS, quarter_of_life):
            return token
    token = sign()
    _shared[region, role] = now, token
    return token


def _open_signer(region: str, role: str | None) -> Callable[[], Token]:
    """Return a function that signs a token for this region, or raises `LogError`. `role`: ARN of
    the role that is assumed; None: the process's own identity signs. Raises `InvalidDocument` if
    AWS's library is missing."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Signer
    except ImportError as error:
        raise InvalidDocument(
            TOKEN_PROVIDER,
            f"AWS MSK's tokens want the package {SIGNER}, which isn't installed ({error}): "
            "`pip install knafka[aws]`, or an image that has it "
            "(docs/how-to/connect-to-kafka.md)",
        ) from error

    def sign() -> Token:
        """Return a newly signed token with its expiry in Unix time. Raises `LogError` if it can't
        be signed."""
        try:
            if role is None:
                signed, expires_ms = Signer.generate_auth_token(region)
            else:
                signed, expires_ms = Signer.generate_auth_token_from_role_arn(region, role, SESSION)
        except AttributeError as error:  # the library raises it if it finds no credentials
            raise LogError("AWS gives no token for Kafka: no credentials were found") from error
        except Exception as error:  # botocore's own, whose classes only AWS's library imports
            raise LogError(f"AWS gives no token for Kafka: {error}") from error
        return signed, expires_ms / 1000

    return sign
