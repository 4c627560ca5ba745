"""The whole of Broker's and Trigger's reconcile, off a cluster: each condition and reason."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.operator_world import INSTALLATION, OperatorWorld, condition, running_operator

from knafka.core import names
from knafka.core.errors import LogError
from knafka_operator.decisions.status import NotReady
from knafka_operator.model.cluster import NotAllowed
from knafka_operator.model.resources import (
    CORE,
    EVENTING,
    EXTERNAL_TOPIC,
    SERVING,
)

pytestmark = pytest.mark.looptime

SHOP = "shop"
TOPIC = names.broker_topic(SHOP, "default")
RECEIVER, DISPATCHER = "default-kn-receiver", "orders-kn-dispatcher"
ROOT = Path(__file__).resolve().parents[2]
TRIED_ELSEWHERE = {
    # Of senders: test_event_policies.
    *("DefaultAuthorizationMode", "EventPoliciesGetFailed", "EventPoliciesNotReady"),
    # test_operator_encryption.py, test_operator_direct.py, test_operator_trust_bundles.py
    *("HttpsNotServed", "TLSSecretNotFound", "TLSSecretInvalid", "TLSServiceRejected"),
    "DirectServiceRejected",
    *("CertificateExpired", "CertificateForOtherHost", "TLSNeedsMinScale"),
    *("TrustBundleNotCopied", "TrustBundleNotOurs"),
    # test_operator_service_accounts.py
    *("OIDCFeatureDisabled", "ServiceAccountNotOwned", "ServiceAccountNotCreated"),
    "ServiceAccountNotNamed",
    *("DeadLettered", "StateFull", "EventsCameLate"),
    *("Loop", "SubscriberLeadsBack", "ReplyLeadsBack", "DeadLetterSinkLeadsBack"),  # test_loops
    *("TopicDrifted", "OldRevisionDelivers", "InternalError", "FunctionRejected"),
    "ServersNotAllowed",  # test_hostile_kafka.py
    *("RollWaits", "RollStuck"),  # test_operator_rolls.py
    *("NamespaceMinScale", "NamespacePartitions", "TopicTooLarge"),  # test_maxima.py
    *("DrainFailed", "SubscriberUnavailable", "CommittedBeyondEnd", "Paused", "ShardBehind"),
    # test_operator_channels.py and what stands beside it
    *("ChannelDoesNotExist", "ChannelNotConfigured", "ChannelNotReady", "NoAddress"),
    *("OtherImplementation", "ReceiverBehind", "RouteRejected", "SecretElsewhere"),
    *("SecretNotAllowed", "SecretNotFound"),
    # test_operator_channel_entries.py
    *("ByKnafka", "ByKnativeEventing", "ChannelNotServed", "KnativeEventingNotSeen"),
    *("ContractTooLarge", "EventPoliciesTooLarge"),  # test_operator_sinks, test_event_policies
    # test_operator_forged_status.py
    "GroupNotOurs",
    *("GroupTaken", "TopicTaken"),  # test_name_templates.py
    # test_operator_credentials.py
    "ConfigMapNotAllowed",
    # test_operator_sensors.py and what stands beside it
    *("BrokerNotOurs", "PartitionsDiffer", "SensorNotOurs"),
    *("SensorNotReady", "SensorsDisabled", "TriggerNotOurs", "TriggerNotReady", "TriggerRejected"),
    # test_operator_sensors_on_channels.py
    *("ChannelsDisabled", "SubscriptionNotOurs", "SubscriptionNotReady", "SubscriptionRejected"),
    "SubscriptionsNotOurs",
    # test_operator_dead_letters.py
    *("DeadLettersWait", "DeadLettersExpire", "RetentionNotApplied"),
    # test_operator_archives.py
    *("ClaimDoesNotExist", "ClaimNotShared", "CredentialsNotFound", "CredentialsIncomplete"),
    "EndpointNotAllowed",
    *("JobFailed", "JobNotOurs", "JobNotStarted", "JobRejected", "AccountNotOurs"),
    # test_operator_operations.py
    *("ArchiveDoesNotExist", "ArchiveNotReady", "Queued", "Retrying", "Running"),
}
MISSING = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "missing"}}
SLOW = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "slow"}}
ODD = {"ref": {"apiVersion": SERVING, "kind": "Service", "name": "odd"}}
MINE = {"apiVersion": CORE, "kind": "ConfigMap", "name": "mine"}
DEPENDENCY = "knative.dev/dependency"

Arrange = Callable[[OperatorWorld], None]


@pytest.fixture
async def world() -> AsyncIterator[OperatorWorld]:
    async with running_operator() as world:
        for name, status in (("slow", {}), ("odd", {"address": {"url": "mailto:you"}})):
            world.declare_service(SHOP, name, status)
        yield world


def _broker(annotations: Mapping[str, str] | None = None, **spec: Any) -> Arrange:
    return lambda world: world.declare_broker(SHOP, annotations=annotations, **spec)


def _configured(**data: str) -> Arrange:
    """With a ConfigMap of its own."""

    def arrange(world: OperatorWorld) -> None:
        given = {key.replace("_", "."): value for key, value in data.items()}
        world.configure(SHOP, "mine", **given)
        world.declare_broker(SHOP, config=MINE)

    return arrange


def _kafka_fails(call: str, problem: str) -> Arrange:
    def arrange(world: OperatorWorld) -> None:
        world.kafka_failures[call] = LogError(problem)
        world.declare_broker(SHOP)

    return arrange


def _installations_secret(world: OperatorWorld) -> None:
    world.declare_secret("knafka", "kafka", protocol="PLAINTEXT")
    given = {"bootstrap.servers": "kafka:9092", "auth.secret.ref.name": "kafka"}
    world.configure(*INSTALLATION, **given)
    world.declare_broker(SHOP)


def _topic_of_others(world: OperatorWorld) -> None:
    world.log.create(TOPIC)
    world.declare_broker(SHOP)


def _topic_made_anew(world: OperatorWorld) -> None:
    world.log.create(TOPIC)
    world.declare_broker(SHOP)
    stored = world.cluster.objects[EVENTING, "Broker", SHOP, "default"]
    kept = {"default.topic": TOPIC, "knafka.dev/topic-id": "another"}
    stored["status"] = {"annotations": kept}


def _external(world: OperatorWorld) -> None:
    world.allow("legacy")
    world.declare_broker(SHOP, annotations={EXTERNAL_TOPIC: "legacy"})


def _unready(name: str, kind: str = "Broker") -> Arrange:
    def arrange(world: OperatorWorld) -> None:
        world.cluster.unready.add(name)
        _declare(world, kind)

    return arrange


def _not_ours(name: str, kind: str = "Broker") -> Arrange:
    def arrange(world: OperatorWorld) -> None:
        world.declare_service(SHOP, name, {})
        _declare(world, kind)

    return arrange


def _declare(world: OperatorWorld, kind: str) -> None:
    if kind == "Broker":
        world.declare_broker(SHOP)
    else:
        world.declare_trigger(SHOP, "orders")


def _no_answer(world: OperatorWorld) -> None:
    world.probe_failure = NotReady("ProbeFailed", "it answered 502", transient=True)
    world.declare_broker(SHOP)


BROKER_TABLE: list[tuple[str, str, str, Arrange]] = [
    ("ConfigParsed", "False", "ConfigMapNotFound", _broker(config=MINE)),
    ("ConfigParsed", "False", "Invalid", _configured(default_topic_partitions="many")),
    ("ConfigParsed", "False", "Invalid", _broker(config={**MINE, "kind": "Secret"})),
    ("ConfigParsed", "False", "Invalid", _broker(unknown=1)),
    ("ConfigParsed", "False", "SecretNotFound", _configured(auth_secret_ref_name="missing")),
    ("ConfigParsed", "False", "SecretNotProjected", _installations_secret),
    ("DeadLetterSinkResolved", "True", "DeadLetterSinkNotConfigured", _broker()),
    (
        "DeadLetterSinkResolved",
        "False",
        "NotFound",
        _broker(delivery={"deadLetterSink": MISSING}),
    ),
    (
        "DeadLetterSinkResolved",
        "False",
        "NotAddressable",
        _broker(delivery={"deadLetterSink": SLOW}),
    ),
    (
        "DeadLetterSinkResolved",
        "False",
        "InvalidAddress",
        _broker(delivery={"deadLetterSink": ODD}),
    ),
    (
        "DeadLetterSinkResolved",
        "False",
        "AddressNotAllowed",
        _broker(delivery={"deadLetterSink": {"uri": "http://169.254.169.254/"}}),
    ),
    (
        "TopicReady",
        "False",
        "KafkaNotReachable",
        _kafka_fails("describe_topic", "did not answer within 15 s"),
    ),
    (
        "TopicReady",
        "False",
        "KafkaAuthenticationFailed",
        _kafka_fails("describe_topic", "authentication failed: wrong password"),
    ),
    (
        "TopicReady",
        "False",
        "KafkaNotAuthorized",
        _kafka_fails("ensure_topic", "Cluster authorization failed"),
    ),
    (
        "TopicReady",
        "False",
        "InvalidReplicationFactor",
        _kafka_fails("ensure_topic", "Replication factor: 3 larger than available brokers: 1."),
    ),
    (
        "TopicReady",
        "False",
        "ExternalTopicNotAllowed",
        _broker(annotations={EXTERNAL_TOPIC: "legacy"}),
    ),
    ("TopicReady", "False", "TopicNotFound", _external),
    ("TopicReady", "False", "TopicNotOurs", _topic_of_others),
    ("TopicReady", "False", "TopicReplaced", _topic_made_anew),
    ("ContractUpdated", "False", "KafkaNotAuthorized", _kafka_fails("append", "not authorized")),
    ("DataPlaneAvailable", "Unknown", "FunctionNotReady", _unready(RECEIVER)),
    ("DataPlaneAvailable", "False", "ServiceNotOurs", _not_ours(RECEIVER)),
    ("Addressable", "Unknown", "NoReceiver", _unready(RECEIVER)),
    ("ProbeSucceeded", "Unknown", "ProbeFailed", _no_answer),
    ("Ready", "True", "", _broker()),
]


@pytest.mark.parametrize(("type_", "status", "reason", "arrange"), BROKER_TABLE)
async def test_a_brokers_conditions(
    world: OperatorWorld, type_: str, status: str, reason: str, arrange: Arrange
) -> None:
    arrange(world)
    found = condition(await world.reconcile_broker(SHOP), type_)
    assert (found["status"], found.get("reason", "")) == (status, reason)
    stored = condition(world.document("Broker", SHOP)["status"], type_)
    assert stored == found
    ready = condition(world.document("Broker", SHOP)["status"], "Ready")
    assert (ready["status"] == "True") == (status == "True")


async def test_a_topic_that_has_drifted_is_a_warning(world: OperatorWorld) -> None:
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    world.log.grow(TOPIC, 12)
    status = await world.reconcile_broker(SHOP)
    assert condition(status, "TopicAsDeclared")["reason"] == "TopicDrifted"
    assert condition(status, "Ready")["status"] == "True"
    assert status["annotations"]["default.topic.partitions"] == "12"


def _trigger(annotations: Mapping[str, str] | None = None, **spec: Any) -> Arrange:
    return lambda world: world.declare_trigger(SHOP, "orders", annotations=annotations, **spec)


def _depending(name: str) -> Arrange:
    reference = {"apiVersion": CORE, "kind": "ConfigMap", "name": name}
    return _trigger({DEPENDENCY: json.dumps(reference)})


def _dependency_waits(world: OperatorWorld) -> None:
    world.configure(SHOP, "late")
    stored = world.cluster.objects[CORE, "ConfigMap", SHOP, "late"]
    stored["status"] = {"conditions": [{"type": "Ready", "status": "False", "reason": "Late"}]}
    _depending("late")(world)


def _group_fails(problem: str) -> Arrange:
    def arrange(world: OperatorWorld) -> None:
        world.kafka_failures["ensure_committed"] = LogError(problem)
        world.declare_trigger(SHOP, "orders")

    return arrange


def _forbidden(what: str) -> Arrange:
    """By a reference to an object of a kind that our roles don't name."""
    inbox = {"apiVersion": "example.com/v1", "kind": "Inbox", "name": "mail"}
    declared = {
        "subscriber": _trigger(subscriber={"ref": inbox}),
        "deadLetterSink": _trigger(delivery={"deadLetterSink": {"ref": inbox}}),
        "dependency": _trigger({DEPENDENCY: json.dumps(inbox)}),
    }

    def arrange(world: OperatorWorld) -> None:
        world.cluster.refuse("get", "Inbox", error=NotAllowed("inboxes is forbidden"))
        declared[what](world)

    return arrange


