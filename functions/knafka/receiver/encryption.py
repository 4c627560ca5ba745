"""Encryption: whether a request came encrypted, where a Broker takes no others.

    X-Forwarded-Proto: https    Knative's gateway, or our own TLS, says that it did
    anything else, or nothing   403

Who sends in plain and claims that it didn't deceives nobody but itself.

Not here: TLS (`knafka.tls_listener`), and whether a Broker wants it (`Ingress.encrypted_only`).
"""

from __future__ import annotations

from typing import Final, Protocol

from knafka.core.filters import Predicate
from knafka.receiver import answers
from knafka.receiver.address import HttpHeaders
from knafka.receiver.answers import Answer

_FORWARDED: Final = b"x-forwarded-proto"
CAME_ENCRYPTED: Final = (_FORWARDED, b"https")
"""The header of a request that came through our own TLS."""


class Check(Protocol):
    """What a request must pass before its event is looked at."""

    def admit(self, headers: HttpHeaders) -> Answer | Predicate | None:
        """None: any event is taken; else the answer to the request, or what an event's attributes
        must fulfil."""
        ...


class EncryptedOnly:
    """Lets through what came encrypted, to the next check."""

    def __init__(self, then: Check | None) -> None:
        """`then` None: everybody may send."""
        self._then = then

    def admit(self, headers: HttpHeaders) -> Answer | Predicate | None:
        said = [
            value.strip().lower()
            for name, value in headers
            if len(name) == len(_FORWARDED) and name.lower() == _FORWARDED
        ]
        if not said or any(each != b"https" for each in said):
            return answers.NOT_ENCRYPTED
        return None if self._then is None else self._then.admit(headers)
