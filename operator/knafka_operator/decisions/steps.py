"""Steps: the purposes of effects, in orders in which no event is missed.

`BROKER_ORDER`, `CHANNEL_ORDER`, `TRIGGER_ORDER`, `SENSOR_ORDER` and `ARCHIVE_ORDER` are the orders
that every `decide` keeps; tests check decisions against them.

Not here: the effects themselves (`effects`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Step(Enum):
    """The purpose of an effect, and its place in an order. Docstrings describe the state after the
    step; a step without one does what the effect class of the same name says (`effects`)."""

    # Steps of Brokers and KafkaChannels.
    STOP_RECEIVER = auto()
    """No event is accepted any more, as the external topic isn't allowed. Events in Kafka stay."""
    PROJECT_SECRET = auto()
    """The installation's Secret is copied to the Broker's namespace."""
    RECORD_TOPIC = auto()
    """The status has the topic's name with an empty id: the topic is about to be created. For a
    Sensor: names of all its topics, and its group."""
    CREATE_TOPIC = auto()
    RECORD_CONTRACT = auto()
    """The status names the contract topic that may have the Broker's entry."""
    APPLY_RECEIVER = auto()
    RECORD_RECEIVERS = auto()
    """The status names the receivers that may have an entry of the channel."""
    WRITE_INGRESS = auto()
    """The entry of the Broker or channel is in its receiver's contract."""
    AWAIT_RECEIVERS = auto()
    APPLY_ROUTE = auto()
    """The channel's own host leads to the receiver."""
    APPLY_TLS_SERVICE = auto()
    """The Service to the TLS port of a Broker's receiver exists."""
    APPLY_DIRECT_SERVICE = auto()
    """The Service that leads senders past Knative's proxy exists."""
    PROBE_DIRECT = auto()
    PROBE_RECEIVER = auto()
    LEAVE_RECEIVERS = auto()
    """The channel's former receivers accept no events for it any more."""

    # Steps of Triggers and Subscriptions.
    STOP_DELIVERY = auto()
    """Nothing is delivered for now; for a Sensor, its drains have ended."""
    DELETE_FUNCTIONS = auto()
    """The functions are deleted, so that no request can make them deliver; the group stays."""
    CLAIM_GROUP = auto()
    DELETE_GROUP = auto()
    """The offsets that an earlier object of the name left are deleted, before any event of this
    Trigger counts."""
    COMMIT_OFFSETS = auto()
    """The group has its start offsets: from here on no event may be missed."""
    PROMISE_GROUP = auto()
    """The status has the group: from here on its offsets count, and no event may be missed. After a
    crash, an operator finds the group there, and neither deletes nor rewrites its offsets."""
    CREATE_CONTRACT = auto()
    """The contract topic of the Broker's shared dispatchers exists; the Broker's status has named
    it since before its creation."""
    APPLY_DISPATCHER = auto()
    """The dispatcher's Service is Ready; the previous delivery goes on until then."""
    APPLY_SHARD = auto()
    WAKE_DISPATCHER = auto()
    """A pod of the Trigger's own dispatcher runs, so that the takeover needs no start."""
    HAND_OVER = auto()
    """The previous delivery has ended, as the new dispatcher is Ready."""
    WRITE_CONTRACT = auto()
    """The Trigger's record is in the contract: from here on its shard delivers it."""
    START_DELIVERY = auto()
    DELETE_DISPATCHER = auto()
    """The Trigger's own Service is deleted, as its shard delivers."""
    AWAIT_SHARD = auto()
    AWAIT_REPLACEMENT = auto()

    # Steps of Sensors.
    PROMISE_SENSOR = auto()
    """The status has the bus and the ids of the Sensor's topics: from here on its group's offsets
    count, and are never rewritten."""
    APPLY_FUNCTION = auto()
    APPLY_TRIGGERS = auto()
    """The Triggers that deliver the Sensor's actions exist."""
    DELETE_TRIGGERS = auto()
    """Triggers that the Sensor no longer declares are deleted."""

    # Steps of DeadLetterArchives and of operations on their tables.
    RECORD_RUN = auto()
    """The status has the outcome of a Job before the Job is deleted, so that it counts exactly
    once."""
    DELETE_JOB = auto()
    RELEASE_LEASE = auto()
    TAKE_LEASE = auto()
    """The archive holds the Lease of the tables, if it was free."""
    REPLACE_LEASE = auto()
    """The archive holds the Lease of a deleted holder, if the Lease hasn't changed since it was
    read."""
    APPLY_ACCOUNT = auto()
    """The account and rights exist that a Job needs to create executors. For a Trigger: the account
    as which it sends, and its dispatchers' right to request tokens for that account."""
    DELETE_ACCOUNT = auto()
    """Accounts and rights are deleted, as no tokens are sent any more."""
    CREATE_JOB = auto()
    DELETE_OPERATION = auto()
    """An operation is deleted, as its time to live after its end is over."""

    PUBLISH_STATUS = auto()


