"""Warnings of `knafka check` about events that are sent back to their own Broker or channel.

Not here: Sensors, for which sending events to their own Broker is usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from knafka.core.events.hops import FIRST_TTL, MAX_HOPS
from knafka_client.declared.manifests import ObjectIdentity
from knafka_operator.dispatchers.conditions import leads_back
from knafka_operator.model.family import BROKERS, CHANNELS
from knafka_operator.model.resources import Broker, Destination

DEAD_LETTER_SINK_PATH: Final = "spec.delivery.deadLetterSink"
"""Path of the dead letter sink in a Broker, Trigger or Subscription."""


def loop_warnings(
    destinations: Mapping[str, Destination | None],
    bus: ObjectIdentity,
    known_objects: Mapping[ObjectIdentity, Any],
) -> list[str]:
    """Return a warning for each destination of an object that leads back to `bus`, the Broker or
    channel from which the object gets its events.

    A destination leads back if it is the bus itself. A dead letter sink also does if the dead
    letter sinks of other Brokers lead from it to the bus. `destinations` are by path.
    """
    family = BROKERS if bus.kind == BROKERS.broker else CHANNELS
    sentences = []
    for path, destination in destinations.items():
        if destination is None:
            continue
        if leads_back(destination, family, bus.namespace, bus.name):
            destination_path = f"{path}.{'uri' if destination.ref is None else 'ref'}"
            bus_word = "Broker" if family is BROKERS else "channel"
            sentences.append(f"{destination_path}: its own {bus_word}: {_loop_consequence(path)}")
        elif path == DEAD_LETTER_SINK_PATH and (
            brokers_between := _brokers_leading_back(destination, bus, known_objects)
        ):
            brokers = ", ".join(map(str, brokers_between))
            sentences.append(f"{path}: leads back over {brokers}: {_loop_consequence(path)}")
    return sentences


def broker_warnings(broker: Broker, known_objects: Mapping[ObjectIdentity, Any]) -> list[str]:
    """Return warnings about a Broker's dead letter sink, which its Triggers use if they have
    none."""
    bus = ObjectIdentity(BROKERS.broker, broker.metadata.namespace, broker.metadata.name)
    sinks = {DEAD_LETTER_SINK_PATH: broker.spec.delivery.dead_letter_sink}
    return loop_warnings(sinks, bus, known_objects)


def _loop_consequence(path: str) -> str:
    """Return a text on what happens if the destination at this path in its document leads back to
    its own Broker or channel."""
    if path == DEAD_LETTER_SINK_PATH:
        return (
            f"a failed event comes back {MAX_HOPS} times at most, and then goes to the "
            "dead-letter topic; without a sink it goes there at once"
        )
    if path == "spec.reply":
        return f"replies come back, {FIRST_TTL} times in a row at most"
    return "every delivered event comes back"


def _brokers_leading_back(
    destination: Destination, bus: ObjectIdentity, known_objects: Mapping[ObjectIdentity, Any]
) -> Sequence[ObjectIdentity]:
    """Follow the dead letter sinks of Brokers, from `destination`, the dead letter sink of an
    object that gets its events from `bus`. Return the Brokers on the way back to `bus`, in order;
    empty if the sinks don't lead back."""
    passed_brokers: list[ObjectIdentity] = []
    sink: Destination | None = destination
    namespace = bus.namespace
    while sink is not None and sink.ref is not None and sink.ref.kind == BROKERS.broker:
        next_bus = ObjectIdentity(BROKERS.broker, sink.ref.namespace or namespace, sink.ref.name)
        if next_bus == bus:
            return passed_brokers
        broker = known_objects.get(next_bus)
        if next_bus in passed_brokers or not isinstance(broker, Broker):
            break  # a loop without `bus`, or a Broker that isn't among the files
        passed_brokers.append(next_bus)
        sink, namespace = broker.spec.delivery.dead_letter_sink, next_bus.namespace
    return ()