TRIGGER_TABLE: list[tuple[str, str, str, Arrange]] = [
    ("BrokerReady", "False", "BrokerDoesNotExist", _trigger(broker="missing")),
    ("BrokerReady", "Unknown", "BrokerNotConfigured", _trigger(broker="new")),
    ("BrokerReady", "Unknown", "BrokerNotReady", _trigger(broker="slow")),
    ("DependencyReady", "False", "DependencyDoesNotExist", _depending("missing")),
    ("DependencyReady", "False", "DependencyNotReady", _dependency_waits),
    ("DependencyReady", "False", "Invalid", _trigger({DEPENDENCY: "no JSON"})),
    ("SubscriberResolved", "False", "NotFound", _trigger(subscriber=MISSING)),
    ("SubscriberResolved", "False", "NotAddressable", _trigger(subscriber=SLOW)),
    ("SubscriberResolved", "False", "InvalidAddress", _trigger(subscriber=ODD)),
    ("SubscriberResolved", "False", "NotAllowed", _forbidden("subscriber")),
    ("DependencyReady", "False", "NotAllowed", _forbidden("dependency")),
    ("DeadLetterSinkResolved", "False", "NotAllowed", _forbidden("deadLetterSink")),
    ("SubscriptionReady", "Unknown", "Waiting", _trigger(subscriber=MISSING)),
    ("SubscriptionReady", "Unknown", "Waiting", _trigger(broker="missing")),
    (
        "DeadLetterSinkResolved",
        "False",
        "NotFound",
        _trigger(delivery={"deadLetterSink": MISSING}),
    ),
    ("DeadLetterSinkResolved", "True", "DeadLetterSinkNotConfigured", _trigger()),
    ("SubscriptionReady", "False", "Invalid", _trigger(unknown=1)),
    (
        "SubscriptionReady",
        "False",
        "Invalid",
        _trigger({"kafka.eventing.knative.dev/delivery.order": "odd"}),
    ),
    ("SubscriptionReady", "Unknown", "FunctionNotReady", _unready(DISPATCHER, "Trigger")),
    ("SubscriptionReady", "False", "ServiceNotOurs", _not_ours(DISPATCHER, "Trigger")),
    ("SubscriptionReady", "False", "KafkaNotReachable", _group_fails("did not answer")),
    (
        "SubscriptionReady",
        "False",
        "KafkaNotAuthorized",
        _group_fails("Group authorization failed"),
    ),
    ("Ready", "True", "", _trigger()),
]


