"""LocalCluster: the operator's `Cluster` on this machine, from manifest files.

    files --declare--> objects in memory <--get, apply, write_status-- Operator
                             |
                             +--> LocalServing: a Knative Service becomes a process

What a cluster has around it and one machine hasn't is settled at this edge, so that the operator
reconciles here as it does there: an installation's ConfigMap that nobody applied, Knative's own
ConfigMaps, addresses that need no DNS, and a status that outlives us (`localize`, `kept_names`).

Not here: reading files (`manifests`), starting anything (`serving`), reconciling (`controller`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from knafka_local.cluster import localize
from knafka_local.cluster.kept_names import KeptNames
from knafka_operator.decide import services
from knafka_operator.decide.sensor_manifests import SENSOR_ROLE
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Condition, Status, merged_conditions
from knafka_operator.model.family import CHANNELS, FAMILIES, family_of
from knafka_operator.model.resources import CORE, FINALIZER, GROUP_STATUS
from knafka_operator.model.sensors import KNAFKA, SENSOR
from knafka_operator.runtime.memory_cluster import MemoryCluster

FOLDER_ANNOTATION: Final = "local.knafka.dev/folder"
"""Annotation of a declared Service: where its manifest lies, so where its command runs."""
SERVES: Final = "Serves"
"""The condition of a Service beside Ready, for which it stands."""
"""On objects of `DECLARED_KINDS`: they go when their topic or group has gone."""
DECLARED_KINDS: Final = (
    *(
        kind
        for family in FAMILIES
        for kind in (
            (family.broker_version, family.broker),
            (family.trigger_version, family.trigger),
        )
    ),
    (KNAFKA, SENSOR),
)
"""apiVersion and kind of what is reconciled."""
RECONCILED: Final = frozenset(kind for _, kind in DECLARED_KINDS)

_ASKED: Final = (services.DISPATCHER_ROLE, services.SHARD_ROLE, services.REPLAYER_ROLE, SENSOR_ROLE)
"""What Services that only run while they drain were made for."""

_INSTALLATION: Final = tuple(
    (localize.LOCAL_SETTINGS.namespace, name)
    for name in (localize.LOCAL_SETTINGS.config, localize.LOCAL_SETTINGS.channel_config)
)


class LocalCluster(MemoryCluster):
    """Objects in memory, as one machine has them; `url` is where all Brokers are addressed, and
    `channels_url` where all KafkaChannels are. `requires_auth`: senders must show tokens."""

    def __init__(self, url: str, channels_url: str, *, requires_auth: bool = False) -> None:
        super().__init__()
        self.requires_auth = requires_auth
        self._urls = {"Broker": url.rstrip("/"), CHANNELS.broker: channels_url.rstrip("/")}
        self._bootstrap_servers = ""
        self._names = KeptNames()
        self.adopts = False
        """Whether topics and groups that have the name of a new object are its own: this data was
        used before names were kept."""

    def connect(self, bootstrap_servers: str, names: KeptNames) -> None:
        """Kafka is there: what is reconciled may be declared from now on."""
        self._bootstrap_servers = bootstrap_servers
        self._names = names

    def declare(self, document: Document, folder: Path) -> None:
        """Store a document as a file declares it; `folder` is that of its manifest."""
        stored = localize.localized(document)
        metadata = stored["metadata"]
        if document["kind"] in RECONCILED:
            metadata = stored["metadata"] = {**metadata, "finalizers": [FINALIZER]}
            previous = self.find(stored["apiVersion"], document["kind"], *_place(stored))
            if previous is None:
                kept = self._names.get(name_of(stored))
                if kept is None and self.adopts:
                    kept = localize.adopted(stored)
                _keep(stored, kept or {})
            if document["kind"] == CHANNELS.broker:
                stored["spec"] = _with_subscribers(stored["spec"], previous)
        elif document["kind"] == "Service":
            annotations = {**(metadata.get("annotations") or {}), FOLDER_ANNOTATION: str(folder)}
            stored["metadata"] = {**metadata, "annotations": annotations}
        self.put(stored)

    def find(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """The stored document, which must not be changed; None: there is none."""
        return self.objects.get((_stored_version(api_version, kind), kind, namespace, name))

    def reconciled(self, kind: str, namespace: str, name: str) -> Document | None:
        """The same of an object of `DECLARED_KINDS`."""
        return self.find(version_of(kind), kind, namespace, name)

    def undeclared(self, kind: str) -> list[str]:
        """`namespace/name` of the objects of a kind that ran here and that no file declares any
        more; the kind is one of `DECLARED_KINDS`."""
        declared = {"/".join(_place(document)) for document in self.of(kind)}
        return [owner for owner in self._names.of(kind) if owner not in declared]

    def forget(self, document: Document) -> None:
        """Drop the kept names of an object that is gone with its topic or group: another object of
        that name gets new ones."""
        self._names.drop(name_of(document))

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        stored = await super().get(_stored_version(api_version, kind), kind, namespace, name)
        if (api_version, kind) != (CORE, "ConfigMap"):
            return stored
        if (namespace, name) in _INSTALLATION:
            return localize.installation(name, stored, self._bootstrap_servers)
        if (namespace, name) == localize.LOCAL_SETTINGS.features_config:
            return localize.features(stored, requires_auth=self.requires_auth)
        if stored is None and namespace not in map(_namespace, self.of("Broker")):
            # In a namespace without Brokers are the ConfigMaps that Knative installs for them.
            return localize.config_map(namespace, name, {})
        return stored

    def _stored(self, document: dict[str, Any]) -> None:
        # Before anybody hears of it: there is nothing to start, so nothing to wait for.
        if role_of(document) in _ASKED:
            document["status"] = service_status(document, Condition(SERVES, Status.TRUE))

    async def apply(self, manifest: Document) -> Document:
        if manifest["kind"] in RECONCILED:  # a Trigger or Subscription of a Sensor's
            metadata = {**localize.scaled_here(manifest["metadata"]), "finalizers": [FINALIZER]}
            manifest = {**manifest, "metadata": metadata}
            if self.reconciled(manifest["kind"], *_place(manifest)) is None:
                # A UID that were applied would go with what is applied without one.
                new = {**manifest, "metadata": {**metadata}}
                _keep(new, self._names.get(name_of(manifest)) or {})
                self.put(new)
        return await super().apply(manifest)

    async def write_status(self, document: Document, status: Document) -> None:
        if (url := self._urls.get(document["kind"])) is not None:
            status = localize.with_local_address(status, url)
        # Before anybody acts on it: a topic whose id is written nowhere would be nobody's.
        if document["kind"] in RECONCILED and "annotations" in status:
            stored = self.reconciled(document["kind"], *_place(document))
            if stored is not None:
                previous = (stored.get("status") or {}).get("annotations") or {}
                after = {**previous, **status["annotations"]}
                kept = {key: value for key, value in after.items() if value is not None}
                self._names.put(name_of(document), kept)
        await super().write_status(document, status)


def version_of(kind: str) -> str:
    """The apiVersion in which objects of one of `DECLARED_KINDS` are stored."""
    if kind == SENSOR:
        return KNAFKA
    family = family_of(kind)
    return family.broker_version if kind == family.broker else family.trigger_version


def role_of(document: Document) -> str | None:
    """Which role the operator made a Service for, such as a receiver's; None: the operator did not
    make it."""
    metadata = document["metadata"]
    if document["kind"] != "Service" or FOLDER_ANNOTATION in (metadata.get("annotations") or {}):
        return None
    role: str | None = (metadata.get("labels") or {}).get(services.ROLE_LABEL)
    return role


def service_status(document: Document, condition: Condition, **more: Any) -> dict[str, Any]:
    """A Service's status, by Knative's rules for its Revisions: each generation is one."""
    metadata = document["metadata"]
    revision = f"{metadata['name']}-{metadata['generation']:05}"
    previous = document.get("status") or {}
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {
        **previous,
        "observedGeneration": metadata["generation"],
        "conditions": merged_conditions(previous.get("conditions") or (), [condition], time),
        "latestCreatedRevisionName": revision,
        **more,
    }
    if condition.status is Status.TRUE:
        status["latestReadyRevisionName"] = revision
    return status


def name_of(document: Document) -> str:
    """An object's name for people: `Broker default/shop`."""
    return f"{document['kind']} {'/'.join(_place(document))}"


