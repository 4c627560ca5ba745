"""What Argo Events' EventBus on Kafka does for Sensors, line by line, in our words (BUS).

Of one source: the pull request that added it, with what its code and documentation say (BUS-S).
Many of its lines say how it is built there; where ours does it in another way, a note says so.
"""

from __future__ import annotations

from typing import Final

from support.conformance_line import Level, Line

SENSOR_FAMILIES: Final = {"BUS": "Argo Events' Kafka EventBus"}

_U = Level.UPSTREAM

_PROPOSAL: Final = (
    Line("BUS-1", _U, "an EventBus on Kafka", note="a Broker's topic"),
    Line("BUS-2", _U, "simple conditions"),
    Line("BUS-3", _U, "complex conditions, with `&&`"),
    Line("BUS-4", _U, "resets of conditions"),
    Line(
        "BUS-5",
        _U,
        "at most once and at least once, for each trigger",
        note="`atLeastOnce` is true unless it is set; Argo's is false",
    ),
    Line(
        "BUS-6",
        _U,
        "Sensors scale out, and all replicas are active",
        note="as many as the lag asks for, one for a partition at most",
    ),
    Line(
        "BUS-7",
        _U,
        "three topics: events, triggers, actions",
        note="and a compacted one, the changelog, with what triggers hold",
    ),
    Line("BUS-8", _U, "the event topic is shared, the other ones are one Sensor's"),
    Line(
        "BUS-9",
        _U,
        "the event topic's name is `{namespace}-{eventbus}`",
        note="it is the Broker's, with Knative's name of that",
    ),
    Line("BUS-10", _U, "the trigger topic is `{namespace}-{eventbus}-{sensor}-trigger`"),
    Line("BUS-11", _U, "the action topic is `{namespace}-{eventbus}-{sensor}-action`"),
    Line("BUS-12", _U, "a simple condition passes the trigger topic by"),
    Line(
        "BUS-13",
        _U,
        "events of a complex condition are held until it is true",
        note="in the changelog, which the trigger topic feeds",
    ),
    Line(
        "BUS-14",
        _U,
        "of `a && b` and `c && d`, {a, c, d} invokes the second exactly once",
        note="the offset isn't held back at `a`: the changelog has it (decision 0026)",
    ),
    Line("BUS-15", _U, "after a restart it isn't invoked again"),
    Line("BUS-16", _U, 'beside the offset is what each trigger needs, `{"t1": 0, "t2": 3}`'),
    Line(
        "BUS-17",
        _U,
        "after a restart, what a trigger has used is passed over",
        note="by the changelog, not by the metadata",
    ),
    Line("BUS-18", _U, "a record's key says its trigger, so one partition has it"),
    Line("BUS-19", _U, "so nothing of a trigger's is concurrent"),
    Line(
        "BUS-20",
        _U,
        "the committed offset is the smallest that a trigger still needs",
        note="it is what was read: what waits for a week is no lag (decision 0026); the smallest "
        "one of each trigger is in the metadata",
    ),
    Line(
        "BUS-21",
        _U,
        "a handler for each topic, and a map to the triggers that want an event",
        note="that of the action topic is a Trigger's dispatcher",
    ),
    Line(
        "BUS-22",
        _U,
        "state is in the trigger connections only",
        no_behaviour="a layout of code; here `functions/knafka/sensor/state.py`",
    ),
    Line("BUS-23", _U, "outputs and offsets in one transaction, of a batch of records"),
    Line("BUS-24", _U, "nothing counts twice after a process has failed"),
    Line(
        "BUS-25",
        _U,
        "a driver's `Connect` has the trigger and its conditions",
        no_behaviour="an interface of Argo's code; here `functions/knafka/ports/transactions.py`",
    ),
    Line("BUS-26", _U, "TLS and SASL Secrets are attached to pods"),
    Line("BUS-27", _U, "a Secret is attached once", note="users attach none of their own"),
    Line(
        "BUS-28",
        _U,
        "a lease where something must run once; Sensors need none",
        note="the operator has one; there are no EventSources here",
    ),
    Line("BUS-29", _U, "a service account may use leases", note="`knafka-operator`"),
    Line(
        "BUS-30",
        _U,
        "the bus's declaration is validated by a webhook",
        note="a Broker's; a Sensor's schema by the API server, its conditions "
        "by the operator and `knafka check`",
    ),
    Line("BUS-31", _U, "a bus that others manage is only connected to", note="external topics"),
    Line("BUS-32", _U, "the status is stored before what it says is done"),
    Line("BUS-33", _U, "topics' names have dashes"),
    Line("BUS-34", _U, "one configuration of Kafka's clients for both sides"),
    Line(
        "BUS-35",
        _U,
        "manifests of a Kafka in the cluster, for tests",
        no_behaviour="a test's apparatus; here `tools/testcluster` and the fixture `kafka`",
    ),
    Line(
        "BUS-36",
        _U,
        "all end-to-end tests for each driver",
        no_behaviour="there is one driver; Kafka and the memory that tests use have one contract "
        "(`tests/contract`)",
    ),
    Line("BUS-37", _U, "tests over all buses that Secrets are attached"),
    Line("BUS-38", _U, "tests in which processes are killed at random"),
    Line("BUS-39", _U, "their dimensions: events, dependencies, triggers, replicas, semantics"),
    Line("BUS-40", _U, "both semantics hold in them"),
    Line(
        "BUS-41",
        _U,
        "documentation",
        no_behaviour="documentation: how to try a Sensor, a Sensor's paths, decision 0026",
    ),
    Line("BUS-42", _U, "AWS MSK with IAM", note="by tokens (OAUTHBEARER)"),
)

