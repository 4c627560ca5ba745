"""Definitions: tracks the CustomResourceDefinitions, and reacts to their changes.

any definition         look the kinds of its group up again, and retry failed objects
Knative's Channel      Knative Eventing is installed, or isn't (`installation.handler`)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from knafka_operator.installation.handler import EVENTING_DEFINITION
from knafka_operator.kube_api.rest_mapper import RestMapper
from knafka_operator.model.cluster import Document
from knafka_operator.operator import Operator


class Definitions:
    """Tracks the CustomResourceDefinitions; belongs to one event loop."""

    def __init__(self, kinds: RestMapper, operators: Collection[Operator]) -> None:
        """Begin without definitions, and report to the operators that it isn't known whether
        Knative Eventing is installed. `kinds` is the API client's cache of the API server's
        kinds."""
        self._kinds = kinds
        self._operators = operators
        self._existing_names: set[str] = set()
        """Names of the existing definitions."""
        self._synced = False
        """Whether all definitions are known."""
        for operator in operators:
            operator.on_eventing(None)

    def on_objects(self, changed: Sequence[Document], gone: Sequence[Document]) -> None:
        """Record which definitions have `changed`, or were created, and which are `gone`. Once all
        are known, also make the API client look up the kinds of their API groups again, retry
        failed objects, and report whether Knative Eventing is installed."""
        changed_names = {definition["metadata"]["name"] for definition in changed}
        deleted_names = {definition["metadata"]["name"] for definition in gone}
        self._existing_names = (self._existing_names | changed_names) - deleted_names
        if not self._synced:
            return
        for name in changed_names | deleted_names:
            self._kinds.forget(name.partition(".")[2])  # a definition's name is KINDS.GROUP
        for operator in self._operators:
            operator.queue.retry_failed()
        self._report_eventing()

    def set_synced(self, synced: bool) -> None:
        """Record whether all definitions are known; if so, report whether Knative Eventing is
        installed."""
        self._synced = synced
        if synced:
            self._report_eventing()

    def exists(self, name: str) -> bool | None:
        """Whether a definition of this name exists; None: not known yet."""
        return name in self._existing_names if self._synced else None

    def _report_eventing(self) -> None:
        """Report to all operators whether Knative Eventing is installed."""
        for operator in self._operators:
            operator.on_eventing(EVENTING_DEFINITION in self._existing_names)
