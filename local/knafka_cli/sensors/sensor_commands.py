"""`knafka sensor status` and `test`: what Sensors wait for, and what one would have fired.

`test` reads events from a file, or starts a Spark job that reads a topic or an archive.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from knafka.core.documents import dump, parse
from knafka.core.errors import InvalidDocument
from knafka.core.events import json_format
from knafka.core.times import rfc3339, utc_datetime
from knafka_cli.shared import event_input, moments
from knafka_cli.shared.job_options import JobArguments, run_job, takes_job_options
from knafka_cli.shared.options import EXIT_FAILED, DataDir, add_command, exit_on_bad_input, refuse
from knafka_cli.shared.source_options import ContextName, Kubeconfig, NamespaceName
from knafka_client.declared.declared_source import DEFAULT_NAMESPACE, namespace_in
from knafka_client.state import snapshot_file
from knafka_client.state.installation import DEFAULT_DATA, Installation
from knafka_client.state.snapshot import TriggerRow

if TYPE_CHECKING:
    from knafka.core.sensor.backtest import Fired, PastEvent
    from knafka.core.sensor.contract import Conditions
    from knafka.core.sensor.held import HeldEvent
    from knafka_operator.model.sensors import Sensor

TOPIC_OPTIONS: Final = ("topic", "bootstrap-servers", "secret")
"""Options of the Spark job that only apply to a topic, not to an archive."""

SHOWN_WAITING: Final = 20
"""The most waiting conditions that are printed; further ones are only counted."""


def add_to(app: typer.Typer) -> None:
    """Add the commands `test` and `status` of `knafka sensor` to its `app`."""
    add_command(
        app, "test", backtest_sensor, "knafka sensor test sensor.yaml --events events.ndjson"
    )
    add_command(app, "status", show_status, "knafka sensor status")


def show_status(
    name: Annotated[
        str | None, typer.Argument(help="The Sensor: [NAMESPACE/]NAME (default: all).")
    ] = None,
    namespace: NamespaceName = None,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show what Sensors have fired, and which events their triggers hold and wait for.

    Shows those of `knafka up`, of all its namespaces unless one is given, or of a namespace of a
    cluster, by their status, which doesn't count firings. Exit code 0: all are ready, 1: one isn't,
    2: there is none of that name.
    """
    on_cluster = context is not None or kubeconfig is not None
    if name is not None:
        namespace = namespace_in(name) or namespace
    if on_cluster:
        rows = _read_cluster_sensors(context, kubeconfig, namespace)
    else:
        rows = snapshot_file.read_snapshot(Installation(data_dir)).sensors
        if name is not None:
            namespace = namespace or DEFAULT_NAMESPACE
        rows = [row for row in rows if namespace in (None, namespace_in(row.name))]
    # `name` may have a namespace or not; a row's name always has one.
    shown_rows = [row for row in rows if name in (None, row.name, row.name.partition("/")[2])]
    if not shown_rows:
        raise refuse(f"no Sensor {name} runs" if name else "no Sensor runs")
    for row in shown_rows:
        lag = "?" if row.lag is None else row.lag
        fired = "" if on_cluster else f", {row.delivered} firings"
        state = row.refused or row.error or f"{lag} events unread{fired}"
        typer.echo(f"{row.name}: {'paused, ' if row.paused else ''}{state}")
        for line in row.waiting:
            typer.echo(f"  {line}")
    if any(row.refused for row in shown_rows):
        raise typer.Exit(EXIT_FAILED)