_SEMANTICS: Final = (
    Line("BUS-S1", _U, "`conditions` of names, `&&`, `||` and parentheses; missing: all of them"),
    Line("BUS-S2", _U, "a trigger is simple without `&&`", note="nor a count, nor `!`, ours"),
    Line(
        "BUS-S3",
        _U,
        "the latest event of each dependency counts",
        note="by its time on the bus; the same event is the one of that source and id",
    ),
    Line("BUS-S4", _U, "what has fired is held no more"),
    Line(
        "BUS-S5",
        _U,
        "`conditionsReset` by cron and time zone: events not newer than it don't count",
        note="by the events' time",
    ),
    Line(
        "BUS-S6",
        _U,
        "records: the trigger is the key, the dependency a header, an action an array of events",
        note="an action is a CloudEvent with that array, or a batch; a correlation key is "
        "part of the key, and an action without one has none unless its trigger says order: key",
    ),
    Line("BUS-S7", _U, "at least once acts before the commit, at most once behind it"),
    Line(
        "BUS-S8",
        _U,
        "metadata of the trigger topic only; what can't be read is as none",
        note="what is held is restored without it; the bus's says until when it was routed",
    ),
    Line("BUS-S9", _U, "a batch is 100 records, or 1 s", note="1,000, or 20 ms"),
    Line("BUS-S10", _U, "a partition that goes takes its state out of memory"),
    Line("BUS-S11", _U, "what is no event is logged and passed over"),
    Line(
        "BUS-S12",
        _U,
        "missing topics are named in the error",
        note="the operator makes a Sensor's own topics",
    ),
    Line(
        "BUS-S13",
        _U,
        "`retryStrategy`, `rateLimit`, `dlqTrigger`",
        note="a Trigger's delivery: its waits grow linearly (`factor` 1) or twofold (2), without "
        "jitter",
    ),
    Line(
        "BUS-S14",
        _U,
        "the group is `{namespace}-{sensor}`, and begins at the end",
        note="`startOldest` isn't offered; an event's key is its `partitionkey` or subject; "
        "partitions are assigned as Kafka's group protocol does it",
    ),
)

SENSOR_LINES: Final = (*_PROPOSAL, *_SEMANTICS)
