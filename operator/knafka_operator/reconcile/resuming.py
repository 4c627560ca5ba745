"""Resuming: what was being delivered when an operator starts, from what Services themselves say.

    Triggers, dispatchers' Services -> Revision that serves -> Egress, Secret -> Watched

That takes no reconciliation and nothing from Kafka: a Service's environment has the contract, its
annotations and volumes the rest. So every Trigger that was delivered to is delivered to again after
a few requests in all, and reconciled in its turn.

Not here: watching (`triggers`), and whether a Trigger is still as declared (reconciling tells).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from knafka.core.contract import Egress
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decide import services
from knafka_operator.decide.trigger import DEFAULT_AUTOSCALING
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.model.cluster import Cluster, Document, decoded
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.reconcile.state import Watched, group_in_status
from knafka_operator.scale.kafka_clusters import KafkaCluster, KafkaClusters

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Requests under way at a time."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What serves a Trigger."""

    egress: Egress
    secret: tuple[str, str] | None
    """Name and version of the Secret that its pods mount."""
    partitions: int
    """What max-scale allows for; reconciling knows better."""


class Resuming:
    """One look at everything; Secrets are read once each."""

    def __init__(self, cluster: Cluster, kafkas: KafkaClusters) -> None:
        self._cluster = cluster
        self._kafkas = kafkas
        self._secrets: dict[tuple[str, str], asyncio.Task[Document | None]] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def found(
        self, triggers: Iterable[Document], found: Iterable[Document]
    ) -> list[tuple[Document, Watched]]:
        """The Triggers that one of these Services serves, and how; others are left out."""
        owned = {uid: each for each in found for uid in _owners(each)}
        asked = [
            self._watched(each, owned[each["metadata"]["uid"]])
            for each in triggers
            if each["metadata"]["uid"] in owned and "deletionTimestamp" not in each["metadata"]
        ]
        return [each for each in await asyncio.gather(*asked) if each is not None]

    async def connect(self, found: Iterable[Document]) -> None:
        """Connect to every Kafka that these Services name."""
        await asyncio.gather(*map(self._connected, found))

    async def _connected(self, service: Document) -> None:
        try:
            serving = serves(service["spec"]["template"])
            await self._kafka(serving, service["metadata"]["namespace"])
        except KnafkaError as error:
            log.info("%s is left to reconciling: %s", service["metadata"]["name"], error)
        except Exception:  # whatever it is, the others are connected to
            log.exception("Service %s", service["metadata"]["name"])

    async def _watched(
        self, trigger: Document, service: Document
    ) -> tuple[Document, Watched] | None:
        name = "/".join((trigger["metadata"]["namespace"], trigger["metadata"]["name"]))
        try:
            return await self._found(trigger, service)
        except KnafkaError as error:
            log.warning("Trigger %s is left to reconciling: %s", name, error)
        except Exception:  # whatever it is, the others are resumed
            log.exception("Trigger %s is left to reconciling", name)
        return None

    async def _found(self, trigger: Document, service: Document) -> tuple[Document, Watched] | None:
        template = await self._template(service)
        if template is None:
            return None
        serving, metadata = serves(template), trigger["metadata"]
        if group_in_status(trigger) != serving.egress.group:
            return None  # it was promised nothing yet, has another group by now, or can't have this
        kafka = await self._kafka(serving, metadata["namespace"])
        autoscaling = _autoscaling(metadata.get("annotations") or {})
        return trigger, Watched(
            kafka, serving.egress, autoscaling, serving.partitions, serving.secret
        )

    async def _template(self, service: Document) -> Document | None:
        """That of the Revision which serves; None: none does."""
        status = service.get("status") or {}
        serving = status.get("latestReadyRevisionName")
        if not serving:
            return None
        metadata = service["metadata"]
        newest = status.get("latestCreatedRevisionName") == serving
        if newest and status.get("observedGeneration") == metadata.get("generation"):
            template: Document = service["spec"]["template"]
            return template
        async with self._at_once:
            return await self._cluster.get(SERVING, "Revision", metadata["namespace"], serving)

    async def _kafka(self, serving: Serving, namespace: str) -> KafkaCluster:
        secret = None
        if serving.secret is not None:
            secret = await self._secret((namespace, serving.secret[0]))
        return self._kafkas.at(serving.egress.kafka.bootstrap_servers, secret)

    async def _secret(self, of: tuple[str, str]) -> Mapping[str, str]:
        if of not in self._secrets:
            self._secrets[of] = asyncio.create_task(self._cluster.get(CORE, "Secret", *of))
        found = await self._secrets[of]
        if found is None:
            raise InvalidDocument("volumes", f"Secret {'/'.join(of)} does not exist")
        return decoded(found)


def serves(template: Document) -> Serving:
    """What a dispatcher's template, or a Revision, says; raises `InvalidDocument`."""
    annotations = template["metadata"].get("annotations") or {}
    spec = template["spec"]
    environment = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    try:
        egress = parse(Egress, json.loads(environment[services.EGRESS]))
        mounted = [each["secret"]["secretName"] for each in spec.get("volumes") or ()]
        partitions = int(annotations[services.MAX_SCALE])
    except (KeyError, ValueError) as error:
        raise InvalidDocument(services.EGRESS, f"no dispatcher of ours: {error!r}") from error
    version = str(annotations.get(services.SECRET_VERSION, ""))
    return Serving(egress, (mounted[0], version) if mounted else None, partitions)


def _autoscaling(annotations: Mapping[str, str]) -> Autoscaling:
    try:
        return Autoscaling.from_annotations(annotations, DEFAULT_AUTOSCALING)
    except InvalidDocument:
        return DEFAULT_AUTOSCALING  # reconciling says what is wrong with it


def _owners(document: Document) -> Sequence[Any]:
    return [each["uid"] for each in document["metadata"].get("ownerReferences") or ()]
