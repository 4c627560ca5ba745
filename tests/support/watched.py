"""Every state that the run's Brokers and Triggers went through, and the rules for their conditions.

What is only true in between, such as an address before Ready, can't be seen by asking now and then:
`kubectl get --watch` tells each write.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

from support.cluster import Cluster

Document: TypeAlias = dict[str, Any]
Identity: TypeAlias = tuple[str, str, str, str]
"""Kind, namespace, name, uid."""

KINDS: Final = ("brokers", "triggers")
FIELDS: Final = {
    "type", "status", "severity", "lastTransitionTime", "reason", "message",
}  # fmt: skip
_WORD: Final = re.compile(r"[A-Z][A-Za-z0-9]*").fullmatch
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)").fullmatch


class Watched:
    """Watches all Brokers and Triggers from its making on until it is closed."""

    def __init__(self, cluster: Cluster) -> None:
        self.namespaces: set[str] = set()
        """Those whose Brokers and Triggers must keep the rules."""
        self._documents: list[Document] = []
        self._watches = [_watch(cluster, kind) for kind in KINDS]
        for watch in self._watches:
            threading.Thread(target=self._read, args=(watch,), daemon=True).start()

    def close(self) -> None:
        for watch in self._watches:
            watch.terminate()
            watch.wait()

    def states(self, kind: str, namespace: str, name: str) -> list[Document]:
        """What one object was, in order; of its namesakes before it, too."""
        wanted = kind.lower(), namespace, name
        return [
            each
            for each in list(self._documents)
            if (each["kind"].lower(), each["metadata"]["namespace"], each["metadata"]["name"])
            == wanted
        ]

    def histories(self) -> dict[Identity, list[Document]]:
        """The states of every object in `namespaces`: those of the modules of this worker."""
        found: dict[Identity, list[Document]] = {}
        for each in list(self._documents):
            metadata = each["metadata"]
            if metadata["namespace"] in self.namespaces:
                identity = each["kind"], metadata["namespace"], metadata["name"], metadata["uid"]
                found.setdefault(identity, []).append(each)
        return found

    def _read(self, watch: subprocess.Popen[str]) -> None:
        assert watch.stdout is not None
        with watch.stdout as lines:
            for line in lines:
                self._documents.append(json.loads(line))


def _watch(cluster: Cluster, kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["kubectl", "get", kind, "--all-namespaces", "--watch", '-ojsonpath={@}{"\\n"}'],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "NO_PROXY": "*"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def conditions(document: Document) -> list[dict[str, str]]:
    found: list[dict[str, str]] = document.get("status", {}).get("conditions", [])
    return found


def is_ready(document: Document) -> bool:
    """Whether it says Ready of what is declared now."""
    return document.get("status", {}).get("observedGeneration") == document["metadata"][
        "generation"
    ] and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions(document))


def violations(histories: Mapping[Identity, list[Document]]) -> list[str]:
    """What any of the rules below finds wrong with any state or change of an object."""
    wrong = []
    for identity, states in histories.items():
        for state in states:
            for of_state in (form, sums, reasons, addresses, severities):
                wrong += [f"{identity}: {each}" for each in of_state(state)]
        for before, after in pairwise(states):
            for of_change in (transitions, observed):
                wrong += [f"{identity}: {each}" for each in of_change(before, after)]
    return wrong


def form(document: Document) -> Iterator[str]:
    """KN-CON-01: what is wrong with the form of a document's conditions."""
    types = [each.get("type", "") for each in conditions(document)]
    if len(set(types)) < len(types):
        yield f"a type is there twice: {types}"
    for each in conditions(document):
        if unknown := each.keys() - FIELDS:
            yield f"unknown fields {unknown} in {each}"
        if not _WORD(each.get("type", "")):
            yield f"the type is no CamelCase word: {each}"
        if each.get("status") not in ("True", "False", "Unknown"):
            yield f"the status is none: {each}"
        if "reason" in each and not _WORD(each["reason"]):
            yield f"the reason is no CamelCase word: {each}"
        if each.get("severity", "") not in ("", "Warning", "Info"):
            yield f"the severity is none: {each}"
        if not _TIME(each.get("lastTransitionTime", "")):
            yield f"the time is not RFC 3339: {each}"


def transitions(before: Document, after: Document) -> Iterator[str]:
    """KN-CON-01: what is wrong with a change of conditions."""
    was = {each["type"]: each for each in conditions(before)}
    for each in conditions(after):
        old = was.get(each["type"])
        if old is None:
            continue
        moved = old["lastTransitionTime"] != each["lastTransitionTime"]
        if old["status"] == each["status"] and moved:
            yield f"the time moved without the status: {old} -> {each}"
        if each["lastTransitionTime"] < old["lastTransitionTime"]:
            yield f"the time went back: {old} -> {each}"


def sums(document: Document) -> Iterator[str]:
    """KN-CON-02: what is wrong with `Ready`."""
    if not (found := conditions(document)):
        return
    ready = next((each for each in found if each["type"] == "Ready"), None)
    if ready is None:
        yield "there is no Ready"
        return
    if ready.get("severity"):
        yield f"Ready has a severity: {ready}"
    counting = {each["status"] for each in found if each is not ready and not each.get("severity")}
    if "False" in counting and ready["status"] != "False":
        yield f"something is False and Ready is {ready['status']}"
    if "Unknown" in counting and ready["status"] == "True":
        yield "something is Unknown and Ready is True"


def reasons(document: Document) -> Iterator[str]:
    """KN-CON-03: what isn't True and doesn't say why."""
    for each in conditions(document):
        if each["status"] != "True" and not (each.get("reason") and each.get("message")):
            yield f"no reason or message: {each}"


def observed(before: Document, after: Document) -> Iterator[str]:
    """KN-BRK-14: `observedGeneration` without the conditions that belong to it, or the reverse."""
    status: Mapping[str, Any] = after.get("status", {})
    if ("observedGeneration" in status) != bool(conditions(after)):
        yield f"one without the other: {status}"
    was = before.get("status", {}).get("observedGeneration", 0)
    if status.get("observedGeneration", was) < was:
        yield f"observedGeneration went back from {was}"


def severities(document: Document) -> Iterator[str]:
    """KN-CON-04: what is False without a severity although the object is Ready: True is good."""
    if is_ready(document):
        for each in conditions(document):
            if each["status"] != "True" and not each.get("severity"):
                yield f"Ready, and yet: {each}"


def addresses(document: Document) -> Iterator[str]:
    """What is Ready without its addresses: a Broker's own, a Trigger's subscriber, and a sink's."""
    if not is_ready(document):
        return
    status, delivery = document["status"], document.get("spec", {}).get("delivery", {})
    told = {
        "address": (status.get("address") or {}).get("url", "")
        if document["kind"] == "Broker"
        else status.get("subscriberUri", "")
    }
    if "deadLetterSink" in delivery:
        told["sink"] = status.get("deadLetterSinkUri", "")
    for name, url in told.items():
        if not url.startswith("http://"):
            yield f"Ready, and its {name} is {url!r}"
