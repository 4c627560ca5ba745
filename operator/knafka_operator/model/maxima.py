"""Maxima: how much one object, and all of a namespace together, may ask of an installation.

They are the settings `KNAFKA_MAX_...`. What was granted before stays as it is.

Not here: what a namespace may have in memory or objects; for that Kubernetes has ResourceQuotas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from knafka.core.errors import InvalidDocument
from knafka_operator.model.resources import whole_number

MOST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Maxima:
    """Of one installation."""

    partitions: int = 1_000
    """Kafka itself counts a cluster's in some hundred thousands."""
    namespace_partitions: int = 10_000
    replication: int = 10
    scale: int = 100
    """Twice the max-scale of who declares none."""
    namespace_min_scale: int = 200
    """Pods that run always, whether there is an event or not."""
    job_timeout: float = 172_800.0
    """Seconds, eight times the default: as long one Job can keep others from its tables."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Maxima:
        """Raises `InvalidDocument` that names the variable."""

        given = {
            each.name: whole_number(environment[variable], variable, 1, MOST)
            for each in fields(cls)
            if (variable := f"KNAFKA_MAX_{each.name.upper()}") in environment
        }
        return cls(**given)

    def check_partitions(self, partitions: int, path: str) -> None:
        """Raises `InvalidDocument`."""
        _check(partitions, self.partitions, path, "KNAFKA_MAX_PARTITIONS")

    def check_replication(self, replication: int, path: str) -> None:
        """Raises `InvalidDocument`."""
        _check(replication, self.replication, path, "KNAFKA_MAX_REPLICATION")

    def check_scale(self, pods: int, path: str) -> None:
        """Raises `InvalidDocument`."""
        _check(pods, self.scale, path, "KNAFKA_MAX_SCALE")

    def check_job_timeout(self, seconds: float, path: str) -> None:
        """Raises `InvalidDocument`."""
        _check(seconds, self.job_timeout, path, "KNAFKA_MAX_JOB_TIMEOUT")


UNLIMITED: Final = Maxima(MOST, MOST, MOST, MOST, MOST, MOST)
"""Where no installation is known."""


def _check(asked: float, most: float, path: str, setting: str) -> None:
    if asked > most:
        seconds = " seconds" if setting == "KNAFKA_MAX_JOB_TIMEOUT" else ""
        raise InvalidDocument(
            path,
            f"invalid value: {asked:.0f}{seconds}: want at most {most:.0f}{seconds}, as this"
            f" installation allows ({setting})",
        )
