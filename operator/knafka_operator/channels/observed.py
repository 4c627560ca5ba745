"""Observed: a KafkaChannel with everything that was read for its decision. Pure.

Not here: the reading (`kind`, `kafkas`), and what follows from it (`decide`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from knafka.core.contract import Ingress, Sink
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.channels.routes import Gateway
from knafka_operator.decisions.effects import (
    Apply,
    AwaitReceivers,
    CreateTopic,
    Effect,
    LeaveReceivers,
    Probe,
    WriteIngress,
)
from knafka_operator.decisions.observed import ObservedObject
from knafka_operator.decisions.status import NotReady
from knafka_operator.decisions.steps import Step
from knafka_operator.installation.handler import Handling
from knafka_operator.kafka.desired import Defaults
from knafka_operator.kafka.topics import ObservedTopic
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.resources import Broker
from knafka_operator.senders.authentication import NO_AUTHENTICATION, Authentication
from knafka_operator.senders.encryption import NO_ENCRYPTION, Encryption, Https

RECEIVERS: Final = "knafka.dev/receivers"
"""Key of `status.annotations`: names of the receivers that may have an entry of the channel; more
than one while the channel moves to the receiver of another Secret."""


@dataclass(frozen=True, slots=True)
class ChannelConnection:
    """Kafka configuration of a channel, from the installation's ConfigMap, a Secret and the
    channel's annotations."""

    defaults: Defaults
    secret: tuple[str, str] | None = None
    """Name and version of the Secret in the operator's namespace; None: no Secret is needed."""


@dataclass(frozen=True)
class ObservedChannel(ObservedObject):
    """A KafkaChannel and everything read for its decision; where reading failed, the error stands
    for the value. A field that keeps its default hasn't been read, as nothing needs it yet."""

    channel: KafkaChannel | InvalidDocument
    broker: Broker | None = None
    """The channel in the form of a Broker (`model.family`)."""
    rival: str | None = None
    """Name of another implementation that serves KafkaChannels here; None: there is none."""
    connection: ChannelConnection | KnafkaError | None = None
    """Its Kafka configuration; None: not read, as the channel is invalid or has a `rival`."""
    dead_letter_sink: Sink | KnafkaError | None = None
    """Where the channel sends dead letters; None: it declares no sink."""
    topic: ObservedTopic | KnafkaError | None = None
    authentication: Authentication | KnafkaError = NO_AUTHENTICATION
    """How senders are authenticated."""
    event_types: bool = False
    """Whether EventTypes are created for the channel's events."""
    encryption: Encryption | KnafkaError = NO_ENCRYPTION
    """Whether senders must use https."""
    https: Https | NotReady | None = None
    """The receiver's https address, or the error that explains why it has none; None: https is
    off."""
    ingress: Ingress | None = None
    """The channel's entry in the receiver's contract."""
    accepted: bool = False
    """Whether all replicas of the receiver have read that entry."""
    gateway: Gateway | None = None
    """Knative's gateway, which gives the channel its own host; None: the channel is addressed by a
    path at its receiver."""
    routed: str | None = None
    """The target of the channel's route, to which the channel's own host name leads; None: this
    reconciliation hasn't applied the route yet."""
    direct_served: bool = False
    """Whether this reconciliation has applied the Service that leads past Knative's proxy."""
    probed: str | None = None
    """The address that has answered a probe of this reconciliation; None: there was none."""
    subscribers: Sequence[Mapping[str, Any]] = ()
    """`status.subscribers` (DSP-10)."""
    handling: Handling = field(default_factory=Handling)
    """Whether Knafka or Knative Eventing reconciles Subscriptions."""

    def after(self, effect: Effect, result: Any) -> ObservedChannel:
        """Return a copy that includes an effect's result."""
        observed = super().after(effect, result)
        match effect:
            case CreateTopic() if isinstance(observed.topic, ObservedTopic):
                return replace(observed, topic=replace(observed.topic, existing=result))
            case WriteIngress(ingress=ingress):
                return replace(observed, ingress=ingress, accepted=False)
            case AwaitReceivers():
                return replace(observed, accepted=True)
            case Apply(Step.APPLY_ROUTE, (*_, service)):
                return replace(observed, routed=service["spec"]["externalName"])
            case Apply(Step.APPLY_DIRECT_SERVICE):
                return replace(observed, direct_served=True)
            case Probe(answers_for=url):
                return replace(observed, probed=url)
            case LeaveReceivers(stays=stays):
                return observed.with_annotations({RECEIVERS: stays})
        return observed


def receivers_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the receivers that may have an entry of a channel, from its
    `status.annotations`; empty: nothing was created for it yet."""
    return tuple(annotations.get(RECEIVERS, "").split())
