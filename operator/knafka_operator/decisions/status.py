"""Status: decides the conditions of an object's `status`, one step for each. Pure.

Conditions begin as Unknown. Each is decided inside `step`: it becomes True, or reports the error
that prevented it. Later steps that depend on it check `holds`.

Not here: Knative's general rules of conditions (`conditions`), and writing the status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeGuard, TypeVar

from knafka.core.errors import InvalidDocument, KnafkaError, LogError
from knafka_operator.decisions.resolving import Unresolved
from knafka_operator.installation.naming import NameTaken
from knafka_operator.model.conditions import (
    READY,
    Condition,
    Status,
    first_cause,
    merge_conditions,
)
from knafka_operator.model.topics import TopicRefused

# Types of conditions.
ADDRESSABLE: Final = "Addressable"
CONFIG_PARSED: Final = "ConfigParsed"
TOPIC_READY: Final = "TopicReady"
DATA_PLANE_AVAILABLE: Final = "DataPlaneAvailable"
PROBE_SUCCEEDED: Final = "ProbeSucceeded"
DEAD_LETTER_SINK_RESOLVED: Final = "DeadLetterSinkResolved"
BROKER_READY: Final = "BrokerReady"
DEPENDENCY_READY: Final = "DependencyReady"
SUBSCRIBER_RESOLVED: Final = "SubscriberResolved"
SUBSCRIPTION_READY: Final = "SubscriptionReady"
DELIVERING: Final = "Delivering"
ROLLED_OUT: Final = "RolledOut"
"""Condition of objects whose function waits for its turn to roll."""
CONTRACT_UPDATED: Final = "ContractUpdated"
OIDC_IDENTITY_CREATED: Final = "OIDCIdentityCreated"
"""Condition of Triggers and Subscriptions whose Broker or channel is known."""
EVENT_POLICIES_READY: Final = "EventPoliciesReady"
"""Condition of Brokers, channels and sinks that authenticate their senders."""
TRANSPORT_ENCRYPTED: Final = "TransportEncrypted"
"""Condition of Brokers, channels and sinks if transport encryption is on."""
CHANNEL_READY: Final = "ChannelReady"
REFERENCES_RESOLVED: Final = "ReferencesResolved"
ADDED_TO_CHANNEL: Final = "AddedToChannel"
SUBSCRIPTIONS_HANDLED: Final = "SubscriptionsHandled"
SERVED_BY_KNAFKA: Final = "ServedByKnafka"
TOPICS_READY: Final = "TopicsReady"
TRIGGERS_READY: Final = "TriggersReady"
SUBSCRIPTIONS_READY: Final = "SubscriptionsReady"
FUNCTION_READY: Final = "FunctionReady"
STORAGE_READY: Final = "StorageReady"
TOPICS_READ: Final = "TopicsRead"
ARCHIVE_READY: Final = "ArchiveReady"
JOB_SUCCEEDED: Final = "JobSucceeded"

BROKER_CONDITIONS: Final = (
    CONFIG_PARSED,
    DEAD_LETTER_SINK_RESOLVED,
    TOPIC_READY,
    CONTRACT_UPDATED,
    DATA_PLANE_AVAILABLE,
    ADDRESSABLE,
    PROBE_SUCCEEDED,
)
"""Conditions of Brokers: upstream's (KN-BRK-17) that apply here; upstream's contract is a
ConfigMap, ours a topic."""

TRIGGER_CONDITIONS: Final = (
    BROKER_READY,
    DEPENDENCY_READY,
    SUBSCRIBER_RESOLVED,
    DEAD_LETTER_SINK_RESOLVED,
    SUBSCRIPTION_READY,
)
"""Conditions of Triggers: upstream's (KN-TRG-11) without `OIDC_IDENTITY_CREATED`, which is set
separately."""

CHANNEL_CONDITIONS: Final = (
    CONFIG_PARSED,
    DEAD_LETTER_SINK_RESOLVED,
    TOPIC_READY,
    DATA_PLANE_AVAILABLE,
    CONTRACT_UPDATED,
    PROBE_SUCCEEDED,
    ADDRESSABLE,
)
"""Conditions of KafkaChannels: upstream's (KN-CHN-09); its contract is a ConfigMap, ours a
topic."""

SUBSCRIPTION_CONDITIONS: Final = (CHANNEL_READY, REFERENCES_RESOLVED, ADDED_TO_CHANNEL)
"""Conditions of Subscriptions: upstream's (KN-SUB-06) without `OIDC_IDENTITY_CREATED`, which is set
separately."""

SENSOR_CONDITIONS: Final = (BROKER_READY, TOPICS_READY, FUNCTION_READY, TRIGGERS_READY)
"""Conditions of Sensors on Brokers; Knafka's own, as Argo's Sensors only report their
deployment."""

SENSOR_ON_CHANNEL_CONDITIONS: Final = (
    CHANNEL_READY,
    TOPICS_READY,
    FUNCTION_READY,
    SUBSCRIPTIONS_READY,
)
"""The conditions of a Sensor on a KafkaChannel."""

OPERATION_CONDITIONS: Final = (ARCHIVE_READY, JOB_SUCCEEDED)
"""Conditions of operations; their summary is `Succeeded` instead of `Ready`, as for Knative's
jobs."""

_REVISION_CONDITIONS: Final = frozenset({"Ready", "ResourcesAvailable", "ContainerHealthy"})
"""Knative's conditions of a Revision that explain why it isn't Ready."""
_STARTING_REASONS: Final = frozenset({"Deploying", "ResolvingDigests"})
"""Reasons of these conditions that only mean that the Revision is starting."""

INTERNAL_ERROR: Final = "InternalError"
"""Reason of the condition for an unexpected error, a bug in the operator."""


class NotReady(KnafkaError):
    """A condition isn't True, for a reason in one CamelCase word."""

    def __init__(self, reason: str, message: str, *, transient: bool = False) -> None:
        """`transient`: whether the problem may pass by itself; then the condition becomes Unknown,
        else False."""
        super().__init__(message)
        self.reason = reason
        self.transient = transient


