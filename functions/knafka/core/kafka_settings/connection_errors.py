"""Keeps the last error of a client's connections to Kafka, as text for a person.

librdkafka never gives up on a wrong password or an unknown CA: it retries for ever and only calls
its error callback, from within a client's `poll`. If a token endpoint fails, the error's text
includes the endpoint's response body. As the text may be shown in a status, only OAuth error codes
are kept of that body (`shown_text`). Not here: how long to wait; the Kafka client decides that.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

_NO_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token"
"""Begins librdkafka's text for a failed token endpoint. It reports this error once, and retries
without another report."""
MAX_TEXT: Final = 500
"""Most characters of an error that are kept: a server's text may have any length."""
_match_own_words: Final = re.compile(
    "(?:Expected JSON response|Failed to parse JSON|Failed to decode JWT|Response is not JSON"
    "|Failed to connect|Could ?n[o']t (?:connect|resolve)|Connection timed out|Operation timed out"
    "|Resolving timed out|SSL |OpenSSL |Recv failure|Send failure|Empty reply|Unsupported protocol"
    ")[^{}<>\n]{0,200}"
).match
"""Matches an error about a token endpoint in librdkafka's or libcurl's own words."""
_find_oauth_code: Final = re.compile(
    r'"error"\s*:\s*"(invalid_(?:request|client|grant|scope|target)|unauthorized_client'
    r'|unsupported_grant_type|access_denied|server_error|temporarily_unavailable)"'
).search
"""Finds an OAuth error code: those of RFC 6749, 5.2, and others that providers use."""


def shown_text(text: str) -> str:
    """Return the part of librdkafka's error text that may be shown to a person: at most `MAX_TEXT`
    characters, and of a token endpoint's response body only the OAuth error code."""
    if not text.startswith(_NO_TOKEN):
        return text[:MAX_TEXT]
    endpoint_text = text.removeprefix(_NO_TOKEN).removeprefix(": ")
    if (own_words := _match_own_words(endpoint_text)) is not None:
        return f"{_NO_TOKEN}: {own_words[0]}"
    oauth_code = _find_oauth_code(endpoint_text)
    shown_answer = (
        "see its own log, as its answer isn't shown here" if oauth_code is None else oauth_code[1]
    )
    return f"{_NO_TOKEN}: the token endpoint answered with an error: {shown_answer}"


class ClientError(Protocol):
    """An error that librdkafka passes to an error callback."""

    def name(self) -> str:
        """Return librdkafka's name of the error, such as `_TRANSPORT`."""
        ...

    def str(self) -> str:
        """Return librdkafka's text of the error."""
        ...


class ConnectionErrors:
    """The last error of one client's connections."""

    def __init__(self) -> None:
        self._name = self._text = ""
        """The last error's name and text; empty: there is none."""
        self.is_unreachable = False
        """Whether the last connection failed because no server accepted it, so that Kafka may just
        be unavailable. (A connection that ends without a reason may be due to a wrong setting.)
        `forget` and `forget_all` leave this as it is, as librdkafka doesn't repeat an error: the
        cause counts as unchanged until it reports another one."""

    def record(self, error: ClientError) -> None:
        """Record an error, and whether no server accepted the connection; usable as librdkafka's
        error callback."""
        # This error only follows the error of the last broker, so it must not replace that error.
        is_summary = error.name() == "_ALL_BROKERS_DOWN"
        if not is_summary:
            self.is_unreachable = error.name() == "_RESOLVE" or (
                error.name() == "_TRANSPORT" and "Connect to " in error.str()
            )
        if not is_summary or not self._name:
            self._name, self._text = error.name(), shown_text(error.str())

    def forget(self) -> None:
        """Forget the last error, as its cause may be gone; but keep one that librdkafka reports
        only once (`_NO_TOKEN`)."""
        if not self._text.startswith(_NO_TOKEN):
            self.forget_all()

    def forget_all(self) -> None:
        """Forget the last error, whichever it is; called once Kafka has answered."""
        self._name = self._text = ""

    @property
    def refusal(self) -> str | None:
        """A clause about the last error if waiting won't help; None: the error may go away by
        itself, or there is no error."""
        if self._name == "_AUTHENTICATION":
            return f"authentication failed: {self._text}"
        # A handshake may also be broken off by a broker that is shutting down.
        if self._name == "_SSL" and "Disconnected" not in self._text:
            return f"TLS failed: {self._text}"
        if "tls alert" in self._text:  # OpenSSL's words; to librdkafka it is a broken connection
            return f"TLS failed, Kafka refuses our certificate or misses one: {self._text}"
        return None

    def __str__(self) -> str:
        """Return a clause about the last error; empty if there is no error."""
        if self._name == "_ALL_BROKERS_DOWN":
            return "every connection ends without a reason, as with a wrong security protocol"
        return self.refusal or self._text
