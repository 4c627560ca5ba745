"""Resuming: finds the running deliveries when an operator starts, from the dispatchers' Services.

    Triggers, dispatchers' Services -> Revision that serves -> Egress, Secret -> Watched
    Triggers, shards' Services      -> Revision that serves -> contract, Secret -> Watched

An `Egress` says how a Trigger is to be delivered; a `Watched` is a running delivery. A shard is a
dispatcher that many Triggers of a Broker share; the Broker's contract, a topic, has their Egresses.

No reconciliation is needed: a Service's environment has the contract, its annotations and volumes
the rest. So every Trigger's delivery resumes after a few requests in all, and is reconciled later.
Kafka is read only for the contracts of Brokers that share dispatchers, each contract once, those of
one Broker within `CONTRACT_TIMEOUT`: a Kafka that doesn't answer delays only its own Brokers.

Not here: starting to scale the deliveries (`triggers.kind`), and whether they are still as
declared, which reconciling checks.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from knafka.core.contract import Egress, Kafka, Receiver, Shard
from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument, KnafkaError
from knafka.core.filters.filter_limits import characters_of
from knafka_operator.dispatchers.shard_services import Shards
from knafka_operator.functions import services
from knafka_operator.functions.dispatcher_services import (
    EGRESS_VARIABLE,
    SHARD_VARIABLE,
    shard_number,
)
from knafka_operator.installation.settings import Settings
from knafka_operator.kafka.clusters import KafkaCluster, KafkaClusters
from knafka_operator.kafka.endpoints import check_endpoint
from knafka_operator.kafka.shards import ShardPlacement
from knafka_operator.model.autoscaling import DEFAULT_AUTOSCALING, Autoscaling
from knafka_operator.model.cluster import Cluster, Document, decode_secret
from knafka_operator.model.identity import Identity
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import CORE, SERVING
from knafka_operator.records.state import Watched, group_in_status
from knafka_operator.scale.parsing import LARGE_DOCUMENT, parse_off_loop

log = logging.getLogger(__name__)

MAX_REQUESTS: Final = 8
"""Most concurrent requests."""

CONTRACT_TIMEOUT: Final = 5.0
"""Seconds to read a Broker's contract; after that its Triggers wait for their reconciliation."""


@dataclass(frozen=True, slots=True)
class ServingDispatcher:
    """The delivery that the Service of a Trigger's dispatcher describes."""

    egress: Egress
    secret: tuple[str, str] | None
    """Name and version of the Secret that its pods mount; None: they mount none."""
    partitions: int
    """The Service's max-scale; it stands for the number of the topic's partitions until the Trigger
    is reconciled."""
    min_scale: int
    """The Service's min-scale."""


@dataclass(frozen=True, slots=True)
class ServingShard:
    """A shard, as its Service describes it."""

    number: int
    """The shard's number, unique among its Broker's shards."""
    shard: Shard
    """The contract in the Service's environment."""
    kafka: KafkaCluster
    secret: tuple[str, str] | None
    """Name and version of the Secret that its pods mount; None: they mount none."""


