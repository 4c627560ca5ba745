"""What is asked of KafkaChannels, Subscriptions and their dispatchers, line by line, in our words.

Of four sources: Knative's specification of channels (KN-CHN) and of Subscriptions (KN-SUB), and two
READMEs of eventing-kafka, on its KafkaChannel (CHN) and on its dispatcher (DSP). The READMEs
describe one implementation, so some of their lines are goals, or layouts of folders.
"""

from __future__ import annotations

from typing import Final

from support.conformance_line import Level, Line

CHANNEL_FAMILIES: Final = {
    "KN-CHN": "Channel",
    "KN-SUB": "Subscription",
    "CHN": "Knative-Kafka's KafkaChannel",
    "DSP": "Knative-Kafka's dispatcher",
}

_M, _S, _U = Level.MUST, Level.SHOULD, Level.UPSTREAM

_SPECIFICATION: Final = (
    Line("KN-CHN-01", _M, "has an address once it is Ready, and every Ready Subscription gets all"),
    Line("KN-CHN-02", _M, "stores an event durably before it acknowledges it"),
    Line(
        "KN-CHN-03",
        _M,
        "one delivery for each Subscription, to the same destination too; data unchanged",
    ),
    Line(
        "KN-CHN-04",
        _M,
        "tells `status.deadLetterSinkUri` before it is Ready",
        note="`channelTemplate` is of the kind Channel, which is Knative Eventing's own",
    ),
    Line(
        "KN-CHN-05",
        _M,
        "the server writes `spec.subscribers` and `status.subscribers`",
        note="by Subscriptions, or by Knative Eventing's controller (`KNAFKA_SUBSCRIPTIONS`); "
        "entries that others write are delivered, too",
    ),
    Line("KN-CHN-06", _M, "any option of its `delivery` replaces all of the channel's"),
    Line("KN-CHN-07", _M, "labels, category and roles by which a kind is known as a channel's"),
    Line(
        "KN-CHN-08",
        _M,
        "CloudEvents 1.0 and 0.3 in both modes stay as they are; 202, 400, 404, 405",
    ),
    Line(
        "KN-CHN-09",
        _U,
        "a KafkaChannel's conditions are upstream's",
        note="`ContractUpdated` for `ConfigMapUpdated`, as the contract is a topic; without "
        "`EventPoliciesReady`, as there are no event policies, and without `Subscribers`, as "
        "`status.subscribers` says that of each; beside them `DataPlaneAvailable` and "
        "`DeadLetterSinkResolved`",
    ),
    Line("KN-CHN-10", _U, "partitions, copies and retention, which can't change; both versions"),
    Line(
        "KN-CHN-11",
        _U,
        "a host of its own; `ordered` by default; upstream's names of topics and groups",
        note="the Service leads to Knative's gateway; where there is none, a path is its address",
    ),
    Line("KN-SUB-01", _M, "its channel is required, of its own namespace, and can't change"),
    Line("KN-SUB-02", _M, "a subscriber is required; without `reply`, replies are discarded"),
    Line("KN-SUB-03", _M, "tells `status.physicalSubscription`; unresolved: a reason, and empty"),
    Line("KN-SUB-04", _S, "subscriber, reply and delivery may change"),
    Line("KN-SUB-05", _M, "Ready only once no later event is missed"),
    Line(
        "KN-SUB-06",
        _U,
        "its conditions are upstream's",
    ),
    Line(
        "KN-SUB-07",
        _M,
        "a reply that isn't delivered is tried again, and at last fails it",
    ),
)

