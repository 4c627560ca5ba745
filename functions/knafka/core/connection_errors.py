"""Connection errors: what is wrong between us and Kafka, in words for a person.

librdkafka never gives up on a wrong password or an unknown CA: it tries for ever, and tells its
error callback, from within a client's `poll`. The last such error is kept here until asked for.
Not here: for how long to wait; the client of Kafka decides that.
"""

from __future__ import annotations

from typing import Final, Protocol

_NO_TOKEN: Final = "Failed to acquire SASL OAUTHBEARER token"
"""librdkafka's words; it says so once, and then tries again in silence."""


class ClientError(Protocol):
    """What librdkafka hands to an error callback."""

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
            self._name, self._text = error.name(), error.str()

    def forget(self) -> None:
        """It may have been mended; but of what isn't repeated that is known once Kafka answers."""
        if not self._text.startswith(_NO_TOKEN):
            self.mended()

    def mended(self) -> None:
        """Kafka has answered."""
        self._name = self._text = ""

    @property
    def refusal(self) -> str | None:
        """What waiting won't mend, if that is what it is."""
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
