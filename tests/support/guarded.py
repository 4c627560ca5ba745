"""Brokers and KafkaChannels of the test cluster whose senders must show who they are (issue 38).

Tokens are the API server's own, or signed anew with its key or a stranger's. Registered by
`pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from support.channels import SMOKE_TEST, Channels
from support.cluster import OPERATOR_NAMESPACE, Cluster, testcluster
from support.installation import READY, ROOT, Installation, Subscriber
from support.web_certificates import WebAuthority

from testcluster import build, node

POLICY: Final = "eventpolicies.eventing.knative.dev"
FEATURES: Final = "features-of-senders"
DEPLOY: Final = ROOT / "operator" / "deploy"
FORWARD: Final = "forwardoidc-eventing.knative.dev-trigger"
ASKED: Final = "askedoidc-messaging.knative.dev-subscription"
COMPONENTS: Final = ("trust-bundles", "tls")


@dataclass(frozen=True, slots=True)
class Features:
    """`config-features` of the test's own, which the operator reads."""

    installed: Installation
    values: dict[str, str] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        return f"{OPERATOR_NAMESPACE}/{FEATURES}"

    def set(self, **values: str) -> None:
        """Change these, `__` for each hyphen; the others stay."""
        self.values.update((name.replace("__", "-"), value) for name, value in values.items())
        metadata = {"namespace": OPERATOR_NAMESPACE, "name": FEATURES}
        self.installed.cluster.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": self.values}
        )

    def delete(self) -> None:
        self.installed.cluster.kubectl(
            "delete", "configmap", FEATURES, "-n", OPERATOR_NAMESPACE, "--ignore-not-found"
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A Broker or KafkaChannel with an audience."""

    installed: Installation
    kind: str
    """As kubectl has it."""
    namespace: str
    name: str

    @property
    def address(self) -> Mapping[str, Any]:
        address: Mapping[str, Any] = self.installed.status(self.kind, self.name, self.namespace)[
            "address"
        ]
        return address

    def token(self, namespace: str = "", account: str = "default", audience: str = "") -> str:
        """One that Kubernetes gives out; by default the target's namespace's own account's."""
        return self.installed.cluster.kubectl(
            "create", "token", account, "-n", namespace or self.namespace,
            "--audience", audience or self.address["audience"],
        ).strip()  # fmt: skip

    def answer(self, token: str | None, type_: str = "made") -> int:
        """The status with which an event is answered at `status.address`."""
        return self.answer_at(str(self.address["url"]), token, type_)

    def answer_at(self, url: str, token: str | None, type_: str = "made") -> int:
        """The same at a URL that is known, which takes no API server."""
        if not url.removeprefix("http://").count("/"):
            url += "/"
        headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/tests", "ce-type": type_}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        return self.installed.post(url, headers, b"").status_code

    def answers(
        self, tokens: Mapping[str, str], types: tuple[str, ...] = ("made",)
    ) -> dict[tuple[str, str], int]:
        """By the token's name and the event's type."""
        return {
            (name, type_): self.answer(token, type_)
            for name, token in tokens.items()
            for type_ in types
        }

    def until_answers(self, token: str, status: int) -> None:
        what = f"{self.kind} {self.name} answers {status}"
        self.installed.cluster.wait_for(lambda: self.answer(token) == status, READY, what)


def resigned(token: str, key: ec.EllipticCurvePrivateKey | None = None, **claims: Any) -> str:
    """The token with other claims and the same key id, signed with the cluster's key by default."""
    header = jwt.get_unverified_header(token)
    claims = {**jwt.decode(token, options={"verify_signature": False}), **claims}
    signing = node.signing_key().read_text() if key is None else key
    return jwt.encode(claims, signing, header["alg"], headers={"kid": header["kid"]})


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key as the test cluster's."""
    return ec.generate_private_key(ec.SECP256R1())


@contextmanager
def api_server_away() -> Iterator[None]:
    """The cluster without its API server; what runs in it runs on."""
    testcluster("api-server", "stop")
    try:
        yield
    finally:
        testcluster("api-server", "start")


def rotate_signing_key() -> None:
    """The API server signs with a new one once it is started again."""
    key = new_key()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    node.rotate_signing_key(private.decode(), public.decode())


@pytest.fixture(scope="module")
def features(installed: Installation) -> Iterator[Features]:
    """The installation with both features, their components, and Knative's EventPolicies."""
    cluster, features = installed.cluster, Features(installed)
    features.set(authentication__oidc="enabled", transport__encryption="permissive")
    definition = build.eventing_source() / "config" / "core" / "resources" / "eventpolicy.yaml"
    applied = [definition, *(DEPLOY / name / "rbac.yaml" for name in COMPONENTS)]
    try:
        for path in applied:
            cluster.apply(path)
        cluster.until_established(f"crd/{POLICY}")
        variables = {
            "KNAFKA_FEATURES": features.setting,
            "KNAFKA_TRUST_BUNDLES": OPERATOR_NAMESPACE,
        }
        with installed.settings(**variables):
            yield features
            installed.until_left()  # the operator's rights to what it deletes go next
    finally:
        for path in applied:
            cluster.kubectl("delete", "-f", str(path), "--ignore-not-found", "--wait=false")
        features.delete()


@pytest.fixture(scope="module")
def targets(channels: Channels, features: Features) -> Iterator[Mapping[str, Target]]:
    """A Broker and a KafkaChannel of one namespace, which the tests of senders share."""
    installed, cluster = channels.installed, channels.cluster
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(namespace)
    installed.broker(namespace)
    channels.channel(namespace, "orders")
    found = {
        "broker": Target(installed, "broker", namespace, "default"),
        "channel": Target(installed, "kafkachannel", namespace, "orders"),
    }
    for target in found.values():
        # 503 until the receiver has read the issuer's keys.
        target.until_answers(target.token(), 202)
    yield found
    for kind in ("brokers", "kafkachannels"):
        cluster.delete(kind, namespace, within=90)
    cluster.delete("namespace", "", namespace)


@pytest.fixture(params=["broker", "channel"])
def target(request: pytest.FixtureRequest, targets: Mapping[str, Target]) -> Target:
    return targets[request.param]


def addresses(installed: Installation, namespace: str) -> list[dict[str, Any]]:
    """`status.addresses` of the Broker."""
    listed: list[dict[str, Any]] = installed.status("broker", "default", namespace).get(
        "addresses", []
    )
    return listed


def certificate(cluster: Cluster, namespace: str, authority: WebAuthority, broker: str) -> str:
    """Have a Secret for a Broker's receiver, of the Broker's name; gives the receiver's host."""
    host = f"{broker}-kn-receiver-tls.{namespace}.svc.cluster.local"
    metadata = {"name": broker, "namespace": namespace}
    files = authority.files(host)
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": files})
    return host


def cluster_ip(cluster: Cluster, namespace: str) -> str:
    service = cluster.get("service", "default-kn-receiver-tls", namespace)
    assert service is not None
    return str(service["spec"]["clusterIP"])


def post_by_tls(
    cluster: Cluster, namespace: str, host: str, authority: WebAuthority, token: str | None
) -> int:
    """The status of one event, sent to the receiver's own TLS by who trusts this authority only."""
    headers = {**SMOKE_TEST, "ce-id": uuid.uuid4().hex}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    context = ssl.create_default_context(cadata=authority.certificate)
    url = f"https://{cluster_ip(cluster, namespace)}/{namespace}/default"
    with httpx.Client(verify=context, trust_env=False) as client:
        answer = client.post(url, headers=headers, extensions={"sni_hostname": host})
    return answer.status_code


def check_rights(cluster: Cluster, namespace: str) -> None:
    """Dispatchers may ask for tokens of their own Triggers' accounts, and of no others."""

    def may(who: str, of: str, where: str = namespace) -> bool:
        said = cluster.kubectl(
            "auth", "can-i", "create", f"serviceaccounts/{of}", "--subresource=token",
            "-n", where, f"--as=system:serviceaccount:{who}", check=False,
        )  # fmt: skip
        return said.strip().endswith("yes")

    own, shards = f"{namespace}:forward-kn-dispatcher", f"{namespace}:default-kn-shards"
    of_channels = f"{OPERATOR_NAMESPACE}:knafka-channel-dispatchers"
    assert may(own, FORWARD)
    assert may(shards, "failingoidc-eventing.knative.dev-trigger")
    assert may(of_channels, ASKED)
    for who in (own, shards, of_channels):
        assert not may(who, "default")
        assert not may(who, "knafka-operator", OPERATOR_NAMESPACE)
    assert not may(f"{namespace}:{FORWARD}", FORWARD), "who is shown its token has no right by it"
    assert not may(own, "failingoidc-eventing.knative.dev-trigger")


def is_token_shown(cluster: Cluster, namespace: str, came: Subscriber) -> bool:
    """Whether a token is in an event, an object or a log: Kubernetes' begin with the same JSON."""
    texts = (
        str(came.seen()),
        cluster.kubectl("get", "triggers,brokers,ksvc", "-n", namespace, "-ojson"),
        cluster.logs(namespace, "app.kubernetes.io/name=knafka"),
        cluster.logs(OPERATOR_NAMESPACE, "app.kubernetes.io/name=knafka"),
    )
    return any("eyJhbGciOi" in text for text in texts)
