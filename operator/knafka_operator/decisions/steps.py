"""Steps: what effects are for, in the order in which no event is missed.

The order is a promise, so it is data: `BROKER_ORDER`, `CHANNEL_ORDER`, `TRIGGER_ORDER`,
`SENSOR_ORDER` and `ARCHIVE_ORDER` are the orders that every `decide` keeps, and tests read
them.

Not here: what is done at a step (`effects`).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class Step(Enum):
    """A place in an order: what an effect is for."""

    # Of Brokers and KafkaChannels.
    STOP_RECEIVER = auto()
    """Nothing is accepted any more: the external topic isn't allowed. What is in Kafka stays."""
    PROJECT_SECRET = auto()
    """The installation's Secret is copied beside the Broker."""
    RECORD_TOPIC = auto()
    """The status has the topic's name, with an empty id: it is about to be made. Of a Sensor: those
    of its topics, and its group."""
    CREATE_TOPIC = auto()
    RECORD_CONTRACT = auto()
    """The status says which topic may have the Broker's entry."""
    APPLY_RECEIVER = auto()
    RECORD_RECEIVERS = auto()
    """The status says which receivers may have an entry of the channel."""
    WRITE_INGRESS = auto()
    """The Broker or channel is in the contract that its receiver follows."""
    AWAIT_RECEIVERS = auto()
    APPLY_ROUTE = auto()
    """The channel's own host leads to the receiver."""
    APPLY_TLS_SERVICE = auto()
    """There is the Service that leads to the TLS which a Broker's receiver ends itself."""
    APPLY_DIRECT_SERVICE = auto()
    """There is the Service that leads senders past Knative's proxy."""
    PROBE_DIRECT = auto()
    PROBE_RECEIVER = auto()
    LEAVE_RECEIVERS = auto()
    """Receivers accept nothing for a channel that another one serves now."""

    # Of Triggers and Subscriptions.
    STOP_DELIVERY = auto()
    """Nothing is delivered for now; of a Sensor, its drains are over."""
    DELETE_FUNCTIONS = auto()
    """No function is left that somebody else could have deliver; the group stays."""
    CLAIM_GROUP = auto()
    DELETE_GROUP = auto()
    """Nobody was promised anything yet: what a namesake left behind isn't this Trigger's."""
    COMMIT_OFFSETS = auto()
    """The group begins there: from here on no event may be missed."""
    PROMISE_GROUP = auto()
    """The status has the group: from here on its offsets count. An operator that dies after that
    finds the promise, and neither deletes nor writes them again."""
    CREATE_CONTRACT = auto()
    """There is the topic that the Broker's shared dispatchers follow; its status says so before."""
    APPLY_DISPATCHER = auto()
    """The dispatcher's Service is Ready: what was delivered goes on until then."""
    APPLY_SHARD = auto()
    WAKE_DISPATCHER = auto()
    """A pod of its own runs, so that what takes over need not start first."""
    HAND_OVER = auto()
    """What delivered until now lets go, since what takes over is Ready."""
    WRITE_CONTRACT = auto()
    """From here on its shard delivers it."""
    START_DELIVERY = auto()
    DELETE_DISPATCHER = auto()
    """The Service of its own is deleted: its shard delivers."""
    AWAIT_SHARD = auto()
    AWAIT_REPLACEMENT = auto()

    # Of Sensors.
    PROMISE_SENSOR = auto()
    """The status has the bus and the ids of the Sensor's topics: from here on the offsets of its
    group count, and are never written again."""
    APPLY_FUNCTION = auto()
    APPLY_TRIGGERS = auto()
    """There are the Triggers that deliver what the Sensor has fired."""
    DELETE_TRIGGERS = auto()
    """Those are gone that nothing declares any more."""

    # Of DeadLetterArchives and of operations on their tables.
    RECORD_RUN = auto()
    """The status says how a Job ended, before it is deleted: so it counts exactly once."""
    DELETE_JOB = auto()
    RELEASE_LEASE = auto()
    TAKE_LEASE = auto()
    """The tables are the archive's alone, if nobody has them."""
    REPLACE_LEASE = auto()
    """The same, of a holder that is no more; only as long as the Lease is as it was observed."""
    APPLY_ACCOUNT = auto()
    """There is what a Job needs to make executors. Of a Trigger: the account that it sends as, and
    what its dispatchers need to ask for tokens of it."""
    DELETE_ACCOUNT = auto()
    """Those are gone, as nothing shows tokens any more."""
    CREATE_JOB = auto()
    DELETE_OPERATION = auto()
    """An operation has ended longer ago than it is to be kept."""

    PUBLISH_STATUS = auto()