class Resuming:
    """Finds running deliveries in one pass; reads each Secret once."""

    def __init__(
        self, cluster: Cluster, kafkas: KafkaClusters, shards: Shards, settings: Settings
    ) -> None:
        self._cluster = cluster
        self._maxima, self._naming = settings.maxima, settings.naming
        self._kafkas = kafkas
        self._shards = shards
        self._secrets: dict[tuple[str, str], asyncio.Task[Document | None]] = {}
        """The reading of each Secret, by namespace and name, so that it is read once."""
        self._request_limit = asyncio.Semaphore(MAX_REQUESTS)
        """Limits the concurrent requests for Revisions."""

    async def find_delivered_by_services(
        self, triggers: Iterable[Document], found_services: Iterable[Document]
    ) -> list[tuple[Document, Watched]]:
        """Return the Triggers that one of `found_services` delivers, each with its delivery. Leaves
        out Triggers that are being deleted, and Triggers whose look-up fails, which is logged."""
        service_by_owner = {
            uid: service for service in found_services for uid in services.owner_uids(service)
        }
        lookups = [
            self._find_delivered_or_none(trigger, service_by_owner[trigger["metadata"]["uid"]])
            for trigger in triggers
            if trigger["metadata"]["uid"] in service_by_owner
            and "deletionTimestamp" not in trigger["metadata"]
        ]
        return [delivery for delivery in await asyncio.gather(*lookups) if delivery is not None]

    async def find_delivered_with_shards(
        self,
        broker: Document,
        triggers: Collection[Document],
        own_services: Iterable[Document],
        shards: Iterable[Document],
    ) -> list[tuple[Document, Watched]]:
        """Return the delivered Triggers of one Broker with shared dispatchers, each with its
        delivery. `own_services` are the Services of its Triggers' own dispatchers, `shards` those
        of its shards.

        A Trigger is delivered by the shard that has its record, else by its own Service. Empty if
        the Broker's contract can't be read within `CONTRACT_TIMEOUT`, which is logged.
        """
        name = str(Identity.of(broker))
        try:
            async with asyncio.timeout(CONTRACT_TIMEOUT):
                return await self._find_delivered_with_shards(
                    broker, triggers, own_services, shards
                )
        except TimeoutError:
            log.warning("Broker %s is resumed when it is reconciled: Kafka doesn't answer", name)
        except KnafkaError as error:
            log.warning("Broker %s is resumed when it is reconciled: %s", name, error)
        except Exception:  # whatever it is, the others are resumed
            log.exception("Broker %s is resumed when it is reconciled", name)
        return []

    async def _find_delivered_with_shards(
        self,
        broker: Document,
        triggers: Collection[Document],
        own_services: Iterable[Document],
        shards: Iterable[Document],
    ) -> list[tuple[Document, Watched]]:
        """Return the deliveries as `find_delivered_with_shards` does, but without a time limit.
        Raises `KnafkaError` if the contract can't be read."""
        uid = broker["metadata"]["uid"]
        shard_lookups = [
            self._read_serving_shard(service)
            for service in shards
            if uid in services.owner_uids(service)
        ]
        serving_shards = await asyncio.gather(*shard_lookups)
        shard_by_group = {shard.shard.group: shard for shard in serving_shards if shard}
        contract = await self._read_contract(broker, shard_by_group)
        watched_by_group: dict[str, Watched] = {}
        for group, (egress, shard) in contract.items():
            place = ShardPlacement(shard.number, shard.shard)
            unknown_partitions = 1  # reconciling replaces it
            watched_by_group[group] = Watched(
                shard.kafka, egress, DEFAULT_AUTOSCALING, unknown_partitions, shard.secret, place
            )
        deliveries, unshared_triggers = [], []
        for trigger in triggers:
            watched = watched_by_group.get(group_in_status(trigger, self._naming) or "")
            if watched is None:
                unshared_triggers.append(trigger)
            elif "deletionTimestamp" not in trigger["metadata"]:
                annotations = trigger["metadata"].get("annotations") or {}
                autoscaling = _read_autoscaling(annotations, self._maxima)
                deliveries.append((trigger, replace(watched, autoscaling=autoscaling)))
        own_deliveries = await self.find_delivered_by_services(unshared_triggers, own_services)
        return [*deliveries, *own_deliveries]

    async def _read_contract(
        self, broker: Document, shard_by_group: Mapping[str, ServingShard]
    ) -> Mapping[str, tuple[Egress, ServingShard]]:
        """Return, for each Trigger's consumer group in the Broker's contract, its Egress and the
        shard that delivers it. `shard_by_group` has the running shards by the shard's own group;
        Triggers of another shard are left out. Raises `LogError`."""
        egress_and_shard_by_group = {}
        for kafka in {shard.kafka for shard in shard_by_group.values()}:
            contract = await self._shards.resume(broker, kafka)
            for group, record in contract.records.items():
                if (shard := shard_by_group.get(record.shard)) is not None:
                    egress_and_shard_by_group[group] = record.egress, shard
        return egress_and_shard_by_group

    async def _read_serving_shard(self, service: Document) -> ServingShard | None:
        """Return the shard that the Ready Revision of a Service runs; None: the Service has no
        Ready Revision, or isn't a shard's. Raises `KnafkaError`."""
        template = await self._read_serving_template(service)
        number = shard_number(service)
        if template is None or number is None:
            return None
        shard, secret = read_shard(template)
        kafka = await self._connect_kafka(shard.kafka, secret, service["metadata"]["namespace"])
        return ServingShard(number, shard, kafka, secret)

    async def connect(self, found_services: Iterable[Document]) -> None:
        """Connect to every Kafka that one of `found_services` uses; errors are logged."""
        await asyncio.gather(*map(self._connect_logged, found_services))

    async def _connect_logged(self, service: Document) -> None:
        """Connect to the Kafka that the Service of a dispatcher or shard uses, so that the client
        is ready; errors are logged."""
        try:
            template, namespace = service["spec"]["template"], service["metadata"]["namespace"]
            if shard_number(service) is not None:
                shard, secret = read_shard(template)
                await self._connect_kafka(shard.kafka, secret, namespace)
            else:
                serving = await _read_dispatcher_off_loop(template)
                if serving.egress.conversion is not None:
                    return  # a KafkaSource's Service doesn't show its credentials
                await self._connect_kafka(serving.egress.kafka, serving.secret, namespace)
        except KnafkaError as error:
            log.info("%s is resumed when it is reconciled: %s", service["metadata"]["name"], error)
        except Exception:  # any error: continue with the other Services
            log.exception("Service %s", service["metadata"]["name"])

    async def _find_delivered_or_none(
        self, trigger: Document, service: Document
    ) -> tuple[Document, Watched] | None:
        """Return a Trigger and its delivery as `_find_delivered_by_service` does; None also after
        any error, which is logged."""
        name = "/".join((trigger["metadata"]["namespace"], trigger["metadata"]["name"]))
        try:
            return await self._find_delivered_by_service(trigger, service)
        except KnafkaError as error:
            log.warning("Trigger %s is resumed when it is reconciled: %s", name, error)
        except Exception:  # whatever it is, the others are resumed
            log.exception("Trigger %s is resumed when it is reconciled", name)
        return None

    async def _find_delivered_by_service(
        self, trigger: Document, service: Document
    ) -> tuple[Document, Watched] | None:
        """Return a Trigger and its delivery as its Service runs it; None if the Service isn't Ready
        or serves another group than the Trigger's status names. Raises `KnafkaError`."""
        template = await self._read_serving_template(service)
        if template is None:
            return None
        serving, metadata = await _read_dispatcher_off_loop(template), trigger["metadata"]
        if group_in_status(trigger, self._naming) != serving.egress.group:
            return None  # the status names no group yet, or another one
        kafka = await self._connect_kafka(
            serving.egress.kafka, serving.secret, metadata["namespace"]
        )
        autoscaling = _read_autoscaling(metadata.get("annotations") or {}, self._maxima)
        # A larger declared min-scale waits for the reconciliation, which may refuse it.
        min_scale = min(autoscaling.min_scale, serving.min_scale)
        return trigger, Watched(
            kafka,
            serving.egress,
            replace(autoscaling, min_scale=min_scale),
            serving.partitions,
            serving.secret,
        )

    async def _read_serving_template(self, service: Document) -> Document | None:
        """Return the template of a Service's serving Revision, or the Revision itself, which has
        the same form; None: no Revision is Ready. Raises `ClusterError`."""
        status = service.get("status") or {}
        revision_name = status.get("latestReadyRevisionName")
        if not revision_name:
            return None
        metadata = service["metadata"]
        is_newest = status.get("latestCreatedRevisionName") == revision_name
        # Then the Service's own template is that of the Revision, and no request is needed.
        if is_newest and status.get("observedGeneration") == metadata.get("generation"):
            template: Document = service["spec"]["template"]
            return template
        namespace = metadata["namespace"]
        async with self._request_limit:
            return await self._cluster.get(SERVING, "Revision", namespace, revision_name)

    async def _connect_kafka(
        self, kafka: Kafka | None, mounted_secret: tuple[str, str] | None, namespace: str
    ) -> KafkaCluster:
        """Return the cluster `kafka` of a function's contract, connected with the Secret that the
        function mounts.

        `mounted_secret` is that Secret's name and version (None: none), `namespace` the function's.
        Raises `InvalidDocument` for a contract without a Kafka, or if a Secret outside the
        operator's namespace has a token endpoint that isn't allowed.
        """
        if kafka is None:
            raise InvalidDocument(SHARD_VARIABLE, "no shard of ours: it names no Kafka")
        secret = (
            None
            if mounted_secret is None
            else await self._read_secret_data((namespace, mounted_secret[0]))
        )
        settings = self._shards.settings
        is_own = namespace == settings.namespace
        if secret is not None and not is_own:
            await check_endpoint(secret, settings)
        return self._kafkas.ensure_cluster(kafka.bootstrap_servers, secret, is_own=is_own)

    async def _read_secret_data(self, identity: tuple[str, str]) -> Mapping[str, str]:
        """Return the decoded data of a Secret by namespace and name; reads each Secret once. Raises
        `InvalidDocument` if the Secret doesn't exist, and `ClusterError`."""
        if identity not in self._secrets:
            reading = self._cluster.get(CORE, "Secret", *identity)
            self._secrets[identity] = asyncio.create_task(reading)
        secret = await self._secrets[identity]
        if secret is None:
            raise InvalidDocument("volumes", f"Secret {'/'.join(identity)} does not exist")
        return decode_secret(secret)


