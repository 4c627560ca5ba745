"""Service accounts: decides which account a Trigger or Subscription sends events as (KN-TRG-11,
KN-SUB-06). Pure.

    a Trigger               has an account in its namespace, even if no destination requires tokens
    a destination with      needs a Role that lets dispatchers request tokens of only that account,
    an audience             and a RoleBinding to the accounts that the dispatchers run as

    dispatchers of          run as
    a Trigger alone         an account of the Trigger's, for them only
    a Broker's Triggers     an account of the Broker's, for them only
    a KafkaChannel's        `CHANNEL_DISPATCHERS`, in the installation's namespace, where they run

The account whose tokens are sent has no rights, since a destination could declare the API server's
audience and use the token there. All objects are deleted with their Trigger
(docs/decisions/0040-tokens-for-sinks.md).

Not here: the tokens, which the operator never reads (`knafka.core.tokens.sink_tokens`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from knafka.core import names
from knafka.core.contract import Egress
from knafka_operator.decisions.effects import Apply, Create, Delete, Effect, ObjectName, Refusal
from knafka_operator.decisions.status import OIDC_IDENTITY_CREATED, NotReady
from knafka_operator.decisions.steps import Step
from knafka_operator.functions import dispatcher_services, services
from knafka_operator.functions.services import Manifest
from knafka_operator.installation.settings import Settings
from knafka_operator.model.channels import ENTRY, SENDS_AS
from knafka_operator.model.conditions import Condition, Status
from knafka_operator.model.family import CHANNELS, SOURCES, family_of
from knafka_operator.model.identity import Identity
from knafka_operator.model.resources import CORE, RBAC, Broker, Resource, Trigger

CHANNEL_DISPATCHERS: Final = "knafka-channel-dispatchers"
"""The service account of channels' dispatchers, from operator/deploy/channels/rbac.yaml."""

_MAX_ACCOUNT_NAME: Final = 63
"""Most characters of an account's name, as upstream; a longer name is cut, and ends in a digest."""
_DIGEST_LENGTH: Final = 32
"""Characters of that digest."""
_RBAC_GROUP: Final = RBAC.partition("/")[0]
"""The API group of Roles, without the version."""

OIDC_DISABLED: Final = Condition(OIDC_IDENTITY_CREATED, Status.TRUE, "OIDCFeatureDisabled")
"""The condition while OIDC is off, like upstream's."""
ACCOUNT_WAITS: Final = Condition(
    OIDC_IDENTITY_CREATED,
    Status.UNKNOWN,
    "Waiting",
    "it is created once its destinations are known",
)
"""The condition while it isn't known whether the account is needed."""


def account_name(trigger: Resource) -> str:
    """Return the name of a Trigger's service account, the same as upstream's, so that an existing
    account stays in use."""
    group = trigger.api_version.partition("/")[0]
    parent, suffix = trigger.metadata.name, f"oidc-{group}-{trigger.kind}"
    if len(parent + suffix) > _MAX_ACCOUNT_NAME:
        digest = hashlib.md5((parent + suffix).encode(), usedforsecurity=False).hexdigest()
        return f"{parent[: _MAX_ACCOUNT_NAME - _DIGEST_LENGTH]}{digest}".lower()
    return f"{parent}{suffix}".lower()


def sender_account(trigger: Trigger, document: Mapping[str, Any]) -> str:
    """Return the service account that a Trigger sends as; `document` is the stored Trigger. Raises
    `NotReady` for an entry of a channel, unless it has the UID of a stored Subscription and names
    the account of that Subscription."""
    name, metadata = account_name(trigger), document["metadata"]
    if ENTRY not in metadata:
        return name
    # `trigger` has the name of the stored Subscription with the entry's UID, or one made from the
    # UID if there is none. Any other account is refused: otherwise a user who may write a channel
    # could have the tokens of any account sent to an address of their own.
    if metadata[SENDS_AS] == name:
        return name
    message = (
        "its entry in the channel's spec.subscribers must have the UID of a Subscription, and "
        f"{name} as auth.serviceAccountName"
    )
    raise NotReady("ServiceAccountNotNamed", message)


def dispatcher_account(egress: Egress) -> str | None:
    """Return the service account that a Trigger's own dispatcher and replayer run as; `egress` is
    the Trigger's contract. All dispatchers of KafkaChannels run as the same account. None: they
    send no tokens, so they need no account.

    That account may request tokens of another one: the account that the Trigger sends events as.
    """
    if egress.service_account is None:
        return None
    family = family_of(egress.kind)
    if family is CHANNELS:
        return CHANNEL_DISPATCHERS
    return dispatcher_services.dispatcher_name(family, Identity(egress.namespace, egress.trigger))


def shard_account(broker: Resource) -> str:
    """Return the service account that the shared dispatchers of a Broker or channel run as."""
    if family_of(broker.kind) is CHANNELS:
        return CHANNEL_DISPATCHERS
    return names.child(broker.metadata.name, "-kn-shards")


