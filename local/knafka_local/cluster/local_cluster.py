"""LocalCluster: the operator's `Cluster` on this machine, from manifest files.

    files --declare--> objects in memory <--get, apply, write_status-- Operator
                             |
                             +--> LocalServing: a Knative Service becomes a process

It provides what otherwise only a real cluster has, so that the operator reconciles as it does
there: the installation's ConfigMaps and Knative's own, addresses that need no DNS, and a status
that outlives the process (`localize`, `kept_names`). An object's kept names are the status
annotations with the names of its topics and its consumer group; they are kept from run to run.

Not here: reading files (`manifests`), starting anything (`local_serving`), reconciling
(`local_controller`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from knafka_local.cluster import localize
from knafka_local.cluster.kept_names import GENERATION_KEY, KeptNames
from knafka_operator.functions import services
from knafka_operator.kube_api.memory_cluster import MemoryCluster
from knafka_operator.model.cluster import Document
from knafka_operator.model.conditions import Condition, Status, merge_conditions
from knafka_operator.model.family import CHANNELS, FAMILIES, family_of
from knafka_operator.model.resources import CORE, FINALIZER, GROUP_STATUS
from knafka_operator.model.sensors import KNAFKA, SENSOR
from knafka_operator.sensors.manifests import SENSOR_ROLE

FOLDER_ANNOTATION: Final = "local.knafka.dev/folder"
"""Annotation of a declared Service: the folder of its manifest, in which its command runs."""
SERVES: Final = "Serves"
"""The only condition of a Service beside Ready: whether its process serves."""
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
"""apiVersion and kind of the objects that the operator reconciles."""
RECONCILED: Final = frozenset(kind for _, kind in DECLARED_KINDS)
"""Names of `DECLARED_KINDS`; their objects have a finalizer until their topic or group is
deleted."""

_DRAINING_ROLES: Final = (
    services.DISPATCHER_ROLE,
    services.SHARD_ROLE,
    services.REPLAYER_ROLE,
    SENSOR_ROLE,
)
"""Roles of Services that only run while they drain: while they deliver, or evaluate, events that
wait in Kafka."""

_INSTALLATION_CONFIG_MAPS: Final = tuple(
    (localize.LOCAL_OPERATOR_SETTINGS.namespace, name)
    for name in (
        localize.LOCAL_OPERATOR_SETTINGS.config,
        localize.LOCAL_OPERATOR_SETTINGS.channel_config,
    )
)
"""Namespace and name of the ConfigMaps with the installation's defaults."""


