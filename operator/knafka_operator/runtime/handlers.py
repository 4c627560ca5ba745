"""Handlers: what kopf tells us, handed to who knows what to do.

    EVERY     in each replica: webhooks, and what they must know
    LEADING   in the one that leads: all that writes

A Broker and a Trigger each have a daemon that reconciles them: at its start, when something that
concerns them changes, and now and then. Other handlers only wake daemons.

Refused here: decisions.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import kopf

from knafka.core.errors import InvalidDocument, KnafkaError
from knafka_operator.decide import admission, services, status
from knafka_operator.model.settings import Settings
from knafka_operator.operator import Operator
from knafka_operator.runtime.cluster import ClusterError, Document

log = logging.getLogger("knafka")

BROKERS: Final = ("eventing.knative.dev", "v1", "brokers")
TRIGGERS: Final = ("eventing.knative.dev", "v1", "triggers")
SERVICES: Final = ("serving.knative.dev", "v1", "services")

DOMAIN: Final = "knafka.dev"
FINALIZER: Final = f"{DOMAIN}/finalizer"
EVERY: Final = kopf.OperatorRegistry()
LEADING: Final = kopf.OperatorRegistry()
for each in (EVERY, LEADING):
    kopf.on.login(registry=each)(kopf.login_via_client)
WEBHOOK: Final[Mapping[str, Any]] = {
    "operations": ["CREATE", "UPDATE"],
    "ignore_failures": True,  # what slips through is told by a condition
    "persistent": True,  # a replica that goes must not unregister those that stay
    "registry": EVERY,
}
CANCELLATION_TIMEOUT: Final = 30.0
"""Seconds for a daemon to end once it is cancelled: where its Trigger goes, drains leave their
groups meanwhile."""
DAEMON: Final[Mapping[str, Any]] = {
    "cancellation_timeout": CANCELLATION_TIMEOUT,
    "registry": LEADING,
}

GONE: Final = (
    kopf.DaemonStoppingReason.RESOURCE_DELETED | kopf.DaemonStoppingReason.FILTERS_MISMATCH
)
"""Why a daemon ends whose Trigger isn't ours to deliver any more."""

RETRY: Final = 3.0
"""Seconds until what isn't Ready is looked at again, should nobody wake it."""
RESYNC: Final = 300.0
"""Seconds until what is Ready is looked at again, a few more or less."""


def kopf_settings(ours: Settings, registry: kopf.OperatorRegistry) -> kopf.OperatorSettings:
    """What each registry is run with."""
    settings = kopf.OperatorSettings()
    # kopf takes away its finalizer where no handler of its own wants one, as in EVERY: by the name
    # that LEADING uses, objects would go before their topic and group are deleted.
    settings.persistence.finalizer = FINALIZER if registry is LEADING else f"{DOMAIN}/unused"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=DOMAIN)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=DOMAIN)
    settings.posting.reporting_component = "knafka-operator"
    settings.posting.reporting_instance = ours.identity
    settings.posting.event_name_prefix = "knafka-"
    settings.watching.server_timeout = 300
    return settings


@kopf.on.cleanup(registry=LEADING)
async def hang_up(memo: kopf.Memo, **_: Any) -> None:
    # Here, since kopf then waits five seconds for whatever still runs, and cancels it: what waits
    # for the flag that it would be stopped by, too.
    memo.stop.set()
    await memo.operator.close()


def _is_ours(memo: kopf.Memo, body: kopf.Body, **_: Any) -> bool:
    return bool(memo.operator.brokers.is_ours(body))


def _may_be_ours(memo: kopf.Memo, body: kopf.Body, **_: Any) -> bool:
    return bool(memo.operator.may_be_ours(body))


@kopf.daemon(*BROKERS, when=_is_ours, **DAEMON)
async def keep_broker(body: kopf.Body, memo: kopf.Memo, **_: Any) -> None:
    await _keep(memo.operator, body, memo.operator.reconcile_broker)


@kopf.daemon(*TRIGGERS, when=_may_be_ours, **DAEMON)
async def keep_trigger(
    body: kopf.Body, memo: kopf.Memo, stopped: kopf.DaemonStopped, **_: Any
) -> None:
    try:
        await _keep(memo.operator, body, memo.operator.triggers.reconcile)
    finally:
        # A replica that ends stops nobody's delivery.
        if stopped.reason is not None and stopped.reason & GONE:
            await memo.operator.triggers.rest(_identity(body))


@kopf.on.delete(*BROKERS, when=_is_ours, registry=LEADING)
async def delete_broker(body: kopf.Body, memo: kopf.Memo, started: datetime, **_: Any) -> None:
    await _let_go(memo.operator, memo.operator.delete_broker, body, started)


@kopf.on.delete(*TRIGGERS, when=_may_be_ours, registry=LEADING)
async def delete_trigger(body: kopf.Body, memo: kopf.Memo, started: datetime, **_: Any) -> None:
    await _let_go(memo.operator, memo.operator.triggers.delete, body, started)


@kopf.on.event(*BROKERS, registry=EVERY)
async def learn_class(body: kopf.Body, memo: kopf.Memo, type: str | None, **_: Any) -> None:  # noqa: A002  # kopf's name
    memo.operator.learn_class(dict(body), gone=type == "DELETED")


