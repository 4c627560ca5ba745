"""Groups of failures: how failures are grouped, and the id of a group.

Failures with equal values in the columns `schema.GROUP` are one group. Of very many summaries that
differ in nothing else, the most frequent have groups of their own, and all others share one
(`OTHER_SUMMARIES`). Pure.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

MAX_SUMMARIES: Final = 50
"""Largest number of groups that differ only in their summaries, without the group of all others."""

OTHER_SUMMARIES: Final = "…"
"""The summary of the group with all further failures."""


def group_id(
    namespace: str,
    broker: str,
    trigger: str,
    subscriber: str,
    reason: str,
    status: int | None,
    summary: str,
) -> str:
    """Return the id of the group whose failures have these values of the columns `schema.GROUP`
    (`status` None: no response). The id is the same in every report: a digest of the values, of
    twelve hexadecimal digits, so that it can be part of a URL."""
    group_values = json.dumps([namespace, broker, trigger, subscriber, reason, status, summary])
    return hashlib.sha256(group_values.encode()).hexdigest()[:12]
