"""Leaving groups: a changed Trigger or Sensor opens drains only once its consumer group is empty.

    changed -> its own drains are stopped and have ended -> its group has no members -> new drains

Pods with the old contract may go on draining (delivering as members of the group) without a request
of ours, for example those of an operator that has died. Not here: stopping drains
(`holds.EndingHolds`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from knafka.core.errors import LogError
from knafka.ports.log import GroupSource
from knafka_operator.model.autoscaling import Autoscaling
from knafka_operator.scale.holds import EndingHolds

log = logging.getLogger(__name__)

LEAVE_TIMEOUT: Final = 120.0
"""Seconds for all members to leave the group of a changed Trigger or Sensor. Live dispatchers send
their own request within 18, are refused and leave within 5 (`draining.lease`); sessions of dead
ones end after 10."""
MEMBERS_CHECK_INTERVAL: Final = 0.5
"""Seconds between two requests for the members of a group."""


class LeavingGroups:
    """Delays the drains of changed Triggers and Sensors until their groups are empty."""

    def __init__(self, kafka: GroupSource, ending: EndingHolds) -> None:
        """`kafka` is asked for members; `ending` has the drains that must end before new ones are
        opened."""
        self._kafka = kafka
        self._ending = ending

    def delay_drains(self, id_: str, previous: str, group: str, autoscaling: Autoscaling) -> None:
        """Let the changed Trigger or Sensor of this id open drains only once its consumer group is
        empty: pods with the old contract may go on draining without a request of ours. There is no
        delay if it now has another `group` than its `previous` one. Nor is there one with a
        min-scale, as the reconciliation then waits for the old pods."""
        if previous == group and not autoscaling.min_scale:
            self._ending.delay_end(id_, partial(self._wait_until_empty, id_, group))

    async def _wait_until_empty(self, id_: str, group: str) -> None:
        """Wait until the group has no members; after `LEAVE_TIMEOUT` seconds log a warning that
        names the Trigger or Sensor `id_`, and return."""
        loop, obstacle = asyncio.get_running_loop(), ""
        deadline = loop.time() + LEAVE_TIMEOUT
        while loop.time() < deadline:
            try:
                members = await self._kafka.members(group)
            except LogError as error:
                obstacle = str(error)
            else:
                if not members:
                    return
                obstacle = f"group {group} has {len(members)} members"
            await asyncio.sleep(MEMBERS_CHECK_INTERVAL)
        log.warning(
            "%s was changed, and may still be delivered as it was before: %s", id_, obstacle
        )
