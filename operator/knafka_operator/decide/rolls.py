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
from knafka.core.sensor.contract import Sensor
from knafka.settings import EGRESS, RECEIVER, SENSOR, SHARD
from knafka_operator.decide.services import DECLARED, environment_of
from knafka_operator.decide.status import ROLLED_OUT
from knafka_operator.model.conditions import Condition, Severity, Status
from knafka_operator.model.identity import Identity

Manifest = dict[str, Any]

ROLL_TIMEOUT: Final = 120.0
"""Seconds for the new Revision of a function to be Ready: an image of 100 MB that a node pulls
first and a start on a busy node fit in; after that another function has the turn."""

TEMPLATE: Final = "knafka.dev/template"
"""Annotation of a function's Service: the digest of its template as it was applied."""

_CONTRACTS: Final[Mapping[str, type[Model]]] = {
    EGRESS: Egress,
    SHARD: Shard,
    RECEIVER: Receiver,
    SENSOR: Sensor,
}


def with_template_digest(manifest: Mapping[str, Any]) -> Manifest:
    """A function's Service with the digest by which a later look knows whether it would roll."""
    text = json.dumps(manifest["spec"]["template"], sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return _annotated(manifest, {TEMPLATE: digest})


def is_rolled(stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether applying this makes no other Revision than the one that is there."""
    return _annotation(stored, TEMPLATE) == _annotation(manifest, TEMPLATE)


def is_edited(stored: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether its owner, or its owner's configuration, declares something else than what runs.

    Contracts are compared by what they mean: a version that knows more fields than the one before
    has edited nothing. What that one wrote and this one can't read says nothing.
    """
    declared = _annotation(stored, DECLARED)
    if declared is not None and declared != _annotation(manifest, DECLARED):
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
    """An edit of a function that has no turn yet: one image that can't start stops no edit."""
    template = manifest["spec"]["template"]
    container = template["spec"]["containers"][0]
    image = stored["spec"]["template"]["spec"]["containers"][0]["image"]
    pod = {**template["spec"], "containers": [{**container, "image": image}]}
    spec = {**manifest["spec"], "template": {**template, "spec": pod}}
    return with_template_digest({**manifest, "spec": spec})


def has_turn(
    service: Identity, rolling: Collection[Identity], stuck: Collection[Identity], at_most: int
) -> bool:
    """Whether a function may roll now, beside those that do; one that was begun may go on."""
    if service in rolling or service in stuck:
        return True
    return len(rolling) < at_most and not any(each.namespace == service.namespace for each in stuck)


def waiting(service: Identity, stuck: Collection[Identity], at_most: int) -> Condition:
    """What the owner of a function that waits is told; it is as Ready as it was.

    Functions of other namespaces are nobody's business there.
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
