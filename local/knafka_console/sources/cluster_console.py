"""ClusterConsole: the console's source of a cluster, under one viewer's own rights.

Objects are read and changed as the viewer, so Kubernetes decides what is seen and done. It knows
nothing of Kafka: where another account reads that (`reviews_kafka`), the viewer needs a right to
what is in it, by the Trigger's subresources `deadletters` (get) and `replays` (create).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from knafka.core.contract import Egress
from knafka.core.errors import KnafkaError, LogError
from knafka.core.event import Event
from knafka_client.declared import triggers
from knafka_client.declared.declared_source import NotReached
from knafka_client.declared.kubernetes_api import KubernetesApi, Objects, Unauthenticated
from knafka_client.state.condition_rows import trigger_row
from knafka_console.model import snapshot_document
from knafka_console.model.document import (
    Action,
    ConsoleState,
    EventName,
    Failures,
    FilterVerdict,
    ReplayResult,
    TriggerDetails,
    TriggerKind,
)
from knafka_console.model.source import Forbidden, NotFound, NotSignedIn, TriggerName
from knafka_console.sources import cluster_document
from knafka_console.sources.cluster_document import Stored
from knafka_console.sources.cluster_kafka import BROKER_OBJECTS, KAFKA_CHANNEL_OBJECTS
from knafka_console.sources.dead_letter_topics import SHOWN_DEAD_LETTERS, DeadLetterTopics
from knafka_console.sources.figures import Figures
from knafka_console.sources.reports import ClusterReports, FindsBrokersKafka, ReportTopics
from knafka_operator.model.channels import MESSAGING
from knafka_operator.model.cluster import Document, NotAllowed
from knafka_operator.model.family import family_of
from knafka_operator.model.resources import EVENTING, PAUSED

TRIGGER_OBJECTS: Final = Objects(EVENTING, "triggers")
SUBSCRIPTION_OBJECTS: Final = Objects(MESSAGING, "subscriptions")
OBJECTS_BY_KIND: Final[dict[TriggerKind, Objects]] = {
    "Trigger": TRIGGER_OBJECTS,
    "Subscription": SUBSCRIPTION_OBJECTS,
}
DEAD_LETTERS_SUBRESOURCE: Final = "deadletters"
REPLAYS_SUBRESOURCE: Final = "replays"
"""Subresources of Triggers and Subscriptions: there is nothing behind them but the right."""
SIGN_IN_AGAIN: Final = "the cluster doesn't accept this token: sign in again"
OBJECTS_MAX_AGE: Final = 3.0
"""Seconds for which a list of objects counts."""


class GetsFigures(Protocol):
    """Source of figures; `SharedFigures` is one."""

    async def get(self) -> Figures: ...


class FindsKafka(FindsBrokersKafka, Protocol):
    """Finds dead letters; a `ClusterKafka` does."""

    async def of(self, trigger: Document) -> tuple[Egress, dict[str, Any]]: ...


class ClusterConsole:
    """Everything of a cluster that its viewer may see."""

    def __init__(
        self,
        api: KubernetesApi,
        figures: GetsFigures,
        kafka: FindsKafka,
        place: str,
        namespaces: Sequence[str] = (),
        *,
        reviews_kafka: bool = False,
        letters: DeadLetterTopics | None = None,
        topics: ReportTopics | None = None,
        traces: str = "",
        unreached: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`namespaces` are for somebody who may not list those of all; none: all. `unreached` is
        what to do if Kafka doesn't answer, `traces` the address of a trace."""
        self._api = api
        self._figures = figures
        self._kafka = kafka
        self._place = place
        self._namespaces = namespaces
        self._reviews_kafka = reviews_kafka
        self._letters = letters or DeadLetterTopics()
        self._unreached = unreached
        self._clock = clock
        self._lock = asyncio.Lock()
        self._stored: tuple[float, Stored] | None = None
        self._reports = ClusterReports(
            api,
            kafka,
            namespaces,
            allowed=_allowed,
            reaching=self._reaching,
            reviews_kafka=reviews_kafka,
            traces=traces,
            topics=topics,
        )

    @property
    def reports(self) -> ClusterReports:
        return self._reports

    async def state(self) -> ConsoleState:
        stored = await self._objects()
        problems, figures = list(stored.problems), None
        try:
            figures = await self._figures.get()
        except KnafkaError as error:
            problems.append(f"rates, lag and dispatchers aren't known: {error}")
        shown = Stored(stored.brokers, stored.triggers, tuple(problems))
        state = await asyncio.to_thread(cluster_document.state, shown, figures, self._place)
        return state.model_copy(update={"archives": True})

    async def details(self, trigger: TriggerName) -> TriggerDetails:
        document = await self._get(trigger)
        family = family_of(trigger.kind)
        read = family.read_trigger(document)
        may = await asyncio.gather(*(self._may(trigger, action) for action in Action))
        return snapshot_document.details(
            read,
            trigger_row(document).conditions,
            "",
            [action for action, allowed in zip(Action, may, strict=True) if allowed],
            family.reply_of(document),
        )

    async def failures(self, trigger: TriggerName) -> Failures:
        document = await self._get(trigger)
        await self._require("get", trigger, DEAD_LETTERS_SUBRESOURCE)
        with self._reaching():
            letters = await self._letters.last(*await self._kafka.of(document))
        return snapshot_document.failures(letters, SHOWN_DEAD_LETTERS, {})

    async def verdicts(self, event: Event) -> Sequence[FilterVerdict]:
        stored = await self._objects()
        of_brokers = [trigger for trigger in stored.triggers if trigger["kind"] == "Trigger"]
        return await asyncio.to_thread(
            lambda: snapshot_document.verdicts(cluster_document.declared(of_brokers), event)
        )

    async def pause(self, trigger: TriggerName, *, paused: bool) -> str:
        """Annotates the object, as `kubectl annotate` does."""
        document = await self._get(trigger)
        done = "is paused" if paused else "goes on"
        if triggers.is_paused(family_of(trigger.kind).read_trigger(document)) is paused:
            return f"{trigger} {done} already"
        value = "true" if paused else "false"
        target = OBJECTS_BY_KIND[trigger.kind], trigger.namespace, trigger.name
        if not await _allowed(asyncio.to_thread(self._api.annotate, *target, PAUSED, value)):
            raise NotFound(f"there is no {trigger.kind} {trigger.id}")
        self._stored = None
        return f"{trigger} {done}"

    async def replay(
        self, trigger: TriggerName, events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        document = await self._get(trigger)
        await self._require("get", trigger, DEAD_LETTERS_SUBRESOURCE)
        await self._require("create", trigger, REPLAYS_SUBRESOURCE)
        egress, kafka = await self._kafka.of(document)
        with self._reaching():
            return await self._letters.replay(egress, kafka, events, dry_run=dry_run)

    async def report(self) -> bytes | None:
        return None

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Have a failure to reach Kafka say what to do."""
        try:
            yield
        except LogError as error:
            if not self._unreached or not error.retriable or error.unknown_topic:
                raise
            raise NotReached(f"{error}: {self._unreached}") from error

    async def _get(self, trigger: TriggerName) -> Document:
        kind = OBJECTS_BY_KIND[trigger.kind]
        document = await _allowed(
            asyncio.to_thread(self._api.get, kind, trigger.namespace, trigger.name)
        )
        if document is None:
            raise NotFound(f"there is no {trigger.kind} {trigger.id}")
        return {"apiVersion": kind.version, "kind": trigger.kind, **document}

    async def _may(self, trigger: TriggerName, action: Action) -> bool:
        match action:
            case Action.PAUSE:
                return await self._reviewed("patch", trigger)
            case Action.REPLAY:
                return not self._reviews_kafka or all(
                    [
                        await self._reviewed("get", trigger, DEAD_LETTERS_SUBRESOURCE),
                        await self._reviewed("create", trigger, REPLAYS_SUBRESOURCE),
                    ]
                )

    async def _require(self, verb: str, trigger: TriggerName, subresource: str) -> None:
        if self._reviews_kafka and not await self._reviewed(verb, trigger, subresource):
            plural = OBJECTS_BY_KIND[trigger.kind].plural
            raise Forbidden(f"you may not {verb} {plural}/{subresource} in {trigger.namespace}")

    async def _reviewed(self, verb: str, trigger: TriggerName, subresource: str = "") -> bool:
        target = OBJECTS_BY_KIND[trigger.kind], trigger.namespace, trigger.name, subresource
        return await asyncio.to_thread(self._api.may, verb, *target)

    async def _objects(self) -> Stored:
        """As they are now, or were a moment ago. Raises `Forbidden` if nothing may be seen."""
        async with self._lock:
            if self._stored is None or self._clock() - self._stored[0] >= OBJECTS_MAX_AGE:
                listed = await self._listed()
                self._stored = self._clock(), listed.ours()
            return self._stored[1]

    async def _listed(self) -> Stored:
        problems: list[str] = []
        by_kind: dict[Objects, list[Document]] = {}
        kinds = {
            BROKER_OBJECTS: "Broker", KAFKA_CHANNEL_OBJECTS: "KafkaChannel",
            TRIGGER_OBJECTS: "Trigger", SUBSCRIPTION_OBJECTS: "Subscription",
        }  # fmt: skip
        places = self._namespaces or (None,)
        asked = [(kind, place) for kind in kinds for place in places]
        answers = await asyncio.gather(
            *(asyncio.to_thread(self._api.list, *question) for question in asked),
            return_exceptions=True,
        )
        for (kind, place), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Unauthenticated):
                raise NotSignedIn(SIGN_IN_AGAIN) from answer
            if isinstance(answer, NotAllowed):
                if place is None and kind.version == EVENTING:
                    raise Forbidden(
                        f"{answer}; or name the namespaces that you may see"
                    ) from answer
                problems.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                typed = {"apiVersion": kind.version, "kind": kinds[kind]}
                by_kind.setdefault(kind, []).extend({**typed, **item} for item in answer or ())
        return Stored(
            [
                document
                for kind in (BROKER_OBJECTS, KAFKA_CHANNEL_OBJECTS)
                for document in by_kind.get(kind, ())
            ],
            [
                document
                for kind in (TRIGGER_OBJECTS, SUBSCRIPTION_OBJECTS)
                for document in by_kind.get(kind, ())
            ],
            tuple(problems),
        )


async def _allowed(asked: Awaitable[Any]) -> Any:
    """Raises `NotSignedIn` and `Forbidden` in place of what an API server says."""
    try:
        return await asked
    except Unauthenticated as error:
        raise NotSignedIn(SIGN_IN_AGAIN) from error
    except NotAllowed as error:
        raise Forbidden(str(error)) from error
