"""Service accounts: the senders of events. No manifest has to declare them on this machine."""

from __future__ import annotations

import re
from typing import NamedTuple, Self

from knafka.core.authorization import SERVICE_ACCOUNTS

_LEGAL_ACCOUNT_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?").fullmatch
"""Matches what may be the name of a namespace or service account."""


class ServiceAccount(NamedTuple):
    """A Kubernetes service account."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse `NAMESPACE/NAME`, or `NAME` for an account in `default`; None if a part can't be a
        Kubernetes name."""
        namespace, slash, name = text.rpartition("/")
        account = cls(namespace if slash else "default", name)
        return account if all(_LEGAL_ACCOUNT_NAME(part) for part in account) else None

    @property
    def subject(self) -> str:
        """The subject (`sub`) of the account's tokens."""
        return f"{SERVICE_ACCOUNTS}{self.namespace}:{self.name}"