_CHANNEL: Final = (
    Line(
        "CHN-1",
        _U,
        "production-grade qualities",
        no_behaviour="a goal; the lines below and Knative's own say what it comes to",
    ),
    Line(
        "CHN-2",
        _U,
        "one topic's traffic does not slow another's",
        note="each channel has dispatchers of its own; the receiver of all channels of one Kafka "
        "is one function, as CHN-23 asks, and scales on requests",
    ),
    Line("CHN-3", _U, "dispatchers scale out", note="one Subscription's with `isolation: own`"),
    Line("CHN-4", _U, "order on the consumers' side"),
    Line("CHN-5", _U, "topics, producers and consumers can be configured"),
    Line("CHN-6", _U, "many topics and many consumers"),
    Line(
        "CHN-7",
        _U,
        "one receiver for each authorization, one dispatcher for each channel",
        no_behaviour="why it was chosen there; it holds here, see CHN-11 and CHN-26",
    ),
    Line(
        "CHN-8",
        _U,
        "the cost of a service mesh's sidecars",
        no_behaviour="a consideration; functions that have nothing to do have no pods here",
    ),
    Line(
        "CHN-9",
        _U,
        "a component `common`",
        no_behaviour="a layout of folders; here `functions/knafka`, which both planes import",
    ),
    Line("CHN-10", _U, "a receiver takes CloudEvents over HTTP and writes to the channel's topic"),
    Line("CHN-11", _U, "a receiver for each Kafka Secret"),
    Line(
        "CHN-12",
        _U,
        "a component `controller`, in Go with Knative's shared main",
        no_behaviour="a layout of folders; here the operator, in Python with kopf",
    ),
    Line("CHN-13", _U, "a dispatcher reads the topic by consumer groups"),
    Line("CHN-14", _U, "a dispatcher for each channel, a consumer group for each Subscription"),
    Line(
        "CHN-15",
        _U,
        "a package that installs CRD and controller",
        no_behaviour="a layout of folders; here the kustomize component `operator/deploy/channels`",
    ),
    Line(
        "CHN-16",
        _U,
        "one project, as eventing-contrib",
        no_behaviour="a layout of folders; it is one project here as well",
    ),
    Line(
        "CHN-17",
        _U,
        "the controller is installed in `knative-eventing`",
        note="in a namespace of its own, `knafka`, as Knative Eventing isn't needed",
    ),
    Line("CHN-18", _U, "channels in any namespace"),
    Line("CHN-19", _U, "the data plane does what Subscriptions declare"),
    Line(
        "CHN-20",
        _U,
        "a labelled Secret says where Kafka is",
        note="in the operator's namespace; the one of all channels is named in a ConfigMap",
    ),
    Line("CHN-21", _U, "several Kafkas, and services like Kafka"),
    Line(
        "CHN-22",
        _U,
        "the data plane of all channels runs in one namespace",
        note="the operator's",
    ),
    Line("CHN-23", _U, "one receiver takes the events of all channels", note="of one Secret"),
    Line("CHN-24", _U, "one topic for each channel"),
    Line(
        "CHN-25",
        _U,
        "the receiver scales out",
        note="to 10 pods; two take 2.0 and four 4.0 times what one takes (docs/performance.md)",
    ),
    Line("CHN-26", _U, "one dispatcher for each channel reads its topic for all subscribers"),
    Line("CHN-27", _U, "a consumer group for each subscriber"),
    Line(
        "CHN-28",
        _U,
        "dispatchers scale to the number of partitions",
        note="with `isolation: own` or `auto`; a shared one has one pod",
    ),
    Line("CHN-29", _U, "202 means that the event is stored"),
    Line("CHN-30", _U, "the partition follows from `subject`", note="`partitionkey` comes first"),
    Line("CHN-31", _U, "a partition's events in order, at least once"),
    Line(
        "CHN-32",
        _U,
        "an event whose retries have failed is passed over",
        note="a dead letter keeps it, in the sink or a durable topic",
    ),
    Line(
        "CHN-33",
        _U,
        "Knative Eventing's duck types",
        note="Knative Eventing's own controller makes Channels and Sequences of ours "
        "(tests/integration/test_knative_eventing.py)",
    ),
    Line(
        "CHN-34",
        _U,
        "may replace the default implementation",
        no_behaviour="a goal; upstream's names of kinds, fields, topics, groups and hosts hold, "
        "and one implementation at a time is served",
    ),
    Line(
        "CHN-35",
        _U,
        "pages on installation, configuration, credentials and providers",
        no_behaviour="documentation: how to use channels, how to connect to Kafka",
    ),
    Line(
        "CHN-36",
        _U,
        "a native client library, its installation and version",
        no_behaviour="nothing is to be installed: librdkafka comes with confluent-kafka, whose "
        "version `requirements` pins",
    ),
)

_DISPATCHER: Final = (
    Line("DSP-1", _U, "consumer groups that read a topic, and events that go to subscribers"),
    Line("DSP-2", _U, "a dispatcher for each channel"),
    Line("DSP-3", _U, "has a consumer for every Subscription", note="a group each, and one read"),
    Line(
        "DSP-4",
        _U,
        "scales out by variables of the controller",
        note="by itself, on lag; annotations of a Subscription set the limits",
    ),
    Line(
        "DSP-5",
        _U,
        "all instances are in the Subscription's group",
        note="those of a shared dispatcher in one of its own, which is what fences them",
    ),
    Line("DSP-6", _U, "never more instances than partitions"),
    Line("DSP-7", _U, "uses the cluster well, and keeps high volume apart"),
    Line(
        "DSP-8",
        _U,
        "a Service for Prometheus alone",
        note="of the operator, which has the counts of all dispatchers, also of those at zero",
    ),
    Line("DSP-9", _U, "a change of the subscribers takes effect"),
    Line("DSP-10", _U, "says in the channel's status which subscribers are operational"),
    Line("DSP-11", _U, "servers and credentials are of the Secret, which is mounted"),
    Line(
        "DSP-12",
        _U,
        "ConfigMaps `config-tracing` and `config-observability`",
        note="of the operator's namespace, for traces; a change reaches one Broker or Trigger a "
        "second; metrics are always on",
    ),
    Line(
        "DSP-13",
        _U,
        "traces in Zipkin, by default",
        note="where `config-tracing` has the backend `zipkin`; then without an address it is the "
        "Service `zipkin` in the operator's namespace",
    ),
    Line("DSP-14", _U, "profiles at localhost:8008/debug/pprof"),
    Line(
        "DSP-15",
        _U,
        "metrics at port 8081, `/metrics`",
        note="the operator's; those of a pod that lives are at its port 8080",
    ),
    Line("DSP-16", _U, "`eventing_kafka_consumed_msg_count`, a gauge", note="by Kafka's offsets"),
    Line(
        "DSP-17",
        _U,
        "its labels are `consumer`, `partition`, `topic`",
        note="`consumer` is the group; `topic` is the topic's name in Kafka",
    ),
    Line("DSP-18", _U, "a series for each consumer and partition, also at 0"),
    Line("DSP-19", _U, "an event posted to the channel's host is answered 202 Accepted"),
    Line("DSP-20", _U, "then the count of its partition is one more"),
    Line(
        "DSP-21",
        _U,
        "metrics at `kafka-channel-dispatcher` in `knative-eventing`",
        note="in the namespace `knafka`",
    ),
    Line("DSP-22", _U, "`eventing_kafka_produced_msg_count` of a receiver, a gauge"),
)

CHANNEL_LINES: Final = (*_SPECIFICATION, *_CHANNEL, *_DISPATCHER)
