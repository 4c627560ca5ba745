"""Policies: keeps all EventPolicies of the cluster in memory, updated by a watch.

Until all policies are read, a Broker with authentication isn't reconciled, and its receiver keeps
its previous contract, so that no sender is admitted by mistake.

Belongs to one event loop; one instance serves Brokers and channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from knafka_operator.decisions.status import NotReady
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Identity
from knafka_operator.senders.event_policies import StoredPolicy


class Policies:
    """All EventPolicies of the cluster."""

    def __init__(self) -> None:
        """Begin without policies. They count as known, since a cluster without the kind EventPolicy
        has none, and isn't watched for them."""
        self.is_known = True
        """Whether all policies are known; set by the watch of EventPolicies."""
        self._by_namespace: dict[str, dict[Identity, StoredPolicy]] = {}
        """The policies of each namespace that has any, by namespace and then by identity."""

    def __len__(self) -> int:
        """Return the number of policies in memory."""
        return sum(map(len, self._by_namespace.values()))

    def update(self, changed: Sequence[Document], gone: Sequence[Document]) -> set[str]:
        """Store the policies that have `changed`, drop those that are `gone`, and return the
        namespaces of all of them."""
        for document in changed:
            identity = Identity.of(document)
            self._by_namespace.setdefault(identity.namespace, {})[identity] = StoredPolicy(document)
        for document in gone:
            identity = Identity.of(document)
            namespace_policies = self._by_namespace.get(identity.namespace, {})
            if namespace_policies.pop(identity, None) is not None and not namespace_policies:
                del self._by_namespace[identity.namespace]
        return {Identity.of(document).namespace for document in (*changed, *gone)}

    def of(self, namespace: str) -> tuple[StoredPolicy, ...]:
        """Return all policies of a namespace. Raises `NotReady` until all policies of the cluster
        are known."""
        if not self.is_known:
            message = "the EventPolicies are not read yet, and without them nobody is admitted"
            raise NotReady("EventPoliciesGetFailed", message, transient=True)
        return tuple(self._by_namespace.get(namespace, {}).values())
