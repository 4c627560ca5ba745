"""Rolls: limits how many functions roll at a time after a change for all of them (image,
environment from the installation). Pure.

    a new function, or its owner has changed its declaration    applied at once
    a function that would roll for another reason               waits for a turn

A function rolls when its Service gets a new Revision, whose pods replace the running ones; its turn
is the permission to do so. A turn ends when the new Revision is Ready, or after `ROLL_TIMEOUT`: in
that case the functions of its owner's namespace get no further turns, so that a failure there
doesn't hold up other namespaces. (Functions of channels all run in the operator's namespace.)

If all functions rolled at once, they would start on nodes that are busy with requests, which make
them still slower.

Not here: applying a Service, and who waits (`functions.applying`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from knafka.core import documents
from knafka.core.contract import Egress, Receiver, Shard
from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument
from knafka.core.sensor.contract import SensorContract
from knafka.settings import EGRESS, RECEIVER, SENSOR, SHARD
from knafka_operator.decisions.status import ROLLED_OUT
from knafka_operator.functions.services import DECLARED_DIGEST, environment_of
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.identity import Identity

Manifest = dict[str, Any]

ROLL_TIMEOUT: Final = 120.0
"""Seconds for a function's new Revision to be Ready, enough to pull an image of 100 MB and start on
a busy node; after that another function gets the turn."""

TEMPLATE_DIGEST: Final = "knafka.dev/template"
"""Annotation of a function's Service: the digest of the template that was applied last."""

_CONTRACTS: Final[Mapping[str, type[Model]]] = {
    EGRESS: Egress,
    SHARD: Shard,
    RECEIVER: Receiver,
    SENSOR: SensorContract,
}
"""By environment variable of a function: the model of the contract that it holds as JSON."""


def with_template_digest(manifest: Mapping[str, Any]) -> Manifest:
    """Return a function's Service with the annotation `TEMPLATE_DIGEST`, by which a later
    reconciliation sees whether applying the Service would roll the function."""
    text = json.dumps(manifest["spec"]["template"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return _with_annotations(manifest, {TEMPLATE_DIGEST: digest})


def is_up_to_date(stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether applying the manifest over the stored Service would create no new Revision."""
    return _annotation(stored, TEMPLATE_DIGEST) == _annotation(manifest, TEMPLATE_DIGEST)


def is_edited(stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether the owner or its configuration has changed since the stored Service was applied: the
    manifest has another `DECLARED_DIGEST` or another contract. For a Service stored by a release
    that had no such digest, only the contract counts.

    Contracts are parsed before they are compared, so that a field that the stored one lacks counts
    as having its default. A stored contract that can't be parsed counts as unchanged.
    """
    declared = _annotation(stored, DECLARED_DIGEST)
    if declared is not None and declared != _annotation(manifest, DECLARED_DIGEST):
        return True
    stored_environment, new_environment = _environment(stored), _environment(manifest)
    for name, model in _CONTRACTS.items():
        if stored_environment.get(name) == new_environment.get(name):
            continue
        if name not in stored_environment or name not in new_environment:
            return True
        try:
            stored_contract = documents.dump(documents.parse_json(model, stored_environment[name]))
        except InvalidDocument:
            continue  # it counts as unchanged
        if stored_contract != json.loads(new_environment[name]):
            return True
    return False


def with_running_image(stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> Manifest:
    """Return the manifest with the image of the stored Service, which runs now. With this manifest
    a function that waits for its turn to get the new image gets its owner's edits at once, so that
    an image that can't start delays no edits."""
    template = manifest["spec"]["template"]
    container = template["spec"]["containers"][0]
    image = stored["spec"]["template"]["spec"]["containers"][0]["image"]
    pod = {**template["spec"], "containers": [{**container, "image": image}]}
    spec = {**manifest["spec"], "template": {**template, "spec": pod}}
    return with_template_digest({**manifest, "spec": spec})


def may_roll(
    service: Identity,
    namespace: str,
    rolling: Collection[Identity],
    stuck: Mapping[Identity, str],
    at_most: int,
) -> bool:
    """Whether a function may roll now, whose owner is in `namespace`: its roll has begun (it is in
    `rolling` or `stuck`), or fewer than `at_most` functions roll and no function of its owner's
    namespace is stuck. `stuck` has the namespace of each stuck function's owner."""
    if service in rolling or service in stuck:
        return True
    return len(rolling) < at_most and namespace not in stuck.values()


def roll_waits_condition(
    service: Identity, namespace: str, stuck: Mapping[Identity, str], at_most: int
) -> Condition:
    """Return the informational condition of an object in `namespace` whose function `service` waits
    for its turn to roll. `stuck` has the functions whose roll takes too long, with the namespace of
    each one's owner: the condition names those of the same namespace, for which `service` waits; if
    there are none, it waits because only `at_most` functions roll at a time."""
    stuck_neighbours = sorted(
        stuck_service.name
        for stuck_service, owner_namespace in stuck.items()
        if owner_namespace == namespace
    )
    subject = f"Knative Service {service.name} still has the previous image or settings"
    if stuck_neighbours:
        reason = "RollStuck"
        why = (
            f"it waits for {', '.join(stuck_neighbours)}, which has the new image or settings and "
            f"is not Ready after {ROLL_TIMEOUT:g} s: see its Revision"
        )
    else:
        reason, why = "RollWaits", f"{at_most} functions at a time are rolled (KNAFKA_MAX_ROLLS)"
    return Condition(ROLLED_OUT, Status.FALSE, reason, f"{subject}: {why}", Severity.INFO)


def _environment(service: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the environment variables of a function's Service."""
    return environment_of(service["spec"]["template"]["spec"]["containers"][0])


def _annotation(service: Mapping[str, Any], name: str) -> str | None:
    """Return an annotation of a Service; None: it isn't set."""
    value: str | None = (service["metadata"].get("annotations") or {}).get(name)
    return value


def _with_annotations(manifest: Mapping[str, Any], annotations: Mapping[str, str]) -> Manifest:
    """Return a copy of the manifest with these annotations added or replaced."""
    metadata = manifest["metadata"]
    merged = {**metadata.get("annotations", {}), **annotations}
    return {**manifest, "metadata": {**metadata, "annotations": merged}}
