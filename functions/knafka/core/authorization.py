"""Decides which senders' events a Broker or KafkaChannel accepts (EventPolicy). Pure.

    subject, policies that apply -> every event | none | those that a predicate lets through
    no policy applies            -> the installation's default-authorization-mode

A policy that names a sender admits those of its events that pass all of the policy's filters; one
such policy is enough.

Not here: authentication of the sender (`auth_tokens`), and the choice of the policies that apply
(the operator).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from knafka.core.contract import AuthorizationMode, Policy
from knafka.core.events.event import Attributes
from knafka.core.filters.predicates import Predicate, compile_filter

SERVICE_ACCOUNTS: Final = "system:serviceaccount:"
"""Prefix of a service account's subject in Kubernetes, before namespace and name."""


def subject_matches(subject: str, pattern: str) -> bool:
    """Whether a policy's subject pattern matches this subject. Either both are equal, ignoring
    case; or the pattern ends with `*`, and the subject begins with the text before the `*`, in the
    same case."""
    if pattern.endswith("*") and subject.startswith(pattern[:-1]):
        return True
    return subject.casefold() == pattern.casefold()


class Authorization:
    """Decides which senders may send which events to one Broker or KafkaChannel; its policies are
    compiled once."""

    def __init__(self, policies: Sequence[Policy], mode: AuthorizationMode, namespace: str) -> None:
        """Compile `policies`, the EventPolicies that apply; if there are none, `mode` decides.
        `namespace`: that of the Broker or KafkaChannel."""
        self._policies = [
            (policy.subjects, _require_all([compile_filter(filter_) for filter_ in policy.filters]))
            for policy in policies
        ]
        """Each policy's subject patterns, and its filters compiled into one predicate (None: every
        event passes)."""
        self._mode = mode
        self._namespace_prefix = f"{SERVICE_ACCOUNTS}{namespace}:"
        """Begins the subjects of the namespace's own service accounts."""

    def verdict(self, subject: str) -> bool | Predicate:
        """Decide about a sender by the `subject` of its token. Return True if it may send any
        event, False if it may send none, else the predicate that its events must fulfil."""
        if not self._policies:
            return self._default_verdict(subject)
        sender_predicates: list[Predicate] = []
        for subject_patterns, predicate in self._policies:
            if any(subject_matches(subject, pattern) for pattern in subject_patterns):
                if predicate is None:  # this policy admits every event, so no other one matters
                    return True
                sender_predicates.append(predicate)
        if not sender_predicates:
            return False
        return lambda event: any(passes(event) for passes in sender_predicates)

    def _default_verdict(self, subject: str) -> bool:
        """Whether the mode allows this sender to send events; asked only if no policy applies."""
        allowed_by_mode: dict[AuthorizationMode, bool] = {
            "allow-all": True,
            "deny-all": False,
            "allow-same-namespace": subject.startswith(self._namespace_prefix),
        }
        return allowed_by_mode[self._mode]


def _require_all(predicates: Sequence[Predicate]) -> Predicate | None:
    """Combine predicates into one that requires all of them; None if there are none, so that every
    event passes."""
    if not predicates:
        return None

    def passes(event: Attributes) -> bool:
        """Whether the event fulfils all predicates."""
        return all(predicate(event) for predicate in predicates)

    return passes