def ready_of(document: Document) -> Mapping[str, Any]:
    """An object's `Ready` condition; empty if it is not about what is declared now."""
    status = document.get("status") or {}
    if status.get("observedGeneration") != document["metadata"].get("generation"):
        return {}
    conditions = status.get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})


def _stored_version(api_version: str, kind: str) -> str:
    """An API server gives objects in each of their versions, whichever is stored."""
    return CHANNELS.broker_version if kind == CHANNELS.broker else api_version


def _with_subscribers(spec: Document, previous: Document | None) -> dict[str, Any]:
    """A KafkaChannel's spec with the subscribers that it has: files don't say who they are
    (KN-CHN-05)."""
    declared = {key: value for key, value in spec.items() if key != "subscribers"}
    there = ((previous or {}).get("spec") or {}).get("subscribers")
    return declared if there is None else {**declared, "subscribers": there}


def _keep(new: dict[str, Any], kept: Mapping[str, str]) -> None:
    """Have a new object go on with what one of its name had before we started."""
    new["status"] = {"annotations": dict(kept)}
    if new["kind"] == CHANNELS.trigger:
        new["metadata"]["uid"] = _uid_in(kept.get(GROUP_STATUS))


def _uid_in(group: str | None) -> str:
    """A Subscription's UID: that in the name of its group, if it had one before we started."""
    return str(uuid4()) if group is None else group.rpartition(".")[2]


def _namespace(document: Document) -> str:
    return _place(document)[0]


def _place(document: Document) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]
