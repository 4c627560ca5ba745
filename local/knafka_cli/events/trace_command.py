"""`knafka trace`: shows when an event was accepted, and how far each Trigger is with it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console

from knafka.clients.kafka.admin.kafka_admin import KafkaAdmin
from knafka.core.contract import Ingress
from knafka.core.dead_letter import timestamp
from knafka_cli.events import searching, tracing
from knafka_cli.events.searching import TopicSearch
from knafka_cli.events.steps import merge_steps
from knafka_cli.events.tracing import Trace, TracedState
from knafka_cli.shared import moments
from knafka_cli.shared.options import (
    EXIT_FAILED,
    DataDir,
    add_command,
    ask_kafka,
    exit_on_bad_input,
    print_error,
    print_table,
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
from knafka_client.state.installation import CHANNEL_PREFIX, DEFAULT_DATA
from knafka_client.topics import replaying
from knafka_client.topics.dead_letters import preview_text
from knafka_client.topics.ranges import leaderless_text


def add_to(app: typer.Typer) -> None:
    """Add the command `knafka trace` to `app`."""
    add_command(app, "trace", trace, "knafka trace payment-1 --since 2h")


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
    with exit_on_bad_input():
        moment = moments.parse_moment(since, time.time())
    declared_source = source_of(
        data_dir, context, kubeconfig, namespace, bootstrap_servers, system_namespace
    )
    view = read_view(declared_source, namespace, broker)
    with exit_on_bad_input():
        ingresses = view.ingresses if broker is None else (view.find_ingress(broker),)
    searches = [_search_topic(view, ingress, id_, source, moment) for ingress in ingresses]
    traces = [
        record_trace
        for ingress, search in zip(ingresses, searches, strict=True)
        for record_trace in _trace_records(view, ingress, search)
    ]
    if zipkin:
        traces = [_with_zipkin_steps(view, record_trace, zipkin) for record_trace in traces]
    if as_json:
        document = {
            "complete": _is_complete(searches, traces),
            "events": [asdict(record_trace) for record_trace in traces],
        }
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        for record_trace in traces:
            _print_trace(record_trace, zipkin)
    for search in searches:
        _print_unsearched(search)
    if not traces:
        print_error(_not_found_message(view, id_, source, moment, searches))
        raise typer.Exit(EXIT_FAILED)


def _is_complete(searches: Sequence[TopicSearch], traces: Sequence[Trace]) -> bool:
    """Whether every record since the given time was searched, and every delivery's state is
    known."""
    for search in searches:
        if not search.ended or search.leaderless:
            return False
    return not any(
        delivery.state is TracedState.UNKNOWN
        for record_trace in traces
        for delivery in record_trace.deliveries
    )


def _print_unsearched(search: TopicSearch) -> None:
    """Print on stderr which records of a topic were not searched; nothing if all were."""
    if search.offsets_total is None:
        print_error(f"interrupted: {search.topic} was not searched")
    elif not search.ended:
        print_error(
            f"interrupted: {search.offsets_total - search.offsets_read} older records of "
            f"{search.topic} were not searched"
        )
    if search.leaderless:
        unsearched = leaderless_text(search.topic, search.leaderless)
        print_error(f"{unsearched}: events there were not searched")


def _trace_records(view: DeclaredView, ingress: Ingress, search: TopicSearch) -> Sequence[Trace]:
    """Trace each valid event that the search has found through the Triggers of the Broker
    `ingress`; returns the traces. Raises `LogError` and `KafkaNotReached`."""
    records = [record for record in search.matching_records if searching.is_traceable(record)]
    if not records:
        return []
    configuration = view.kafka_configuration(ingress)

    async def trace_all(admin: KafkaAdmin) -> list[Trace]:
        """Trace one record after the other."""
        read_commits = tracing.commits_reader(configuration)
        return [
            await tracing.trace_record(
                admin,
                read_commits,
                record,
                broker_name_of(ingress),
                view.egresses_of(ingress),
                view.paused,
            )
            for record in records
        ]

    with view.explain_unreached_kafka(ingress):
        return ask_kafka(configuration, trace_all)


def _search_topic(
    view: DeclaredView, ingress: Ingress, id_: str, source: str | None, moment: float
) -> TopicSearch:
    """Search a Broker's topic for the event with this id and source (None: any source), back to the
    time `moment`, in seconds since the Unix epoch.

    Ctrl-C ends the search, but keeps what it has found. Raises `LogError` and `KafkaNotReached`.
    """
    search = TopicSearch(ingress.topic)
    is_event = searching.holds_event_with(id_, source)
    with Console(stderr=True).status(f"searching {ingress.topic}") as status_line:

        def show_progress(state: TopicSearch) -> None:
            """Show how many records were searched."""
            status_line.update(
                f"searching {state.topic}: {state.offsets_read} of {state.offsets_total} records"
            )

        with contextlib.suppress(KeyboardInterrupt), view.explain_unreached_kafka(ingress):
            searching.run_search(
                view.kafka_configuration(ingress), search, is_event, moment, show_progress
            )
    return search


def _with_zipkin_steps(view: DeclaredView, record_trace: Trace, zipkin: str) -> Trace:
    """Return the trace, with the steps added that the Zipkin at the URL `zipkin` has recorded. If
    the trace isn't sampled, or if Zipkin doesn't answer, return it unchanged; an error of Zipkin is
    printed on stderr."""
    # Imported here, since the HTTP client that it needs takes longer than a whole command.
    from knafka_cli.events.zipkin import ZipkinError, fetch_spans, steps_of

    if not record_trace.sampled:
        return record_trace
    try:
        spans = fetch_spans(zipkin, record_trace.trace_id)
    except ZipkinError as error:
        print_error(f"the spans are not shown: {error}")
        return record_trace
    egresses_by_name = {trigger_name_of(egress): egress for egress in view.egresses}
    deliveries = []
    for delivery in record_trace.deliveries:
        zipkin_steps = steps_of(spans, egresses_by_name[delivery.trigger])
        deliveries.append(replace(delivery, steps=merge_steps(delivery.steps, zipkin_steps)))
    return replace(record_trace, deliveries=deliveries)


def _print_trace(record_trace: Trace, zipkin: str) -> None:
    """Print a trace as text: the event, a table of deliveries, and a table of their steps. `zipkin`
    is the URL of a Zipkin, to which a sampled trace links; empty: no link."""
    typer.echo(preview_text(f"{record_trace.type} {record_trace.id} from {record_trace.source}"))
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
    kind = "SUBSCRIPTION" if record_trace.broker.startswith(CHANNEL_PREFIX) else "TRIGGER"
    print_table(
        [kind, "STATE", "MORE"], rows, f"there is no {kind.capitalize()} to {record_trace.broker}"
    )
    steps = [
        [step.at, delivery.trigger, step.what, step.result]
        for delivery in record_trace.deliveries
        for step in delivery.steps
    ]
    if steps:
        print_table(["TIME", kind, "STEP", "RESULT"], sorted(steps), "")


def _not_found_message(
    view: DeclaredView, id_: str, source: str | None, moment: float, searches: Sequence[TopicSearch]
) -> str:
    """Return an error message that says why the searches may not have found the event with this id
    and source (None: any source), and which dead letters of the event are kept. `moment`, in
    seconds since the Unix epoch, is how far the searches went back. Raises `LogError` and
    `KafkaNotReached`."""
    event = f"event {id_}" + (f" of the source {source}" if source else "")
    topics = ", ".join(search.topic for search in searches) or "no Broker"
    if not all(search.ended for search in searches):
        text = f"no {event} was found in {topics} before the search was interrupted"
    elif all(search.covers_topic for search in searches):
        text = f"no {event} is in {topics}: it was not accepted, or Kafka has deleted it by now"
    else:
        text = (
            f"no {event} is in {topics} since {timestamp(moment)}: it may be older (--since 7d, or "
            "--since start for all that Kafka has kept)"
        )
    for ingress in view.ingresses:
        for choice in _find_dead_letters(view, ingress, id_):
            if source in (None, choice.letter.source):
                text += f"\nits dead letter is kept: {choice.description} {choice.letter.last_time}"
    return text


def _find_dead_letters(
    view: DeclaredView, ingress: Ingress, id_: str
) -> Sequence[replaying.ReplayChoice]:
    """Return the newest dead letter of each event with this id, in the topics of the Triggers of
    the Broker `ingress`. Raises `LogError` and `KafkaNotReached`."""
    with view.explain_unreached_kafka(ingress):
        return ask_kafka(
            view.kafka_configuration(ingress),
            lambda admin: replaying.choose_dead_letters(
                admin, view.egresses_of(ingress), [id_], {}
            ),
        )
