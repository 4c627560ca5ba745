"""Who may send, who is sent to, and TLS, on a real Kubernetes with its tokens (issue 38).

`authentication-oidc` is enabled and `transport-encryption` permissive for all of this file.
KNAFKA_RATE=100 pytest tests/cluster/test_senders.py -s also rotates certificates under that load.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final

import pytest
from support.channels import Channels
from support.cluster import OPERATOR_NAMESPACE
from support.gate import only_chaos
from support.guarded import (
    FORWARD,
    POLICY,
    Features,
    Target,
    addresses,
    api_server_away,
    certificate,
    check_rights,
    cluster_ip,
    is_token_shown,
    new_key,
    post_by_tls,
    resigned,
    rotate_signing_key,
)
from support.installation import EVENTING, READY, Installation
from support.steady_load import Load
from support.web_certificates import WebAuthority

MIN_SCALE: Final = {"autoscaling.knative.dev/min-scale": "1"}
OTHER: Final = "system:serviceaccount:default:default"
"""A sender of another namespace than the Broker's."""
POLICIES: Final = "eventing.knative.dev/v1alpha1"
BROKER: Final = {"apiVersion": EVENTING, "kind": "Broker"}

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]


@pytest.mark.conformance("KN-BRK-20", "KN-DP-09")
def test_the_address_says_for_whom_tokens_are(target: Target) -> None:
    group = {"broker": "eventing", "kafkachannel": "messaging"}[target.kind]
    audience = f"{group}.knative.dev/{target.kind}/{target.namespace}/{target.name}"
    assert target.address["audience"] == audience


@pytest.mark.conformance("KN-DP-09")
def test_a_token_that_proves_nothing_is_refused(target: Target) -> None:
    good = target.token()
    hour = 3600
    refused = {
        "none": None,
        "wrong audience": target.token(audience="eventing.knative.dev/broker/other/default"),
        "for the API server": target.token(audience="https://kubernetes.default.svc.cluster.local"),
        "wrong issuer": resigned(good, iss="https://issuer.example.com"),
        "expired": resigned(good, exp=int(time.time()) - hour, iat=int(time.time()) - 2 * hour),
        "not valid yet": resigned(good, nbf=int(time.time()) + hour),
        "a stranger's signature": resigned(good, new_key()),
        "no signature": f"{good.rpartition('.')[0]}.",
        "no JWT": "letmein",
    }
    answers = {name: target.answer(token) for name, token in refused.items()}
    assert answers == dict.fromkeys(refused, 401)
    assert target.answer(resigned(good, jti="another")) == 202, (
        "so the others fail by what they say"
    )


@pytest.mark.conformance("KN-BRK-17", "KN-DP-09")
@pytest.mark.parametrize(
    ("mode", "own", "other"),
    [("deny-all", 403, 403), ("allow-all", 202, 202), ("allow-same-namespace", 202, 403)],
)
def test_the_default_mode_says_who_may_send_where_no_policy_does(
    targets: Mapping[str, Target], features: Features, mode: str, own: int, other: int
) -> None:
    features.set(default__authorization__mode=mode)
    for target in targets.values():
        tokens = {"own": target.token(), "other": target.token("default")}
        expected = {("own", "made"): own, ("other", "made"): other}
        _until(target, tokens, expected, mode)
        condition = target.installed.condition(
            target.kind, target.name, target.namespace, "EventPoliciesReady"
        )
        assert condition["reason"] == "DefaultAuthorizationMode"
        assert mode in condition["message"]