def account_effects(
    trigger: Trigger,
    document: Mapping[str, Any],
    broker: Broker,
    egress: Egress,
    settings: Settings,
    *,
    shared: bool,
) -> tuple[Effect, ...]:
    """Return the effects that create the account that a Trigger sends as, and the accounts and
    rights of the dispatchers that request its tokens. `document` is the stored Trigger; `shared`
    says whether a shared dispatcher delivers it. For an entry in a channel's `spec.subscribers`,
    the controller that wrote the entry creates the account that it sends as.
    """
    family = family_of(trigger.kind)
    effects: list[Effect] = []
    # Channels, whose family is centralized, need no account here: `CHANNEL_DISPATCHERS` exists.
    if shared and not family.centralized:
        manifest = _account_manifest(_owned_metadata(broker, shard_account(broker)))
        # The Broker owns this account, not the Trigger: `Create` accepts an existing account if
        # this label has the Broker's UID.
        labels = {**manifest["metadata"]["labels"], services.OWNER_LABEL: broker.metadata.uid}
        manifest["metadata"]["labels"] = labels
        refusal = _refusal(family.broker)
        effects.append(Create(Step.APPLY_ACCOUNT, manifest, refusal, services.OWNER_LABEL))
    manifests: list[Manifest] = []
    metadata = _owned_metadata(trigger, account_name(trigger))
    if ENTRY not in document["metadata"]:
        manifests.append(_account_manifest(metadata))
    if egress.service_account is not None:
        if (runs_as := dispatcher_account(egress)) is not None and not family.centralized:
            manifests.append(_account_manifest(_owned_metadata(trigger, runs_as)))
        manifests += _token_role_and_binding(metadata, egress, broker, settings)
    if manifests:
        effects.append(Apply(Step.APPLY_ACCOUNT, tuple(manifests), _refusal(family.trigger)))
    return tuple(effects)


def account_deletion(document: Mapping[str, Any], name: str) -> Delete:
    """Return the effect that deletes the accounts and rights of a stored Trigger once OIDC is off;
    objects that the Trigger doesn't own stay. `name` is the account that the Trigger has sent
    as."""
    family, identity = family_of(document["kind"]), Identity.of(document)
    kinds = ((RBAC, "RoleBinding"), (RBAC, "Role"), (CORE, "ServiceAccount"))
    objects = [ObjectName(*kind, identity.namespace, name) for kind in kinds]
    if not family.centralized:
        runs_as = dispatcher_services.dispatcher_name(family, identity)
        objects.append(ObjectName(CORE, "ServiceAccount", identity.namespace, runs_as))
    return Delete(Step.DELETE_ACCOUNT, tuple(objects), owned=True)


def account_in_status(document: Mapping[str, Any]) -> str | None:
    """Return the service account in a Trigger's status; None: it names none."""
    auth = (document.get("status") or {}).get("auth") or {}
    name = auth.get("serviceAccountName")
    return name if isinstance(name, str) and name else None


def _account_manifest(metadata: Manifest) -> Manifest:
    """Return the manifest of a ServiceAccount whose token isn't mounted into pods automatically."""
    return {
        "apiVersion": CORE,
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def _token_role_and_binding(
    metadata: Manifest, egress: Egress, broker: Broker, settings: Settings
) -> tuple[Manifest, Manifest]:
    """Return a Role that allows requests for tokens of the account that a Trigger sends as, and its
    RoleBinding to the accounts of the dispatchers that may deliver the Trigger: its own and those
    that its Broker's Triggers share, as it may move between them. Both objects get `metadata`;
    `egress` is the Trigger's contract."""
    account, family = egress.service_account, family_of(egress.kind)
    namespace = services.function_namespace(family, Identity(egress.namespace, ""), settings)
    dispatcher_accounts = [dispatcher_account(egress)]
    if family is not SOURCES:  # no shard delivers a KafkaSource
        dispatcher_accounts.append(shard_account(broker))
    rule = {
        "apiGroups": [""],
        "resources": ["serviceaccounts/token"],
        "resourceNames": [account],
        "verbs": ["create"],
    }
    role: Manifest = {"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": [rule]}
    binding: Manifest = {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC_GROUP, "kind": "Role", "name": account},
        "subjects": [
            {"kind": "ServiceAccount", "namespace": namespace, "name": name}
            # Without duplicates: a channel's dispatchers all run as one account.
            for name in dict.fromkeys(dispatcher_accounts)
        ],
    }
    return role, binding


def _owned_metadata(owner: Resource, name: str) -> Manifest:
    """Return the metadata of an object in the owner's namespace that is deleted with the owner."""
    return {
        "namespace": owner.metadata.namespace,
        "name": name,
        "labels": dict(services.with_common_labels({})),
        "ownerReferences": [services.owner_reference(owner)],
    }


def _refusal(kind: str) -> Refusal:
    """Return the reasons for the condition of an object of this kind if its accounts and rights
    can't be created, or if existing ones belong to another owner."""
    return Refusal(f"this {kind}", "ServiceAccountNotOwned", "ServiceAccountNotCreated")