BROKER_ORDER: Final = (
    Step.STOP_RECEIVER,  # first: a later failure must not let it accept events
    Step.PROJECT_SECRET,
    Step.RECORD_TOPIC,  # before the topic, so that an operator that dies between them knows it
    Step.CREATE_TOPIC,  # before the entry: a receiver accepts only events that it can store
    Step.RECORD_CONTRACT,  # before the entry: a deletion finds it
    Step.WRITE_INGRESS,  # before the receiver, which is Ready once it has read everything
    Step.APPLY_RECEIVER,
    Step.AWAIT_RECEIVERS,
    Step.APPLY_TLS_SERVICE,  # after the receiver, whose pods listen by then
    Step.APPLY_DIRECT_SERVICE,  # after the receiver, for the same reason
    Step.PROBE_RECEIVER,  # before the status: Ready isn't written before the address answers
    Step.PUBLISH_STATUS,
)
CHANNEL_ORDER: Final = (
    Step.RECORD_TOPIC,
    Step.CREATE_TOPIC,
    Step.APPLY_RECEIVER,
    Step.RECORD_RECEIVERS,  # before the entry: a deletion finds every entry
    Step.WRITE_INGRESS,  # before its address leads anywhere: Ready is never answered 404
    Step.AWAIT_RECEIVERS,
    Step.APPLY_DIRECT_SERVICE,
    Step.PROBE_DIRECT,  # before the channel's host leads there
    Step.APPLY_ROUTE,
    Step.PROBE_RECEIVER,
    Step.LEAVE_RECEIVERS,  # after the address has moved, before the status drops the old receivers
    Step.PUBLISH_STATUS,
)
TRIGGER_ORDER: Final = (
    Step.STOP_DELIVERY,  # before other offsets are committed: a group with members accepts none
    Step.DELETE_FUNCTIONS,
    Step.CLAIM_GROUP,
    Step.DELETE_GROUP,
    Step.COMMIT_OFFSETS,  # before the function, and before Ready: later events are the group's
    Step.PROMISE_GROUP,  # after the offsets, before a function that could join the group unasked
    Step.APPLY_ACCOUNT,  # before a function that runs as the account, or sends its tokens
    Step.CREATE_CONTRACT,
    Step.APPLY_DISPATCHER,
    Step.APPLY_SHARD,
    Step.WAKE_DISPATCHER,
    Step.HAND_OVER,  # after the new dispatcher is Ready: one that can't start interrupts nothing
    Step.WRITE_CONTRACT,  # after the Trigger's own drains end; a removal precedes their begin
    Step.START_DELIVERY,
    Step.DELETE_DISPATCHER,  # last in a move, so that a move back finds the Service
    Step.AWAIT_SHARD,
    Step.AWAIT_REPLACEMENT,
    Step.DELETE_ACCOUNT,  # after the last function that runs as it
    Step.PUBLISH_STATUS,
)
SENSOR_ORDER: Final = (
    Step.STOP_DELIVERY,
    Step.DELETE_FUNCTIONS,  # before other offsets are committed, or if it may not read its bus
    Step.RECORD_TOPIC,  # before the topics, so that an operator that dies between them knows them
    Step.CREATE_TOPIC,
    Step.COMMIT_OFFSETS,  # before the function, and before Ready: later events are the group's
    Step.PROMISE_SENSOR,  # after the offsets, and before a function that could join the group
    Step.APPLY_FUNCTION,
    Step.START_DELIVERY,  # once it is Ready: until then the previous Revision drains
    Step.APPLY_TRIGGERS,
    Step.DELETE_TRIGGERS,
    Step.PUBLISH_STATUS,
)
ARCHIVE_ORDER: Final = (
    Step.RECORD_RUN,  # before the Job is deleted: only it has the outcome
    Step.DELETE_JOB,
    Step.RELEASE_LEASE,  # after the Job and all its pods are gone: no two Jobs use the same tables
    Step.TAKE_LEASE,  # before the Job
    Step.REPLACE_LEASE,
    Step.APPLY_ACCOUNT,
    Step.CREATE_JOB,
)
