"""The cache of the API server, while watches and answers come in any order.

Each request is sent, takes effect and is answered at times of its own; each change is reported
later. An object whose reconciliation isn't told of a change wouldn't be reconciled for minutes.
"""

from __future__ import annotations

import copy
from collections.abc import Coroutine, Generator, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.api_server import merged
from support.examples import examples

from knafka_operator.kube_api.cache import CachedCluster
from knafka_operator.kube_api.cluster import WatchSelection
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Key
from knafka_operator.model.resources import EVENTING

NAMES: Final = ("a", "b")
STEPS: Final = 60

Action: TypeAlias = Literal["read", "apply", "status", "delete"]


class Pause:
    """Awaited while a request, or its answer, is on its way."""

    def __await__(self) -> Generator[None]:
        yield


@dataclass(eq=False)
class Reconciliation:
    """One that runs: it reads an object, and then does something with it."""

    key: Key
    running: Coroutine[Any, Any, None]
    context: Context = field(default_factory=copy_context)


class World:
    """An API server, the watch of all its objects, and the cache that hears of them."""

    def __init__(self, *, metadata_only: bool) -> None:
        self.selection = WatchSelection(EVENTING, "Broker", metadata_only=metadata_only)
        self.stored: dict[str, dict[str, Any]] = {}
        self.reported: dict[str, Document] = {}
        """What the watch has reported so far."""
        self.reports: list[tuple[str, Document, bool]] = []
        """What it will report: name, object, and whether that is gone."""
        self.reconciliations: list[Reconciliation] = []
        self.known: dict[tuple[Key, str], str] = {}
        """The version of an object that the last reconciliation of a key has read or written; empty
        if there was none."""
        self.due: set[Key] = set()
        self.last_version = 0
        self.cache = CachedCluster(self)
        self.cache.changed = self.due.add
        self.cache.on_objects(self.selection, (), ())
        self.cache.set_synced(self.selection, True)
        self.is_synced = True

    # What others do

    def change(self, name: str, document: Document | None) -> dict[str, Any]:
        """Store an object's new version, or its deletion, and have the watch report it."""
        self.last_version += 1
        before = self.stored.get(name)
        stored = copy.deepcopy(dict(before or {} if document is None else document))
        uid = before["metadata"]["uid"] if before else f"u{self.last_version}"
        stored["metadata"] |= {"uid": uid, "resourceVersion": str(self.last_version)}
        if document is None:
            del self.stored[name]
        else:
            self.stored[name] = stored
        self.reports.append((name, copy.deepcopy(stored), document is None))
        return stored

    def declare(self, name: str) -> None:
        if name not in self.stored:
            self.change(name, manifest(name, finalizers=["knafka.dev/finalizer"]))

    def edit(self, name: str) -> None:
        if (stored := self.stored.get(name)) is not None:
            self.change(name, {**stored, "spec": {"edited": self.last_version}})

    def request_deletion(self, name: str) -> None:
        stored = self.stored.get(name)
        if stored is None or "deletionTimestamp" in stored["metadata"]:
            return
        if not stored["metadata"].get("finalizers"):
            self.change(name, None)
            return
        metadata = {**stored["metadata"], "deletionTimestamp": "2026-11-30T04:00:00Z"}
        self.change(name, {**stored, "metadata": metadata})

    def finalize(self, name: str) -> None:
        stored = self.stored.get(name)
        if stored is None or not stored["metadata"].get("finalizers"):
            return
        metadata = {**stored["metadata"], "finalizers": []}
        is_going = "deletionTimestamp" in metadata
        self.change(name, None if is_going else {**stored, "metadata": metadata})

    # The watch

    def report(self) -> None:
        if self.reports and self.is_synced:
            self._report(*self.reports.pop(0))

    def _report(self, name: str, document: Document, is_gone: bool) -> None:
        shown = metadata_of(document) if self.selection.metadata_only else document
        if is_gone:
            self.reported.pop(name, None)
            self.cache.on_objects(self.selection, (), (shown,))
        else:
            self.reported[name] = document
            self.cache.on_objects(self.selection, (shown,), ())

    def break_watch(self) -> None:
        self.is_synced = False
        self.cache.set_synced(self.selection, False)

    def list_again(self) -> None:
        """As `watches.Watch` does after a gap: what is gone or another is reported first."""
        if self.is_synced:
            return
        self.reports.clear()
        for name, document in list(self.reported.items()):
            now = self.stored.get(name)
            if now is not None and now["metadata"]["uid"] != document["metadata"]["uid"]:
                self._report(name, document, True)
        for name, document in self.stored.items():
            self._report(name, copy.deepcopy(document), False)
        for name in self.reported.keys() - self.stored.keys():
            self._report(name, self.reported[name], True)
        self.cache.set_synced(self.selection, True)
        self.is_synced = True

    # The API server's answers (`CachedApi`)

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        await Pause()
        answer = copy.deepcopy(self.stored.get(name))
        await Pause()
        return answer

    async def list(
        self,
        api_version: str,
        kind: str,
        labels: Mapping[str, str] | None = None,
        namespace: str | None = None,
    ) -> list[Document]:
        raise NotImplementedError

    async def create(self, document: Document) -> bool:
        raise NotImplementedError

    async def apply(self, document: Document) -> Document:
        await Pause()
        name = document["metadata"]["name"]
        stored = self.stored.get(name)
        wanted = merged(stored, document) if stored is not None else document
        answer = copy.deepcopy(wanted if wanted == stored else self.change(name, wanted))
        await Pause()
        return answer

    async def patch_status(self, document: Document, status: Document) -> Document | None:
        await Pause()
        name = document["metadata"]["name"]
        stored, answer = self.stored.get(name), None
        if stored is not None and stored["metadata"]["uid"] == document["metadata"]["uid"]:
            answer = copy.deepcopy(self.change(name, merged(stored, {"status": status})))
        await Pause()
        return answer

    async def write_status(self, document: Document, status: Document) -> None:
        raise NotImplementedError

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        await Pause()
        self.request_deletion(name)
        await Pause()

    # The operator

    def reconcile(self, key: Key, name: str, action: Action) -> None:
        """Begin to reconcile, unless that key is being reconciled."""
        if all(each.key != key for each in self.reconciliations):
            self.due.discard(key)
            one = Reconciliation(key, self._reconcile(key, name, action))
            self.reconciliations.append(one)
            self.go_on(one)

    def go_on(self, reconciliation: Reconciliation) -> None:
        """Until it waits for the API server again, or ends."""
        try:
            reconciliation.context.run(reconciliation.running.send, None)
        except StopIteration:
            self.reconciliations.remove(reconciliation)

    async def _reconcile(self, key: Key, name: str, action: Action) -> None:
        with self.cache.tracking(key):
            found = await self._read(key, name)
            match action:
                case "apply":
                    declared = manifest(name, spec={"declared": True})
                    self._note(key, name, await self.cache.apply(declared))
                case "status" if found is not None:
                    status = {"seen": self.last_version}
                    await self.cache.write_status(found, status)
                    del self.known[key, name]
                case "delete":
                    await self.cache.delete(EVENTING, "Broker", "shop", name)
                    del self.known[key, name]

    async def _read(self, key: Key, name: str) -> Document | None:
        reported = self.reported.get(name)
        found = await self.cache.get(EVENTING, "Broker", "shop", name)
        self._note(key, name, found)
        if reported is not None and found is not None:
            assert version(found) >= version(reported), "older than what was reported before"
        is_there = name in self.stored and self.stored[name]["metadata"]["uid"] == (
            reported and reported["metadata"]["uid"]
        )
        assert found is not None or not is_there, "reported, still there, and not found"
        return found

    def _note(self, key: Key, name: str, document: Document | None) -> None:
        self.known[key, name] = document["metadata"]["resourceVersion"] if document else ""

    def read_now(self, name: str) -> Document | None:
        """What the cache finds, once the API server has answered."""
        reading = self.cache.get(EVENTING, "Broker", "shop", name)
        while True:
            try:
                reading.send(None)
            except StopIteration as ended:
                found: Document | None = ended.value
                return found

    def come_to_rest(self) -> None:
        """All requests are answered, and everything is reported."""
        while self.reconciliations:
            self.go_on(self.reconciliations[0])
        self.list_again()
        while self.reports:
            self.report()


