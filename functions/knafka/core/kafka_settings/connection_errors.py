"""Connection errors: what is wrong between us and Kafka, in words for a person.

librdkafka never gives up on a wrong password or an unknown CA: it tries for ever, and tells its
error callback, from within a client's `poll`. The last such error is kept here until asked for.
Its words on a token endpoint are the body that the endpoint answered with. The text may stand in a
status, so only the codes of OAuth are kept of that body (`shown_text`).
Not here: for how long to wait; the client of Kafka decides that.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

_NO_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token"
"""librdkafka's words; it says so once, and then tries again in silence."""
MAX_TEXT: Final = 500
"""Characters of an error that are told: what a server says of itself has no bound of its own."""
_OWN_WORDS: Final = re.compile(
    "(?:Expected JSON response|Failed to parse JSON|Failed to decode JWT|Response is not JSON"
    "|Failed to connect|Could ?n[o']t (?:connect|resolve)|Connection timed out|Operation timed out"
    "|Resolving timed out|SSL |OpenSSL |Recv failure|Send failure|Empty reply|Unsupported protocol"
    ")[^{}<>\n]{0,200}"
).match
"""What librdkafka and libcurl themselves say about a token endpoint."""
_OAUTH_CODE: Final = re.compile(
    r'"error"\s*:\s*"(invalid_(?:request|client|grant|scope|target)|unauthorized_client'
    r'|unsupported_grant_type|access_denied|server_error|temporarily_unavailable)"'
).search
"""RFC 6749, 5.2, and what providers add to it."""


def shown_text(text: str) -> str:
    """Return the text of librdkafka's error without the response body of a token endpoint."""
    if not text.startswith(_NO_TOKEN):
        return text[:MAX_TEXT]
    said = text.removeprefix(_NO_TOKEN).removeprefix(": ")
    if (own := _OWN_WORDS(said)) is not None:
        return f"{_NO_TOKEN}: {own[0]}"
    code = _OAUTH_CODE(said)
    return f"{_NO_TOKEN}: the token endpoint answered with an error: " + (
        code[1] if code is not None else "see its own log, as its answer isn't shown here"
    )


class ClientError(Protocol):
    """An error that librdkafka passes to an error callback."""

    def name(self) -> str: ...
    def str(self) -> str: ...


class ConnectionErrors:
    """The last error of one client's connections."""

    def __init__(self) -> None:
        self._name = self._text = ""
        self.nobody_listens = False
        """Whether the last broken connection was one that nobody accepted, so that Kafka may merely
        be away. Those that end without a reason may be due to a wrong setting, and those that are
        refused for one are. Not forgotten, as librdkafka doesn't repeat itself."""

    def record(self, error: ClientError) -> None:
        """Keep this error; fit to be an error callback."""
        if error.name() != "_ALL_BROKERS_DOWN":
            self.nobody_listens = error.name() == "_RESOLVE" or (
                error.name() == "_TRANSPORT" and "Connect to " in error.str()
            )
        # That all brokers are down follows whatever is wrong with the last of them.
        if error.name() != "_ALL_BROKERS_DOWN" or not self._name:
            self._name, self._text = error.name(), shown_text(error.str())

    def forget(self) -> None:
        """Forget the errors, as they may be mended, except those that librdkafka doesn't repeat."""
        if not self._text.startswith(_NO_TOKEN):
            self.mended()

    def mended(self) -> None:
        """Kafka has answered."""
        self._name = self._text = ""

    @property
    def refusal(self) -> str | None:
        """Return the error that waiting won't mend; None: there is none."""
        if self._name == "_AUTHENTICATION":
            return f"authentication failed: {self._text}"
        # A handshake that is broken off may be one with a broker that is about to end.
        if self._name == "_SSL" and "Disconnected" not in self._text:
            return f"TLS failed: {self._text}"
        if "tls alert" in self._text:  # OpenSSL's words; to librdkafka it is a broken connection
            return f"TLS failed, Kafka refuses our certificate or misses one: {self._text}"
        return None

    def __str__(self) -> str:
        """A clause, empty if there is nothing to say."""
        if self._name == "_ALL_BROKERS_DOWN":
            return "every connection ends without a reason, as with a wrong security protocol"
        return self.refusal or self._text
