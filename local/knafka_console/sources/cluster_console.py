"""ClusterConsole: the console's source of a cluster, under one viewer's own rights.

Objects are read and changed with the viewer's token, so Kubernetes checks the rights. It can't
check rights in Kafka: where the console reads Kafka with an account of its own
(`reads_kafka_with_own_account`), the viewer needs rights to the Trigger's subresources
`deadletters` (get) and `replays` (create).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from knafka.core.contract import Egress
from knafka.core.errors import KnafkaError, LogError
from knafka.core.events.event import Event
from knafka_client.declared import triggers
from knafka_client.declared.declared_source import KafkaNotReached
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
from knafka_console.sources.cluster_document import StoredObjects
from knafka_console.sources.cluster_kafka import BROKER_OBJECTS, KAFKA_CHANNEL_OBJECTS
from knafka_console.sources.dead_letter_topics import SHOWN_DEAD_LETTERS, DeadLetterTopics
from knafka_console.sources.figures import Figures
from knafka_console.sources.reports import (
    BrokerKafkaFinder,
    ClusterReports,
    ConsoleScope,
    ReportTopics,
)
from knafka_operator.model.channels import MESSAGING
from knafka_operator.model.cluster import Document, NotAllowed
from knafka_operator.model.family import family_of
from knafka_operator.model.resources import EVENTING, PAUSED_ANNOTATION

TRIGGER_OBJECTS: Final = Objects(EVENTING, "triggers")
"""Triggers, as requests to the API server name them."""
SUBSCRIPTION_OBJECTS: Final = Objects(MESSAGING, "subscriptions")
"""Subscriptions, as requests to the API server name them."""
OBJECTS_BY_KIND: Final[dict[TriggerKind, Objects]] = {
    "Trigger": TRIGGER_OBJECTS,
    "Subscription": SUBSCRIPTION_OBJECTS,
}
"""Version and plural of each kind, for requests to the API server."""
DEAD_LETTERS_SUBRESOURCE: Final = "deadletters"
"""Subresource of Triggers and Subscriptions that exists only as a right, to read dead letters."""
REPLAYS_SUBRESOURCE: Final = "replays"
"""Subresource of Triggers and Subscriptions that exists only as a right, to replay dead letters."""
SIGN_IN_AGAIN: Final = "the cluster doesn't accept this token: sign in again"
"""The text of the error for a token that the API server refuses."""
OBJECTS_MAX_AGE: Final = 3.0
"""Seconds for which listed objects are used again."""


class FiguresSource(Protocol):
    """A source of lag, replicas and counts, such as `SharedFigures`."""

    async def current(self) -> Figures:
        """Return lag, replicas and counts of all Triggers. Raises `KnafkaError` if they can't be
        read."""
        ...


class KafkaFinder(BrokerKafkaFinder, Protocol):
    """Finds the Kafka and the dead-letter topic of a Trigger, such as `ClusterKafka`."""

    async def find(self, trigger: Document) -> tuple[Egress, dict[str, Any]]:
        """Return the Egress of a Trigger, and the librdkafka configuration for its Kafka. Raises
        `KnafkaError` if an object that this needs doesn't exist or can't be read."""
        ...


class ClusterConsole:
    """Shows a viewer the objects of a cluster, and acts with the viewer's rights."""

    def __init__(
        self,
        api: KubernetesApi,
        figures: FiguresSource,
        kafka: KafkaFinder,
        scope: ConsoleScope,
        *,
        letters: DeadLetterTopics | None = None,
        topics: ReportTopics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`api` sends requests with the viewer's token; `figures` returns lag, replicas and counts;
        `kafka` finds the Kafka of an object; `scope` says what the viewer is shown. `letters` and
        `topics` connect to Kafka for dead letters and for reports; None: to real Kafkas. `clock`
        returns seconds of any monotonic clock."""
        self._api = api
        self._figures = figures
        self._kafka = kafka
        self._scope = scope
        self._letters = letters or DeadLetterTopics()
        self._clock = clock
        self._lock = asyncio.Lock()
        """Held while objects are listed, so that requests at the same time share one list."""
        self._stored: tuple[float, StoredObjects] | None = None
        """When objects were last listed, by `clock`, and the objects; None: list them anew."""
        self._reports = ClusterReports(
            api,
            kafka,
            scope,
            translate_refusals=_translate_refusals,
            explain_unreached_kafka=self._explain_unreached_kafka,
            topics=topics,
        )

    @property
    def reports(self) -> ClusterReports:
        """The reports of the cluster's DeadLetterArchives."""
        return self._reports

    async def state(self) -> ConsoleState:
        """Return the state of the objects that the viewer may list, with figures if the operator's
        metrics can be read."""
        stored = await self._load_recent_objects()
        problems, figures = list(stored.problems), None
        try:
            figures = await self._figures.current()
        except KnafkaError as error:
            problems.append(f"rates, lag and dispatchers are not known: {error}")
        objects = StoredObjects(stored.brokers, stored.triggers, tuple(problems))
        state = await asyncio.to_thread(
            cluster_document.cluster_state, objects, figures, self._scope.cluster_name
        )
        return state.model_copy(update={"archives": True})  # only a cluster has archives

    async def details(self, trigger: TriggerName) -> TriggerDetails:
        """Return the details of a Trigger or Subscription, with the actions that the viewer may do.
        Raises `NotFound`, `Forbidden` and `NotSignedIn`."""
        document = await self._read_trigger(trigger)
        family = family_of(trigger.kind)
        declared_trigger = family.read_trigger(document)
        allowed_actions = await asyncio.gather(
            *(self._is_action_allowed(trigger, action) for action in Action)
        )
        return snapshot_document.details_document(
            declared_trigger,
            trigger_row(document).conditions,
            declared_in="",
            may=[
                action
                for action, is_allowed in zip(Action, allowed_actions, strict=True)
                if is_allowed
            ],
            reply=family.reply_of(document),
        )

    async def failures(self, trigger: TriggerName) -> Failures:
        """Return the latest dead letters of a Trigger or Subscription. Raises `NotFound`,
        `NotSignedIn`, `Forbidden` if the viewer lacks the right, and `LogError` or
        `KafkaNotReached`."""
        document = await self._read_trigger(trigger)
        await self._require_right("get", trigger, DEAD_LETTERS_SUBRESOURCE)
        with self._explain_unreached_kafka():
            letters = await self._letters.read_latest(*await self._kafka.find(document))
        return snapshot_document.failures_document(letters, SHOWN_DEAD_LETTERS, {})

    async def verdicts(self, event: Event) -> Sequence[FilterVerdict]:
        """Return for each Trigger whether it would get an event. Subscriptions, which have no
        filters, and invalid Triggers are left out. Raises `Forbidden` and `NotSignedIn`."""
        stored = await self._load_recent_objects()
        without_subscriptions = [
            trigger for trigger in stored.triggers if trigger["kind"] == "Trigger"
        ]
        return await asyncio.to_thread(
            lambda: snapshot_document.verdicts(
                cluster_document.valid_triggers(without_subscriptions), event
            )
        )

    async def pause(self, trigger: TriggerName, *, paused: bool) -> str:
        """Pause a Trigger or Subscription, or resume it if `paused` is False, by its annotation as
        `kubectl annotate` does. Returns a sentence about what was done. Raises `NotFound`,
        `Forbidden` and `NotSignedIn`."""
        document = await self._read_trigger(trigger)
        sentence_end = "is paused" if paused else "goes on"
        if triggers.is_paused(family_of(trigger.kind).read_trigger(document)) is paused:
            return f"{trigger} {sentence_end} already"
        value = "true" if paused else "false"
        target = OBJECTS_BY_KIND[trigger.kind], trigger.namespace, trigger.name
        if not await _translate_refusals(
            asyncio.to_thread(self._api.annotate, *target, PAUSED_ANNOTATION, value)
        ):
            raise NotFound(f"there is no {trigger.kind} {trigger.id}")
        self._stored = None  # so that the next state shows the change
        return f"{trigger} {sentence_end}"

    async def replay(
        self, trigger: TriggerName, events: Sequence[EventName], *, dry_run: bool
    ) -> ReplayResult:
        """Send the dead letters of these events again to a Trigger, and return which were sent.
        With `dry_run`, nothing is sent, and the result says which would be.

        Raises `NotFound`, and `Forbidden` if the viewer may not read dead letters and create
        replays.
        """
        document = await self._read_trigger(trigger)
        await self._require_right("get", trigger, DEAD_LETTERS_SUBRESOURCE)
        await self._require_right("create", trigger, REPLAYS_SUBRESOURCE)
        egress, kafka = await self._kafka.find(document)
        with self._explain_unreached_kafka():
            return await self._letters.replay(egress, kafka, events, dry_run=dry_run)

    async def report(self) -> bytes | None:
        """Return None: in a cluster each DeadLetterArchive has a report of its own (`reports`)."""
        return None

    @contextlib.contextmanager
    def _explain_unreached_kafka(self) -> Iterator[None]:
        """While the context is open, turn a `LogError` that means that Kafka wasn't reached into
        `KafkaNotReached`, which says what to do. Other errors pass unchanged."""
        try:
            yield
        except LogError as error:
            is_unreached = error.retriable and not error.unknown_topic
            if not (is_unreached and self._scope.unreached_hint):
                raise
            raise KafkaNotReached(f"{error}: {self._scope.unreached_hint}") from error

    async def _read_trigger(self, trigger: TriggerName) -> Document:
        """Read a Trigger or Subscription from the API server. Raises `NotFound`, `Forbidden` and
        `NotSignedIn`."""
        kind = OBJECTS_BY_KIND[trigger.kind]
        document = await _translate_refusals(
            asyncio.to_thread(self._api.get, kind, trigger.namespace, trigger.name)
        )
        if document is None:
            raise NotFound(f"there is no {trigger.kind} {trigger.id}")
        # Readers of the document need both fields; the answer's own values, if it has them, win.
        return {"apiVersion": kind.version, "kind": trigger.kind, **document}

    async def _is_action_allowed(self, trigger: TriggerName, action: Action) -> bool:
        """Whether the viewer may do an action on a Trigger, by rights in Kubernetes."""
        match action:
            case Action.PAUSE:
                return await self._has_right("patch", trigger)
            case Action.REPLAY:
                # Where Kafka is read with the viewer's own credentials, Kafka checks the rights.
                return not self._scope.reads_kafka_with_own_account or all(
                    [
                        await self._has_right("get", trigger, DEAD_LETTERS_SUBRESOURCE),
                        await self._has_right("create", trigger, REPLAYS_SUBRESOURCE),
                    ]
                )

    async def _require_right(self, verb: str, trigger: TriggerName, subresource: str) -> None:
        """Raise `Forbidden` if the viewer lacks a right to the Trigger's subresource. Does nothing
        where Kafka is read with the viewer's own credentials."""
        if self._scope.reads_kafka_with_own_account and not await self._has_right(
            verb, trigger, subresource
        ):
            plural = OBJECTS_BY_KIND[trigger.kind].plural
            raise Forbidden(f"you may not {verb} {plural}/{subresource} in {trigger.namespace}")

    async def _has_right(self, verb: str, trigger: TriggerName, subresource: str = "") -> bool:
        """Whether the viewer may do `verb` with a Trigger or its `subresource`, by the API server's
        review."""
        target = OBJECTS_BY_KIND[trigger.kind], trigger.namespace, trigger.name, subresource
        return await asyncio.to_thread(self._api.is_allowed, verb, *target)

    async def _load_recent_objects(self) -> StoredObjects:
        """Return the objects that Knafka handles, as of at most `OBJECTS_MAX_AGE` seconds ago.

        Raises `Forbidden` and `NotSignedIn`.
        """
        async with self._lock:
            if self._stored is None or self._clock() - self._stored[0] >= OBJECTS_MAX_AGE:
                current_objects = await self._list_objects()
                self._stored = self._clock(), current_objects.without_foreign()
            return self._stored[1]

    async def _list_objects(self) -> StoredObjects:
        """List the objects that the viewer may list. `problems` of the result has a sentence for
        each kind and namespace that the viewer may not list.

        Raises `NotSignedIn`, and `Forbidden` if the viewer named no namespaces and may not list the
        Brokers or the Triggers of all namespaces.
        """
        problems: list[str] = []
        broker_documents: list[Document] = []
        trigger_documents: list[Document] = []
        lists_by_kind = {
            "Broker": (BROKER_OBJECTS, broker_documents),
            "KafkaChannel": (KAFKA_CHANNEL_OBJECTS, broker_documents),
            "Trigger": (TRIGGER_OBJECTS, trigger_documents),
            "Subscription": (SUBSCRIPTION_OBJECTS, trigger_documents),
        }
        namespaces = self._scope.namespaces or (None,)  # None: all namespaces
        requests = [(kind, namespace) for kind in lists_by_kind for namespace in namespaces]
        answers = await asyncio.gather(
            *(
                asyncio.to_thread(self._api.list, lists_by_kind[kind][0], namespace)
                for kind, namespace in requests
            ),
            return_exceptions=True,
        )
        for (kind, namespace), answer in zip(requests, answers, strict=True):
            objects, documents = lists_by_kind[kind]
            if isinstance(answer, Unauthenticated):
                raise NotSignedIn(SIGN_IN_AGAIN) from answer
            if isinstance(answer, NotAllowed):
                # Without Brokers and Triggers little is left to show, so the viewer is to name
                # namespaces; without channels or Subscriptions, the rest is shown.
                if namespace is None and kind in ("Broker", "Trigger"):
                    raise Forbidden(
                        f"{answer}; or name the namespaces that you may see"
                    ) from answer
                problems.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                # Objects in a list lack apiVersion and kind.
                type_fields = {"apiVersion": objects.version, "kind": kind}
                documents += [{**type_fields, **item} for item in answer or ()]
        return StoredObjects(broker_documents, trigger_documents, tuple(problems))


async def _translate_refusals(request: Awaitable[Any]) -> Any:
    """Return the answer to a request to the API server. If the server refuses the request, raise
    `NotSignedIn` (401) or `Forbidden` (403) instead of the client's error."""
    try:
        return await request
    except Unauthenticated as error:
        raise NotSignedIn(SIGN_IN_AGAIN) from error
    except NotAllowed as error:
        raise Forbidden(str(error)) from error
