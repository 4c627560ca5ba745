"""Rolls: what has changed for all functions at once (their image, what the installation sets in
their environment) reaches a bounded number of them at a time. Pure.

    function that is new, or whose owner declares another   applied at once
    function that would roll for anything else               waits for a turn
    a turn is over when the new Revision is Ready; one that isn't after `ROLL_TIMEOUT` passes its
    turn on, to another namespace: what can't start in one leaves the others alone

All at once they start on nodes that are busy with the requests of all of them, and get more of
those the slower they are.

Not here: applying a Service, and who waits (`reconcile.functions`).
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
from knafka_operator.decide.services import DECLARED_DIGEST, environment_of
from knafka_operator.decide.status import ROLLED_OUT
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.identity import Identity

Manifest = dict[str, Any]

ROLL_TIMEOUT: Final = 120.0
"""Seconds for the new Revision of a function to be Ready: an image of 100 MB that a node pulls
first and a start on a busy node fit in; after that another function has the turn."""

TEMPLATE_DIGEST: Final = "knafka.dev/template"
"""Annotation of a function's Service: the digest of its template as it was applied."""

_CONTRACTS: Final[Mapping[str, type[Model]]] = {
    EGRESS: Egress,
    SHARD: Shard,
    RECEIVER: Receiver,
    SENSOR: SensorContract,
}


def with_template_digest(manifest: Mapping[str, Any]) -> Manifest:
    """Add a digest of its template to a function's Service, by which a later reconciliation sees
    whether applying it would roll the function."""
    text = json.dumps(manifest["spec"]["template"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return _annotated(manifest, {TEMPLATE_DIGEST: digest})


def is_up_to_date(stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether applying the manifest would create no new Revision."""
    return _annotation(stored, TEMPLATE_DIGEST) == _annotation(manifest, TEMPLATE_DIGEST)


def is_edited(stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether the owner, or its configuration, declares something other than the stored Service
    has.

    Contracts are parsed before they are compared, so that fields unknown to an earlier release
    count as unchanged. A stored contract that can't be parsed counts as unchanged, too.
    """
    declared = _annotation(stored, DECLARED_DIGEST)
    if declared is not None and declared != _annotation(manifest, DECLARED_DIGEST):
        return True
    before, now = (_environment(each) for each in (stored, manifest))
    for name, model in _CONTRACTS.items():
        if before.get(name) == now.get(name):
            continue
        if name not in before or name not in now:
            return True
        try:
            meant = documents.dump(documents.parse_json(model, before[name]))
        except InvalidDocument:
            continue
        if meant != json.loads(now[name]):
            return True
    return False


def with_running_image(stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> Manifest:
    """The manifest with the image that runs now: the edit of a function that may not roll to a new
    image yet, so that an image that can't start holds up no edits."""
    template = manifest["spec"]["template"]
    container = template["spec"]["containers"][0]
    image = stored["spec"]["template"]["spec"]["containers"][0]["image"]
    pod = {**template["spec"], "containers": [{**container, "image": image}]}
    spec = {**manifest["spec"], "template": {**template, "spec": pod}}
    return with_template_digest({**manifest, "spec": spec})


def may_roll(
    service: Identity, rolling: Collection[Identity], stuck: Collection[Identity], at_most: int
) -> bool:
    """Whether a function may roll now: if its roll has begun, or if fewer than `at_most` functions
    roll and none of its namespace is stuck."""
    if service in rolling or service in stuck:
        return True
    return len(rolling) < at_most and not any(each.namespace == service.namespace for each in stuck)


def roll_waits_condition(service: Identity, stuck: Collection[Identity], at_most: int) -> Condition:
    """The informational condition of an object whose function waits for its turn to roll.

    It names only functions of the same namespace.
    """
    beside = sorted(each.name for each in stuck if each.namespace == service.namespace)
    what = f"Knative Service {service.name} runs as Knafka was installed before"
    if beside:
        reason, why = (
            "RollStuck",
            f"it waits for {', '.join(beside)}, which has the new image or settings and is not "
            f"Ready after {ROLL_TIMEOUT:g} s: see its Revision",
        )
    else:
        reason, why = "RollWaits", f"{at_most} functions at a time are rolled (KNAFKA_MAX_ROLLS)"
    return Condition(ROLLED_OUT, Status.FALSE, reason, f"{what}: {why}", Severity.INFO)


def _environment(service: Mapping[str, Any]) -> Mapping[str, str]:
    return environment_of(service["spec"]["template"]["spec"]["containers"][0])


def _annotation(service: Mapping[str, Any], name: str) -> str | None:
    found: str | None = (service["metadata"].get("annotations") or {}).get(name)
    return found


def _annotated(manifest: Mapping[str, Any], annotations: Mapping[str, str]) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), **annotations}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
