"""Watches: follows the changes of all objects of a selection, which the API server filters.

    list (in pages) -> follow the changes since the list -> when the watch ends or fails: follow
    again from the last version, or list again if that version is too old

One thread for each watch, since the client blocks; it passes changes to the event loop in the API
server's order. An object that was deleted while the watch was interrupted is missing in the next
list, and reported as gone; so is one that was created again under its name meanwhile. Only metadata
is watched of objects that are read when needed: ConfigMaps, Secrets, subscribers of any kind.

Not here: keeping objects (`cache`), and reacting to a change (`controller`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
from urllib3.exceptions import HTTPError

from knafka_operator.kube_api.cluster import WatchSelection
from knafka_operator.kube_api.json_answers import decode_json
from knafka_operator.model.cluster import Document

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 240
"""Seconds, ±20 %, after which the API server ends a watch, so that not all end at the same time."""
WATCH_SILENCE_TIMEOUT: Final = 330.0
"""Seconds without a byte after which a connection counts as dead; more than any watch lasts."""
FIRST_WATCH_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0
"""Seconds to wait after a failure: the first, doubled each time up to the maximum."""
REFUSED_PAUSE: Final = 120.0
"""Seconds to wait after a refusal: nothing reports when the operator's role is changed."""

EXPIRED: Final = HTTPStatus.GONE
"""HTTP status for a resourceVersion that is too old; then everything is listed again."""
REFUSED_STATUSES: Final = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED})
"""HTTP statuses for a watch that is forbidden or impossible."""

_FAILURES: Final = (
    ApiException,
    DynamicApiError,
    ResourceNotFoundError,
    HTTPError,
    OSError,
    ValueError,
    AttributeError,  # urllib3's, where another thread has closed the connection
)
"""Errors of a list or watch that are expected now and then: they are logged without a traceback."""

Identity = tuple[str, str]
"""Namespace and name; the namespace of a cluster-scoped object is empty."""


class WatchApi(Protocol):
    """Lists and watches objects; implemented by `ApiCluster`. Both methods block."""

    def list_page(self, selection: WatchSelection, after: str | None) -> Document:
        """Return one page of a list; `after` is the `continue` token of the previous page, None for
        the first."""
        ...

    def open_watch(
        self, selection: WatchSelection, version: str, seconds: int, silence: float
    ) -> Any:
        """Open a watch that starts after the resourceVersion `version` and ends after `seconds`; a
        read of the returned response fails after `silence` seconds without a byte."""


class Listener(Protocol):
    """Receives changes of watched objects; called on the event loop."""

    def on_objects(
        self, selection: WatchSelection, changed: Sequence[Document], gone: Sequence[Document]
    ) -> None:
        """Handle objects of a selection that were created or `changed`, and the last versions of
        those that are `gone`."""
        ...

    def set_synced(self, selection: WatchSelection, synced: bool) -> None:
        """Handle a report whether all objects of a selection are known and their changes followed.
        While they aren't, earlier reports may be outdated."""
        ...


