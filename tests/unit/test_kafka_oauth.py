"""A Secret with tokens in place of a password: OIDC, and AWS MSK by IAM (BUS-42)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from support.replacing import replace_in

from knafka import tokens
from knafka.core.errors import InvalidDocument, LogError
from knafka.core.kafka_settings.kafka_secret import for_java, for_librdkafka
from knafka.tokens import with_tokens

ENDPOINT = "https://login.example.com/token"
OIDC = {
    "protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
    "sasl.oauthbearer.client.id": "knafka",
    "sasl.oauthbearer.client.secret": 'p"\\',
}
FULL = {
    **OIDC,
    "ca.crt": "KAFKA",
    "sasl.oauthbearer.scope": "kafka.read kafka.write",
    "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool-2",
    "https.ca.pem": "LOGIN\nPEM",
}
MSK = {
    "protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "type": "OAUTHBEARER",
    "tokenProvider": "MSKAccessTokenProvider",
    "awsRegion": "eu-west-1",
}
ARN = "arn:aws:iam::123456789012:role/kafka"
MSK_ROLE = {**MSK, "tokenProvider": "MSKRoleAccessTokenProvider", "roleARN": ARN}


@pytest.mark.conformance("BUS-42")
def test_librdkafka_fetches_tokens_from_the_endpoint_that_the_secret_names() -> None:
    assert for_librdkafka(OIDC) == {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
        "sasl.oauthbearer.client.id": "knafka",
        "sasl.oauthbearer.client.secret": 'p"\\',
    }
    added = for_librdkafka(FULL).items() - for_librdkafka(OIDC).items()
    assert dict(added) == {
        "ssl.ca.pem": "KAFKA",
        "sasl.oauthbearer.scope": "kafka.read kafka.write",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,identityPoolId=pool-2",
        "https.ca.pem": "LOGIN\nPEM",
    }


def test_so_do_the_java_clients_of_the_jobs() -> None:
    login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    found = for_java(OIDC)
    assert found.pop("sasl.jaas.config") == (f'{login} clientId="knafka" clientSecret="p\\"\\\\";')
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
    }
    assert for_java(FULL)["sasl.jaas.config"] == (
        f'{login} clientId="knafka" clientSecret="p\\"\\\\" scope="kafka.read kafka.write" '
        'extension_logicalCluster="lkc-1" extension_identityPoolId="pool-2" '
        'ssl.truststore.type="PEM" ssl.truststore.certificates="LOGIN\\nPEM";'
    )


@pytest.mark.parametrize("client", [for_librdkafka, for_java])
@pytest.mark.parametrize(
    ("changed", "path", "wanted"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": ""}, None, "tokenProvider for AWS MSK"),
        ({"sasl.oauthbearer.token.endpoint.url": "login/token"}, None, "https://"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///token"}, None, "https://"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://a:b@c/"}, None, "https://"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://[c/"}, None, "https://"),
        ({"sasl.oauthbearer.client.id": ""}, None, "missing"),
        ({"sasl.oauthbearer.client.secret": ""}, None, "missing"),
        ({"sasl.oauthbearer.extensions": "cluster"}, None, "NAME=VALUE"),
        ({"sasl.oauthbearer.extensions": "a-b=c"}, None, "NAME=VALUE"),
        ({"sasl.oauthbearer.extensions": "auth=x"}, None, "NAME=VALUE"),
        ({"tokenProvider": "AzureTokenProvider"}, None, "MSKAccessTokenProvider"),
        (
            {"tokenProvider": "MSKAccessTokenProvider", "awsRegion": "Ireland"},
            "awsRegion",
            "such as eu-west-1",
        ),
        ({"tokenProvider": "MSKRoleAccessTokenProvider"}, "roleARN", "missing"),
        (
            {"tokenProvider": "MSKRoleAccessTokenProvider", "roleARN": "kafka"},
            "roleARN",
            "arn:aws:iam::",
        ),
    ],
    ids=str,
)
def test_a_secret_that_cannot_work_says_which_key_and_what_is_wanted(
    client: Callable[[dict[str, str]], dict[str, str]],
    changed: dict[str, str],
    path: str | None,
    wanted: str,
) -> None:
    with pytest.raises(InvalidDocument) as caught:
        client({**OIDC, **changed})
    assert caught.value.path == (path or next(iter(changed)))
    assert wanted in caught.value.problem
    assert 'p"' not in str(caught.value)


def test_a_secret_for_upstreams_java_clients_says_what_is_missing_here() -> None:
    java = {"protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": "x"}
    with pytest.raises(InvalidDocument) as caught:
        for_librdkafka(java)
    assert caught.value.path == "sasl.oauthbearer.token.endpoint.url"
    assert "sasl.jaas.config is for a Java client" in caught.value.problem


def test_upstreams_secret_for_msk_is_one_for_its_java_library_too() -> None:
    found = for_java(MSK)
    assert found["sasl.mechanism"] == "AWS_MSK_IAM"
    assert found["sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert for_java(MSK_ROLE)["sasl.jaas.config"] == (
        "software.amazon.msk.auth.iam.IAMLoginModule required "
        f'awsRoleArn="{ARN}" awsStsRegion="eu-west-1";'
    )


NOW = 1_800_000_000.0


class Signer:
    """In place of AWS's, whose signatures nobody but AWS can check."""

    def __init__(self) -> None:
        self.signed = 0
        self.lifetime = 900.0
        self.failure: Exception | None = None

    def generate_auth_token(self, region: str) -> tuple[str, int]:
        if self.failure is not None:
            raise self.failure
        self.signed += 1
        return f"token {self.signed} of {region}", int((NOW + self.lifetime) * 1000)

    def generate_auth_token_from_role_arn(
        self, region: str, role: str, name: str
    ) -> tuple[str, int]:
        return f"token of {role} in {region} for {name}", 2_500


