"""After a start or a take-over: first deliver, then reconcile (issue 13, fault 2)."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.operator_world import OperatorWorld, condition, running_operator

from knafka_operator.functions.dispatcher_services import EGRESS_VARIABLE
from knafka_operator.model.cluster import ClusterError, NotAllowed
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import BROKER_CLASS, CORE, EVENTING, GROUP_STATUS, SERVING

pytestmark = pytest.mark.looptime

TRIGGERS = 30


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OperatorWorld]:
    """30 Triggers on 3 Brokers, all Ready."""
    async with running_operator(monkeypatch) as world:
        for number in range(3):
            world.declare_broker("shop", f"b{number}")
            await world.reconcile_broker("shop", f"b{number}")
        for number in range(TRIGGERS):
            world.declare_trigger("shop", f"t{number}", f"b{number % 3}")
            await world.reconcile_trigger("shop", f"t{number}")
        yield world


class Asked:
    """Counts what the API server is asked, but lists."""

    def __init__(self, world: OperatorWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in ("get", "apply", "write_status"):
            monkeypatch.setattr(world.cluster, name, self._counted(world, name))

    def _counted(self, world: OperatorWorld, name: str) -> Any:
        original = getattr(world.cluster, name)

        async def call(*arguments: Any) -> Any:
            self.calls.append(name)
            return await original(*arguments)

        return call


async def test_all_triggers_are_delivered_to_before_anything_is_reconciled(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cost 5 requests and a reconciliation of its own before its first drain."""
    before = world.operator.triggers.watched
    await world.restart()
    asked, connected = Asked(world, monkeypatch), len(world.connected)
    lists = world.cluster.requests["list"]
    assert await world.operator.resume() == TRIGGERS
    now = world.operator.triggers.watched
    assert {who: each.egress for who, each in now.items()} == {
        who: each.egress for who, each in before.items()
    }
    assert asked.calls == []
    assert world.cluster.requests["list"] - lists == 3
    assert len(world.connected) == connected + 1
    (side,) = {each.kafka for each in now.values()}
    assert len(side.scaler.statuses()) == TRIGGERS