def read_dispatcher(template: Document) -> ServingDispatcher:
    """Parse the template or Revision of a Trigger's own dispatcher. Raises `InvalidDocument`."""
    annotations = template["metadata"].get("annotations") or {}
    try:
        egress = parse(Egress, json.loads(_environment(template)[EGRESS_VARIABLE]))
        partitions = int(annotations[services.MAX_SCALE])
        min_scale = int(annotations.get(services.MIN_SCALE, "0"))
    except (KeyError, ValueError) as error:
        raise InvalidDocument(EGRESS_VARIABLE, f"no dispatcher of ours: {error!r}") from error
    return ServingDispatcher(egress, _find_mounted_secret(template), partitions, min_scale)


async def _read_dispatcher_off_loop(template: Document) -> ServingDispatcher:
    """Parse a template or Revision as `read_dispatcher` does, but a large one in a thread, so that
    the event loop isn't blocked. Raises `InvalidDocument`."""
    return await parse_off_loop(
        lambda: read_dispatcher(template), characters_of(template, LARGE_DOCUMENT)
    )


def read_shard(template: Document) -> tuple[Shard, tuple[str, str] | None]:
    """Parse the template or Revision of a shard. Returns its contract, and name and version of its
    mounted Secret (None: none). Raises `InvalidDocument`."""
    try:
        shard = parse(Shard, json.loads(_environment(template)[SHARD_VARIABLE]))
        return shard, _find_mounted_secret(template)
    except (KeyError, ValueError) as error:
        raise InvalidDocument(SHARD_VARIABLE, f"no shard of ours: {error!r}") from error


