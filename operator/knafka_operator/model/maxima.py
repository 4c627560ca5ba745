"""Maxima: limits what one object, and all objects of a namespace together, may declare. They are
the settings `KNAFKA_MAX_...`. An object that already has more than a later, lower maximum keeps it.
Not here: limits of memory and objects per namespace, which are Kubernetes' ResourceQuotas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from knafka.core.errors import InvalidDocument
from knafka_operator.model.resources import parse_whole_number

LARGEST_INT32: Final = 2**31 - 1
"""The largest value of any maximum: Kafka and Kubernetes count in 32 bits."""


@dataclass(frozen=True, slots=True)
class Maxima:
    """The largest amounts that an installation grants, from the settings `KNAFKA_MAX_…`."""

    partitions: int = 1_000
    """Partitions of one topic. A whole Kafka cluster has some hundred thousand at most."""
    namespace_partitions: int = 10_000
    """Partitions of a namespace's topics of one kind together."""
    replication: int = 10
    """Replicas of one topic."""
    scale: int = 100
    """Pods of one function; twice the default max-scale."""
    namespace_min_scale: int = 200
    """Sum of min-scale in a namespace: pods that always run, with or without events."""
    job_timeout: float = 172_800.0
    """Most seconds of one Job, which keeps other Jobs from its tables; eight times the default."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Maxima:
        """Read the maxima from the variables `KNAFKA_MAX_…`, such as `KNAFKA_MAX_PARTITIONS` for
        `partitions`; one that isn't set has its default. Raises `InvalidDocument` with the name of
        a variable whose value is invalid."""
        declared = {
            maximum.name: parse_whole_number(environment[variable], variable, 1, LARGEST_INT32)
            for maximum in fields(cls)
            if (variable := f"KNAFKA_MAX_{maximum.name.upper()}") in environment
        }
        return cls(**declared)

    def check_partitions(self, partitions: int, path: str) -> None:
        """Refuse more partitions than the maximum; raises `InvalidDocument` with this path."""
        _refuse_above(partitions, self.partitions, path, "KNAFKA_MAX_PARTITIONS")

    def check_replication(self, replication: int, path: str) -> None:
        """Refuse more replicas than the maximum; raises `InvalidDocument` with this path."""
        _refuse_above(replication, self.replication, path, "KNAFKA_MAX_REPLICATION")

    def check_scale(self, pods: int, path: str) -> None:
        """Refuse more pods than the maximum; raises `InvalidDocument` with this path."""
        _refuse_above(pods, self.scale, path, "KNAFKA_MAX_SCALE")

    def check_job_timeout(self, seconds: float, path: str) -> None:
        """Refuse a longer Job timeout than the maximum; raises `InvalidDocument` with this path."""
        _refuse_above(seconds, self.job_timeout, path, "KNAFKA_MAX_JOB_TIMEOUT", " seconds")


UNLIMITED_MAXIMA: Final = Maxima(
    LARGEST_INT32, LARGEST_INT32, LARGEST_INT32, LARGEST_INT32, LARGEST_INT32, LARGEST_INT32
)
"""Maxima for checks outside of an installation, all of them as large as possible."""


def _refuse_above(declared: float, maximum: float, path: str, setting: str, unit: str = "") -> None:
    """Raise `InvalidDocument` with this path if the declared value exceeds the installation's
    maximum. `setting` is the environment variable that sets the maximum; `unit` follows both values
    in the error's text, such as ` seconds`."""
    if declared > maximum:
        raise InvalidDocument(
            path,
            f"invalid value: {declared:.0f}{unit}: want at most {maximum:.0f}{unit}, as this"
            f" installation allows ({setting})",
        )
