"""`knafka sensor next|skip|dead-letters`: the records that block a Sensor, and its dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from knafka.core import names
from knafka_cli.shared.options import (
    DataDir,
    add_command,
    ask_kafka,
    exit_on_bad_input,
    kafka_configuration,
    refuse,
)
from knafka_cli.shared.source_options import (
    BootstrapServers,
    ContextName,
    Kubeconfig,
    NamespaceName,
    SystemNamespace,
    read_view,
    source_of,
)
from knafka_client.declared.declared_source import SYSTEM_NAMESPACE, namespace_in
from knafka_client.state.installation import CHANNEL_PREFIX, DEFAULT_DATA, Installation, SensorPlace
from knafka_client.topics import dead_letters

if TYPE_CHECKING:
    from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
    from knafka_client.declared.cluster_source import ClusterSource

SensorName = Annotated[str, typer.Argument(help="The Sensor: [NAMESPACE/]NAME.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands `next`, `skip` and `dead-letters` of `knafka sensor` to its `app`."""
    add_command(app, "next", show_next, "knafka sensor next fulfilment")
    add_command(
        app, "skip", skip, "knafka sensor skip fulfilment knative-broker-default-default/0/12"
    )
    add_command(
        app, "dead-letters", show_letters, "knafka sensor dead-letters fulfilment --limit 3"
    )


