"""Handler: whose controller reconciles Subscriptions, ours or Knative Eventing's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from knafka.core.errors import InvalidDocument

EVENTING_DEFINITION: Final = "channels.messaging.knative.dev"
"""The CustomResourceDefinition that only Knative Eventing installs; that of Subscriptions may be
either's."""


EVENTING_FINALIZER: Final = "subscriptions.messaging.knative.dev"
"""What Knative Eventing's controller puts on every Subscription, and takes off one that is
deleted."""


class Handler(StrEnum):
    """Values of the setting `KNAFKA_SUBSCRIPTIONS`: who reconciles Subscriptions."""

    AUTO = "auto"
    """Knative Eventing's where it is installed, else ours."""
    OWN = "own"
    EVENTING = "eventing"


def parse_handler(text: str, path: str) -> Handler:
    """Parse a value of `KNAFKA_SUBSCRIPTIONS`. Raises `InvalidDocument`."""
    try:
        return Handler(text)
    except ValueError:
        wanted = f"want {', '.join(Handler)}"
        raise InvalidDocument(path, f"invalid value: {text:.80}: {wanted}") from None


@dataclass(slots=True)
class Handling:
    """Who reconciles Subscriptions, by the setting and by whether Knative Eventing is installed."""

    declared: Handler = Handler.AUTO
    seen: bool | None = False
    """Whether Knative Eventing is installed; None: not known yet."""

    @property
    def handler(self) -> Handler | None:
        """The controller that reconciles Subscriptions, `OWN` or `EVENTING`; None: not known
        yet."""
        if self.declared is not Handler.AUTO:
            return self.declared
        if self.seen is None:
            return None
        return Handler.EVENTING if self.seen else Handler.OWN

    @property
    def reason(self) -> str:
        """A sentence for people that says why that controller was chosen; empty if Knative Eventing
        isn't installed, so that there was no choice."""
        setting = f"KNAFKA_SUBSCRIPTIONS={self.declared}"
        there = "Knative Eventing is here" if self.seen else "Knative Eventing was not seen here"
        if self.declared is Handler.AUTO and not self.seen:
            return ""
        if self.declared is Handler.OWN and not self.seen:
            return ""
        identity = "Knafka" if self.handler is Handler.OWN else "Knative Eventing's controller"
        observed = f"{there} (CustomResourceDefinition {EVENTING_DEFINITION})"
        return f"{identity} adds Subscriptions to spec.subscribers: {observed}, and {setting}"