@pytest.mark.parametrize(("type_", "status", "reason", "arrange"), TRIGGER_TABLE)
async def test_a_triggers_conditions(
    world: OperatorWorld, type_: str, status: str, reason: str, arrange: Arrange
) -> None:
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    world.declare_broker(SHOP, "slow")
    world.cluster.unready.add("slow-kn-receiver")
    await world.reconcile_broker(SHOP, "slow")
    world.declare_broker(SHOP, "new")
    arrange(world)
    found = condition(await world.reconcile_trigger(SHOP, "orders"), type_)
    assert (found["status"], found.get("reason", "")) == (status, reason)
    stored = world.document("Trigger", SHOP, "orders")["status"]
    assert condition(stored, type_) == found
    if status != "True":
        assert condition(stored, "Ready")["status"] != "True"
        if type_ != "SubscriberResolved":
            return
        assert stored["subscriberUri"] == ""  # KN-TRG-03


def test_the_docs_tell_of_every_reason_that_is_tried_here_and_of_none_that_is_not() -> None:
    tables = [
        line.split("|")[2]
        for page in (ROOT / "docs").rglob("*.md")
        for table in re.findall(r"\| condition \| reason \|.*?\n\n", page.read_text(), re.S)
        for line in table.strip().splitlines()[2:]
    ]
    told = {each.strip(" `") for cell in tables for each in re.split(",| and ", cell)}
    reasons = {each for each in told if re.fullmatch(r"[A-Z][A-Za-z]+", each)}
    tried = {row[2] for row in (*BROKER_TABLE, *TRIGGER_TABLE)} - {""}
    assert reasons - tried <= TRIED_ELSEWHERE
    assert tried - reasons <= {"NoReceiver", "DeadLetterSinkNotConfigured"}


