"""Handlers: the webhooks of Brokers and Triggers, run by kopf in every replica.

Not here: those of channels (`channel_handlers`), the checks (`brokers.admission`), the server and
its certificate (`server`), and what is done with Brokers and Triggers (`runtime.controller`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import kopf

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_operator.brokers import admission
from knafka_operator.brokers import defaults as broker_defaults
from knafka_operator.model.cluster import ClusterError, Document
from knafka_operator.model.resources import BROKER_CLASS, CORE, ConfigMap
from knafka_operator.triggers import admission as trigger_admission

log = logging.getLogger(__name__)

BROKER_RESOURCE: Final = ("eventing.knative.dev", "v1", "brokers")
"""API group, version and plural name, as kopf's decorators take them."""
TRIGGER_RESOURCE: Final = ("eventing.knative.dev", "v1", "triggers")
"""API group, version and plural name of Triggers."""

DOMAIN: Final = "knafka.dev"
"""Domain of the names that Knafka gives."""
REGISTRY: Final = kopf.OperatorRegistry()
"""The registry of this module's handlers."""
kopf.on.login(registry=REGISTRY)(kopf.login_via_client)
WEBHOOK: Final[Mapping[str, Any]] = {
    "operations": ["CREATE", "UPDATE"],
    "ignore_failures": True,  # an object that wasn't checked gets a condition in its status
    "registry": REGISTRY,
}
"""kopf's options for each webhook."""


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: a finalizer that no object has, and watches of 300 s."""
    settings = kopf.OperatorSettings()
    # kopf removes its finalizer from objects for which no handler of its own needs one, as here.
    # With the controller's finalizer name, objects would be deleted before their topic and group.
    settings.persistence.finalizer = f"{DOMAIN}/unused"
    settings.watching.server_timeout = 300
    return settings


@kopf.on.event(*BROKER_RESOURCE, registry=REGISTRY)
async def remember_class(body: kopf.Body, memo: kopf.Memo, type: str | None, **_: Any) -> None:  # noqa: A002  # kopf's name
    """Record whether Knafka serves a Broker that exists or, with `type` DELETED, is gone. The
    webhooks of Triggers need that."""
    memo.operator.remember_class(dict(body), gone=type == "DELETED")


@kopf.on.mutate(*BROKER_RESOURCE, id="default-broker", **WEBHOOK)
async def set_broker_defaults(
    body: kopf.Body, patch: kopf.Patch, memo: kopf.Memo, old: Any = None, **_: Any
) -> None:
    """Fill in the defaults of a Broker that Knafka serves: add to `patch` the function that
    replaces the object. Other Brokers are left alone."""
    # An update keeps the class of `old`.
    needs_class = not old and BROKER_CLASS not in (body.metadata.annotations or {})
    filled_in = admission.with_broker_defaults(
        dict(body),
        old and dict(old),
        default_class=await _read_default_class(dict(body), memo) if needs_class else "",
    )
    # A new Broker without a class has got the default class by now.
    if memo.operator.brokers.is_ours(old or filled_in):
        patch.fns.append(lambda raw: replace_document(raw, filled_in))


@kopf.on.mutate(*TRIGGER_RESOURCE, id="default-trigger", **WEBHOOK)
def set_trigger_defaults(body: kopf.Body, patch: kopf.Patch, memo: kopf.Memo, **_: Any) -> None:
    """Fill in the defaults of a Trigger whose Broker Knafka may serve: add to `patch` the function
    that replaces the object."""
    if memo.operator.may_be_ours(body):
        patch.fns.append(
            lambda raw: replace_document(raw, trigger_admission.with_trigger_defaults(raw))
        )


@kopf.on.validate(*BROKER_RESOURCE, id="check-broker", **WEBHOOK)
def check_broker(
    body: kopf.Body, memo: kopf.Memo, warnings: list[str], old: Any = None, **_: Any
) -> None:
    """Refuse an invalid Broker or a forbidden change. For a Broker that Knafka doesn't serve, only
    add to `warnings`, which users see, what may be wrong with its class. Raises
    `kopf.AdmissionError`."""
    if memo.operator.brokers.is_ours(old or body):
        check_admission(admission.check_broker, body, memo, old)
    else:
        classes = memo.operator.brokers.settings.broker_classes
        warnings.extend(admission.class_warnings(dict(body), classes))


@kopf.on.validate(*TRIGGER_RESOURCE, id="check-trigger", **WEBHOOK)
def check_trigger(
    body: kopf.Body, memo: kopf.Memo, warnings: list[str], old: Any = None, **_: Any
) -> None:
    """Refuse an invalid Trigger or a forbidden change, and add to `warnings`, which users see, a
    sentence for each filter that no event can pass. Triggers whose Broker another implementation
    serves are left alone. Raises `kopf.AdmissionError`."""
    if memo.operator.may_be_ours(old or body):
        check_admission(trigger_admission.check_trigger, body, memo, old)
        warnings.extend(trigger_admission.trigger_warnings(dict(body)))


async def _read_default_class(broker: Document, memo: kopf.Memo) -> str:
    """Return the default class for a new Broker without a class; empty: there is none, it isn't
    Knafka's, or it can't be read, which is logged. Reads the ConfigMap from the API server, since a
    replica that doesn't lead has no cache.
    """
    settings = memo.operator.brokers.settings
    if settings.default_class:
        return str(settings.default_class)
    try:
        stored_defaults = await memo.cluster.get(
            CORE, "ConfigMap", *settings.broker_defaults.split("/", 1)
        )
        defaults = None if stored_defaults is None else parse(ConfigMap, stored_defaults)
        class_ = broker_defaults.default_class(broker["metadata"].get("namespace", ""), defaults)
    except (ClusterError, InvalidDocument) as error:
        log.warning("a Broker without a class is left without one: %s", error)
        return ""
    return class_ if class_ in settings.broker_classes else ""


def replace_document(raw: Any, document: Document) -> None:
    """Replace the fields of `raw`, the object that kopf patches, by those of `document`. Call it in
    a function of `patch.fns`, which kopf runs while it patches."""
    # Not a merge patch, as kopf drops empty objects such as `filter: {}` from that.
    raw.update(document)


def check_admission(check: Callable[..., None], body: kopf.Body, memo: kopf.Memo, old: Any) -> None:
    """Run an admission check on `body` with the installation's maxima; `old` is the object before
    an update, None: it is being created. Raises `kopf.AdmissionError` with the wording of Knative's
    webhooks."""
    try:
        check(dict(body), old and dict(old), maxima=memo.operator.settings.maxima)
    except InvalidDocument as error:
        raise kopf.AdmissionError(f"validation failed: {error}", code=400) from None
