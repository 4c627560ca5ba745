"""`knafka tail`: shows the events of a Broker, KafkaChannel or Trigger as they arrive."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from knafka.core.contract import Egress, Ingress
from knafka.core.filters.predicates import Predicate, compile_trigger
from knafka_cli.events import event_filters, tailing
from knafka_cli.events.event_filters import all_of
from knafka_cli.events.tailing import OutputFormat, TailStart
from knafka_cli.shared import moments
from knafka_cli.shared.options import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    DataDir,
    add_command,
    exit_on_bad_input,
    print_error,
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
from knafka_client.declared.declared_source import (
    SYSTEM_NAMESPACE,
    DeclaredView,
    broker_name_of,
    trigger_name_of,
)
from knafka_client.state.installation import DEFAULT_DATA, SUBSCRIPTION_PREFIX
from knafka_client.topics.dead_letters import broker_dead_letter_egress


def add_to(app: typer.Typer) -> None:
    """Add the command `knafka tail` to `app`."""
    add_command(
        app, "tail", tail, "knafka tail trigger/orders --since 10m --filter \"type = 'order'\""
    )


def tail(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[BROKER | channel/NAME | trigger/NAME | subscription/NAME]",
            help="[NAMESPACE/]NAME of a Broker (not needed if there is only one). "
            "`channel/NAME`: a KafkaChannel. `trigger/NAME`: the events that pass the "
            "Trigger's filters. `subscription/NAME`: all events of its channel.",
        ),
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(help="The same as the argument trigger/NAME; or subscription/NAME."),
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            help="Show only events for which this CESQL expression is true. Can be repeated: all "
            "must be true.",
        ),
    ] = None,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="NAME=VALUE",
            help="Show only events with this attribute; NAME alone: with any value. Can be "
            "repeated: all must match.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Start with existing events since a time (ISO 8601), a duration ago (90s, 15m, "
            "2h, 1d), or start."
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(min=0, help="Start with the newest N existing events (before filtering)."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "--count", min=1, help="End after N events.")
    ] = None,
    output: Annotated[
        OutputFormat | None,
        typer.Option(
            "-o",
            "--output",
            help="text: one line per event; wide: also its topic, partition, offset, key and all "
            "attributes; json: one structured CloudEvent per line.",
        ),
    ] = None,
    dead_letters: Annotated[
        bool,
        typer.Option(
            "--dead-letters",
            help="Show events that could not be delivered, instead of those that arrive.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    namespace: NamespaceName = None,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show events as they arrive, here or in a cluster. Deliveries are not affected.

    A record that holds no event is reported by its place: filters can't apply to it.
    Exit code 0: --limit is reached, 130: Ctrl-C, 2: a filter or a name is wrong.
    """
    if as_json and output not in (None, OutputFormat.JSON):
        raise refuse(f"--json and -o {output}: choose one")
    broker, trigger = _parse_target(target, trigger)
    try:
        with exit_on_bad_input():
            predicates = [
                event_filters.expression_predicate(expression) for expression in filters or ()
            ]
            if attributes:
                predicates.append(event_filters.attributes_predicate(attributes))
            since_moment = None if since is None else moments.parse_moment(since, time.time())
        source = source_of(
            data_dir, context, kubeconfig, namespace, bootstrap_servers, system_namespace
        )
        view = read_view(source, namespace, trigger or broker)
        with exit_on_bad_input():
            owner, topics, trigger_filter = _find_topics_to_read(
                view, broker, trigger, dead_letters
            )
        if trigger_filter is not None:
            predicates.append(trigger_filter)
        format_ = OutputFormat.JSON if as_json else output or OutputFormat.TEXT
        start = TailStart(since_moment, last)
        with view.explain_unreached_kafka(owner):
            _print_records(view, owner, topics, start, predicates, format_, limit)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _parse_target(target: str | None, trigger: str | None) -> tuple[str | None, str | None]:
    """Return the names of the Broker and of the Trigger that the user gave in the argument `target`
    and the option `trigger`; None for one that isn't named.

    As a `target`, `trigger/shop/orders` names a Trigger, and `channel/orders` and `shop/default`
    name a Broker. Exits with code 2 if `target` and `trigger` both name a Trigger.
    """
    kind, slash, name = (target or "").partition("/")
    broker, trigger_name = target, None  # `NAMESPACE/NAME` and `channel/NAME` name a Broker
    if slash and kind in ("trigger", "triggers"):
        broker, trigger_name = None, name
    elif slash and kind in ("subscription", "subscriptions"):
        broker, trigger_name = None, SUBSCRIPTION_PREFIX + name
    elif slash and kind in ("broker", "brokers"):
        broker = name
    if trigger is not None and trigger_name is not None:
        raise refuse(f"{kind}/NAME and --trigger are the same: give one")
    return broker, trigger or trigger_name


def _find_topics_to_read(
    view: DeclaredView, broker: str | None, trigger: str | None, dead_letters: bool
) -> tuple[Ingress | Egress, Sequence[str], Predicate | None]:
    """Return the Ingress or Egress whose Kafka is read, the topics to read, and the filter of the
    Trigger to apply; None: no filter.

    `broker` and `trigger` are the names that the user gave, or None. `dead_letters` True: return
    the dead-letter topics of the Trigger or of the Broker. Raises `UnknownObject`; exits with code
    2 if the Trigger isn't one of the Broker.
    """
    if trigger is None:
        ingress = view.find_ingress(broker)
        if not dead_letters:
            return ingress, [ingress.topic], None
        owners = [*view.egresses_of(ingress), broker_dead_letter_egress(ingress)]
        return ingress, [owner.dead_letter_topic for owner in owners], None
    egress = view.find_egress(trigger)
    if broker is not None and broker_name_of(view.find_ingress(broker)) != broker_name_of(egress):
        raise refuse(f"{trigger_name_of(egress)} is a {egress.kind} of {broker_name_of(egress)}")
    if dead_letters:
        return egress, [egress.dead_letter_topic], None
    return egress, [egress.topic], compile_trigger(egress.filter, egress.filters)


def _print_records(
    view: DeclaredView,
    owner: Ingress | Egress,
    topics: Sequence[str],
    start: TailStart,
    predicates: Sequence[Predicate],
    format_: OutputFormat,
    limit: int | None,
) -> None:
    """Print the events that match all predicates as they arrive, until `limit` events are printed;
    None: for ever.

    `owner` is the Broker or Trigger whose Kafka is read; `start` says which existing events come
    first. A record without an event is reported on stderr. Exits with code 1 if none of the topics
    exists.
    """
    printed_count = 0
    matches = all_of(predicates)
    try:
        for record in tailing.tail_records(
            view.kafka_configuration(owner), topics, start, print_error
        ):
            if (problem := tailing.problem_of(record)) is not None:
                print_error(problem)
                continue
            line = tailing.line_of(record, matches, format_)
            if line is not None:
                typer.echo(line)
                printed_count += 1
            if printed_count == limit:
                return
    except tailing.TopicsMissing as error:
        print_error(str(error))
        raise typer.Exit(EXIT_FAILED) from None