EXPECTED: Final = (NotReady, Unresolved, TopicRefused, NameTaken, InvalidDocument, LogError)
"""Errors that become conditions; all others fail the reconciliation."""

T = TypeVar("T")


def value_or_raise(value: T | KnafkaError) -> T:
    """Return an observed value, or raise it if it is an error, which stands for a value that
    couldn't be read."""
    if isinstance(value, KnafkaError):
        raise value
    return value


class ConditionSet:
    """The conditions of one object while it is reconciled."""

    def __init__(self, types: Sequence[str], summary_type: str = READY) -> None:
        """`types` are in order, causes before consequences; `summary_type` is the condition that
        sums up the others."""
        self._summary_type = summary_type
        self._conditions = {
            type_: Condition(type_, Status.UNKNOWN, "Waiting", "waits for the operator")
            for type_ in types
        }
        self._pending = set(types)
        """Types that no step has decided yet."""

    @contextmanager
    def step(self, type_: str) -> Iterator[None]:
        """Decide a condition by a `with` block. If the block raises an `EXPECTED` error, the
        condition reports that error (`fail`), and the error goes no further. Else the condition
        becomes True, whatever the block has set it to; one that the block has set to True keeps its
        reason and message."""
        try:
            yield
        except EXPECTED as error:
            self.fail(type_, error)
        else:
            if not self.holds(type_):
                self.set(Condition(type_, Status.TRUE))

    def fail(self, type_: str, error: KnafkaError) -> None:
        """Set a condition by an error of `EXPECTED`: to Unknown for a transient `NotReady`, else to
        False."""
        match error:
            case NotReady():
                status = Status.UNKNOWN if error.transient else Status.FALSE
                self.set(Condition(type_, status, error.reason, str(error)))
            case Unresolved() | TopicRefused() | NameTaken():
                self.set(Condition(type_, Status.FALSE, error.reason, str(error)))
            case LogError():
                reason = _kafka_reason(error)
                self.set(Condition(type_, Status.FALSE, reason, f"Kafka: {error}"))
            case _:
                self.set(Condition(type_, Status.FALSE, "Invalid", str(error)))

    def set_true(self, type_: str) -> None:
        """Set a condition to True, without a reason."""
        self.set(Condition(type_, Status.TRUE))

    def set(self, condition: Condition) -> None:
        """Set a condition, whose type needn't be among the initial ones."""
        self._conditions[condition.type] = condition
        self._pending.discard(condition.type)

    def holds(self, *types: str) -> bool:
        """Whether the conditions of all these types are True. Raises `KeyError` for an unknown
        type."""
        return all(self._conditions[type_].status is Status.TRUE for type_ in types)

    def by_type(self) -> Mapping[str, Condition]:
        """Return the conditions by type. If a decided condition isn't True, the message of each
        undecided one names the condition that it waits for."""
        decided = [
            condition
            for condition in self._conditions.values()
            if condition.type not in self._pending
        ]
        if (cause := first_cause(decided)) is None:  # nothing decided is a reason to wait
            return self._conditions
        message = f"waits for {cause.type}"
        return {
            type_: replace(condition, message=message) if type_ in self._pending else condition
            for type_, condition in self._conditions.items()
        }

    def merge_into(
        self, stored: Sequence[Mapping[str, Any]], timestamp: str
    ) -> list[dict[str, Any]]:
        """Return the new list `status.conditions`: this set's conditions and their summary. A
        condition whose status is the same in the list `stored` keeps its transition time; the
        others get `timestamp`, the present time (RFC 3339)."""
        return merge_conditions(
            stored, list(self.by_type().values()), timestamp, self._summary_type
        )


def no_dead_letter_sink_condition() -> Condition:
    """Return the condition of an object that declares no dead letter sink (KN-TRG-11)."""
    return Condition(DEAD_LETTER_SINK_RESOLVED, Status.TRUE, "DeadLetterSinkNotConfigured")


