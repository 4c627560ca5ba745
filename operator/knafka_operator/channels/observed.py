"""Observed: a KafkaChannel with everything that was read for its decision. Pure.

Not here: the reading (`kind`, `kafkas`), and the decision (`decide`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.channels.routes import Gateway
from knafka_operator.decisions.effects import (
    Apply,
    Effect,
    LeaveReceivers,
)
from knafka_operator.decisions.steps import Step
from knafka_operator.installation.handler import Handling
from knafka_operator.kafka.desired import Defaults
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.resources import Broker
from knafka_operator.receivers.addressable import ObservedIngress

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
class ObservedChannel(ObservedIngress):
    """A KafkaChannel and everything read for its decision; where reading failed, the error stands
    for the value. A field that keeps its default hasn't been read, as nothing needs it yet."""

    channel: KafkaChannel | InvalidDocument
    broker: Broker | None = None
    """The channel in the form of a Broker (`model.family`)."""
    rival: str | None = None
    """Name of another implementation that serves KafkaChannels here; None: there is none."""
    connection: ChannelConnection | KnafkaError | None = None
    """The channel's Kafka configuration; None: not read, as the channel is invalid or has a
    `rival`."""
    gateway: Gateway | None = None
    """Knative's gateway, which gives the channel its own host; None: the channel is addressed by a
    path at its receiver."""
    routed: str | None = None
    """The host to which the channel's own host name leads; None: this reconciliation hasn't applied
    the route yet."""
    subscribers: Sequence[Mapping[str, Any]] = ()
    """The list to write to `status.subscribers` (DSP-10)."""
    handling: Handling = field(default_factory=Handling)
    """Whether Knafka or Knative Eventing reconciles Subscriptions."""

    def after(self, effect: Effect, result: Any) -> ObservedChannel:
        """Return a copy that includes an effect's result."""
        observed = super().after(effect, result)
        match effect:
            case Apply(Step.APPLY_ROUTE, (*_, service)):
                return replace(observed, routed=service["spec"]["externalName"])
            case LeaveReceivers(stays=stays):
                return observed.with_annotations({RECEIVERS: stays})
        return observed


def receivers_of(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the receivers that may have an entry of a channel, from its
    `status.annotations`; empty: nothing was created for it yet."""
    return tuple(annotations.get(RECEIVERS, "").split())