@pytest.mark.conformance("KN-BRK-17", "KN-DP-09")
@pytest.mark.parametrize(
    ("spec", "senders", "own", "other", "channel_other"),
    [
        pytest.param({"from": [{"sub": OTHER}]}, None, (403, 403), (202, 202), 202, id="sub"),
        pytest.param(
            {"to": [{"ref": {**BROKER, "name": "default"}}],
             "from": [{"sub": "system:serviceaccount:default:*"}]},
            None, (403, 403), (202, 202), 403, id="prefix",
        ),
        pytest.param(
            {"to": [{"selector": {**BROKER, "matchLabels": {"open": "to-all"}}}],
             "from": [{"sub": "system:serviceaccount:*"}]},
            None, (202, 202), (202, 202), 403, id="selector",
        ),
        pytest.param(
            {"from": [{"ref": {**BROKER, "name": "forwards", "namespace": "default"}}]},
            [OTHER], (403, 403), (202, 202), 202, id="ref",
        ),
        pytest.param(
            {"from": [{"ref": {**BROKER, "name": "forwards", "namespace": "default"}}]},
            None, (403, 403), (403, 403), 403, id="ref-of-which-nothing-is-known",
        ),
        pytest.param(
            {"to": [{"ref": {**BROKER, "name": "default"}}],
             "from": [{"sub": "system:serviceaccount:*"}],
             "filters": [{"not": {"suffix": {"type": "refund"}}}]},
            None, (202, 403), (202, 403), 403, id="filters",
        ),
    ],
)  # fmt: skip
def test_policies_say_which_senders_may_send_which_events(
    targets: Mapping[str, Target],
    spec: Mapping[str, Any],
    senders: list[str] | None,
    own: tuple[int, int],
    other: tuple[int, int],
    channel_other: int,
) -> None:
    """`own` and `other`: what a sender of the namespace, and one of another, is answered at the
    Broker for an order and for a refund."""
    broker, channel = targets["broker"], targets["channel"]
    installed, namespace = broker.installed, broker.namespace
    kubectl = installed.cluster.kubectl
    kubectl("label", "broker", "default", "-n", namespace, "open=to-all", "--overwrite")
    metadata = {"name": "tried", "namespace": namespace}
    document = {"apiVersion": POLICIES, "kind": "EventPolicy", "metadata": metadata}
    installed.cluster.apply({**document, "spec": spec})
    if senders is not None:
        # What Knative Eventing's controller does for a `ref`.
        status = {"from": senders, "conditions": [{"type": "Ready", "status": "True"}]}
        kubectl(
            "patch", POLICY, "tried", "-n", namespace, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": status}),
        )  # fmt: skip
    types = order, refund = "com.example.order", "com.example.refund"
    tokens = {"own": broker.token(), "other": broker.token("default")}
    expected = dict(zip([("own", order), ("own", refund)], own, strict=True))
    expected |= dict(zip([("other", order), ("other", refund)], other, strict=True))
    _until(broker, tokens, expected, "the policy", types)
    _until(
        channel, {"other": channel.token("default")}, {("other", "made"): channel_other}, "policy"
    )
    ready = not any("ref" in source for source in spec["from"]) or senders is not None
    condition = installed.condition("broker", "default", namespace, "EventPoliciesReady")
    assert condition["status"] == ("True" if ready else "False")
    held = installed.status("broker", "default", namespace)["policies"]
    assert held == ([{"apiVersion": POLICIES, "name": "tried"}] if ready else [])
    kubectl("delete", POLICY, "tried", "-n", namespace)
    for each in targets.values():
        each.until_answers(each.token(), 202)
        each.until_answers(each.token("default"), 403)


def _until(
    target: Target,
    tokens: Mapping[str, str],
    expected: Mapping[tuple[str, str], int],
    what: str,
    types: tuple[str, ...] = ("made",),
) -> None:
    target.installed.cluster.wait_for(
        lambda: target.answers(tokens, types) == expected,
        READY, f"{target.kind} answers by {what} {dict(expected)}",
    )  # fmt: skip


@pytest.mark.conformance("KN-DP-09")
def test_senders_go_on_while_the_api_server_is_away_and_after_its_key_was_rotated(
    targets: Mapping[str, Target],
) -> None:
    known = {name: target.token() for name, target in targets.items()}
    new = {name: target.token() for name, target in targets.items()}
    urls = {name: str(target.address["url"]) for name, target in targets.items()}
    for name, target in targets.items():
        target.until_answers(known[name], 202)
    rotate_signing_key()
    with api_server_away():
        for name, target in targets.items():
            for token in (known[name], new[name]):
                answer = target.answer_at(urls[name], token)
                assert answer == 202, f"{name}: keys that were read are used on"
    for name, target in targets.items():
        # 503 until the key that it isn't signed with so far is read: never 401.
        rotated = target.token()
        answers = set[int]()

        def taken(target: Target = target, token: str = rotated, seen: set[int] = answers) -> bool:
            seen.add(target.answer(token))
            return 202 in seen

        target.installed.cluster.wait_for(taken, READY, f"{name} takes a token of the new key")
        assert answers <= {202, 503}
        assert target.answer(new[name]) == 202, "the old key is still the issuer's"