def show_next(
    name: SensorName,
    namespace: NamespaceName = None,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show the next record of a Sensor, in each partition where it has something to read.

    If the Sensor makes no progress, this record blocks it.
    """
    from knafka_cli.sensors import sensor_positions

    connection, sensor = _find_sensor(
        name, data_dir, context, kubeconfig, namespace, bootstrap_servers, system_namespace
    )
    positions = sensor_positions.unread_positions(connection, sensor)
    for position in positions:
        typer.echo(position.text(sensor))
    if not positions:
        typer.echo(f"{sensor.namespace}/{sensor.name} has read everything")


def skip(
    name: SensorName,
    place: Annotated[
        str,
        typer.Argument(
            help="The record: TOPIC/PARTITION/OFFSET, as `knafka sensor next` prints it."
        ),
    ],
    namespace: NamespaceName = None,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Skip a record that blocks a Sensor: the record becomes a dead letter.

    Only the next record of a partition can be skipped, and only while the Sensor has no process:
    give it the annotation knafka.dev/paused first.
    """
    from knafka_cli.sensors import sensor_positions

    connection, sensor = _find_sensor(
        name, data_dir, context, kubeconfig, namespace, bootstrap_servers, system_namespace
    )
    skipped = sensor_positions.skip(connection, sensor, place)
    typer.echo(f"skipped {skipped.text(sensor)}; it is in {sensor.dead_letter_topic}")


def show_letters(
    name: SensorName,
    limit: Annotated[int, typer.Option(min=1, help="Show the newest N.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    namespace: NamespaceName = None,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show the newest records and events that a Sensor could not handle, and why."""
    connection, sensor = _find_sensor(
        name, data_dir, context, kubeconfig, namespace, bootstrap_servers, system_namespace
    )

    async def read(admin: KafkaAdmin) -> list[dead_letters.StoredDeadLetter]:
        """Return the newest `limit` dead letters of the Sensor, oldest first."""
        records = await dead_letters.read_topic(admin, sensor.dead_letter_topic, limit)
        return [dead_letters.parse_dead_letter(record) for record in records]

    letters = ask_kafka(connection, read)
    for letter in letters:
        typer.echo(letter.json() if as_json else letter.text())
    if not letters and not as_json:
        typer.echo(f"{sensor.namespace}/{sensor.name} has no dead letters")


def _find_sensor(
    name: str,
    data_dir: Path,
    context: str | None,
    kubeconfig: Path | None,
    namespace: str | None,
    bootstrap_servers: str | None,
    system_namespace: str,
) -> tuple[dict[str, Any], SensorPlace]:
    """Return the librdkafka configuration for a Sensor's Kafka, and the Sensor's group and topics.

    If neither `context` nor `kubeconfig` is given, the Sensor is one of the `knafka up` on
    `data_dir`; otherwise it is one of a cluster, which the other parameters, the command's options,
    choose. Exits with code 2 if there is no Sensor of this name. Raises `KnafkaError`.
    """
    # Called even if no cluster is named, since it then refuses options that need one.
    source = source_of(
        data_dir, context, kubeconfig, namespace, bootstrap_servers, system_namespace
    )
    if context is None and kubeconfig is None:
        return _find_running_sensor(name, data_dir, namespace)
    # Imported here, since the Kubernetes client takes half a second.
    from knafka_client.declared.cluster_source import ClusterSource

    assert isinstance(source, ClusterSource)
    return _find_cluster_sensor(source, name, namespace)


def _find_running_sensor(
    name: str, data_dir: Path, namespace: str | None
) -> tuple[dict[str, Any], SensorPlace]:
    """Return the Kafka configuration, and the group and topics, of a Sensor of the `knafka up` on
    `data_dir`. A `name` without a namespace is in `namespace`; None: in `default`. Exits with code
    2 if there is no such Sensor. Raises `NotRunning`."""
    running = Installation(data_dir).read_state()
    full_name = name if "/" in name else f"{namespace or 'default'}/{name}"
    by_name = {f"{place.namespace}/{place.name}": place for place in running.sensors}
    if full_name not in by_name:
        raise refuse(f"there is no Sensor {full_name}: there is {', '.join(by_name) or 'none'}")
    return kafka_configuration(running), by_name[full_name]


def _find_cluster_sensor(
    source: ClusterSource, name: str, namespace: str | None
) -> tuple[dict[str, Any], SensorPlace]:
    """Return the Kafka configuration, and the group and topics, of a Sensor of the cluster that
    `source` reads. A `name` without a namespace is in `namespace`; None: in the namespace of the
    kubeconfig's context. Exits with code 2 if there is no such Sensor. Raises `KnafkaError`."""
    from knafka_operator.model.family import CHANNELS
    from knafka_operator.model.sensors import KNAFKA, SENSOR, bus_of

    view = read_view(source, namespace, name)
    sensor_namespace, sensor_name = namespace_in(name) or view.namespace, name.rpartition("/")[2]
    documents = source.list(KNAFKA, SENSOR, sensor_namespace) or ()
    sensors = {document["metadata"]["name"]: document for document in documents}
    if sensor_name not in sensors:
        raise refuse(f"there is no Sensor {name} in {sensor_namespace}")
    bus = bus_of(sensors[sensor_name])
    prefix = CHANNEL_PREFIX if bus.family is CHANNELS else ""
    with exit_on_bad_input():
        ingress = view.find_ingress(f"{prefix}{bus.identity.namespace}/{bus.identity.name}")
    own_name = bus.family.own_name
    place = sensor_place_of(
        sensors[sensor_name], own_name(bus.identity.name), own_name(sensor_name)
    )
    return view.kafka_configuration(ingress), place.model_copy(update={"topic": ingress.topic})


def sensor_place_of(document: Mapping[str, Any], bus: str, own_name: str) -> SensorPlace:
    """Return the group and topics of a Sensor in a cluster, from the status of its object
    `document`.

    The result's `topic`, the topic of the Sensor's Broker or channel (its bus), is empty. `bus` and
    `own_name` are the texts that stand for the bus and for the Sensor in names of topics and
    groups. Exits with code 2 if the status lacks the names of the Sensor's group and trigger topic,
    or has names that can't be this Sensor's.
    """
    from knafka_operator.model.resources import GROUP_STATUS
    from knafka_operator.model.sensors import TOPICS, TRIGGER

    namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
    annotations = (document.get("status") or {}).get("annotations") or {}
    group, topic = annotations.get(GROUP_STATUS), annotations.get(TOPICS[TRIGGER][0])
    # A status that others may write must not lead to topics and groups of other objects.
    has_own_names = names.is_sensor_group(group, namespace, own_name) and names.is_sensor_topic(
        topic, namespace, bus, name, TRIGGER
    )
    if not has_own_names:
        raise refuse(f"Sensor {namespace}/{name} has no topics yet: see kubectl describe sensor")
    return SensorPlace(
        namespace=namespace,
        name=name,
        bus=bus,
        topic="",
        group=str(group),
        trigger_topic=str(topic),
        dead_letter_topic=names.dead_letter_topic(namespace, bus, names.of_sensor(name)),
    )