class LocalCluster(MemoryCluster):
    """Keeps Kubernetes objects in memory, changed where one machine differs from a cluster.

    `url` is the address of all Brokers and `channels_url` that of all KafkaChannels.
    `requires_auth` says whether senders must show tokens.
    """

    def __init__(self, url: str, channels_url: str, *, requires_auth: bool = False) -> None:
        super().__init__()
        self.requires_auth = requires_auth
        self._urls = {"Broker": url.rstrip("/"), CHANNELS.broker: channels_url.rstrip("/")}
        """By kind of object: the URL with which the addresses of its objects begin."""
        self._bootstrap_servers = ""
        self._names = KeptNames()
        """Empty, and in memory only, until `connect`."""
        self.adopts = False
        """Whether a new object takes over an existing topic or group of its name. True only for a
        data folder that was written before Knafka kept names."""

    def connect(self, bootstrap_servers: str, names: KeptNames) -> None:
        """Set Kafka's address and the kept names; from now on reconciled objects may be
        declared."""
        self._bootstrap_servers = bootstrap_servers
        self._names = names

    def declare(self, document: Document, folder: Path) -> None:
        """Store a document that a file in `folder` declares. An object that the operator reconciles
        gets a finalizer and, if it is new, its kept names; a Service gets an annotation with the
        folder's path."""
        stored = localize.localized_document(document)
        metadata = stored["metadata"]
        if document["kind"] in RECONCILED:
            stored["metadata"] = {**metadata, "finalizers": [FINALIZER]}
            self._keep_previous_state(stored)
        elif document["kind"] == "Service":
            annotations = {**(metadata.get("annotations") or {}), FOLDER_ANNOTATION: str(folder)}
            stored["metadata"] = {**metadata, "annotations": annotations}
        self.put(stored)

    def _keep_previous_state(self, stored: dict[str, Any]) -> None:
        """Add to a declared object the earlier state that isn't in its file: to a new object the
        names of its topics and group in an earlier run, to a KafkaChannel its subscribers."""
        kind = stored["kind"]
        previous = self.find(stored["apiVersion"], kind, *_namespace_and_name(stored))
        if previous is None:
            kept_annotations = self._names.annotations_of(kind_and_name(stored))
            if kept_annotations is None and self.adopts:
                kept_annotations = localize.adopted_annotations(stored)
            _restore_kept_names(stored, kept_annotations or {})
        if kind == CHANNELS.broker:
            stored["spec"] = _with_subscribers(stored["spec"], previous)

    def find(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """Return the stored document, which must not be changed; None if there is none."""
        return self.objects.get((_stored_version(api_version, kind), kind, namespace, name))

    def find_reconciled(self, kind: str, namespace: str, name: str) -> Document | None:
        """Return the stored object of one of `DECLARED_KINDS`, which must not be changed; None if
        there is none."""
        return self.find(version_of(kind), kind, namespace, name)

    def undeclared_owners(self, kind: str) -> list[str]:
        """Return `namespace/name` of the objects of a kind that have kept names though no file
        declares them any more. The kind is one of `DECLARED_KINDS`."""
        declared = {"/".join(_namespace_and_name(document)) for document in self.of(kind)}
        return [owner for owner in self._names.owners_of_kind(kind) if owner not in declared]

    def forget(self, document: Document) -> None:
        """Drop the kept names of a deleted object, so that another object of its name gets new
        ones."""
        self._names.drop(kind_and_name(document))

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Document | None:
        """Return the stored document; None if there is none.

        ConfigMaps that every real cluster has are made here: the installation's own and Knative's.
        If a file declares such a ConfigMap, the result has its data.
        """
        stored = await super().get(_stored_version(api_version, kind), kind, namespace, name)
        if (api_version, kind) != (CORE, "ConfigMap"):
            return stored
        if (namespace, name) in _INSTALLATION_CONFIG_MAPS:
            return localize.installation_config_map(name, stored, self._bootstrap_servers)
        if (namespace, name) == localize.LOCAL_OPERATOR_SETTINGS.features_config:
            return localize.features_config_map(stored, requires_auth=self.requires_auth)
        if stored is None and namespace not in map(_namespace, self.of("Broker")):
            # A namespace without Brokers may be Knative's own, whose ConfigMaps always exist.
            return localize.config_map(namespace, name, {})
        return stored

    def _on_written(self, document: dict[str, Any]) -> None:
        """Complete an object that was written; `MemoryCluster` calls this before any watch sees it.

        A Service that only runs while it drains gets the status of a Ready Service. A Sensor's
        generation is kept with its names.
        """
        if document["kind"] == SENSOR:
            kept_annotations = self._names.annotations_of(kind_and_name(document))
            if kept_annotations is not None:
                self._names.put(
                    kind_and_name(document), _with_generation(document, kept_annotations)
                )
        # Nothing has to be started for such a Service before it drains, so it is Ready at once.
        if role_of(document) in _DRAINING_ROLES:
            document["status"] = service_status(document, Condition(SERVES, Status.TRUE))

    async def apply(self, manifest: Document) -> Document:
        """Apply the operator's manifest as an API server does (server-side apply); returns the
        stored object. A new Trigger or Subscription gets its kept names."""
        if manifest["kind"] in RECONCILED:  # a Trigger or Subscription that a Sensor owns
            metadata = {
                **localize.with_local_scaling(manifest["metadata"]),
                "finalizers": [FINALIZER],
            }
            manifest = {**manifest, "metadata": metadata}
            if self.find_reconciled(manifest["kind"], *_namespace_and_name(manifest)) is None:
                # Stored with `put`, since `apply` removes a field that it set once and that a
                # later manifest lacks: the kept UID of a Subscription is in no manifest.
                new = {**manifest, "metadata": {**metadata}}
                _restore_kept_names(new, self._names.annotations_of(kind_and_name(manifest)) or {})
                self.put(new)
        return await super().apply(manifest)

    async def write_status(self, document: Document, status: Document) -> None:
        """Merge `status` into an object's status, and keep its names over restarts. An address on
        this machine replaces the Service's address."""
        if (url := self._urls.get(document["kind"])) is not None:
            status = localize.with_local_address(status, url)
        # Keep the names first. A reader of the new status may act on it at once, and after a crash
        # a topic would have no owner if its id was kept nowhere.
        self._keep_names(document, status)
        await super().write_status(document, status)

    def _keep_names(self, document: Document, status: Document) -> None:
        """Keep the names that are in `status`, the status of `document` that is about to be
        written. Does nothing for objects that the operator doesn't reconcile, or that are gone."""
        if document["kind"] not in RECONCILED or "annotations" not in status:
            return
        stored = self.find_reconciled(document["kind"], *_namespace_and_name(document))
        if stored is None:
            return
        previous = (stored.get("status") or {}).get("annotations") or {}
        annotations = {**previous, **status["annotations"]}
        # In a status update, null deletes an annotation.
        kept = {key: value for key, value in annotations.items() if value is not None}
        if document["kind"] == SENSOR:
            kept = _with_generation(stored, kept)
        self._names.put(kind_and_name(document), kept)


def version_of(kind: str) -> str:
    """Return the apiVersion in which objects of one of `DECLARED_KINDS` are stored."""
    if kind == SENSOR:
        return KNAFKA
    family = family_of(kind)
    return family.broker_version if kind == family.broker else family.trigger_version


def role_of(document: Document) -> str | None:
    """Return the role of a Service that the operator made, such as a receiver's; None for any other
    document."""
    metadata = document["metadata"]
    if document["kind"] != "Service" or FOLDER_ANNOTATION in (metadata.get("annotations") or {}):
        return None
    role: str | None = (metadata.get("labels") or {}).get(services.ROLE_LABEL)
    return role


def service_status(document: Document, condition: Condition, **fields: Any) -> dict[str, Any]:
    """Return the status of a Service, `document`, with one condition.

    Its `Ready` follows from that condition by Knative's rules. Each generation of the Service
    counts as one Revision. `fields` are further fields of the status. Fields of the Service's
    stored status that are not set here stay.
    """
    metadata = document["metadata"]
    revision = f"{metadata['name']}-{metadata['generation']:05}"
    previous_status = document.get("status") or {}
    previous_conditions = previous_status.get("conditions") or ()
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {
        **previous_status,
        "observedGeneration": metadata["generation"],
        "conditions": merge_conditions(previous_conditions, [condition], now),
        "latestCreatedRevisionName": revision,
        **fields,
    }
    if condition.status is Status.TRUE:
        status["latestReadyRevisionName"] = revision
    return status


def kind_and_name(document: Document) -> str:
    """Return an object's kind and name as one text, `Broker default/shop`: for messages, and as the
    key of its kept names."""
    return f"{document['kind']} {'/'.join(_namespace_and_name(document))}"


def ready_condition(document: Document) -> Mapping[str, Any]:
    """Return an object's `Ready` condition; empty if it describes an older generation."""
    status = document.get("status") or {}
    if status.get("observedGeneration") != document["metadata"].get("generation"):
        return {}
    conditions = status.get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == "Ready"), {})


