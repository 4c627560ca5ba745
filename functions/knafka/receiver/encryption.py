"""Encryption: refuses unencrypted requests to a Broker that takes only encrypted ones.

    `X-Forwarded-Proto: https`, set by Knative's gateway or our own TLS, says that a request came
    encrypted. Any other value, or none, is answered 403.

A sender that forges the header only deceives itself.

Not here: TLS (`knafka.tls_listener`), and which Brokers require it (`Ingress.encrypted_only`).
"""

from __future__ import annotations

from typing import Final, Protocol

from knafka.core.authorization import AdmitsAll
from knafka.receiver import answers
from knafka.receiver.address import HttpHeaders
from knafka.receiver.answers import Answer

_FORWARDED: Final = b"x-forwarded-proto"
"""The header that says by which scheme (http or https) a request reached the first proxy."""
CAME_ENCRYPTED: Final = (_FORWARDED, b"https")
"""The header that is added to a request that came through our own TLS."""


class RequestCheck(Protocol):
    """A check that a request must pass before its event is parsed."""

    def admit(self, headers: HttpHeaders) -> Answer | AdmitsAll | None:
        """Decide about a request by its headers. Returns None if the sender may send any event, a
        predicate that the attributes of the request's events must fulfil, or the answer with which
        the request is refused."""
        ...


class EncryptedOnly:
    """Refuses requests that came unencrypted; passes the others to the next check."""

    def __init__(self, next_check: RequestCheck | None) -> None:
        """`next_check`: the check of the sender, for encrypted requests; None if everybody may
        send."""
        self._next_check = next_check

    def admit(self, headers: HttpHeaders) -> Answer | AdmitsAll | None:
        """Return 403 for an unencrypted request, else the result of the next check; None if there
        is no next check, as everybody may send."""
        # A proxy may add its header to one that the sender has set: all must say https.
        schemes = [
            value.strip().lower()
            for name, value in headers
            if len(name) == len(_FORWARDED) and name.lower() == _FORWARDED
        ]
        if not schemes or any(scheme != b"https" for scheme in schemes):
            return answers.NOT_ENCRYPTED
        return None if self._next_check is None else self._next_check.admit(headers)