def conditions_after_bug(stored: object, error: Exception, timestamp: str) -> list[dict[str, Any]]:
    """Return the conditions of an object whose reconciliation ended in an unexpected error, a bug
    in the operator: the stored ones, but with `Ready` False. `stored` is `status.conditions`, which
    may have any shape; `timestamp` is the present time (RFC 3339)."""
    stored_conditions = (
        [condition for condition in stored if isinstance(condition, Mapping)]
        if _is_list(stored)
        else []
    )
    stored_ready = ready_condition(stored_conditions)
    was_false = stored_ready.get("status") == Status.FALSE
    since = stored_ready.get("lastTransitionTime") if was_false else None
    ready = {
        "type": READY,
        "status": str(Status.FALSE),
        "reason": INTERNAL_ERROR,
        "message": _bug_message(error),
        "lastTransitionTime": since or timestamp,
    }
    other_conditions = [
        dict(condition) for condition in stored_conditions if condition.get("type") != READY
    ]
    return sorted([*other_conditions, ready], key=lambda condition: str(condition.get("type")))


def ready_condition(conditions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the `Ready` condition of a list; empty if there is none."""
    return next((condition for condition in conditions if condition.get("type") == READY), {})


def is_condition_true(status: Mapping[str, Any], type_: str) -> bool:
    """Whether the condition of this type is True in a stored status; False if it is missing."""
    conditions = status.get("conditions") or ()
    return any(
        condition.get("type") == type_ and condition.get("status") == "True"
        for condition in conditions
    )


def reason_of(status: Mapping[str, Any], type_: str) -> str | None:
    """Return the reason of the condition of this type in a stored status; empty if the condition
    has no reason, None if the status doesn't have the condition."""
    conditions = status.get("conditions") or ()
    reasons = (
        condition.get("reason", "") for condition in conditions if condition.get("type") == type_
    )
    return next(reasons, None)


def is_ready(document: Mapping[str, Any]) -> bool:
    """Whether a stored object is `Ready`, and its status describes its current generation (also
    assumed if the status has no `observedGeneration`)."""
    status = document.get("status") or {}
    generation = document.get("metadata", {}).get("generation")
    if status.get("observedGeneration", generation) != generation:
        return False
    return ready_condition(status.get("conditions") or ()).get("status") == "True"


def why_not_ready(document: Mapping[str, Any]) -> str:
    """Return why a stored object isn't Ready, for an object of which this is known: reason and
    message of its `Ready` condition. If it has no such condition, or the condition has no reason
    and no message, return a text for users that says so."""
    status = document.get("status") or {}
    ready = ready_condition(status.get("conditions") or ())
    text = " ".join(filter(None, (ready.get("reason"), ready.get("message"))))
    return text or "it says nothing yet"


def why_revision_is_not_ready(revision: Mapping[str, Any]) -> str:
    """Return why a Revision isn't Ready, from its conditions; empty if they give no reason, or if
    it is only starting.

    Of several reasons, `Unschedulable` comes first, as it causes others such as an exceeded
    deadline; then the reason of a condition that is False.
    """
    conditions = (revision.get("status") or {}).get("conditions") or ()
    unmet = [
        condition
        for condition in conditions
        if condition.get("type") in _REVISION_CONDITIONS
        and condition.get("status") != "True"
        # A condition without a reason counts as starting.
        and (condition.get("reason") or "Deploying") not in _STARTING_REASONS
    ]
    unmet.sort(
        key=lambda condition: (  # False sorts before True
            condition["reason"] != "Unschedulable",
            condition.get("status") != "False",
        )
    )
    return f"{unmet[0]['reason']}: {unmet[0].get('message', '')}" if unmet else ""


def merge_patch(stored: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch that writes the fields of `desired` into the status `stored`; it
    has only the differences, and is empty if there are none. Fields missing from `desired` stay; in
    a field that is a mapping, keys missing from `desired` are removed."""
    patch: dict[str, Any] = {}
    for key, value in desired.items():
        previous = stored.get(key)
        if isinstance(value, Mapping) and isinstance(previous, Mapping):
            removed = {inner_key: None for inner_key in previous if inner_key not in value}
            changed = {
                inner_key: inner_value
                for inner_key, inner_value in value.items()
                if previous.get(inner_key) != inner_value
            }
            if removed or changed:
                patch[key] = {**removed, **changed}
        elif previous != value:
            patch[key] = value
    return patch


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    """Whether a value of unknown type is a sequence, but not text or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _bug_message(error: Exception) -> str:
    """Return the message of the `Ready` condition after an unexpected error, for users."""
    description = f"{type(error).__name__}: {error}"
    return f"the operator failed, and tries again; its log says more: {description:.1000}"


def _kafka_reason(error: LogError) -> str:
    """Return the condition's reason for an error of Kafka, by the error's flags and the words of
    its message; `KafkaNotReachable` if they say nothing more specific."""
    text = str(error).lower()
    if error.too_few_brokers or "replication factor" in text:
        return "InvalidReplicationFactor"
    if "authentication" in text or "tls" in text or "ssl" in text or "certificate" in text:
        return "KafkaAuthenticationFailed"
    if error.denied or "authoriz" in text:
        return "KafkaNotAuthorized"
    return "KafkaNotReachable"