class Watch:
    """Watches one selection in a thread until it is closed."""

    def __init__(self, api: WatchApi, selection: WatchSelection, listener: Listener) -> None:
        """Start the thread. `listener` is called on the event loop that runs now."""
        self.selection = selection
        self._api = api
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._known: dict[Identity, Document] = {}
        """Type and metadata of the known objects; used by the thread only."""
        self._version = ""
        """The resourceVersion to follow from; empty: all objects must be listed."""
        self._failures = 0
        """Failures in a row."""
        self._closed = threading.Event()
        """Set when the watch is closed; also ends a pause."""
        self._response: Any = None
        """The response that is being read; None: none is."""
        self._thread = threading.Thread(
            target=self._run, name=f"watch {selection.kind}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop watching, without waiting for the thread."""
        self._closed.set()
        response = self._response  # read once: the thread may set it to None
        if response is not None:
            try:
                response.shutdown()  # this ends a read in another thread
            except (OSError, RuntimeError, ValueError, AttributeError):
                log.debug("the watch of %s was over", self.selection, exc_info=True)

    def _run(self) -> None:
        """List the objects and follow their changes until `close`; after an error, pause and
        continue. Runs in the watch's thread."""
        while not self._closed.is_set():
            try:
                if not self._version:
                    self._version = self._list()
                    self._report_synced(True)
                self._follow()
            except _FAILURES as error:
                if self._must_list(error):  # before `_pause_after`, which counts this failure
                    self._version = ""
                self._pause_after(error)
            except Exception:  # any error: without this thread, changes would go unnoticed
                self._version = ""
                log.exception("watching %s", self.selection)
                self._report_synced(False)
                self._closed.wait(MAX_PAUSE)

    def _must_list(self, error: Exception) -> bool:
        """Whether all objects must be listed again after this error: if the version has expired, if
        the API server sent an ERROR event or malformed data, and whenever `_pause_after` reports
        that the watch is out of sync, as only a list puts it in sync again."""
        status = getattr(error, "status", None)
        return (
            isinstance(error, ValueError)
            or status == EXPIRED
            or status in REFUSED_STATUSES
            or self._failures > 0
        )

    def _pause_after(self, error: Exception) -> None:
        """Wait after a failed request, twice as long after each further failure in a row. After the
        second one, or after a refusal, report that the watch is out of sync. An expired version
        needs no pause."""
        status = getattr(error, "status", None)
        if status == EXPIRED or self._closed.is_set():
            return
        doublings = min(self._failures, 16)  # enough for `MAX_PAUSE`, and too few to overflow
        pause = min(FIRST_WATCH_PAUSE * 2.0**doublings, MAX_PAUSE)
        # After the first failure the watch continues a moment later; after more, changes may be
        # missed, so that objects are read from the API server instead.
        if self._failures > 0 or status in REFUSED_STATUSES:
            self._report_synced(False)
        if status in REFUSED_STATUSES:
            pause = REFUSED_PAUSE
        self._failures += 1
        level = logging.INFO if self._failures == 1 else logging.WARNING
        log.log(level, "watching %s: %s: %.300s", self.selection, type(error).__name__, error)
        self._closed.wait(pause * random.uniform(0.8, 1.2))

    def _list(self) -> str:
        """List all objects and report them, and the known objects that are gone; returns the
        resourceVersion from which to watch."""
        listed: set[Identity] = set()
        continue_token: str | None = None
        while True:
            page = self._api.list_page(self.selection, continue_token)
            items = [self._with_kind(item) for item in page.get("items") or ()]
            listed.update(_identity(item) for item in items)
            # Deletions first: a later report of one would remove the new object of that name.
            self._report((), [self._known[identity] for identity in self._recreated_objects(items)])
            # Known from now on, as a later page may fail, and the object be deleted meanwhile.
            self._known.update((_identity(item), _reduce_to_identity(item)) for item in items)
            self._report(items, ())
            continue_token = page["metadata"].get("continue")
            if not continue_token:
                break
        gone = self._known.keys() - listed
        self._report((), [self._known.pop(identity) for identity in gone])
        return str(page["metadata"]["resourceVersion"])

    def _recreated_objects(self, items: Sequence[Document]) -> list[Identity]:
        """Return namespace and name of those listed objects that are known with another UID: they
        were deleted, and created again under their names."""
        uids = {_identity(item): item["metadata"].get("uid") for item in items}
        return [
            identity
            for identity in uids.keys() & self._known.keys()
            if self._known[identity]["metadata"].get("uid") != uids[identity]
        ]

    def _follow(self) -> None:
        """Report changes after `_version` until the API server ends the watch. `_version` becomes
        that of each change at once: after an error, no change is reported again. Raises
        `_WatchError`, and the errors of `open_watch`."""
        seconds = int(WATCH_SECONDS * random.uniform(0.8, 1.2))
        response = self._response = self._api.open_watch(
            self.selection, self._version, seconds, WATCH_SILENCE_TIMEOUT
        )
        self._failures = 0
        try:
            if self._closed.is_set():
                return  # `close` came before the response was set
            for line in _yield_lines(response):
                event = decode_json(line)
                document = event["object"]
                if event["type"] == "ERROR":
                    raise _WatchError(document)
                self._version = str(document["metadata"]["resourceVersion"])
                if event["type"] == "BOOKMARK":  # only reports the version
                    continue
                document = self._with_kind(document)
                if event["type"] == "DELETED":
                    self._known.pop(_identity(document), None)
                    self._report((), (document,))
                else:
                    self._known[_identity(document)] = _reduce_to_identity(document)
                    self._report((document,), ())
        finally:
            self._response = None
            response.close()

    def _with_kind(self, document: Document) -> Document:
        """Return the document with apiVersion and kind, which the objects in a list lack, and
        without `managedFields`, which no code reads."""
        metadata = {k: v for k, v in document["metadata"].items() if k != "managedFields"}
        kind = {"apiVersion": self.selection.api_version, "kind": self.selection.kind}
        return {**document, **kind, "metadata": metadata}

    def _report(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """Report changed and deleted objects to the listener, on the event loop."""
        if changed or gone:
            self._call_on_loop(self._listener.on_objects, self.selection, changed, gone)

    def _report_synced(self, synced: bool) -> None:
        """Report to the listener, on the event loop, whether all objects are known and followed."""
        self._call_on_loop(self._listener.set_synced, self.selection, synced)

    def _call_on_loop(self, call: Any, *arguments: Any) -> None:
        """Schedule `call` with these arguments on the event loop, from the watch's thread; it is
        skipped if the watch is closed by then."""

        def unless_closed() -> None:
            """Make the call, unless the watch was closed meanwhile."""
            if not self._closed.is_set():
                call(*arguments)

        try:
            self._loop.call_soon_threadsafe(unless_closed)
        except RuntimeError:  # the loop is closed: the process ends
            self._closed.set()


class _WatchError(ValueError):
    """The API server ended a watch with an error."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        """`status` is the event's object, a Kubernetes `Status` with `code` and `message`."""
        super().__init__(str(status.get("message", status)))
        self.status = status.get("code")


def _yield_lines(response: Any) -> Iterator[bytes]:
    """Yield the non-empty lines of a `urllib3` response as they arrive."""
    incomplete_line = b""
    for chunk in response.stream(amt=None, decode_content=True):
        *lines, incomplete_line = (incomplete_line + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())


def _reduce_to_identity(document: Document) -> Document:
    """Return an object's apiVersion, kind, namespace, name, UID and labels, which are reported when
    it is gone."""
    metadata = document["metadata"]
    metadata_kept = {
        key: metadata[key] for key in ("namespace", "name", "uid", "labels") if key in metadata
    }
    return {
        "apiVersion": document["apiVersion"],
        "kind": document["kind"],
        "metadata": metadata_kept,
    }


def _identity(document: Document) -> Identity:
    """Return namespace and name of an object."""
    metadata = document["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