async def test_a_trigger_without_a_broker_does_not_deliver_and_has_no_subscription(
    world: OperatorWorld,
) -> None:
    """Its SubscriptionReady was True as soon as its spec could be read."""
    world.declare_trigger(SHOP, "orders")
    status = await world.reconcile_trigger(SHOP, "orders")
    assert condition(status, "SubscriptionReady")["status"] == "Unknown"
    assert status["subscriberUri"] == "http://there/"
    assert world.cluster.services() == {"slow", "odd"}


async def test_who_may_not_be_read_is_told_with_what_would_allow_it(world: OperatorWorld) -> None:
    """The Trigger had no status at all."""
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    _forbidden("subscriber")(world)
    message = condition(await world.reconcile_trigger(SHOP, "orders"), "SubscriberResolved")[
        "message"
    ]
    assert "Inbox shop/mail (example.com/v1)" in message
    assert 'duck.knative.dev/addressable: "true"' in message


async def test_a_trigger_waits_for_pods_of_the_revision_before_that_drain_unasked(
    world: OperatorWorld,
) -> None:
    world.declare_broker(SHOP)
    await world.reconcile_broker(SHOP)
    labels = {
        "serving.knative.dev/service": DISPATCHER,
        "serving.knative.dev/revision": "before",
    }
    state = {"name": "function", "state": {"running": {}}}
    metadata = {"namespace": SHOP, "name": "older", "labels": labels}
    pod = {"apiVersion": CORE, "kind": "Pod", "metadata": metadata}
    world.cluster.put({**pod, "status": {"containerStatuses": [state]}})
    world.declare_trigger(
        SHOP, "orders", annotations={"autoscaling.eventing.knative.dev/min-scale": "1"}
    )
    found = condition(await world.reconcile_trigger(SHOP, "orders"), "SubscriptionReady")
    assert (found["status"], found["reason"]) == ("Unknown", "OldRevisionDelivers")