async def test_reconciling_what_was_resumed_changes_nothing(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.restart()
    await world.operator.resume()
    (side,) = {each.kafka for each in world.operator.triggers.watched.values()}

    async def forget(trigger_id: str) -> None:
        raise AssertionError(f"drains of {trigger_id} ended")

    monkeypatch.setattr(side.scaler, "forget", forget)
    status = side.scaler._triggers["shop/t0"]
    await world.reconcile_broker("shop", "b0")
    assert condition(await world.reconcile_trigger("shop", "t0"), "Ready")["status"] == "True"
    assert side.scaler._triggers["shop/t0"] is status


async def test_a_take_over_writes_no_status_that_stays_as_it_was(
    world: OperatorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose Broker is reconciled later than itself was not Ready for a moment."""
    before = world.document("Trigger", "shop", "t0")["status"]
    await world.restart()
    await world.operator.resume()
    asked = Asked(world, monkeypatch)
    document = world.document("Trigger", "shop", "t0")
    assert await world.operator.triggers.reconcile(document) is None
    await world.reconcile_broker("shop", "b0")
    await world.reconcile_trigger("shop", "t0")
    assert world.document("Trigger", "shop", "t0")["status"] == before
    assert "write_status" not in asked.calls


async def test_an_api_server_that_fails_once_leaves_a_resumed_trigger_ready(
    world: OperatorWorld,
) -> None:
    """Its Broker's first reconciliation failed, and it said that the Broker has no topic."""
    before = world.document("Trigger", "shop", "t0")["status"]
    await world.restart()
    await world.operator.resume()
    world.cluster.refuse("get", "ConfigMap")
    with pytest.raises(ClusterError):
        await world.reconcile_broker("shop", "b0")
    document = world.document("Trigger", "shop", "t0")
    assert await world.operator.triggers.reconcile(document) is None
    world.cluster.permit()
    await world.reconcile_broker("shop", "b0")
    await world.reconcile_trigger("shop", "t0")
    assert world.document("Trigger", "shop", "t0")["status"] == before


async def test_sources_that_can_not_be_listed_hold_up_no_trigger(world: OperatorWorld) -> None:
    """As without their definition, or without the role for them."""
    await world.restart(sources=True)
    world.cluster.refuse("list", "KafkaSource")
    assert await world.operator.resume() > 0


async def test_an_api_server_that_refuses_holds_up_no_resumed_trigger(world: OperatorWorld) -> None:
    """Nobody knows when the operator's role allows it to read the ConfigMap."""
    await world.restart()
    await world.operator.resume()
    world.cluster.refuse("get", "ConfigMap", error=NotAllowed("can't get ConfigMap"))
    with pytest.raises(NotAllowed):
        await world.reconcile_broker("shop", "b0")
    status = await world.reconcile_trigger("shop", "t0")
    assert condition(status, "Ready")["status"] == "Unknown"


async def test_a_resumed_trigger_whose_broker_has_no_topic_says_so(world: OperatorWorld) -> None:
    await world.restart()
    await world.operator.resume()
    world.configure("knafka", "kafka-broker-config")
    await world.reconcile_broker("shop", "b0")
    status = await world.reconcile_trigger("shop", "t0")
    assert condition(status, "Ready")["reason"] == "BrokerNotConfigured"
    assert ("shop", "t0") in world.operator.triggers.watched


async def test_a_trigger_whose_newest_revision_cannot_start_resumes_with_the_one_that_serves(
    world: OperatorWorld,
) -> None:
    before = world.operator.triggers.watched[Identity("shop", "t0")].egress
    world.cluster.unready.add("t0-kn-dispatcher")
    world.declare_trigger("shop", "t0", "b0", filter={"attributes": {"type": "new"}})
    await world.reconcile_trigger("shop", "t0")
    await world.restart()
    await world.operator.resume()
    assert world.operator.triggers.watched[Identity("shop", "t0")].egress == before


def _promised_nothing(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    del trigger["status"]["annotations"][GROUP_STATUS]


def _goes(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    trigger["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z"


def _made_anew(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    trigger["metadata"]["uid"] = "another"


def _broker_goes(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    broker = world.cluster.objects[EVENTING, "Broker", "shop", "b0"]
    broker["metadata"]["deletionTimestamp"] = "2026-11-22T12:00:00Z"


def _broker_of_others(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    broker = world.cluster.objects[EVENTING, "Broker", "shop", "b0"]
    broker["metadata"]["annotations"][BROKER_CLASS] = "MTChannelBasedBroker"


def _no_service(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    del world.cluster.objects[SERVING, "Service", "shop", "t0-kn-dispatcher"]


def _never_ready(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    service = world.cluster.objects[SERVING, "Service", "shop", "t0-kn-dispatcher"]
    del service["status"]["latestReadyRevisionName"]


def _of_another_version(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    service = world.cluster.objects[SERVING, "Service", "shop", "t0-kn-dispatcher"]
    service["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]


def _somebody_elses_group(world: OperatorWorld, trigger: dict[str, Any]) -> None:
    """Whoever may write in the namespace could take another tenant's group with it."""
    group = "knative-trigger-bank-payments"
    trigger["status"]["annotations"][GROUP_STATUS] = group
    service = world.cluster.objects[SERVING, "Service", "shop", "t0-kn-dispatcher"]
    (variable,) = (
        each
        for each in service["spec"]["template"]["spec"]["containers"][0]["env"]
        if each["name"] == EGRESS_VARIABLE
    )
    variable["value"] = json.dumps(json.loads(variable["value"]) | {"group": group})


@pytest.mark.parametrize(
    "changed",
    [
        _promised_nothing, _somebody_elses_group, _goes, _made_anew, _broker_goes,
        _broker_of_others, _no_service, _never_ready, _of_another_version,
    ],
)  # fmt: skip
async def test_what_is_not_ours_to_deliver_is_not_resumed(
    world: OperatorWorld, changed: Any
) -> None:
    changed(world, world.cluster.objects[EVENTING, "Trigger", "shop", "t0"])
    await world.restart()
    await world.operator.resume()
    watched = world.operator.triggers.watched
    assert ("shop", "t0") not in watched
    assert ("shop", "t1") in watched


async def test_credentials_are_those_of_the_secret_that_the_pods_mount(
    world: OperatorWorld,
) -> None:
    data = {"protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "user": "u", "password": "p"}
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    metadata = {"namespace": "shop", "name": "kafka"}
    secret = {"apiVersion": CORE, "kind": "Secret", "metadata": metadata, "data": encoded}
    version = world.cluster.put(secret)["metadata"]["resourceVersion"]
    given = {"bootstrap.servers": "safe:9092", "auth.secret.ref.name": "kafka"}
    world.configure("shop", "mine", **given)
    world.declare_broker("shop", "safe", config=_config("mine"))
    await world.reconcile_broker("shop", "safe")
    world.declare_trigger("shop", "safe", "safe")
    await world.reconcile_trigger("shop", "safe")
    before = world.operator.triggers.watched[Identity("shop", "safe")]
    await world.restart()
    await world.operator.resume()
    found = world.operator.triggers.watched[Identity("shop", "safe")]
    assert found.secret == before.secret == ("kafka", version)
    await world.reconcile_broker("shop", "safe")
    assert world.operator.brokers.states_with_topic[Identity("shop", "safe")].kafka is found.kafka


def _config(name: str) -> dict[str, str]:
    return {"apiVersion": CORE, "kind": "ConfigMap", "name": name}
