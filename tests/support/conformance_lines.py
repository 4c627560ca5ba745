"""What Knative asks of a Broker and its Triggers, line by line, in our words.

Ids and levels are those of the project's digest of Knative's control-plane and data-plane
specifications and of the two upstream Brokers. Here is no judgement of ours but two: what is not
offered, and what one should know of how a line is kept.

Not here: the lines of channels (`conformance_channels`) and of Sensors (`conformance_sensors`),
which are added.
"""

from __future__ import annotations

from typing import Final

from support.conformance_channels import CHANNEL_FAMILIES, CHANNEL_LINES
from support.conformance_line import Level, Line
from support.conformance_sensors import SENSOR_FAMILIES, SENSOR_LINES

FAMILIES: Final = {
    "KN-BRK": "Broker",
    "KN-TRG": "Trigger",
    "KN-DST": "Destinations",
    "KN-CON": "Conditions",
    "KN-DLV": "Delivery",
    "KN-DP": "Data plane",
    **CHANNEL_FAMILIES,
    **SENSOR_FAMILIES,
}

_M, _S, _Y, _U = Level.MUST, Level.SHOULD, Level.MAY, Level.UPSTREAM

LINES: Final = (
    Line("KN-BRK-01", _M, "has an address, and that takes every valid CloudEvent once it is Ready"),
    Line("KN-BRK-02", _M, "passes what it received on to every Trigger that is Ready"),
    Line("KN-BRK-03", _M, "tells `status.deadLetterSinkUri` before it is Ready"),
    Line(
        "KN-BRK-04",
        _S,
        "its class is an annotation; a default is put in",
        note="`Kafka` and `kafka` are ours; the default is `KNAFKA_DEFAULT_CLASS`, or the "
        "`brokerClass` of `config-br-defaults`",
    ),
    Line("KN-BRK-05", _M, "its class can't change"),
    Line("KN-BRK-06", _M, "`spec.config` can't change", note="nor anything but `spec.delivery`"),
    Line("KN-BRK-07", _M, "stores an event durably before it acknowledges it"),
    Line("KN-BRK-08", _M, "each Trigger judges each event once"),
    Line("KN-BRK-09", _M, "one delivery for each match, to the same destination too"),
    Line("KN-BRK-10", _M, "an event's data are never changed"),
    Line("KN-BRK-11", _M, "replies go the way of other events, to all Triggers"),
    Line("KN-BRK-12", _M, "a reply that isn't stored is tried again, and at last fails it"),
    Line("KN-BRK-13", _Y, "finds loops of events, and ends them"),
    Line("KN-BRK-14", _M, "`observedGeneration` and `conditions` change in one write"),
    Line(
        "KN-BRK-15",
        _M,
        "its `delivery` is its Triggers' default; any option of a Trigger replaces all of it",
    ),
    Line("KN-BRK-16", _M, "wants no field beyond the standard ones"),
    Line(
        "KN-BRK-17",
        _U,
        "its conditions are upstream's",
        note="`ContractUpdated` for `ConfigMapUpdated`, as the contract is a topic; "
        "`EventPoliciesReady` only where `authentication-oidc` is enabled",
    ),
    Line("KN-BRK-18", _U, "reasons and messages say what to do", note="reasons are single words"),
    Line("KN-BRK-19", _U, "`status.annotations` tell topic, partitions, replicas, servers, group"),
    Line(
        "KN-BRK-20",
        _U,
        "its address is a path of an ingress",
        note="each Broker has a receiver, so a host, of its own; `status.addresses` only where "
        "there is an audience (`authentication-oidc`) or HTTPS (`transport-encryption`)",
    ),
    Line("KN-BRK-21", _U, "is Ready only once its receiver was asked and answers"),
    Line("KN-BRK-22", _U, "deletion stops the receiver, takes the topic, and is never stuck"),
    Line("KN-TRG-01", _M, "not Ready without its Broker, for a reason that says so"),
    Line("KN-TRG-02", _M, "tells `status.subscriberUri` before it is Ready"),
    Line("KN-TRG-03", _M, "what can't be resolved: not Ready, a reason, an empty subscriberUri"),
    Line("KN-TRG-04", _M, "tells `status.deadLetterSinkUri` before it is Ready"),
    Line("KN-TRG-05", _M, "`spec.broker` is required and can't change; the rest may"),
    Line("KN-TRG-06", _M, "Ready only once no later event is missed"),
    Line("KN-TRG-07", _Y, "may get events after its deletion", note="it gets none once it is gone"),
    Line("KN-TRG-08", _M, "`filter.attributes`: every one present and equal; empty is any value"),
    Line("KN-TRG-09", _M, "what is no attribute's name is refused in a filter"),
    Line("KN-TRG-10", _U, "`filters`: all dialects, nested; what is malformed is refused"),
    Line(
        "KN-TRG-11",
        _U,
        "its conditions are upstream's",
    ),
    Line("KN-TRG-12", _U, "defaults: `filter`, the Broker's label, the reference's namespace"),
    Line("KN-TRG-13", _U, "annotations `dependency` and `injection`"),
    Line("KN-TRG-14", _U, "columns of `kubectl get`"),
    Line("KN-DST-01", _M, "a reference is the address that its object tells"),
    Line("KN-DST-02", _M, "a Service is an address by its name"),
    Line("KN-DST-03", _M, "`uri` beside `ref` is relative to it"),
    Line("KN-DST-04", _M, "what isn't resolved isn't Ready"),
    Line("KN-CON-01", _M, "the form of a condition; the time moves only with the status"),
    Line("KN-CON-02", _M, "`Ready` sums up what counts"),
    Line("KN-CON-03", _M, "what is False has a reason; what isn't True has a message, too"),
    Line("KN-CON-04", _U, "True is good; what doesn't decide Ready has a severity"),
    Line("KN-DLV-01", _U, "`retry` counts the attempts after the first; 10 of them by default"),
    Line(
        "KN-DLV-02",
        _U,
        "`backoffPolicy` and `backoffDelay`",
        note="linear *d·n*, exponential *d·2^(n-1)*, n from 1: upstream's two differ",
    ),
    Line("KN-DLV-03", _U, "`timeout` for each attempt"),
    Line("KN-DLV-04", _U, "`retryAfterMax` bounds the Retry-After of a 429 or 503"),
    Line("KN-DLV-05", _U, "`format` forces a content mode"),
    Line("KN-DLV-06", _U, "what is malformed is refused by its path"),
    Line("KN-DLV-07", _M, "what can't be delivered goes to the sink, which is retried as well"),
    Line("KN-DLV-08", _U, "a dead letter tells where and how it failed"),
    Line(
        "KN-DLV-09",
        _U,
        "without a sink it is lost",
        note="not here: a durable topic of the Trigger's own keeps it",
    ),
    Line("KN-DP-01", _M, "CloudEvents 1.0, binary and structured, by POST over HTTP/1.1"),
    Line("KN-DP-02", _S, "accepts only what is stored"),
    Line("KN-DP-03", _S, "a status that no table has is retried"),
    Line("KN-DP-04", _M, "duplicates are accepted", note="nothing is deduplicated"),
    Line("KN-DP-05", _M, "retries and congestion control"),
    Line("KN-DP-06", _M, "`Prefer: reply` on what a subscriber gets, not on what a sink gets"),
    Line("KN-DP-07", _U, "OPTIONS tells POST"),
    Line("KN-DP-08", _M, "a 200 whose body is no event is a success, a malformed event is none"),
    Line(
        "KN-DP-09",
        _U,
        "status codes of the ingress",
        note="401 and 403 only where `authentication-oidc` is enabled",
    ),
    Line("KN-DP-10", _Y, "trace headers pass; the event's own trace attributes stay"),
    Line("KN-DP-11", _U, "`Kn-Namespace`; headers of Knative's and of requests' ids pass"),
    Line("KN-DP-12", _M, "64 KiB and more; 413 beyond the limit"),
    Line("KN-DP-13", _U, "paths for probes"),
    Line("KN-DP-14", _S, "CloudEvents 0.3 is taken and stays 0.3; other versions are refused"),
    Line("KN-DP-15", _S, "counts of what was accepted, refused, delivered", note="named knafka_…"),
    Line("KN-DP-16", _U, "spans of its own", note="where an installation has traces configured"),
    *CHANNEL_LINES,
    *SENSOR_LINES,
)
