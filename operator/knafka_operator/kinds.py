"""Kinds: the table of all kinds that the controller reconciles, by name.

    Broker, KafkaChannel      -> topic, receiver, address
    Trigger, Subscription     -> consumer group, dispatcher
    KafkaSource               -> consumer group, dispatcher, for existing topics
    KafkaSink                 -> receiver, address
    Sensor                    -> topics, function, Triggers
    DeadLetterArchive         -> Jobs
    DeadLetterReplay, -Purge  -> one of their archive's Jobs

To add a kind, write an `engine.kind.Reconciler` and add it to the table in `kinds_of`.

Not here: when an object is reconciled (`engine.controller`), and how (the module `kind` of each
package).
"""

from __future__ import annotations

from collections.abc import Mapping

from knafka_operator.archives.kind import Archives
from knafka_operator.archives.model import ARCHIVE
from knafka_operator.archives.operation_model import OPERATIONS
from knafka_operator.engine.kind import Kind
from knafka_operator.model.sensors import SENSOR
from knafka_operator.model.sources import KAFKA_SOURCE
from knafka_operator.operator import Operator
from knafka_operator.sinks.model import KAFKA_SINK


def kinds_of(operator: Operator) -> Mapping[str, Kind]:
    """Return the reconciler of each kind that the installation enables, by the kind's name.
    `operator` is the operator of Brokers, which knows the operators of other families."""
    table: dict[str, Kind] = {}
    for family_operator in operator.all_operators:
        family = family_operator.family
        table |= {family.broker: family_operator.brokers, family.trigger: family_operator.triggers}
    if operator.sources is not None:
        table[KAFKA_SOURCE] = operator.sources
    if operator.sinks is not None:
        table[KAFKA_SINK] = operator.sinks
    if operator.sensors is not None:
        table[SENSOR] = operator.sensors
    if operator.settings.jobs_image:
        archives = Archives(
            operator.settings,
            operator.cluster,
            operator.states,
            operator.effects,
            operator.brokers.is_ours,
        )
        table |= {ARCHIVE: archives, **dict.fromkeys(OPERATIONS, archives.operations)}
    return table
