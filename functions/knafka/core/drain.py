"""The drain: what is asked of a dispatcher and what it tells back, as both planes know it.

`POST /drain` with a `DrainRequest` as JSON makes a dispatcher join its Trigger's group and deliver;
the response streams one `DrainProgress` a second as JSON lines, the last of which has an `ended`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from knafka.core.contract import Duration, Model

PATH: Final = "/drain"
PROGRESS_INTERVAL: Final = 1.0
"""Seconds between two lines of progress: no proxy's idle timeout is that short."""


class DrainRequest(Model):
    """How long to deliver."""

    idle: Annotated[Duration, Field(ge=0)] = 30.0
    """Seconds without anything to do after which the drain ends (cooldown-period)."""
    budget: Annotated[Duration, Field(gt=0)] = 570.0
    """Seconds after which it ends anyway: below the Service's timeoutSeconds of 600."""
    egress: str | None = None
    """Digest of the Egress to drain by. While a changed Trigger is rolled out its old Revision
    still answers; a dispatcher that has another Egress refuses, since what the old filter passes
    over would be lost to the new one."""


class Ended(StrEnum):
    """Why a drain is over."""

    IDLE = "idle"
    BUDGET = "budget"
    STOPPED = "stopped"
    """The caller hung up, or the process was told to end."""
    FAILED = "failed"


class DrainProgress(Model):
    """Counts since the drain began, one for each record or attempt."""

    read: int = 0
    filtered: int = 0
    delivered: int = 0
    retried: int = 0
    buried: int = 0
    replied: int = 0
    unsettled: int = 0
    """Records read and not settled, right now."""
    partitions: tuple[int, ...] = ()
    """Owned right now."""
    ended: Ended | None = None
    error: str | None = None
    """Why it failed, for a person."""
