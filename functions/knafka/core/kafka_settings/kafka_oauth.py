"""Configures SASL/OAUTHBEARER for librdkafka and Java from the keys of a Secret.

    OIDC client credentials     sasl.oauthbearer.token.endpoint.url, .client.id, .client.secret,
                                and if need be .scope and .extensions, and https.ca.pem
    AWS MSK, by IAM             tokenProvider, awsRegion, roleARN

The names for OIDC are librdkafka's own, those for AWS upstream's. With OIDC the clients fetch and
renew tokens by themselves; tokens for AWS are signed by a library (`knafka.tokens`), by our own
settings `MSK_REGION` and `MSK_ROLE_ARN`.

Not here: any token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from knafka.core.errors import InvalidDocument

OAUTHBEARER: Final = "OAUTHBEARER"
"""The SASL mechanism."""

# Keys of the Secret with OIDC.
TOKEN_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID: Final = "sasl.oauthbearer.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.secret"
SCOPE: Final = "sasl.oauthbearer.scope"
EXTENSIONS: Final = "sasl.oauthbearer.extensions"
ENDPOINT_AUTHORITY: Final = "https.ca.pem"

# Keys of the Secret with AWS MSK, and the values of `TOKEN_PROVIDER`.
TOKEN_PROVIDER: Final = "tokenProvider"
ROLE: Final = "roleARN"
REGION: Final = "awsRegion"
MSK_ACCESS: Final = "MSKAccessTokenProvider"
MSK_ROLE: Final = "MSKRoleAccessTokenProvider"
PROVIDERS: Final = (MSK_ACCESS, MSK_ROLE)

MSK_REGION: Final = "knafka.msk.region"
"""Our own setting in librdkafka's configuration, from which `knafka.tokens` removes it: the AWS
region. Empty: the environment's region."""
MSK_ROLE_ARN: Final = "knafka.msk.role.arn"
"""Our own setting, like `MSK_REGION`: the role as which a client logs in. Missing: the client logs
in with the role of its environment."""

JAVA_ONLY: Final = ("sasl.jaas.config", "sasl.login.callback.handler.class")
"""Keys that upstream passes on to its Java clients."""

_LOGIN_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_LOGIN_HANDLER: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
)
_match_extension = re.compile(r"[A-Za-z]+=[\x20-\x7e\t]*").fullmatch
"""Matches a SASL extension that Java accepts."""
_match_role = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/\S+").fullmatch
_match_region = re.compile(r"[a-z]{2}(?:-[a-z]+)+-[0-9]").fullmatch


def for_librdkafka(secret: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's OAUTHBEARER settings for the Secret's keys, without protocol and TLS. For
    AWS they include our own settings `MSK_REGION` and `MSK_ROLE_ARN`. Raises `InvalidDocument` for
    a Secret that can't work."""
    if _token_provider(secret) is not None:
        return _msk_settings(secret)
    configuration = {
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.method": "oidc",
        TOKEN_ENDPOINT: _token_endpoint(secret),
        CLIENT_ID: _required_value(secret, CLIENT_ID),
        CLIENT_SECRET: _required_value(secret, CLIENT_SECRET),
    }
    if scope := secret.get(SCOPE):
        configuration[SCOPE] = scope
    if extensions := _sasl_extensions(secret):
        pairs = (f"{name}={value}" for name, value in extensions.items())
        configuration[EXTENSIONS] = ",".join(pairs)
    if authority := secret.get(ENDPOINT_AUTHORITY):
        configuration[ENDPOINT_AUTHORITY] = authority
    return configuration


def for_java(secret: Mapping[str, str]) -> dict[str, str]:
    """Return a Java client's OAUTHBEARER settings for the Secret's keys, without protocol and TLS.
    Those for AWS need AWS's library on the class path. Raises `InvalidDocument` for a Secret that
    can't work."""
    if (provider := _token_provider(secret)) is not None:
        role = _msk_settings(secret).get(MSK_ROLE_ARN)
        options = {} if role is None else {"awsRoleArn": role}
        if provider == MSK_ROLE and (region := secret.get(REGION)):
            options["awsStsRegion"] = region
        return {
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": _jaas_line("software.amazon.msk.auth.iam.IAMLoginModule", options),
            "sasl.client.callback.handler.class": (
                "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
            ),
        }
    options = {
        "clientId": _required_value(secret, CLIENT_ID),
        "clientSecret": _required_value(secret, CLIENT_SECRET),
    }
    if scope := secret.get(SCOPE):
        options["scope"] = scope
    for name, value in _sasl_extensions(secret).items():
        options[f"extension_{name}"] = value
    if authority := secret.get(ENDPOINT_AUTHORITY):
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority}
    return {
        "sasl.mechanism": OAUTHBEARER,
        TOKEN_ENDPOINT: _token_endpoint(secret),
        "sasl.login.callback.handler.class": _LOGIN_HANDLER,
        "sasl.jaas.config": _jaas_line(_LOGIN_MODULE, options),
    }