def read_receiver(template: Document) -> tuple[Receiver, tuple[str, str] | None]:
    """Parse the template of a channels' receiver. Returns its contract, and name and version of its
    mounted Secret (None: none). Raises `InvalidDocument`."""
    try:
        text = _environment(template)[services.RECEIVER_VARIABLE]
        return parse(Receiver, json.loads(text)), _find_mounted_secret(template)
    except (KeyError, ValueError) as error:
        message = f"no receiver of ours: {error!r}"
        raise InvalidDocument(services.RECEIVER_VARIABLE, message) from error


def _environment(template: Document) -> Mapping[str, str]:
    """Return the environment variables of a template's first container."""
    return services.environment_of(template["spec"]["containers"][0])


def _find_mounted_secret(template: Document) -> tuple[str, str] | None:
    """Return name and version of the first Secret that a template mounts; None: it mounts none.
    Raises `KeyError`."""
    volumes = template["spec"].get("volumes") or ()
    secret_names = [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]
    if not secret_names:
        return None
    annotations = template["metadata"].get("annotations") or {}
    return secret_names[0], str(annotations.get(services.SECRET_VERSION, ""))


def _read_autoscaling(annotations: Mapping[str, str], maxima: Maxima) -> Autoscaling:
    """Return the scaling settings in a Trigger's annotations; the defaults if they are invalid."""
    try:
        return Autoscaling.from_annotations(annotations, DEFAULT_AUTOSCALING, maxima)
    except InvalidDocument:
        return DEFAULT_AUTOSCALING  # reconciliation reports the error
