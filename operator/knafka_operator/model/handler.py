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
    """The setting `KNAFKA_SUBSCRIPTIONS`."""

    AUTO = "auto"
    """Knative Eventing's where it is installed, else ours."""
    OWN = "own"
    EVENTING = "eventing"


def parse_handler(text: str, path: str) -> Handler:
    """Raises `InvalidDocument`."""
    try:
        return Handler(text)
    except ValueError:
        wanted = f"want {', '.join(Handler)}"
        raise InvalidDocument(path, f"invalid value: {text:.80}: {wanted}") from None


@dataclass(slots=True)
class Handling:
    """What is declared, and what was seen of Knative Eventing."""

    declared: Handler = Handler.AUTO
    seen: bool | None = False
    """Whether it is installed; None: that isn't known yet."""

    @property
    def handler(self) -> Handler | None:
        """`OWN` or `EVENTING`; None: it isn't known yet."""
        if self.declared is not Handler.AUTO:
            return self.declared
        if self.seen is None:
            return None
        return Handler.EVENTING if self.seen else Handler.OWN

    @property
    def reason(self) -> str:
        """Why it is so, as a sentence for people; empty where there is nothing to choose."""
        setting = f"KNAFKA_SUBSCRIPTIONS={self.declared}"
        there = "Knative Eventing is here" if self.seen else "Knative Eventing was not seen here"
        if self.declared is Handler.AUTO and not self.seen:
            return ""
        if self.declared is Handler.OWN and not self.seen:
            return ""
        who = "Knafka" if self.handler is Handler.OWN else "Knative Eventing's controller"
        seen = f"{there} (CustomResourceDefinition {EVENTING_DEFINITION})"
        return f"{who} adds Subscriptions to spec.subscribers: {seen}, and {setting}"
