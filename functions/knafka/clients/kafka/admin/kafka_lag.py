"""Compares commits with the ends of their partitions, some of which were read earlier. Pure.

Not here: reading commits and ends (`kafka_admin`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from knafka.ports.log import Commits


def partitions_beyond_end(
    commits: Commits, ranges: Mapping[int, tuple[int, int]]
) -> frozenset[int]:
    """Return the partitions whose committed offset is higher than their end. `ranges`: start and
    end of each partition, as far as known; other partitions are left out."""
    return frozenset(
        number
        for number, commit in commits.items()
        if number in ranges and commit.offset > ranges[number][1]
    )


def limit_to_ends(
    commits: Commits, ranges: Mapping[int, tuple[int, int]], fresh: Collection[int]
) -> Commits:
    """Return the commits; offsets beyond an end that was read earlier are lowered to that end, as
    the present end is unknown while the partition has no leader. `ranges`: start and end of each
    partition; `fresh`: the partitions whose ends were read now."""
    beyond_old_end = partitions_beyond_end(commits, ranges) - set(fresh)
    return {
        number: commit._replace(offset=ranges[number][1]) if number in beyond_old_end else commit
        for number, commit in commits.items()
    }