def _stored_version(api_version: str, kind: str) -> str:
    """Return the apiVersion in which an object is stored: `api_version` itself, except that all
    KafkaChannels are stored in one version, though an API server serves them in several."""
    return CHANNELS.broker_version if kind == CHANNELS.broker else api_version


def _with_subscribers(spec: Document, previous: Document | None) -> dict[str, Any]:
    """Return a declared KafkaChannel's spec with the subscribers of `previous`, the stored channel
    (None: it is new). Subscribers in the file are ignored (KN-CHN-05)."""
    declared = {key: value for key, value in spec.items() if key != "subscribers"}
    subscribers = ((previous or {}).get("spec") or {}).get("subscribers")
    return declared if subscribers is None else {**declared, "subscribers": subscribers}


def _restore_kept_names(new: dict[str, Any], kept_annotations: Mapping[str, str]) -> None:
    """Give a new object the status annotations that were kept for its name. A Subscription also
    gets the UID that it had then, or a new one if that isn't known; a Sensor gets the generation
    after the one that it had."""
    annotations = dict(kept_annotations)
    if (generation := annotations.pop(GENERATION_KEY, None)) is not None:
        # The Sensor may have been edited since it was last known, which makes another generation.
        new["metadata"]["generation"] = int(generation) + 1
    new["status"] = {"annotations": annotations}
    if new["kind"] == CHANNELS.trigger:
        new["metadata"]["uid"] = _subscription_uid(kept_annotations.get(GROUP_STATUS))


def _with_generation(sensor: Document, kept_annotations: Mapping[str, str]) -> dict[str, str]:
    """Return a Sensor's kept annotations together with its generation."""
    return {**kept_annotations, GENERATION_KEY: str(sensor["metadata"]["generation"])}


def _subscription_uid(group: str | None) -> str:
    """Return the UID of a Subscription: the name of its consumer group ends with it. If there is no
    group yet (None), return a new UID."""
    return str(uuid4()) if group is None else group.rpartition(".")[2]


def _namespace(document: Document) -> str:
    """Return an object's namespace."""
    return _namespace_and_name(document)[0]


def _namespace_and_name(document: Document) -> tuple[str, str]:
    """Return an object's namespace and name."""
    return document["metadata"]["namespace"], document["metadata"]["name"]
