"""Sensor actions: reads the Sensor whose firings a Trigger delivers.

Not here: which Trigger may deliver them (`sensors.actions`).
"""

from __future__ import annotations

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decisions.status import NotReady
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.desired import SensorActions
from knafka_operator.model.cluster import Cluster, Document
from knafka_operator.model.sensors import KNAFKA, SENSOR, Sensor
from knafka_operator.records.state import BrokerState
from knafka_operator.scale.parsing import parse_off_loop, spec_size
from knafka_operator.sensors.actions import actions_for_trigger, sensor_name_of


async def observe_actions(
    settings: Settings, cluster: Cluster, document: Document, broker: BrokerState
) -> SensorActions | KnafkaError | None:
    """Return the actions of a Sensor that the Trigger `document` delivers, or the error that says
    why it may not deliver them. None: the Trigger delivers the events of its Broker. `broker` is
    the Broker's state. Raises `ClusterError`."""
    if (name := sensor_name_of(document)) is None:
        return None
    enabled, sensor = settings.sensors, None
    try:
        if enabled and name:  # without a name, `actions_for_trigger` refuses the Trigger
            location = KNAFKA, SENSOR, document["metadata"]["namespace"], name
            stored = await cluster.get(*location)
            if stored is not None:
                declared = stored  # never None, as mypy can't see in the lambda
                sensor = await parse_off_loop(lambda: parse(Sensor, declared), spec_size(declared))
        return actions_for_trigger(document, sensor, broker, enabled=enabled)
    except (NotReady, InvalidDocument) as error:
        return error
