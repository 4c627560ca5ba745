"""What the jobs raise on purpose."""

from __future__ import annotations

from knafka.core.errors import KnafkaError


class JobError(KnafkaError):
    """A job can't go on; nothing is lost, and the text says what to do about it."""


class NeedsSpark(JobError):
    """Delta's files alone don't tell; the same asked of a job does."""