@kopf.on.event(*BROKERS, registry=LEADING)
async def hear_of_broker(body: kopf.Body, memo: kopf.Memo, type: str | None, **_: Any) -> None:  # noqa: A002  # kopf's name
    memo.operator.heard_of_broker(dict(body), gone=type == "DELETED")


@kopf.on.event(*TRIGGERS, registry=LEADING)
async def hear_of_trigger(body: kopf.Body, memo: kopf.Memo, type: str | None, **_: Any) -> None:  # noqa: A002  # kopf's name
    memo.operator.heard_of_trigger(dict(body), gone=type == "DELETED")


@kopf.on.event(*SERVICES, registry=LEADING)
async def hear_of_service(body: kopf.Body, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.heard_of_service(dict(body))


@kopf.on.event("pods", labels={services.ROLE: services.RECEIVER}, registry=LEADING)
async def hear_of_receiver(body: kopf.Body, memo: kopf.Memo, type: str | None, **_: Any) -> None:  # noqa: A002  # kopf's name
    if type == "ADDED":
        memo.operator.heard_of_receiver(dict(body))


@kopf.on.mutate(*BROKERS, id="default-broker", **WEBHOOK)
def default_broker(
    body: kopf.Body, patch: kopf.Patch, memo: kopf.Memo, old: Any = None, **_: Any
) -> None:
    brokers = memo.operator.brokers
    filled_in = admission.defaulted_broker(
        dict(body), old and dict(old), default_class=brokers.settings.default_class
    )
    # One without a class is ours by now, if the default is.
    if brokers.is_ours(old or filled_in):
        patch.fns.append(lambda raw: _become(raw, filled_in))


@kopf.on.mutate(*TRIGGERS, id="default-trigger", **WEBHOOK)
def default_trigger(body: kopf.Body, patch: kopf.Patch, memo: kopf.Memo, **_: Any) -> None:
    if memo.operator.may_be_ours(body):
        patch.fns.append(lambda raw: _become(raw, admission.defaulted_trigger(raw)))


@kopf.on.validate(*BROKERS, id="check-broker", **WEBHOOK)
def check_broker(body: kopf.Body, memo: kopf.Memo, old: Any = None, **_: Any) -> None:
    if memo.operator.brokers.is_ours(old or body):
        _admit(admission.check_broker, dict(body), old and dict(old))


@kopf.on.validate(*TRIGGERS, id="check-trigger", **WEBHOOK)
def check_trigger(
    body: kopf.Body, memo: kopf.Memo, warnings: list[str], old: Any = None, **_: Any
) -> None:
    if memo.operator.may_be_ours(old or body):
        _admit(admission.check_trigger, dict(body), old and dict(old))
        warnings.extend(admission.trigger_warnings(dict(body)))


async def _keep(
    operator: Operator,
    body: kopf.Body,
    reconcile: Callable[[Document], Awaitable[Mapping[str, Any] | None]],
) -> None:
    """Reconcile it for ever; whatever goes wrong is told of it, and tried again."""

    async def look() -> float:
        try:
            document = await operator.fresh(body)
            now = None if document is None else await reconcile(document)
            return RESYNC if document is None or now is None else _after(body, document, now)
        except ClusterError as error:
            log.warning("%s %s: %s", body["kind"], _name(body), error)
        except Exception as error:  # a daemon that ends would be missed only when events wait
            log.exception("%s %s", body["kind"], _name(body))
            await operator.tell_failure(body, error)
        return RETRY

    await operator.wakes.keep((body["kind"], *_identity(body)), look)


def _become(raw: Any, document: Document) -> None:
    # A function, since kopf passes over the empty objects of a patch, and `filter: {}` is one.
    raw.update(document)


def _admit(check: Any, document: Document, old: Document | None) -> None:
    try:
        check(document, old)
    except InvalidDocument as error:
        raise kopf.AdmissionError(f"validation failed: {error}", code=400) from None


async def _let_go(operator: Operator, delete: Any, body: kopf.Body, started: datetime) -> None:
    """Delete, for as long as it may take; a Kafka that is gone never blocks it for ever."""
    document = dict(body)
    try:
        await delete(document)
    except Exception as error:  # a bug neither: its object would never go
        if not isinstance(error, KnafkaError):
            log.exception("deleting %s %s", document["kind"], _name(document))
        waited = (datetime.now(UTC) - started).total_seconds()
        if waited < operator.settings.deletion_timeout:
            raise kopf.TemporaryError(f"not deleted yet: {error}", delay=2) from None
        operator.forget(document)
        message = f"Kafka still has its topic or group, which nobody will delete: {error}"
        kopf.warn(body, reason="LeftInKafka", message=message)
        log.warning("%s %s: %s", document["kind"], _name(document), message)


def _after(body: kopf.Body, document: Document, now: Mapping[str, Any]) -> float:
    """Tell of what has changed; gives the seconds until the next look."""
    before = status.summary((document.get("status") or {}).get("conditions") or ())
    ready = status.summary(now["conditions"])
    if before.get("status") != ready["status"]:
        if ready["status"] == "True":
            kopf.info(body, reason="Ready", message=f"{document['kind']} is Ready")
        elif ready["status"] == "False":
            kopf.warn(body, reason=ready["reason"], message=ready["message"])
    return RESYNC * random.uniform(0.8, 1.2) if ready["status"] == "True" else RETRY


def _identity(document: Mapping[str, Any]) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def _name(document: Mapping[str, Any]) -> str:
    return "/".join(_identity(document))