def check_protocol(secret: Mapping[str, str], protocol: str) -> None:
    """Raise `InvalidDocument` if the Secret is for AWS MSK and the protocol isn't SASL_SSL. Without
    encryption others could read AWS's token, which may give rights beyond Kafka."""
    if _token_provider(secret) is not None and protocol != "SASL_SSL":
        raise InvalidDocument(
            "protocol", f"invalid value: {protocol}: with {TOKEN_PROVIDER} want SASL_SSL"
        )


def quote_for_jaas(text: str) -> str:
    """Quote a string for Java's login configuration (JAAS): in double quotes, with escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _jaas_line(module: str, options: Mapping[str, str]) -> str:
    """Return the line of Java's login configuration (JAAS) that requires this login module with
    these options."""
    words = [
        module,
        "required",
        *(f"{name}={quote_for_jaas(value)}" for name, value in options.items()),
    ]
    return " ".join(words) + ";"


def _token_provider(secret: Mapping[str, str]) -> str | None:
    """Return which of `PROVIDERS` the Secret names; None: it names none, so tokens are fetched by
    OIDC. Raises `InvalidDocument` for an unknown provider."""
    if not (provider := secret.get(TOKEN_PROVIDER)):
        return None
    if provider not in PROVIDERS:
        raise InvalidDocument(
            TOKEN_PROVIDER,
            f"invalid value: {provider!r:.80}: want one of {', '.join(PROVIDERS)} (AWS MSK), "
            f"or none and {TOKEN_ENDPOINT} (OIDC)",
        )
    return provider


def _msk_settings(secret: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a client that logs in to AWS MSK: librdkafka's mechanism, and our own
    settings by which tokens are signed (`MSK_REGION`, and `MSK_ROLE_ARN` if the provider needs a
    role). Raises `InvalidDocument` for an invalid region, or an invalid or missing role."""
    region = secret.get(REGION, "")
    if region and not _match_region(region):
        raise InvalidDocument(
            REGION, f"invalid value: {region!r:.80}: want an AWS region, such as eu-west-1"
        )
    configuration = {"sasl.mechanism": OAUTHBEARER, MSK_REGION: region}
    if _token_provider(secret) == MSK_ROLE:
        role = _required_value(secret, ROLE)
        if not _match_role(role):
            raise InvalidDocument(
                ROLE, f"invalid value: {role!r:.200}: want one as arn:aws:iam::ACCOUNT:role/NAME"
            )
        configuration[MSK_ROLE_ARN] = role
    return configuration


def _token_endpoint(secret: Mapping[str, str]) -> str:
    """Return the URL of the token endpoint in the Secret. Raises `InvalidDocument` if the URL is
    missing, isn't one of HTTP, or holds credentials."""
    if not (endpoint := secret.get(TOKEN_ENDPOINT)):
        java_key = next((key for key in JAVA_ONLY if secret.get(key)), None)
        java_hint = (
            f"; {java_key} is for a Java client, which Knafka's functions aren't"
            if java_key
            else ""
        )
        raise InvalidDocument(
            TOKEN_ENDPOINT,
            f"missing in the Secret for Kafka: with {OAUTHBEARER} want the URL of your identity "
            f"provider's token endpoint, or {TOKEN_PROVIDER} for AWS MSK{java_hint}",
        )
    try:
        parts = urlsplit(endpoint)
        is_valid = (
            parts.scheme in ("https", "http") and bool(parts.hostname) and "@" not in endpoint
        )
    except ValueError:
        is_valid = False
    if not is_valid:
        raise InvalidDocument(
            TOKEN_ENDPOINT, "invalid value: want a URL such as https://login.example.com/token"
        )
    return endpoint


def _sasl_extensions(secret: Mapping[str, str]) -> dict[str, str]:
    """Return the SASL extensions in the Secret, value by name; empty if it has none. Raises
    `InvalidDocument` if they aren't written as NAME=VALUE, comma-separated."""
    extensions: dict[str, str] = {}
    declared_extensions = map(str.strip, secret.get(EXTENSIONS, "").split(","))
    for extension in filter(None, declared_extensions):
        name, _, value = extension.partition("=")
        if not _match_extension(extension) or name == "auth":
            raise InvalidDocument(
                EXTENSIONS,
                "invalid value: want NAME=VALUE, comma-separated; a name is of A-Z and a-z, and "
                "not auth",
            )
        extensions[name] = value
    return extensions


def _required_value(secret: Mapping[str, str], key: str) -> str:
    """Return this key's value in the Secret. Raises `InvalidDocument` if it is missing or empty."""
    if not (value := secret.get(key)):
        raise InvalidDocument(key, "missing in the Secret for Kafka")
    return value
