"""`knafka trace`: what became of one event."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.core.contract import Ingress
from knafka.core.dead_letter import timestamp
from knafka_cli.events import searching, tracing
from knafka_cli.events.searching import Search
from knafka_cli.events.steps import merged
from knafka_cli.events.tracing import Trace
from knafka_cli.shared import moments
from knafka_cli.shared.options import EXIT_FAILED, DataDir, add, ask_kafka, print_table, usage
from knafka_cli.shared.source_options import (
    BootstrapServers,
    ContextName,
    Kubeconfig,
    NamespaceName,
    SystemNamespace,
    source_of,
    view_of,
)
from knafka_client.declared.declared_source import (
    SYSTEM_NAMESPACE,
    DeclaredView,
    broker_of,
    trigger_of,
)
from knafka_client.state.installation import CHANNEL_PREFIX, DEFAULT_DATA
from knafka_client.topics import replaying
from knafka_client.topics.dead_letters import shown


def add_to(app: typer.Typer) -> None:
    """Add `knafka trace`."""
    add(app, "trace", trace, "knafka trace payment-1 --since 2h")


def trace(
    id_: Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id.")],
    broker: Annotated[
        str | None,
        typer.Option(
            help="Search only this Broker, [NAMESPACE/]NAME, or KafkaChannel, "
            "channel/[NAMESPACE/]NAME (default: all)."
        ),
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Search only for an event of this source.")
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            help="Search events since a time (ISO 8601), a duration ago (90s, 15m, 2h, 1d), or "
            "start."
        ),
    ] = "24h",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    zipkin: Annotated[
        str,
        typer.Option(
            "--zipkin-url",
            envvar="KNAFKA_ZIPKIN_URL",
            help="The address of a Zipkin: link to sampled traces there, and show the attempts "
            "that it recorded.",
        ),
    ] = "",
    namespace: NamespaceName = None,
    context: ContextName = None,
    kubeconfig: Kubeconfig = None,
    bootstrap_servers: BootstrapServers = None,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """Show what became of an event, here or in a cluster: when it was accepted, and how far each
    Trigger or Subscription is with it.

    Attempts are listed one by one as far as they are known: the last ten of a dead letter, and
    those that a Zipkin recorded. Filters are those that are declared now. An event counts as
    settled if it was delivered, and also if it came before the Trigger existed. A reply is an
    event of its own and doesn't name the event that it answers: trace it by its own id.

    Exit code 1: no such event is in the topics (any more).
    """
    with usage():
        moment = moments.moment(since, time.time())
    source_ = source_of(
        data_dir, context, kubeconfig, namespace, bootstrap_servers, system_namespace
    )
    view = view_of(source_, namespace, broker)
    with usage():
        ingresses = view.ingresses if broker is None else (view.ingress(broker),)
    searches = [_search(view, ingress, id_, source, moment) for ingress in ingresses]
    traces = [
        record_trace
        for ingress, search in zip(ingresses, searches, strict=True)
        for record_trace in _traced(view, ingress, search)
    ]
    if zipkin:
        traces = [_with_spans(view, record_trace, zipkin) for record_trace in traces]
    if as_json:
        complete = all(search.ended for search in searches)
        typer.echo(
            json.dumps(
                {"complete": complete, "events": [asdict(record_trace) for record_trace in traces]},
                ensure_ascii=False,
            )
        )
    else:
        for record_trace in traces:
            _print(record_trace, zipkin)
    for search in searches:
        if not search.ended:
            typer.echo(
                f"knafka: interrupted: {search.total - search.read} older records of "
                f"{search.topic} were not looked at",
                err=True,
            )
    if not traces:
        typer.echo(f"knafka: {_not_found(view, id_, source, moment, searches)}", err=True)
        raise typer.Exit(EXIT_FAILED)


def _traced(view: DeclaredView, ingress: Ingress, search: Search) -> Sequence[Trace]:
    """What became of each record that was found."""
    records = [record for record in search.found if tracing.holds_event(record)]
    if not records:
        return []
    reached = view.connection(ingress)

    async def traced(admin: KafkaAdmin) -> list[Trace]:
        committed = tracing.committed_in(reached)
        return [
            await tracing.trace(
                admin, committed, record, broker_of(ingress), view.of_broker(ingress), view.paused
            )
            for record in records
        ]

    with view.reaching(ingress):
        return ask_kafka(reached, traced)


def _search(
    view: DeclaredView, ingress: Ingress, id_: str, source: str | None, moment: float
) -> Search:
    """Ctrl-C ends it with what was found until then."""
    search = Search(ingress.topic)
    is_event = searching.is_event(id_, source)
    with Console(stderr=True).status(f"searching {ingress.topic}") as line:

        def progress(now: Search) -> None:
            line.update(f"searching {now.topic}: {now.read} of {now.total} records")

        with contextlib.suppress(KeyboardInterrupt), view.reaching(ingress):
            searching.run(view.connection(ingress), search, is_event, moment, progress)
    return search


def _with_spans(view: DeclaredView, record_trace: Trace, zipkin: str) -> Trace:
    """With what Zipkin has of its trace, if that is sampled."""
    # Not above: the client of HTTP that it needs takes longer to import than a command does.
    from knafka_cli.events.zipkin import NoSpans, spans_of, steps_of

    if not record_trace.sampled:
        return record_trace
    try:
        spans = spans_of(zipkin, record_trace.trace_id)
    except NoSpans as error:
        typer.echo(f"knafka: the spans are not shown: {error}", err=True)
        return record_trace
    by_name = {trigger_of(egress): egress for egress in view.egresses}
    deliveries = [
        replace(delivery, steps=merged(delivery.steps, steps_of(spans, by_name[delivery.trigger])))
        for delivery in record_trace.deliveries
    ]
    return replace(record_trace, deliveries=deliveries)


def _print(record_trace: Trace, zipkin: str) -> None:
    typer.echo(shown(f"{record_trace.type} {record_trace.id} from {record_trace.source}"))
    place = f"{record_trace.topic}/{record_trace.partition}/{record_trace.offset}"
    typer.echo(f"accepted {record_trace.accepted} by {record_trace.broker}, at {place}")
    if record_trace.trace_id:
        link = f", {zipkin.rstrip('/')}/zipkin/traces/{record_trace.trace_id}" if zipkin else ""
        sampled = "sampled" if record_trace.sampled else "not sampled"
        typer.echo(
            f"trace {record_trace.trace_id} ({sampled}){link if record_trace.sampled else ''}"
        )
    rows = [
        [delivery.trigger, delivery.state.value, delivery.detail]
        for delivery in record_trace.deliveries
    ]
    what = "SUBSCRIPTION" if record_trace.broker.startswith(CHANNEL_PREFIX) else "TRIGGER"
    print_table(
        [what, "STATE", "MORE"], rows, f"there is no {what.capitalize()} to {record_trace.broker}"
    )
    steps = [
        [step.at, delivery.trigger, step.what, step.result]
        for delivery in record_trace.deliveries
        for step in delivery.steps
    ]
    if steps:
        print_table(["TIME", what, "STEP", "RESULT"], sorted(steps), "")


def _not_found(
    view: DeclaredView, id_: str, source: str | None, moment: float, searches: Sequence[Search]
) -> str:
    event = f"event {id_}" + (f" of the source {source}" if source else "")
    topics = ", ".join(search.topic for search in searches) or "no Broker"
    if all(search.whole for search in searches):
        said = f"no {event} is in {topics}: it was not accepted, or Kafka has deleted it by now"
    else:
        said = (
            f"no {event} is in {topics} since {timestamp(moment)}: it may be older (--since 7d, or "
            "--since start for all that Kafka has kept)"
        )
    for ingress in view.ingresses:
        for letter in _dead_letters(view, ingress, id_):
            if source in (None, letter.letter.source):
                said += f"\nits dead letter is kept: {letter.about} {letter.letter.last_time}"
    return said


def _dead_letters(
    view: DeclaredView, ingress: Ingress, id_: str
) -> Sequence[replaying.ReplayChoice]:
    with view.reaching(ingress):
        return ask_kafka(
            view.connection(ingress),
            lambda admin: replaying.choose(admin, view.of_broker(ingress), [id_], {}),
        )