def _read_cluster_sensors(
    context: str | None, kubeconfig: Path | None, namespace: str | None
) -> Sequence[TriggerRow]:
    """Return the rows of the Sensors in a namespace of a cluster. `namespace` None: the namespace
    of the kubeconfig's context. Exits with code 2 if the cluster doesn't have the kind Sensor.
    Raises `ClusterError`."""
    # Imported here, since the Kubernetes client takes half a second.
    from knafka_client.declared import cluster_source
    from knafka_client.state.condition_rows import sensor_row
    from knafka_operator.model.sensors import KNAFKA, SENSOR

    client, context_namespace = cluster_source.client_of(context, kubeconfig)
    source = cluster_source.ClusterSource(client, namespace or context_namespace)
    sensors = source.list(KNAFKA, SENSOR, namespace or context_namespace)
    if sensors is None:
        raise refuse("this cluster has no Sensors: Knafka's component of them isn't installed")
    return [sensor_row(document) for document in sensors]


@takes_job_options("topic", "archive", "bootstrap-servers", "secret", "limit", "output")
def backtest_sensor(
    job_options: JobArguments,
    file: Annotated[Path, typer.Argument(help="A YAML file with one Sensor.")],
    events: Annotated[
        Path | None,
        typer.Option(help="An NDJSON file of events: one structured CloudEvent per line."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Use the events of the bus, of --topic or of --archive since a time (ISO 8601), "
            "a duration ago (12h, 30d), or start."
        ),
    ] = None,
    until: Annotated[str | None, typer.Option(help="Use only events before this time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show what a Sensor would have fired, and what it would be waiting for.

    With --events nothing has to run. Events are ordered by their `time`; an event without one
    counts as a millisecond after the event before it. A condition that waits for an event not to
    come (`a && !b`) is decided at the time of the last event.

    With --since or --archive a Spark job tests the Sensor on any number of events. Events of a
    topic are ordered by Kafka's time; what still waits is decided by the current time.
    """
    with exit_on_bad_input():
        sensor = _read_sensor(file)
        if events is not None:
            _refuse_job_options({**job_options, "since": since or None, "until": until or None})
            _test_file(sensor.spec, events, as_json)
            return
        if job_options["archive"] is not None:
            if conflicting := [name for name in TOPIC_OPTIONS if job_options[name] is not None]:
                raise event_input.BadInput(
                    f"--{conflicting[0]} can't be used with --archive: it is about a topic"
                )
        elif since is None:
            raise event_input.BadInput("give --events FILE, --since TIME, or --archive FOLDER")
        else:
            job_options.update(_backtest_topic_options(sensor, job_options, data_dir))
        time_options = {"events-since": _iso_moment(since), "events-until": _iso_moment(until)}
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder, "sensor.json")
        document.write_text(json.dumps(_conditions_document(sensor)))
        result = run_job("backtest", {"sensor": document}, time_options, job_options)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _print_job_result(result)


def _refuse_job_options(options: Mapping[str, Any]) -> None:
    """Raise `BadInput` if one of the Spark job's options, given by name, has a value (not None): a
    test of a file uses none of them."""
    for name, value in options.items():
        if value is not None:
            raise event_input.BadInput(
                f"--{name} can't be used with --events: it is for the Spark job"
            )


def _print_job_result(result: Mapping[str, Any]) -> None:
    """Print the result of the job `backtest`, a JSON object, as text: some firings, then the
    numbers of firings, of conditions that wait, and of records that could not be used."""
    for firing in result["shown"]:
        typer.echo(_firing_line(firing))
    total = sum(result["firings"].values())
    if (hidden := total - len(result["shown"])) > 0:
        typer.echo(f"and {hidden} more")
    waiting = result["waiting"]
    typer.echo(f"{result['events']} events: {total} firings, {sum(waiting.values())} wait")
    for name, count in result["firings"].items():
        typer.echo(f"  {name}: {count} firings, {waiting.get(name, 0)} wait")
    for problem, count in (
        ("are no events", result["undecodable"]),
        ("have no time, and were left out", result["undated"]),
    ):
        if count:
            typer.echo(f"  {count} {problem}")
    _print_errors(result["errors"])


def _backtest_topic_options(
    sensor: Sensor, job_options: JobArguments, data_dir: Path
) -> Mapping[str, str]:
    """Return those of the job's options `topic` and `bootstrap-servers` that the user left out,
    with the values of the Sensor's bus (its Broker or KafkaChannel) in `knafka up`; empty if the
    user gave both. Raises `BadInput` if the given options can't be completed, and `NotRunning`."""
    if job_options["bootstrap-servers"] is not None:
        if job_options["topic"] is None:
            raise event_input.BadInput(
                "--bootstrap-servers needs --topic, the topic with the events"
            )
        return {}
    if job_options["secret"] is not None:
        raise event_input.BadInput("--secret needs --bootstrap-servers, the Kafka that it is for")
    running = Installation(data_dir).read_state()
    options = {"bootstrap-servers": running.bootstrap_servers}
    if job_options["topic"] is not None:
        return options
    family, identity = sensor.bus
    bus_kind = family.broker
    for ingress in running.ingresses:
        if (ingress.kind, ingress.namespace, ingress.broker) == (bus_kind, *identity):
            return {**options, "topic": ingress.topic}
    raise event_input.BadInput(f"there is no {bus_kind} {identity}: name the --topic")


def _iso_moment(text: str | None) -> str | None:
    """Return the moment that an option's text names, in ISO 8601; None if the option isn't given.
    The text is an ISO 8601 time, a duration ago such as `12h`, or `start`, the Unix epoch. Raises
    `BadInput`."""
    if text is None:
        return None
    seconds = moments.parse_moment(text, time.time())
    return utc_datetime(seconds).isoformat()


def _conditions_document(sensor: Sensor) -> dict[str, Any]:
    """Return the part of a Sensor that decides when it fires (dependencies and triggers'
    conditions), as a JSON object for the job."""
    from knafka.core.sensor.contract import Conditions, SensorTrigger

    field_names = SensorTrigger.model_fields.keys()
    triggers = [
        SensorTrigger.model_construct(**{name: getattr(trigger, name) for name in field_names})
        for trigger in sensor.spec.triggers
    ]
    conditions = Conditions(
        dependencies=sensor.spec.dependencies,
        triggers=tuple(triggers),
        dedupe=sensor.spec.dedupe,
    )
    return dump(conditions)


def _test_file(sensor: Conditions, events: Path, as_json: bool) -> None:
    """Apply the events of an NDJSON file to the Sensor in memory, and print the firings and the
    conditions that still wait, as text or (`as_json` True) as one JSON object. Raises
    `BadInput`."""
    # Imported here, as time zones and the operator's models would slow the start of every other
    # command.
    from knafka.core.sensor.backtest import Backtest
    from knafka.core.sensor.records import trigger_of

    errors: Counter[str] = Counter()
    backtest = Backtest(sensor, lambda kind: errors.update([kind]))
    past_events = sorted(_read_events(events), key=lambda event: event.at)
    firings = list(backtest.play(past_events))
    # By trigger and correlation key. Only keys that hold events are in it, so each of them waits.
    held_by_key = backtest.held
    if as_json:
        counts = Counter(trigger_of(firing.key) for firing in firings)
        result = {
            "events": len(past_events),
            "errors": errors,
            "firings": {trigger.name: counts[trigger.name] for trigger in sensor.triggers},
            "waiting": Counter(map(trigger_of, held_by_key)),
            "shown": [_firing_document(firing) for firing in firings],
        }
        typer.echo(json.dumps(result))
        return
    for firing in firings:
        typer.echo(_firing_line(_firing_document(firing)))
    typer.echo(f"{len(past_events)} events: {len(firings)} firings, {len(held_by_key)} wait")
    for key, held_events in sorted(held_by_key.items())[:SHOWN_WAITING]:
        event_documents = [_event_document(event) for event in held_events]
        typer.echo(f"  {key} has {_event_names(event_documents)}")
    if len(held_by_key) > SHOWN_WAITING:
        typer.echo(f"  and {len(held_by_key) - SHOWN_WAITING} more")
    _print_errors(errors)


def _print_errors(errors: Mapping[str, int]) -> None:
    """Print, for each kind of error, how often a filter or correlation ended with it. `errors` has
    the numbers by kind."""
    for kind, count in errors.items():
        typer.echo(f"  {count} filters or correlations ended with an error: {kind}")


def _read_sensor(file: Path) -> Sensor:
    """Return the only Sensor in a YAML file. Raises `BadInput` and `InvalidDocument`."""
    from knafka_operator.model.sensors import KNAFKA, SENSOR, Sensor

    sensors = [
        document
        for document in event_input.read_objects(file)
        if isinstance(document, dict)
        and (document.get("apiVersion"), document.get("kind")) == (KNAFKA, SENSOR)
    ]
    if len(sensors) != 1:
        raise event_input.BadInput(
            f"{file} has {len(sensors)} Sensors of {KNAFKA}: it must have one"
        )
    try:
        return parse(Sensor, sensors[0])
    except InvalidDocument as error:
        raise InvalidDocument("", f"{file}: {error}") from None


def _read_events(file: Path) -> Iterator[PastEvent]:
    """Yield the events of an NDJSON file with their times; an event without a time gets that of the
    event before it, plus a millisecond. Raises `BadInput`."""
    from knafka.core.sensor.backtest import PastEvent

    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise event_input.BadInput(f"{file} can't be read: {error}") from None
    milliseconds = 0
    for event in event_input.read_events(lines, str(file)):
        event_time = event.attributes.get("time")
        milliseconds = milliseconds + 1 if event_time is None else _parse_milliseconds(event_time)
        yield PastEvent(milliseconds, event.attributes, json_format.write(event))


def _parse_milliseconds(rfc3339_time: str) -> int:
    """Return an RFC 3339 time as milliseconds since the Unix epoch."""
    # datetime knows no leap seconds: read second 60 as second 59, and add one second.
    is_leap_second = ":60" in rfc3339_time
    iso_time = rfc3339_time.upper().replace(":60", ":59")
    milliseconds = round(datetime.fromisoformat(iso_time).timestamp() * 1000)
    return milliseconds + 1000 if is_leap_second else milliseconds


def _firing_document(fired: Fired) -> Mapping[str, Any]:
    """Return a firing as a document of the form that the Spark job's result has: trigger,
    correlation, time and events."""
    from knafka.core.sensor.records import correlation_of, trigger_of

    return {
        "trigger": trigger_of(fired.key),
        "correlation": correlation_of(fired.key),
        "at": _time_text(fired.at),
        "events": [_event_document(event) for event in fired.firing.events],
    }


def _event_document(event: HeldEvent) -> Mapping[str, Any]:
    """Return a held event as a document of the form that the Spark job's result has: dependency,
    source, id and time."""
    # An identity is the source and the id, with a space between them.
    source, _, event_id = event.identity.partition(" ")
    return {
        "dependency": event.dependency,
        "source": source,
        "id": event_id,
        "at": _time_text(event.at),
    }


def _time_text(milliseconds: int) -> str:
    """Return a time, in milliseconds since the Unix epoch, in RFC 3339."""
    return rfc3339(milliseconds / 1000)


def _firing_line(firing: Mapping[str, Any]) -> str:
    """Return one line of text about a firing: a mapping with `trigger`, `correlation` (None if the
    trigger has none), `at` and `events`."""
    correlation = firing["correlation"]
    key = firing["trigger"] + ("" if correlation is None else f"/{correlation}")
    return f"{firing['at']} {key} fires with {_event_names(firing['events'])}"


def _event_names(events: Sequence[Mapping[str, Any]]) -> str:
    """Return the dependency and id of each event, as text. The events are the documents that
    `_event_document` returns."""
    return ", ".join(f"{event['dependency']} {event['id']}" for event in events)
