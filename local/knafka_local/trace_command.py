"""`knafka trace`: what became of one event."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from knafka.clients.kafka_admin import KafkaAdmin
from knafka.core.contract import Ingress
from knafka.core.dead_letter import timestamp
from knafka.core.errors import KnafkaError
from knafka_local import replaying, rewinding, searching, status, tracing
from knafka_local.dead_letters import shown
from knafka_local.installation import DEFAULT_DATA, Installation, State
from knafka_local.options import (
    FAILED,
    DataDir,
    add,
    ingress_of,
    kafka_of,
    print_table,
    usage,
    with_kafka,
)
from knafka_local.searching import Search
from knafka_local.tracing import Trace


def add_to(app: typer.Typer) -> None:
    """Add `knafka trace`."""
    add(app, "trace", trace, "knafka trace payment-1 --since 2h")


def trace(
    id_: Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id.")],
    broker: Annotated[
        str | None, typer.Option(help="Only in this Broker: NAMESPACE/NAME, or NAME; all of them.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only of this source.")] = None,
    since: Annotated[
        str,
        typer.Option(help="Not older: how long ago (90s, 15m, 2h, 1d), a time, or start."),
    ] = "24h",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    data_dir: DataDir = DEFAULT_DATA,
) -> None:
    """What became of an event: when it was accepted, and how far each Trigger is with it.

    Filters are those that are declared now. Settled is what was delivered, and also what came
    before the Trigger was there. A reply is an event of its own, with nothing in it that leads back
    to this one: ask by its own id. Exit code 1: no such event is there (any more).
    """
    running = Installation(data_dir).running()
    ingresses = running.ingresses if broker is None else (ingress_of(running, broker),)
    with usage():
        moment = rewinding.moment(since, time.time())
    searches = [_search(running, each, id_, source, moment) for each in ingresses]
    paused: set[str] = set()
    with contextlib.suppress(KnafkaError):  # it is starting; it's said where it is known
        now = status.read(Installation(data_dir))
        paused = {each.name for each in now.triggers if each.paused}

    async def traced(admin: KafkaAdmin) -> list[Trace]:
        committed = tracing.committed_in(kafka_of(running))
        return [
            await tracing.trace(
                admin,
                committed,
                record,
                f"{ingress.namespace}/{ingress.broker}",
                [each for each in running.egresses if _is_of(ingress, each.namespace, each.broker)],
                paused,
            )
            for ingress, search in zip(ingresses, searches, strict=True)
            for record in search.found
            if tracing.holds_event(record)
        ]

    found = with_kafka(running, traced)
    if as_json:
        complete = all(each.ended for each in searches)
        typer.echo(
            json.dumps(
                {"complete": complete, "events": [asdict(each) for each in found]},
                ensure_ascii=False,
            )
        )
    else:
        for each in found:
            _print(each)
    for search in searches:
        if not search.ended:
            typer.echo(
                f"knafka: interrupted: {search.total - search.read} older records of "
                f"{search.topic} were not looked at",
                err=True,
            )
    if not found:
        typer.echo(f"knafka: {_not_found(running, id_, source, moment, searches)}", err=True)
        raise typer.Exit(FAILED)


def _is_of(ingress: Ingress, namespace: str, broker: str) -> bool:
    return (ingress.namespace, ingress.broker) == (namespace, broker)


def _search(
    running: State, ingress: Ingress, id_: str, source: str | None, moment: float
) -> Search:
    """Ctrl-C ends it with what was found until then."""
    search = Search(ingress.topic)
    wanted = searching.is_event(id_, source)
    with Console(stderr=True).status(f"searching {ingress.topic}") as line:

        def progress(now: Search) -> None:
            line.update(f"searching {now.topic}: {now.read} of {now.total} records")

        with contextlib.suppress(KeyboardInterrupt):
            searching.run(kafka_of(running), search, wanted, moment, progress)
    return search


def _print(found: Trace) -> None:
    typer.echo(shown(f"{found.type} {found.id} from {found.source}"))
    place = f"{found.topic}/{found.partition}/{found.offset}"
    typer.echo(f"accepted {found.accepted} by {found.broker}, at {place}")
    rows = [[each.trigger, each.state.value, each.detail] for each in found.deliveries]
    print_table(["TRIGGER", "STATE", "MORE"], rows, "the Broker has no Trigger")


def _not_found(
    running: State, id_: str, source: str | None, moment: float, searches: Sequence[Search]
) -> str:
    event = f"event {id_}" + (f" of the source {source}" if source else "")
    topics = ", ".join(each.topic for each in searches) or "no Broker"
    if all(each.whole for each in searches):
        said = f"no {event} is in {topics}: it was not accepted, or Kafka has deleted it by now"
    else:
        said = (
            f"no {event} is in {topics} since {timestamp(moment)}: it may be older (--since 7d, or "
            "--since start for all that Kafka has kept)"
        )
    letters = with_kafka(
        running, lambda admin: replaying.choose(admin, running.egresses, [id_], {})
    )
    for each in letters:
        if source in (None, each.letter.source):
            said += f"\nits dead letter is kept: {each.about} {each.letter.last_time}"
    return said
