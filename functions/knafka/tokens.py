"""Tokens that librdkafka can't fetch by itself: it asks for one, and again before that expires.

What asks for them are keys of ours in a client's configuration (`core.kafka_oauth`), which come out
of it here. AWS's library is an extra (docs/decisions/0020): it is imported where a Secret wants it.

Not here: OIDC, which librdkafka knows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from knafka.core.errors import InvalidDocument
from knafka.core.kafka_oauth import MSK_REGION, MSK_ROLE_ARN, REGION, TOKEN_PROVIDER

SIGNER: Final = "aws-msk-iam-sasl-signer-python"
REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
"""Where AWS's own tools look; EKS sets the first for a service account with a role."""
SESSION: Final = "knafka"
"""The name under which a role is taken on, as AWS's audit log shows it."""


def with_tokens(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration for librdkafka that fetches its tokens. Raises `InvalidDocument`."""
    found = dict(configuration)
    region, role = found.pop(MSK_REGION, None), found.pop(MSK_ROLE_ARN, None)
    if region is not None:
        found["oauth_cb"] = _msk(region or _region(), role)
    return found


def _region() -> str:
    for name in REGIONS:
        if region := os.environ.get(name):
            return region
    raise InvalidDocument(
        REGION, f"missing in the Secret for Kafka, and {' and '.join(REGIONS)} aren't set either"
    )


def _msk(region: str, role: str | None) -> Callable[[str], tuple[str, float]]:
    """librdkafka calls it in a thread; what it raises is an error of the client's."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Signer
    except ImportError as error:
        raise InvalidDocument(
            TOKEN_PROVIDER,
            f"AWS MSK's tokens want the package {SIGNER}, which isn't installed ({error}): "
            "`pip install knafka[aws]`, or an image that has it "
            "(docs/how-to/connect-to-kafka.md)",
        ) from error

    def token(_: str) -> tuple[str, float]:
        if role is None:
            signed, expires_ms = Signer.generate_auth_token(region)
        else:
            signed, expires_ms = Signer.generate_auth_token_from_role_arn(region, role, SESSION)
        return signed, expires_ms / 1000

    return token