@pytest.mark.usefixtures("features", "brokers_go", "channels_go")
@pytest.mark.conformance("KN-TRG-11", "KN-SUB-06")
def test_subscribers_dead_letter_sinks_and_replies_that_demand_tokens_and_tls_get_both(
    channels: Channels, namespace: str
) -> None:
    """A Broker is what demands them: of this cluster's issuer, for its own audience, and at a
    certificate of an authority that only its address names."""
    installed, kubectl = channels.installed, channels.installed.cluster.kubectl
    came = installed.subscriber(namespace, "came")
    failing = installed.subscriber(namespace, "failing")
    asked = installed.subscriber(namespace, "asked", SUBSCRIBER_REPLY_TYPE="answered")
    failing.behave(status=400)
    to = {"ref": {"apiVersion": EVENTING, "kind": "Broker", "name": "demanding"}}
    certificate(installed.cluster, namespace, WebAuthority("one"), "demanding")
    annotations = {"knafka.dev/tls-secret": "demanding", **MIN_SCALE}
    installed.broker(namespace, "demanding", ready=False, annotations=annotations)
    installed.broker(namespace, ready=False)
    installed.trigger(namespace, "came", came.ref, broker="demanding", ready=False)
    installed.trigger(namespace, "forward", to, ready=False)
    shared = {"knafka.dev/isolation": "shared"}
    sink = {"deadLetterSink": to, "retry": 0}
    installed.trigger(
        namespace, "failing", failing.ref, ready=False, annotations=shared, delivery=sink
    )
    brokers = {
        name: Target(installed, "broker", namespace, name) for name in ("demanding", "default")
    }
    for name in brokers:
        installed.until_ready("broker", name, namespace)
    for name in ("came", "forward", "failing"):
        installed.until_ready("trigger", name, namespace)
    channels.channel(namespace, "orders")
    channels.subscription(namespace, "asked", "orders", asked.ref, reply=to)
    forward = installed.status("trigger", "forward", namespace)
    assert forward["auth"] == {"serviceAccountName": FORWARD}
    assert forward["subscriberUri"].startswith("https://demanding-kn-receiver-tls.")
    assert brokers["demanding"].answer(None) == 401
    channel = Target(installed, "kafkachannel", namespace, "orders")
    for target in (brokers["default"], channel):
        target.until_answers(target.token(), 202)

    def arrived() -> set[str]:
        return {_kind(event) for event in came.seen()}

    kinds = {"forwarded", "dead letter", "reply"}
    installed.cluster.wait_for(lambda: arrived() == kinds, 120, f"{kinds} came")
    check_rights(installed.cluster, namespace)
    assert not is_token_shown(installed.cluster, namespace, came)
    kubectl("delete", "triggers", "--all", "-n", namespace, "--timeout=90s")


@pytest.mark.usefixtures("features", "brokers_go")
@pytest.mark.conformance("KN-TRG-11")
def test_a_subscriber_that_refuses_a_token_gets_another_at_once(
    installed: Installation, namespace: str
) -> None:
    """As one does whose keys were rotated; no retry is spent on it."""
    subscriber = installed.subscriber(namespace)
    subscriber.behave(status=401, times=1)
    installed.broker(namespace)
    installed.trigger(
        namespace, "mail", {**subscriber.ref, "audience": "mail"}, delivery={"retry": 0}
    )
    broker = Target(installed, "broker", namespace, "default")
    broker.until_answers(broker.token(), 202)

    def requests() -> list[dict[str, Any]]:
        return [event for event in subscriber.seen() if event["id"] == "1"]

    installed.cluster.wait_for(lambda: len(requests()) == 2, READY, "it is sent a second time")
    first, second = requests()
    assert (first["answered"], second["answered"]) == (401, 202)
    tokens = [event["headers"]["authorization"] for event in (first, second)]
    assert tokens[0] != tokens[1]