BROKER_ORDER: Final = (
    Step.STOP_RECEIVER,  # before all that can fail: what it may not use it doesn't keep by that
    Step.PROJECT_SECRET,
    Step.RECORD_TOPIC,  # before the topic, so that an operator that dies between them knows it
    Step.CREATE_TOPIC,  # before the entry: a receiver accepts what it can store only
    Step.RECORD_CONTRACT,  # before the entry: a deletion finds it
    Step.WRITE_INGRESS,  # before the receiver, which is Ready once it has read everything
    Step.APPLY_RECEIVER,
    Step.AWAIT_RECEIVERS,
    Step.APPLY_TLS_SERVICE,  # after the receiver, whose pods listen by then
    Step.APPLY_DIRECT_SERVICE,  # likewise
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
    Step.LEAVE_RECEIVERS,  # after its address leads to the new one, before the status forgets them
    Step.PUBLISH_STATUS,
)
TRIGGER_ORDER: Final = (
    Step.STOP_DELIVERY,  # before other offsets are committed: a group with members takes none
    Step.DELETE_FUNCTIONS,
    Step.CLAIM_GROUP,
    Step.DELETE_GROUP,
    Step.COMMIT_OFFSETS,  # before the function, and before Ready: later events are the group's
    Step.PROMISE_GROUP,  # after the offsets, before a function that could join the group unasked
    Step.APPLY_ACCOUNT,  # before a function that runs as it, or has its tokens to show
    Step.CREATE_CONTRACT,
    Step.APPLY_DISPATCHER,
    Step.APPLY_SHARD,
    Step.WAKE_DISPATCHER,
    Step.HAND_OVER,  # after what takes over is Ready: whatever can't start stops nobody
    Step.WRITE_CONTRACT,  # after its own drains are over, and the tombstone before its own begin
    Step.START_DELIVERY,
    Step.DELETE_DISPATCHER,  # last of a move: one that goes back finds it
    Step.AWAIT_SHARD,
    Step.AWAIT_REPLACEMENT,
    Step.DELETE_ACCOUNT,  # after no function runs as it
    Step.PUBLISH_STATUS,
)
SENSOR_ORDER: Final = (
    Step.STOP_DELIVERY,
    Step.DELETE_FUNCTIONS,  # before other offsets are committed, and while it may not read its bus
    Step.RECORD_TOPIC,  # before the topics, so that an operator that dies between them knows them
    Step.CREATE_TOPIC,
    Step.COMMIT_OFFSETS,  # before the function, and before Ready: later events are the group's
    Step.PROMISE_SENSOR,  # after the offsets, and before a function that could join the group
    Step.APPLY_FUNCTION,
    Step.START_DELIVERY,  # once it is Ready: until then the Revision before goes on with its drains
    Step.APPLY_TRIGGERS,
    Step.DELETE_TRIGGERS,
    Step.PUBLISH_STATUS,
)
ARCHIVE_ORDER: Final = (
    Step.RECORD_RUN,  # before its Job is gone: nothing else knows how it ended
    Step.DELETE_JOB,
    Step.RELEASE_LEASE,  # after the Job is gone with all its pods: no two are at the same tables
    Step.TAKE_LEASE,  # before the Job
    Step.REPLACE_LEASE,
    Step.APPLY_ACCOUNT,
    Step.CREATE_JOB,
)
