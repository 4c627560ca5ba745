"""Handler: decides whether Knafka or Knative Eventing's controller reconciles Subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from knafka.core.errors import InvalidDocument

EVENTING_DEFINITION: Final = "channels.messaging.knative.dev"
"""A CustomResourceDefinition that only Knative Eventing installs; the one of Subscriptions may be
Knafka's."""

EVENTING_FINALIZER: Final = "subscriptions.messaging.knative.dev"
"""The finalizer that Knative Eventing's controller puts on every Subscription, and removes on
deletion."""


class Handler(StrEnum):
    """The values of the setting `KNAFKA_SUBSCRIPTIONS`: the controller that reconciles
    Subscriptions."""

    AUTO = "auto"
    """Knative Eventing's if it is installed, else Knafka's."""
    OWN = "own"
    """Knafka's."""
    EVENTING = "eventing"
    """Knative Eventing's, even if it isn't installed."""


def parse_handler(text: str, path: str) -> Handler:
    """Parse a value of `KNAFKA_SUBSCRIPTIONS`. Raises `InvalidDocument` with `path`, the variable's
    name."""
    try:
        return Handler(text)
    except ValueError:
        requirement = f"want {', '.join(Handler)}"
        raise InvalidDocument(path, f"invalid value: {text:.80}: {requirement}") from None


@dataclass(slots=True)
class Handling:
    """The choice of the controller that reconciles Subscriptions, from the setting and from whether
    Knative Eventing is installed."""

    declared: Handler = Handler.AUTO
    """The value of the setting."""
    is_eventing_installed: bool | None = False
    """Whether Knative Eventing is installed; None: not known yet."""

    @property
    def handler(self) -> Handler | None:
        """Return the controller that reconciles Subscriptions, `OWN` or `EVENTING`; None: not known
        yet."""
        if self.declared is not Handler.AUTO:
            return self.declared
        if self.is_eventing_installed is None:
            return None
        return Handler.EVENTING if self.is_eventing_installed else Handler.OWN

    @property
    def reason(self) -> str:
        """Return a sentence for users about why `handler` was chosen. Empty if there is nothing to
        explain: the setting doesn't name Knative Eventing, which isn't installed either, as far as
        is known."""
        if self.declared in (Handler.AUTO, Handler.OWN) and not self.is_eventing_installed:
            return ""
        setting = f"KNAFKA_SUBSCRIPTIONS={self.declared}"
        presence = (
            "Knative Eventing is here"
            if self.is_eventing_installed
            else "Knative Eventing was not seen here"
        )
        controller = "Knafka" if self.handler is Handler.OWN else "Knative Eventing's controller"
        observed = f"{presence} (CustomResourceDefinition {EVENTING_DEFINITION})"
        return f"{controller} adds Subscriptions to spec.subscribers: {observed}, and {setting}"
