"""Rate limit: attempts at one subscriber begin so far apart that no unit of time has too many.

Evenly, without bursts: 60 in a minute are one in a second (BUS-S13). Each attempt counts, retries
as well; the first one after a quiet time begins at once.
"""

from __future__ import annotations

from knafka.core.contract import RateLimit


class AttemptRate:
    """Of one drain, which stays awake until it is open again: the next one knows nothing of it."""

    def __init__(self, limit: RateLimit) -> None:
        self.is_open = True
        """Whether an attempt may begin: it is closed for the interval after each begin."""
        self.interval = limit.interval
        """Seconds."""
