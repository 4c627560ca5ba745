"""Warnings of `knafka check` about events that are sent back to their own Broker or channel.

Not here: Sensors, which may well fire events into their own bus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from knafka.core.hops import FIRST_TTL, MAX_HOPS
from knafka_client.declared.manifests import ObjectIdentity
from knafka_operator.decide.trigger_conditions import leads_back
from knafka_operator.model.family import BROKERS, CHANNELS
from knafka_operator.model.resources import Broker, Destination

DEAD_LETTER_SINK_PATH: Final = "spec.delivery.deadLetterSink"


def warnings(
    destinations: Mapping[str, Destination | None],
    bus: ObjectIdentity,
    known: Mapping[ObjectIdentity, Any],
) -> list[str]:
    """A sentence for each of these destinations, by path, that is the Broker or channel `bus`
    itself, and for each dead letter sink from which other Brokers' sinks lead back to it."""
    family = BROKERS if bus.kind == BROKERS.broker else CHANNELS
    doubts = []
    for path, destination in destinations.items():
        if destination is None:
            continue
        if leads_back(destination, family, bus.namespace, bus.name):
            where = f"{path}.{'uri' if destination.ref is None else 'ref'}"
            itself = "Broker" if family is BROKERS else "channel"
            doubts.append(f"{where}: its own {itself}: {_consequence(path)}")
        elif path == DEAD_LETTER_SINK_PATH and (way := _way_back(destination, bus, known)):
            brokers = ", ".join(map(str, way))
            doubts.append(f"{path}: leads back over {brokers}: {_consequence(path)}")
    return doubts


def of_broker(broker: Broker, known: Mapping[ObjectIdentity, Any]) -> list[str]:
    """Warnings about a Broker's dead letter sink; its Triggers without a delivery use it, too."""
    bus = ObjectIdentity(BROKERS.broker, broker.metadata.namespace, broker.metadata.name)
    sinks = {DEAD_LETTER_SINK_PATH: broker.spec.delivery.dead_letter_sink}
    return warnings(sinks, bus, known)


def _consequence(path: str) -> str:
    """A sentence on what happens when the destination at `path` leads back to its Broker."""
    if path == DEAD_LETTER_SINK_PATH:
        return (
            f"what fails comes back to it, {MAX_HOPS} times at most, and is kept in the "
            "dead-letter topic then; without a sink it is kept there at once"
        )
    if path == "spec.reply":
        return f"a reply comes back to it, {FIRST_TTL} times in a row at most"
    return "every event that it gets comes back to it"


def _way_back(
    destination: Destination, bus: ObjectIdentity, known: Mapping[ObjectIdentity, Any]
) -> Sequence[ObjectIdentity]:
    """The Brokers whose dead letter sinks lead, one after the other, from `destination` back to
    `bus`; empty if they don't."""
    way: list[ObjectIdentity] = []
    sink: Destination | None = destination
    namespace = bus.namespace
    while sink is not None and sink.ref is not None and sink.ref.kind == BROKERS.broker:
        step = ObjectIdentity(BROKERS.broker, sink.ref.namespace or namespace, sink.ref.name)
        if step == bus:
            return way
        broker = known.get(step)
        if step in way or not isinstance(broker, Broker):
            break
        way.append(step)
        sink, namespace = broker.spec.delivery.dead_letter_sink, step.namespace
    return ()
