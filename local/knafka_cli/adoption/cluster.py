"""Carries out the steps of an adoption plan in the cluster, and waits for their effects.

A list of finalizers is written only if the object hasn't changed since it was read, so that no
change by others is lost. A command that was killed can be run again.

Not here: deciding the steps (`broker_plan`, `channel_plan`, `source_plan`), and reading the objects
for these decisions (`looking`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from knafka_cli.adoption.broker_plan import plan_broker_adoption, plan_broker_release
from knafka_cli.adoption.channel_plan import plan_channel_adoption, plan_channel_release
from knafka_cli.adoption.looking import OBJECTS, Looking
from knafka_cli.adoption.plan import PEER, Document, Plan, SetFinalizers, Step, WriteAnnotations
from knafka_cli.adoption.source_plan import plan_source_adoption, plan_source_release
from knafka_operator.decisions.status import CONTRACT_UPDATED, DELIVERING, is_ready, why_not_ready
from knafka_operator.model.channels import KAFKA_CHANNEL
from knafka_operator.model.cluster import ClusterError, Conflict
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import finalizers_of
from knafka_operator.model.sources import KAFKA_SOURCE

LOOK_AGAIN: Final = 1.0
"""Seconds between two looks at what has still to happen."""
WRITES: Final = 5
"""Times that a list of finalizers is written, should somebody else write the object meanwhile."""


KNAFKA_ONLY_CONDITIONS: Final = {CONTRACT_UPDATED, DELIVERING}
"""Conditions that only Knafka's operator sets: the first on Brokers and KafkaChannels, the second
on Triggers and KafkaSources. Until it has reconciled an object, the status has the peer's
conditions, which may be Ready."""


class Adopter(Looking):
    """Makes plans for objects of one cluster, and carries them out, under the rights of its
    user."""

    def make_plan(
        self, kind: str, identity: Identity, *, back: bool = False
    ) -> tuple[Plan, Sequence[str]]:
        """Return the plan to take something over, or to give it back, and what could not be read
        for it. Raises `ClusterError`, also where there is no such object, `LogError` and
        `InvalidDocument`."""
        if kind == KAFKA_SOURCE:
            source = self.observe_source(identity)
            decide_source = plan_source_release if back else plan_source_adoption
            return decide_source(source), source.unseen
        if kind == KAFKA_CHANNEL:
            channel = self.observe_channel(identity)
            decide = plan_channel_release if back else plan_channel_adoption
            return decide(channel), channel.unseen
        broker = self.observe_broker(identity)
        decide_broker = plan_broker_release if back else plan_broker_adoption
        return decide_broker(broker), broker.unseen

    def wait_until_group_empty(self, kind: str, identity: Identity, timeout: float) -> Plan:
        """Wait until no group has members, that is, until a new plan has no `waits`; returns that
        plan. Raises `ClusterError` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            plan, _ = self.make_plan(kind, identity)
            if not plan.waits:
                return plan
            if time.monotonic() > deadline:
                raise ClusterError(f"after {timeout:.0f} s {'; '.join(plan.waits)}")
            time.sleep(LOOK_AGAIN)

    def run_step(self, step: Step) -> None:
        """Run one step of a plan; running it again changes nothing. Raises `ClusterError`."""
        match step:
            case WriteAnnotations(kind, of, annotations, clears):
                status: dict[str, Any] = {"annotations": dict(annotations)}
                body = {"status": status | {key: [] for key in clears}}
                self._api.patch(OBJECTS[kind], *of, body, subresource="status")
            case SetFinalizers():
                self._set_finalizers(step)

    def carry_out(self, plan: Plan) -> None:
        """Carry out every step, in order. Raises `ClusterError`."""
        for step in plan.steps:
            self.run_step(step)

    def wait_until_complete(
        self,
        what: str,
        kind: str,
        identity: Identity,
        timeout: float,
        missing: Callable[[Sequence[Document]], str | None],
    ) -> None:
        """Wait until nothing is `missing` of a Broker with its Triggers, a KafkaChannel or a
        KafkaSource. Raises `ClusterError` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            stored = self._get(kind, identity)
            if stored is None:
                raise ClusterError(f"{kind} {identity} is gone")
            others = self._triggers_of(identity) if kind == "Broker" else []
            if (told := missing([stored, *others])) is None:
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"{what} after {timeout:.0f} s: {told}")
            time.sleep(LOOK_AGAIN)

    def _set_finalizers(self, step: SetFinalizers) -> None:
        """Add and remove an object's finalizers; tries again after a conflict, `WRITES` times at
        most. Raises `ClusterError`."""
        for _ in range(WRITES):
            stored = self._get(step.kind, step.of)
            if stored is None:
                return
            metadata = stored["metadata"]
            before = finalizers_of(stored)
            now = [each for each in before if each not in step.drop]
            now += [each for each in step.add if each not in now]
            if now == before:
                return
            body = {"metadata": {"finalizers": now, "resourceVersion": metadata["resourceVersion"]}}
            with suppress(Conflict):
                self._api.patch(OBJECTS[step.kind], *step.of, body)
                return
        raise ClusterError(f"{step.kind} {step.of} is written by somebody else all the time")


def explain_not_ready(documents: Sequence[Document]) -> str | None:
    """Return which of these objects Knafka's operator hasn't made Ready, and why; None: all are
    Ready. A KafkaChannel counts as Ready only if every entry of its `spec.subscribers` is Ready,
    too."""
    waiting = [
        f"{document['kind']} {Identity.of(document)}: {why}"
        for document in documents
        if (why := _why_not_ready(document)) is not None
    ]
    return "; ".join(waiting) or None


def _why_not_ready(document: Document) -> str | None:
    """Return why Knafka's operator hasn't made an adopted object Ready yet, as text for users;
    None: the object is Ready, and so is each Subscription of a channel."""
    status = document.get("status") or {}
    types = {condition.get("type") for condition in status.get("conditions") or ()}
    if types and not types & KNAFKA_ONLY_CONDITIONS:
        return f"its status is still the one that {PEER} wrote"
    if not is_ready(document):
        return why_not_ready(document)
    entries = (document.get("spec") or {}).get("subscribers") or ()
    reported = {entry.get("uid"): entry for entry in status.get("subscribers") or ()}
    for entry in entries if document["kind"] == KAFKA_CHANNEL else ():
        now = reported.get(entry.get("uid"), {})
        if now.get("ready") != "True":
            name = entry.get("name") or entry.get("uid")
            return f"Subscription {name}: {now.get('message') or 'it says nothing yet'}"
    return None
