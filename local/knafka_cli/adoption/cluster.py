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
from knafka_cli.adoption.looking import OBJECTS, AdoptionObserver
from knafka_cli.adoption.plan import PEER, Document, Plan, SetFinalizers, Step, WriteAnnotations
from knafka_cli.adoption.source_plan import plan_source_adoption, plan_source_release
from knafka_operator.decisions.status import CONTRACT_UPDATED, DELIVERING, is_ready, why_not_ready
from knafka_operator.model.channels import KAFKA_CHANNEL
from knafka_operator.model.cluster import ClusterError, Conflict
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import finalizers_of
from knafka_operator.model.sources import KAFKA_SOURCE

ADOPTION_POLL_INTERVAL: Final = 1.0
"""Seconds between two checks whether a plan's effects have happened."""
FINALIZER_WRITE_ATTEMPTS: Final = 5
"""Attempts to write a list of finalizers; an attempt fails if somebody else changes the object
between its read and its write."""

KNAFKA_ONLY_CONDITIONS: Final = {CONTRACT_UPDATED, DELIVERING}
"""Conditions that only Knafka's operator sets: the first on Brokers and KafkaChannels, the second
on Triggers and KafkaSources. Until the operator has reconciled an adopted object, its status has
the peer's conditions, which may be Ready."""


class Adopter(AdoptionObserver):
    """Makes plans for objects of one cluster, and carries them out, under the rights of its
    user."""

    def make_plan(
        self, kind: str, identity: Identity, *, release: bool = False
    ) -> tuple[Plan, Sequence[str]]:
        """Return the plan to adopt a Broker, KafkaChannel or KafkaSource (with `release` True: to
        release it), and a sentence for each object that could not be read.

        Raises `ClusterError`, also if the object doesn't exist, `LogError` and `InvalidDocument`.
        """
        if kind == KAFKA_SOURCE:
            source = self.observe_source(identity)
            plan_source = plan_source_release if release else plan_source_adoption
            return plan_source(source), source.unseen
        if kind == KAFKA_CHANNEL:
            channel = self.observe_channel(identity)
            plan_channel = plan_channel_release if release else plan_channel_adoption
            return plan_channel(channel), channel.unseen
        broker = self.observe_broker(identity)
        plan_broker = plan_broker_release if release else plan_broker_adoption
        return plan_broker(broker), broker.unseen

    def wait_for_preconditions(self, kind: str, identity: Identity, timeout: float) -> Plan:
        """Wait until what must end by itself before an adoption (`Plan.waits`) has ended, such as
        the membership of others in the object's consumer groups: make the plan anew each second.
        Returns the last plan, which may have problems. Raises `ClusterError` if the plan still has
        `waits` after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            plan, _ = self.make_plan(kind, identity)
            if not plan.waits:
                return plan
            if time.monotonic() > deadline:
                raise ClusterError(f"after {timeout:.0f} s {'; '.join(plan.waits)}")
            time.sleep(ADOPTION_POLL_INTERVAL)

    def run_step(self, step: Step) -> None:
        """Run one step of a plan; running a step again changes nothing. Raises `ClusterError`."""
        match step:
            case WriteAnnotations(kind, identity, annotations, clears):
                status: dict[str, Any] = {"annotations": dict(annotations)}
                body = {"status": status | {key: [] for key in clears}}
                self._api.patch(OBJECTS[kind], *identity, body, subresource="status")
            case SetFinalizers():
                self._set_finalizers(step)

    def carry_out(self, plan: Plan) -> None:
        """Carry out every step of a plan, in order. Raises `ClusterError` if a step fails; the
        steps before it stay done, and the whole plan may be carried out again."""
        for step in plan.steps:
            self.run_step(step)

    def wait_until_complete(
        self,
        error_prefix: str,
        kind: str,
        identity: Identity,
        timeout: float,
        find_missing: Callable[[Sequence[Document]], str | None],
    ) -> None:
        """Wait until an adoption or release is complete: `find_missing` returns None.

        `find_missing` is called each second with a list: the object, then its Triggers if it is a
        Broker. The function returns a text about the objects that aren't done yet. Raises
        `ClusterError` with `error_prefix` and this text after `timeout` seconds, and if the object
        is gone.
        """
        deadline = time.monotonic() + timeout
        while True:
            stored = self._get(kind, identity)
            if stored is None:
                raise ClusterError(f"{kind} {identity} is gone")
            triggers = self._read_triggers(identity) if kind == "Broker" else []
            if (missing := find_missing([stored, *triggers])) is None:
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"{error_prefix} after {timeout:.0f} s: {missing}")
            time.sleep(ADOPTION_POLL_INTERVAL)

    def _set_finalizers(self, step: SetFinalizers) -> None:
        """Add and remove an object's finalizers; do nothing if the object doesn't exist. A conflict
        with another write is tried again, with `FINALIZER_WRITE_ATTEMPTS` attempts in all. Raises
        `ClusterError`."""
        for _ in range(FINALIZER_WRITE_ATTEMPTS):
            stored = self._get(step.kind, step.identity)
            if stored is None:
                return
            version = stored["metadata"]["resourceVersion"]
            existing = finalizers_of(stored)
            desired = [name for name in existing if name not in step.drop]
            desired += [name for name in step.add if name not in desired]
            if desired == existing:
                return
            body = {"metadata": {"finalizers": desired, "resourceVersion": version}}
            # With the version in it, the API server refuses the patch if the object has changed.
            with suppress(Conflict):
                self._api.patch(OBJECTS[step.kind], *step.identity, body)
                return
        raise ClusterError(f"{step.kind} {step.identity} is written by somebody else all the time")


def explain_not_ready(documents: Sequence[Document]) -> str | None:
    """Return a text that says which of these objects Knafka's operator hasn't made Ready, and why;
    None: all are Ready. A KafkaChannel counts as Ready only if every entry of its
    `spec.subscribers` is Ready, too."""
    sentences = [
        f"{document['kind']} {Identity.of(document)}: {reason}"
        for document in documents
        if (reason := _not_ready_reason(document)) is not None
    ]
    return "; ".join(sentences) or None


def _not_ready_reason(document: Document) -> str | None:
    """Return a text for users about why Knafka's operator hasn't made an adopted object Ready yet.
    Return None if the object is Ready, and, of a channel, each of its Subscriptions, too."""
    status = document.get("status") or {}
    condition_types = {condition.get("type") for condition in status.get("conditions") or ()}
    has_knafka_condition = bool(condition_types & KNAFKA_ONLY_CONDITIONS)
    if condition_types and not has_knafka_condition:
        return f"its status is still the one that {PEER} wrote"
    if not is_ready(document):
        return why_not_ready(document)
    if document["kind"] != KAFKA_CHANNEL:
        return None
    states = {state.get("uid"): state for state in status.get("subscribers") or ()}
    for entry in (document.get("spec") or {}).get("subscribers") or ():
        state = states.get(entry.get("uid"), {})
        if state.get("ready") != "True":
            name = entry.get("name") or entry.get("uid")
            return f"Subscription {name}: {state.get('message') or 'it says nothing yet'}"
    return None
