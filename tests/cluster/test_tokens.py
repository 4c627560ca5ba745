"""What Triggers and Subscriptions send to destinations that demand tokens (issue 38).

A Broker is what demands them: of this cluster's issuer, for its own audience.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from support.channels import SMOKE_TEST, Channels
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.installation import EVENTING, READY, Installation, Subscriber

FORWARD: Final = "forwardoidc-eventing.knative.dev-trigger"
ASKED: Final = "askedoidc-messaging.knative.dev-subscription"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("brokers_go", "channels_go"),
]


@pytest.fixture
def demanding(installed: Installation) -> Iterator[None]:
    """`authentication-oidc` is enabled, for the whole installation."""
    name = "features-of-tokens"
    installed.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": OPERATOR_NAMESPACE, "name": name},
            "data": {"authentication-oidc": "enabled"},
        }
    )
    with installed.settings(KNAFKA_FEATURES=f"{OPERATOR_NAMESPACE}/{name}"):
        yield
    installed.cluster.kubectl("delete", "configmap", name, "-n", OPERATOR_NAMESPACE)


@pytest.mark.alone
@pytest.mark.usefixtures("demanding")
@pytest.mark.conformance("KN-TRG-11", "KN-SUB-06")
def test_a_subscriber_a_dead_letter_sink_and_a_reply_destination_that_demand_tokens_get_them(
    channels: Channels, namespace: str
) -> None:
    installed, kubectl = channels.installed, channels.installed.cluster.kubectl
    came = installed.subscriber(namespace, "came")
    failing = installed.subscriber(namespace, "failing")
    asked = installed.subscriber(namespace, "asked", SUBSCRIBER_REPLY_TYPE="answered")
    failing.behave(status=400)
    to = {"ref": {"apiVersion": EVENTING, "kind": "Broker", "name": "demanding"}}
    addresses = {
        name: installed.broker(namespace, name, ready=False) for name in ("demanding", "default")
    }
    installed.trigger(namespace, "came", came.ref, broker="demanding", ready=False)
    installed.trigger(namespace, "forward", to, ready=False)
    shared = {"knafka.dev/isolation": "shared"}
    sink = {"deadLetterSink": to, "retry": 0}
    installed.trigger(
        namespace, "failing", failing.ref, ready=False, annotations=shared, delivery=sink
    )
    for name in addresses:
        installed.until_ready("broker", name, namespace)
        address = installed.status("broker", name, namespace)["address"]
        assert address["audience"] == f"eventing.knative.dev/broker/{namespace}/{name}"
        addresses[name] = address["url"]
    for name in ("came", "forward", "failing"):
        installed.until_ready("trigger", name, namespace)
    channel = channels.channel(namespace, "orders")
    channels.subscription(namespace, "asked", "orders", asked.ref, reply=to)
    assert installed.status("trigger", "forward", namespace)["auth"] == {
        "serviceAccountName": FORWARD
    }
    assert installed.send(addresses["demanding"], "unasked").status_code == 401

    def post(address: str, audience: str, id_: str) -> None:
        token = kubectl("create", "token", "default", "-n", namespace, "--audience", audience)
        headers = {**SMOKE_TEST, "ce-id": id_, "authorization": f"Bearer {token.strip()}"}

        def accepted() -> bool:
            # 503 until the receiver has read the issuer's keys.
            return installed.post(address, headers, b"{}").status_code == 202

        installed.cluster.wait_for(accepted, READY, f"{id_} is accepted at {address}")

    post(addresses["default"], f"eventing.knative.dev/broker/{namespace}/default", "trigger")
    post(f"{channel}/", f"messaging.knative.dev/kafkachannel/{namespace}/orders", "channel")

    def arrived() -> set[str]:
        return {_kind(event) for event in came.seen()}

    wanted = {"forwarded", "dead letter", "reply"}
    installed.cluster.wait_for(lambda: arrived() == wanted, 120, f"{wanted} came")
    _rights_are_of_one_account_only(installed.cluster, namespace)
    _no_token_is_anywhere(installed.cluster, namespace, came)


def _kind(event: dict[str, Any]) -> str:
    if event["type"] == "answered":
        return "reply"
    return "dead letter" if "knativeerrorcode" in event["attributes"] else "forwarded"


def _rights_are_of_one_account_only(cluster: Cluster, namespace: str) -> None:
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


def _no_token_is_anywhere(cluster: Cluster, namespace: str, came: Subscriber) -> None:
    """Each of Kubernetes' begins so: the JSON of a header."""
    begin = "eyJhbGciOi"
    assert begin not in str(came.seen())
    assert begin not in cluster.kubectl("get", "triggers,brokers,ksvc", "-n", namespace, "-ojson")
    for where in (namespace, OPERATOR_NAMESPACE):
        assert begin not in cluster.logs(where, "app.kubernetes.io/name=knafka")