@pytest.fixture
def signer(monkeypatch: pytest.MonkeyPatch) -> Signer:
    module = ModuleType("aws_msk_iam_sasl_signer")
    signer = Signer()
    module.MSKAuthTokenProvider = signer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(tokens, "_shared", {})
    replace_in(monkeypatch, tokens, "time", time=lambda: NOW)
    return signer


@pytest.mark.usefixtures("signer")
def test_tokens_of_aws_come_from_its_library_with_their_end_in_seconds() -> None:
    configuration = with_tokens({"bootstrap.servers": "k:9098", **for_librdkafka(MSK)})
    assert configuration.pop("oauth_cb")("") == ("token 1 of eu-west-1", NOW + 900)
    assert configuration == {
        "bootstrap.servers": "k:9098",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
    }
    by_role = with_tokens(for_librdkafka(MSK_ROLE))["oauth_cb"]
    assert by_role("") == (f"token of {ARN} in eu-west-1 for knafka", 2.5)


@pytest.mark.usefixtures("signer")
def test_clients_begin_with_one_token_and_renew_their_own() -> None:
    """The operator opens clients for each group: with a role, each token is a request to AWS."""
    one, other = (with_tokens(for_librdkafka(MSK))["oauth_cb"] for _ in range(2))
    assert [one("")[0], other("")[0]] == ["token 1 of eu-west-1"] * 2
    assert [one("")[0], other("")[0]] == ["token 2 of eu-west-1", "token 3 of eu-west-1"]


@pytest.mark.parametrize(
    ("lifetime", "age", "shared"),
    [(900.0, 59.0, True), (900.0, 61.0, False), (8.0, 1.9, True), (8.0, 2.1, False)],
)
def test_a_token_is_shared_while_it_is_young(
    signer: Signer, monkeypatch: pytest.MonkeyPatch, lifetime: float, age: float, shared: bool
) -> None:
    """With one that has expired a client would wait for ten seconds, and fail."""
    signer.lifetime = lifetime
    with_tokens(for_librdkafka(MSK))
    replace_in(monkeypatch, tokens, "time", time=lambda: NOW + age)
    found = with_tokens(for_librdkafka(MSK))["oauth_cb"]("")[0]
    assert found == ("token 1 of eu-west-1" if shared else "token 2 of eu-west-1")


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (ValueError("AWS Credentials can not be empty"), "AWS Credentials can not be empty"),
        (AttributeError("'NoneType' object has no attribute 'access_key'"), "no credentials"),
    ],
    ids=["empty", "none"],
)
def test_where_aws_gives_no_token_the_reason_is_told_at_once(
    signer: Signer, failure: Exception, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    renewed = with_tokens(for_librdkafka(MSK))["oauth_cb"]
    renewed("")
    signer.failure = failure
    with pytest.raises(LogError, match=f"AWS gives no token for Kafka: {why}"):
        with_tokens(for_librdkafka({**MSK, "awsRegion": "eu-north-1"}))
    with pytest.raises(LogError, match=why):
        renewed("")
    assert why in caplog.text, "to the client it is an exception without a reason"


@pytest.mark.usefixtures("signer")
def test_the_region_is_the_pods_unless_the_secret_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = for_librdkafka({**MSK, "awsRegion": ""})
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidDocument, match=r"awsRegion: missing.*AWS_REGION"):
        with_tokens(nowhere)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert with_tokens(nowhere)["oauth_cb"]("")[0] == "token 1 of eu-north-1"
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert with_tokens(nowhere)["oauth_cb"]("")[0] == "token 2 of us-west-2"


def test_where_awss_library_is_missing_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(InvalidDocument) as caught:
        with_tokens(for_librdkafka(MSK))
    assert caught.value.path == "tokenProvider"
    assert "pip install knafka[aws]" in caught.value.problem


def test_what_needs_no_token_is_left_as_it_is() -> None:
    assert with_tokens({"bootstrap.servers": "k:1"}) == {"bootstrap.servers": "k:1"}
