"""Decides which senders' events a Broker or KafkaChannel accepts (EventPolicy). Pure.

    subject, policies that apply -> every event | none | those that a predicate lets through
    no policy applies            -> the installation's default-authorization-mode

A policy that names a sender admits those of its events that pass all of the policy's filters; one
such policy is enough. What that costs is limited for each request (`AdmitsAll`), as a receiver also
serves other namespaces.

Not here: authentication of the sender (`auth_tokens`), and the choice of the policies that apply
(the operator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from knafka.core import cesql, documents
from knafka.core.contract import AuthorizationMode, Policy
from knafka.core.events.event import Attributes
from knafka.core.filters.filter_limits import characters_of
from knafka.core.filters.predicates import Predicate, compile_filter

AdmitsAll: TypeAlias = Callable[[Iterable[Attributes]], bool | None]
"""Whether a sender may send all events with these attributes, the events of one request. None: that
takes more effort than `cesql.MAX_EFFORT` to decide, so it may not."""

FILTER_EFFORT: Final = 4
"""Effort of evaluating one character of a filter: it takes 40 to 200 ns, and reading a character of
an attribute 2 to 4 ns. So 1,000 events of one request may pass filters of 2,000 characters."""

SERVICE_ACCOUNTS: Final = "system:serviceaccount:"
"""Prefix of a service account's subject in Kubernetes, before namespace and name."""


def subject_matches(subject: str, pattern: str) -> bool:
    """Whether a policy's subject pattern matches this subject. Either both are equal, ignoring
    case; or the pattern ends with `*`, and the subject begins with the text before the `*`, in the
    same case."""
    if pattern.endswith("*") and subject.startswith(pattern[:-1]):
        return True
    return subject.casefold() == pattern.casefold()


class _Rule(NamedTuple):
    """The filters of one policy, compiled."""

    passes: Predicate
    effort: int
    """Effort of evaluating the filters once, without reading large attributes."""


class Authorization:
    """Decides which senders may send which events to one Broker or KafkaChannel; its policies are
    compiled once."""

    def __init__(self, policies: Sequence[Policy], mode: AuthorizationMode, namespace: str) -> None:
        """Compile `policies`, the EventPolicies that apply; if there are none, `mode` decides.
        `namespace`: that of the Broker or KafkaChannel."""
        self._policies = [(policy.subjects, _rule_of(policy)) for policy in policies]
        """Each policy's subject patterns, and the rule that events must pass (None: every event
        passes)."""
        self._mode = mode
        self._namespace_prefix = f"{SERVICE_ACCOUNTS}{namespace}:"
        """Begins the subjects of the namespace's own service accounts."""

    def verdict(self, subject: str) -> bool | AdmitsAll:
        """Decide about a sender by the `subject` of its token. Return True if it may send any
        event, False if it may send none, else the predicate that its requests must fulfil."""
        if not self._policies:
            return self._default_verdict(subject)
        rules: list[_Rule] = []
        for subject_patterns, rule in self._policies:
            if any(subject_matches(subject, pattern) for pattern in subject_patterns):
                if rule is None:  # this policy admits every event, so no other one matters
                    return True
                rules.append(rule)
        return _compile_rules(rules) if rules else False

    def _default_verdict(self, subject: str) -> bool:
        """Whether the mode allows this sender to send events; asked only if no policy applies."""
        allowed_by_mode: dict[AuthorizationMode, bool] = {
            "allow-all": True,
            "deny-all": False,
            "allow-same-namespace": subject.startswith(self._namespace_prefix),
        }
        return allowed_by_mode[self._mode]


def _rule_of(policy: Policy) -> _Rule | None:
    """Compile the filters of a policy, all of which an event must pass; None: it has none."""
    if not policy.filters:
        return None
    predicates = [compile_filter(filter_) for filter_ in policy.filters]
    characters = characters_of(documents.dump(policy)["filters"], cesql.MAX_EFFORT)
    return _Rule(
        lambda event: all(passes(event) for passes in predicates), characters * FILTER_EFFORT
    )


def _compile_rules(rules: Sequence[_Rule]) -> AdmitsAll:
    """Compile a sender's rules, of which each event must pass one."""

    def admits(event: Attributes) -> bool:
        """Whether the event passes one of the rules. Raises `Exhausted` for too much effort."""
        for passes, effort in rules:
            cesql.spend(effort)
            if passes(event):
                return True
        return False

    def admits_all(events: Iterable[Attributes]) -> bool | None:
        """Whether each event passes one of the rules, with one limit of effort for all; None: the
        limit is reached."""
        try:
            with cesql.shared_effort():
                return all(map(admits, events))
        except cesql.Exhausted:
            return None

    return admits_all