def manifest(name: str, finalizers: list[str] | None = None, **fields: Any) -> Document:
    metadata: dict[str, Any] = {"namespace": "shop", "name": name}
    if finalizers is not None:
        metadata["finalizers"] = finalizers
    return {"apiVersion": EVENTING, "kind": "Broker", "metadata": metadata, **fields}


def metadata_of(document: Document) -> Document:
    return {key: document[key] for key in ("apiVersion", "kind", "metadata")}


def version(document: Document) -> int:
    return int(document["metadata"]["resourceVersion"])


STEP: Final = st.tuples(
    st.sampled_from(
        ["declare", "edit", "request_deletion", "finalize", "break_watch", "list_again"]
        + ["report", "go_on", "reconcile"] * 3
    ),
    st.sampled_from(NAMES),
    st.sampled_from(["own", "other"]),
    st.sampled_from(["read", "apply", "status", "delete"]),
)


@pytest.mark.parametrize("metadata_only", [False, True], ids=["whole", "metadata"])
@settings(max_examples=examples(100))
@given(steps=st.lists(STEP, min_size=STEPS // 2, max_size=STEPS))
def test_the_cache_shows_what_is_stored_and_each_change_enqueues_its_readers(
    metadata_only: bool, steps: list[tuple[str, str, str, Action]]
) -> None:
    world = World(metadata_only=metadata_only)
    for name in NAMES:
        world.declare(name)
    for what, name, reader, action in steps:
        match what:
            case "report" | "break_watch" | "list_again":
                getattr(world, what)()
            case "go_on" if world.reconciliations:
                world.go_on(world.reconciliations[0 if reader == "own" else -1])
            case "reconcile":
                world.reconcile(("Broker", "shop", f"{reader} {name}"), name, action)
            case "declare" | "edit" | "request_deletion" | "finalize":
                getattr(world, what)(name)
    world.come_to_rest()
    for (key, name), known in world.known.items():
        stored = world.stored.get(name)
        now = stored["metadata"]["resourceVersion"] if stored else ""
        assert key in world.due or known == now, "nobody says that it has changed"
    for name in NAMES:
        assert world.read_now(name) == world.stored.get(name)
