"""Policies on this machine: `knafka up --require-auth`, `knafka policy test`, `knafka check`
(issue 38, "Local too")."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.local_world import URL, broker, channel, config_map, running_locally
from support.memory.log import MemoryLog, MemoryWriter
from support.receiver_requests import MINIMAL, ingress
from support.senders import NOW, BelievingKeys, bearer, believed
from support.waiting import until
from typer.testing import CliRunner

from knafka.core.authorization import SERVICE_ACCOUNTS
from knafka.core.contract import Policy
from knafka.core.filters.declared_filters import Prefix
from knafka.receiver.answers import Answer
from knafka.receiver.authentication import TokenVerifier
from knafka.receiver.ingest import IngestHandler
from knafka_cli.access import policies
from knafka_cli.checks.checking import FindingSeverity, check
from knafka_cli.command_line import app
from knafka_client.declared.manifests import Manifests, ObjectIdentity
from knafka_operator.model.event_policies import POLICIES_VERSION, POLICY, EventPolicy

EXAMPLE = Path(__file__).parents[2] / "examples" / "policies"
ORDER = EXAMPLE / "events" / "order.json"
REFUND = EXAMPLE / "events" / "refund.json"
AUDIENCE = "eventing.knative.dev/broker/default/shop"
WEB = "system:serviceaccount:shop:web"
ORDERS = {"type": "order."}


def policy(
    name: str = "orders", namespace: str = "default", senders: Any = WEB, **spec: Any
) -> dict[str, Any]:
    """`senders`: `spec.from`, or the one subject that it names."""
    metadata = {"name": name, "namespace": namespace}
    given = {"from": [{"sub": senders}] if isinstance(senders, str) else senders, **spec}
    return {
        "apiVersion": POLICIES_VERSION,
        "kind": POLICY,
        "metadata": metadata,
        "spec": {key: value for key, value in given.items() if value is not None},
    }


def features(**data: str) -> dict[str, Any]:
    found = config_map("config-features", **{})
    found["metadata"]["namespace"] = "knative-eventing"
    return {**found, "data": {key.replace("_", "-"): value for key, value in data.items()}}


# knafka up --require-auth


@pytest.mark.looptime
@pytest.mark.conformance("KN-BRK-20")
async def test_a_policy_holds_before_its_broker_is_ready() -> None:
    async with running_locally(requires_auth=True) as world:
        filters = [{"prefix": {"type": "order."}}]
        await world.apply(broker(), policy(filters=filters))
        found = world.ingress()
        assert found is not None
        assert found.audience == AUDIENCE
        assert found.policies == (Policy(subjects=(WEB,), filters=(Prefix(prefix=ORDERS),)),)
        status = world.status("Broker", "shop")
        here = {"name": "http", "url": f"{URL}/default/shop", "audience": AUDIENCE}
        assert status["address"] == here
        assert status["addresses"] == [here], "nothing leads to a Service that isn't there"
        assert [each["name"] for each in status["policies"]] == ["orders"]


@pytest.mark.looptime
async def test_policies_follow_the_files() -> None:
    async with running_locally(requires_auth=True) as world:
        await world.apply(broker(), policy(), policy("other", namespace="elsewhere"))

        def now() -> tuple[list[tuple[str, ...]], str]:
            found = world.ingress()
            assert found is not None
            return [each.subjects for each in found.policies], found.default_authorization

        assert now() == ([(WEB,)], "allow-same-namespace")
        await world.apply(broker(), policy(senders="nobody"))
        await until(lambda: now() == ([("nobody",)], "allow-same-namespace"))
        await world.apply(broker(), features(default_authorization_mode="deny-all"))
        await until(lambda: now() == ([], "deny-all"))


@pytest.mark.looptime
async def test_a_channel_asks_as_well() -> None:
    async with running_locally(requires_auth=True) as world:
        await world.apply(channel(), policy())
        (found,) = world.controller.ingresses()
        assert found.audience == "messaging.knative.dev/kafkachannel/default/orders"
        assert [each.subjects for each in found.policies] == [(WEB,)]


@pytest.mark.looptime
async def test_a_policy_that_nobody_resolves_here_lets_nobody_through_and_says_so() -> None:
    source = {"apiVersion": "sources.knative.dev/v1", "kind": "PingSource", "name": "clock"}
    async with running_locally(requires_auth=True) as world:
        await world.apply(broker(), policy(senders=[{"ref": source}]))
        assert (found := world.ingress()) is not None
        assert found.policies == (Policy(),)
        assert "event policies orders are not ready" in world.reason("Broker", "shop")


@pytest.mark.looptime
async def test_without_the_option_nobody_is_asked_whatever_the_files_say() -> None:
    async with running_locally() as world:
        asked = features(authentication_oidc="enabled", default_authorization_mode="deny-all")
        await world.apply(broker(), policy(), asked)
        assert (found := world.ingress()) is not None
        assert (found.audience, found.policies) == (None, ())
        assert [each for each in world.said if "--require-auth" in each]


def test_a_policy_that_cant_be_read_stays_as_a_problem_and_closes(tmp_path: Path) -> None:
    """Left out, it would leave the Broker to the default mode."""
    file = tmp_path / "p.yaml"
    manifests = Manifests([tmp_path])
    identity = ObjectIdentity(POLICY, "default", "orders")
    bad = policy(filters=[{"no-such": {}}])
    file.write_text(json.dumps(bad))
    declared = manifests.read()
    assert [str(each).partition(": ")[2][:40] for each in declared.problems] != []
    assert "spec.filters" in str(declared.problems[0])
    assert declared.documents[identity][0] == bad
    file.write_text(json.dumps(policy()))
    manifests.read()
    file.write_text(json.dumps(bad))
    assert manifests.read().documents[identity][0] == policy(), "what was good last stays"


# knafka policy test


def run(*arguments: str | Path, stdin: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin)
    error = f"\n{result.exception}" if result.exception else ""
    return result.exit_code, result.output + error


@pytest.mark.parametrize(
    ("sender", "event", "code", "says"),
    [
        ("shop/checkout", ORDER, 0, ["passes: Broker default/default accepts com.example.order"]),
        ("shop/checkout", ORDER, 0, ["EventPolicy orders: accepts the event"]),
        ("shop/checkout", REFUND, 1, ["refused: ", "EventPolicy orders: filters[0].prefix"]),
        (
            "shop/checkout",
            REFUND,
            1,
            ["EventPolicy audit: it names system:serviceaccount:audit:"],
        ),
        ("shop/checkout", None, 0, ["accepts some events of system:serviceaccount:shop:checkout"]),
        ("audit/auditor", REFUND, 0, ["EventPolicy audit: accepts the event"]),
        ("system:serviceaccount:audit:auditor", None, 0, ["accepts any event"]),
        ("auditor", ORDER, 1, ["of system:serviceaccount:default:auditor"]),
        ("Shop/Checkout", ORDER, 2, ["is no service account: give [NAMESPACE/]NAME"]),
        ("shop/checkout", "{}", 2, ["specversion"]),
    ],
)
def test_a_policy_test_says_whether_it_passes_and_which_policy_says_so(
    sender: str, event: Any, code: int, says: list[str]
) -> None:
    arguments = [sender, *([event] if event is not None else [])]
    came_to, output = run("policy", "test", *arguments, "-f", EXAMPLE)
    assert came_to == code, output
    assert [each for each in says if each not in output] == [], output


def files(folder: Path, *documents: dict[str, Any]) -> Path:
    for number, document in enumerate(documents):
        (folder / f"{number}.yaml").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("mode", "own", "other"),
    [(None, 0, 1), ("allow-all", 0, 0), ("deny-all", 1, 1)],
)
def test_where_no_policy_applies_the_default_mode_is_named(
    tmp_path: Path, mode: str | None, own: int, other: int
) -> None:
    more = [] if mode is None else [features(default_authorization_mode=mode)]
    folder = files(tmp_path, broker(), policy(namespace="elsewhere"), *more)
    for sender, code in (("default/web", own), ("shop/web", other)):
        came_to, output = run("policy", "test", sender, ORDER, "-f", folder)
        assert came_to == code
        said = f"default-authorization-mode is {mode or 'allow-same-namespace'}"
        assert f"no EventPolicy applies, and {said}" in output


def test_a_policy_whose_status_names_its_senders_counts_as_on_a_cluster(tmp_path: Path) -> None:
    ref = {"apiVersion": "sources.knative.dev/v1", "kind": "PingSource", "name": "clock"}
    declared = policy(senders=[{"ref": ref}])
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "from": [WEB]}
    folder = files(tmp_path, broker(), declared)
    code, output = run("policy", "test", "shop/web", "-f", folder)
    assert (code, "isn't Ready or can't be read" in output) == (1, True)
    files(folder, broker(), {**declared, "status": ready})
    assert run("policy", "test", "shop/web", "-f", folder)[0] == 0


def test_which_broker_is_asked_and_a_channel_may_be(tmp_path: Path) -> None:
    folder = files(tmp_path, broker(), channel())
    code, output = run("policy", "test", "web", "-f", folder)
    assert (code, "which Broker?" in output, "channel/default/orders" in output) == (2, True, True)
    assert run("policy", "test", "web", "--broker", "shop", "-f", folder)[0] == 0
    code, output = run("policy", "test", "web", "--broker", "channel/orders", "-f", folder)
    assert (code, "KafkaChannel default/orders" in output) == (0, True)
    code, output = run("policy", "test", "web", "--broker", "shpo", "-f", folder)
    assert (code, "there is no Broker shpo: there is default/shop" in output) == (2, True)


SENDERS = ["shop:checkout", "audit:auditor", "default:web", "audit:other"]
MODES = ["allow-all", "deny-all", "allow-same-namespace"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_policies", [True, False])
async def test_the_verdict_is_that_of_a_receiver_which_is_told_the_same(
    tmp_path: Path, mode: str, with_policies: bool
) -> None:
    """Every sender with either event, at a receiver that believes their tokens."""
    documents = [features(default_authorization_mode=mode), broker("default")]
    if with_policies:
        documents += [
            policy("orders", senders=f"{SERVICE_ACCOUNTS}shop:*", filters=[{"prefix": ORDERS}]),
            policy("audit", senders=f"{SERVICE_ACCOUNTS}audit:auditor"),
        ]
    declared = Manifests([files(tmp_path, *documents)]).read()
    target = policies.find_target(declared, None)
    asked = policies.authentication_of(declared, "default")
    entry = asked.with_sender_rules(ingress(), target).model_copy(update={"namespace": "default"})
    assert entry.audience == "eventing.knative.dev/broker/default/default"
    log = MemoryLog()
    log.create("events")
    verifier = TokenVerifier(BelievingKeys(), lambda: NOW)
    handler = IngestHandler([entry], [MemoryWriter(log)], verifier=verifier)

    def status(sub: str, type_: str) -> int:
        headers = [
            (name, type_.encode() if name == b"ce-type" else value)
            for name, value in MINIMAL.headers
        ]
        answered: list[Answer] = []
        shown = bearer(believed(sub=sub, aud=entry.audience))
        handler.handle(b"POST", entry.path.encode(), [*headers, *shown], b"", answered.append)
        return answered[0].status if answered else 202

    for name in SENDERS:
        sub = f"{SERVICE_ACCOUNTS}{name}"
        for type_ in ("order.placed", "refund"):
            verdict = policies.policy_verdict(asked, target, sub, {"type": type_})
            assert status(sub, type_) == (202 if verdict.accepts else 403), (sub, type_)


# knafka check


def found(folder: Path, **spec: Any) -> list[tuple[FindingSeverity, str]]:
    files(folder, broker(), policy(**spec))
    return [(each.severity, each.text) for each in check([folder]).findings]


def to(**reference: str) -> list[dict[str, Any]]:
    return [{"ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", **reference}}]


def test_a_policy_that_is_right_has_nothing_to_be_said_of_it(tmp_path: Path) -> None:
    assert found(tmp_path, to=to(name="shop"), filters=[{"exact": {"type": "order"}}]) == []
    assert check([EXAMPLE]).findings == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"form": []}, "spec.form"),
        ({"from": [{}]}, "expected exactly one, got neither: spec.from[0].ref"),
        ({"from": [{"sub": ""}]}, "spec.from[0]"),
        ({"from": [{"sub": "a", "ref": to(name="x")[0]["ref"]}]}, "got both"),
        ({"from": [{"sub": "system:*:shop"}]}, "'*' is only allowed as suffix"),
        ({"from": [{"ref": {"kind": "PingSource", "name": "x"}}]}, "spec.from[0].ref.apiVersion"),
        ({"to": [{}]}, "spec.to[0]"),
        ({"to": to()}, "spec.to[0].ref.name"),
        ({"to": to(name="shpo")}, "Broker default/shpo isn't among the files; did you mean shop?"),
        ({"filters": [{"exakt": {"type": "x"}}]}, "spec.filters"),
        ({"filters": [{"cesql": "FOO(a)"}]}, "no function FOO"),
    ],
)
def test_what_cant_be_meant_is_an_error_with_its_place(
    tmp_path: Path, spec: dict[str, Any], says: str
) -> None:
    findings = found(tmp_path, **spec)
    assert [
        text for severity, text in findings if severity is FindingSeverity.ERROR and says in text
    ]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"from": None}, "spec.from is empty: the policy accepts nobody"),
        ({"from": [{"sub": "shop:web"}]}, "spec.from[0].sub: shop:web is no service account"),
        (
            {
                "to": [
                    {
                        "selector": {
                            "apiVersion": "eventing.knative.dev/v1",
                            "kind": "Broker",
                            "matchLabels": {"team": "a"},
                        }
                    }
                ]
            },
            "spec.to selects nothing among the files",
        ),
    ],
)
def test_what_is_probably_a_mistake_is_a_warning(
    tmp_path: Path, spec: dict[str, Any], says: str
) -> None:
    (finding,) = found(tmp_path, **spec)
    assert finding[0] is FindingSeverity.WARNING
    assert says in finding[1]


@pytest.mark.parametrize("sub", ["*", "system:*", "system:serviceaccount:*", WEB])
def test_the_beginnings_of_accounts_are_no_mistake(tmp_path: Path, sub: str) -> None:
    assert found(tmp_path, **{"from": [{"sub": sub}]}) == []


def test_a_policys_spec_is_read_where_it_is_decided_what_applies() -> None:
    assert EventPolicy.model_validate(policy(filters="none")).spec["filters"] == "none"