@pytest.mark.usefixtures("brokers_go")
@pytest.mark.conformance("KN-BRK-17", "KN-BRK-20")
def test_events_come_in_by_tls_and_where_it_is_strict_by_nothing_else(
    installed: Installation, features: Features, namespace: str
) -> None:
    """Permissive first; dispatchers have the installation's trust bundle meanwhile."""
    cluster, authority = installed.cluster, WebAuthority("one")
    host = certificate(cluster, namespace, authority, "default")
    bundle = {
        "namespace": OPERATOR_NAMESPACE,
        "name": "corporate",
        "labels": {"networking.knative.dev/trust-bundle": "true"},
    }
    cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": bundle,
         "data": {"ca.crt": authority.certificate}}
    )  # fmt: skip
    annotations = {"knafka.dev/tls-secret": "default", **MIN_SCALE}
    installed.broker(namespace, annotations=annotations)
    subscriber = installed.subscriber(namespace)
    installed.trigger(namespace, "mail", subscriber.ref)
    cluster.wait_for(lambda: len(addresses(installed, namespace)) == 2, READY, "both addresses")
    https, plain = addresses(installed, namespace)
    url = f"https://{host}/{namespace}/default"
    assert (https["url"], https["CACerts"]) == (url, authority.certificate)
    assert plain["name"] == "http"
    broker = Target(installed, "broker", namespace, "default")
    token = broker.token()
    broker.until_answers(token, 202)
    assert post_by_tls(cluster, namespace, host, authority, token) == 202
    assert post_by_tls(cluster, namespace, host, authority, None) == 401
    subscriber.wait_for(2)
    copy = cluster.get("configmap", "knafka-trust-bundle", namespace)
    assert copy is not None
    assert copy["data"]["bundle.pem"] == authority.certificate
    try:
        features.set(transport__encryption="strict")
        cluster.wait_for(
            lambda: broker.answer_at(plain["url"], token) == 403, READY, "plain ones are refused"
        )
        cluster.wait_for(
            lambda: len(addresses(installed, namespace)) == 1, READY, "the address by https alone"
        )
        (only,) = addresses(installed, namespace)
        assert only == https == installed.status("broker", "default", namespace)["address"]
        assert post_by_tls(cluster, namespace, host, authority, token) == 202
        assert installed.condition("broker", "default", namespace, "Ready")["status"] == "True"
    finally:
        features.set(transport__encryption="permissive")
        cluster.kubectl("delete", "configmap", "corporate", "-n", OPERATOR_NAMESPACE)


@only_chaos  # two minutes
@pytest.mark.usefixtures("features", "brokers_go")
def test_a_certificate_and_its_authority_are_rotated_under_load_without_a_failed_send(
    installed: Installation, namespace: str
) -> None:
    cluster, old, new = installed.cluster, WebAuthority("old"), WebAuthority("new")
    host = certificate(cluster, namespace, old, "default")
    annotations = {"knafka.dev/tls-secret": "default", **MIN_SCALE}
    installed.broker(namespace, annotations=annotations)
    subscriber = installed.subscriber(namespace)
    installed.trigger(namespace, "mail", subscriber.ref)
    broker = Target(installed, "broker", namespace, "default")
    token = broker.token()
    broker.until_answers(token, 202)
    before = subscriber.summary()["unique"]
    trusted = ssl.create_default_context(cadata=old.certificate + new.certificate)
    address = cluster_ip(cluster, namespace)

    def shown() -> str:
        return ssl.get_server_certificate((address, 443), timeout=10)

    first = shown()
    with Load(
        f"https://{host}/{namespace}/default",
        float(os.environ["KNAFKA_RATE"]),
        headers={"authorization": f"Bearer {token}"},
        through=f"https://{address}",
        verify=trusted,
    ) as load:
        cluster.wait_for(lambda: len(load.accepted) > 200, READY, "it is loaded")
        began = time.time()
        certificate(cluster, namespace, new, "default")
        cluster.wait_for(lambda: shown() != first, 150, "the new certificate is shown")
        print(f"the new certificate was shown after {time.time() - began:.0f} s")
        count = len(load.accepted)
        cluster.wait_for(lambda: len(load.accepted) > count + 500, READY, "it goes on")
    cluster.wait_for(
        lambda: addresses(installed, namespace)[0].get("CACerts") == new.certificate,
        READY, "the address has the new authority",
    )  # fmt: skip
    print(f"{len(load.accepted)} accepted, {len(load.failed)} failed")
    assert load.failed == {}
    subscriber.wait_for(len(load.accepted) + before - 1, within=90)


def _kind(event: dict[str, Any]) -> str:
    if event["type"] == "answered":
        return "reply"
    return "dead letter" if "knativeerrorcode" in event["attributes"] else "forwarded"
