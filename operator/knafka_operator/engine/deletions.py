"""Deletions: limits how long the deletion of an object's topics and groups in Kafka is retried.

    attempt --Kafka refuses--> attempt again --too long--> give up; an Event reports what is left
            --other objects are being deleted--> attempt again, and the time starts anew

So an object can be deleted even if its Kafka never answers again.

Not here: what is deleted (the `kind` of each room).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Literal, TypeAlias

from knafka.core.errors import KnafkaError
from knafka_operator.decisions.status import NotReady
from knafka_operator.installation.settings import Settings
from knafka_operator.model.cluster import Document
from knafka_operator.model.identity import Key

log = logging.getLogger(__name__)

EventType: TypeAlias = Literal["Normal", "Warning"]
Post: TypeAlias = Callable[[Document, EventType, str, str], None]
"""Posts a Kubernetes Event: the object, the Event's type, a reason, and a message."""

LEFT_IN_KAFKA: Final = "LeftInKafka"
"""Reason of the Event for a deletion that was given up."""


class BeingDeleted(NotReady):
    """Raised while objects whose deletion must come first still exist. Each of them limits the time
    of its own deletion, so waiting for them has no limit."""

    def __init__(self, message: str) -> None:
        """`message` names the objects."""
        super().__init__("Waiting", message, transient=True)


class Deletions:
    """Tries deletions for at most `Settings.deletion_timeout`; belongs to one event loop."""

    def __init__(self, post: Post, settings: Settings) -> None:
        """`post` posts Kubernetes Events."""
        self._post = post
        self._settings = settings
        self.failing_since: dict[Key, tuple[str, float]] = {}
        """By key of each object whose deletion fails: its UID, and the time of the first failure,
        by the event loop's clock."""

    async def try_delete(
        self, key: Key, document: Document, deletion: Awaitable[object], leftovers: str
    ) -> bool:
        """Await `deletion`, one attempt to delete what was made for an object.

        Returns True if the attempt has succeeded, or if deletion is given up: the attempt has
        failed, and began at least `Settings.deletion_timeout` seconds after the first failure since
        the last `BeingDeleted`. Then an Event says, with the text `leftovers`, what may still
        exist. Returns False if the attempt has failed and must be repeated later.
        """
        loop, uid = asyncio.get_running_loop(), document["metadata"].get("uid", "")
        began = loop.time()
        failing_uid, failing_since = self.failing_since.get(key, (uid, began))
        if failing_uid != uid:  # the failures were those of an earlier object of the same name
            self.forget(key)
            failing_since = began
        try:
            await deletion
        except BeingDeleted as error:
            log.info("%s is not deleted yet: %s", " ".join(key), error)
            self.forget(key)
            return False
        except Exception as error:  # bugs too: otherwise the object could never be deleted
            if not isinstance(error, KnafkaError):
                log.exception("deleting %s", " ".join(key))
            if began - failing_since < self._settings.deletion_timeout:
                # The first attempt may have waited for drains: that time doesn't count.
                self.failing_since.setdefault(key, (uid, loop.time()))
                log.info("%s is not deleted yet: %s", " ".join(key), error)
                return False
            message = f"{leftovers}: {error}"
            self._post(document, "Warning", LEFT_IN_KAFKA, message)
            log.warning("%s: %s", " ".join(key), message)
        return True

    def forget(self, key: Key) -> None:
        """Forget since when the deletion of an object fails."""
        self.failing_since.pop(key, None)
