"""Tokens that librdkafka can't fetch by itself: it asks for one, and again before that expires.

What asks for them are keys of ours in a client's configuration (`core.kafka_oauth`), which come out
of it here. AWS's library is an extra (docs/decisions/0020): it is imported where a Secret wants it.

Not here: OIDC, which librdkafka knows.
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
REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
"""Environment variables in which AWS's tools look for the region; EKS sets the first for a service
account with a role."""
SESSION: Final = "knafka"
"""The name under which a role is taken on, as AWS's audit log shows it."""
SHARED_FOR: Final = 60.0
"""Seconds for which clients that are opened share a token, or a quarter of its life if that is
less: it is good for fifteen minutes, and with a role each costs a request to AWS."""

Token: TypeAlias = tuple[str, float]
"""And when it expires: seconds since the Unix epoch."""

_shared: dict[tuple[str, str | None], tuple[float, Token]] = {}
"""The last signed token and the time of its signature (Unix epoch), by region and role."""


def with_tokens(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration for librdkafka that fetches its tokens.

    Raises `InvalidDocument` for a Secret that can't work here, and `LogError` where there is no
    token: librdkafka's client would wait for ten seconds for it, and not say why.
    """
    found = dict(configuration)
    region, role = found.pop(MSK_REGION, None), found.pop(MSK_ROLE_ARN, None)
    if region is not None:
        found["oauth_cb"] = _msk_token_callback(region or _aws_region(), role)
    return found


def _aws_region() -> str:
    """Return the AWS region of the environment. Raises `InvalidDocument`."""
    for name in REGIONS:
        if region := os.environ.get(name):
            return region
    raise InvalidDocument(
        REGION, f"missing in the Secret for Kafka, and {' and '.join(REGIONS)} aren't set either"
    )


def _msk_token_callback(region: str, role: str | None) -> Callable[[str], Token]:
    """Return the function with which librdkafka requests tokens, in a thread of its own."""
    sign = _signer(region, role)
    now = time.time()
    signed_at, first = _shared.get((region, role), (now, None))
    if first is None or now - signed_at > min(SHARED_FOR, (first[1] - signed_at) / 4):
        first = sign()
        _shared[region, role] = now, first
    ready = [first]

    def token(_: str) -> Token:
        if ready:
            return ready.pop()
        try:
            return sign()
        except LogError as error:
            log.warning("Kafka: %s", error)  # the client only hears that there was an error
            raise

    return token


def _signer(region: str, role: str | None) -> Callable[[], Token]:
    """Return the signer of tokens, which raises `LogError`. Raises `InvalidDocument`."""
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
        try:
            if role is None:
                signed, expires_ms = Signer.generate_auth_token(region)
            else:
                signed, expires_ms = Signer.generate_auth_token_from_role_arn(region, role, SESSION)
        except AttributeError as error:  # the library's way to find no credentials
            raise LogError("AWS gives no token for Kafka: no credentials were found") from error
        except Exception as error:  # of botocore, which nothing of ours imports
            raise LogError(f"AWS gives no token for Kafka: {error}") from error
        return signed, expires_ms / 1000

    return sign
