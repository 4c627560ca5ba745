"""Computes the lag of a group from its commits and the ranges of its partitions, some of which were
read earlier. Pure.

Not here: reading commits and ranges (`kafka_lags`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from knafka.ports.log import Commits, Lag, lag_of


def partitions_beyond_end(
    commits: Commits, ranges: Mapping[int, tuple[int, int]]
) -> frozenset[int]:
    """Return the partitions whose committed offset is higher than their end. `ranges`: start and
    end of each partition; partitions that it doesn't have are left out, as their ends are
    unknown."""
    return frozenset(
        number
        for number, commit in commits.items()
        if number in ranges and commit.offset > ranges[number][1]
    )


def limit_to_ends(
    commits: Commits, ranges: Mapping[int, tuple[int, int]], fresh: Collection[int]
) -> Commits:
    """Return the commits; of partitions that aren't in `fresh`, an offset beyond the end is lowered
    to that end. `ranges`: start and end of each partition. `fresh`: the partitions whose ends were
    read now. The others have no leader: only an earlier end is known, and lag is computed up to
    that."""
    beyond_old_end = partitions_beyond_end(commits, ranges) - set(fresh)
    return {
        number: commit._replace(offset=ranges[number][1]) if number in beyond_old_end else commit
        for number, commit in commits.items()
    }


def lag_on(
    partitions: Iterable[int], ranges: Mapping[int, tuple[int, int]], commits: Commits
) -> Lag:
    """Return the lag of a group with these commits on a topic with these `partitions`. `ranges`:
    start and end by partition; a partition without a range counts as having no lag."""
    no_lag = dict.fromkeys(partitions, 0)
    lags = {
        number: lag_of(commits.get(number), start, end) for number, (start, end) in ranges.items()
    }
    ends = {number: end for number, (_, end) in ranges.items()}
    beyond_end = partitions_beyond_end(commits, ranges)
    return Lag(no_lag | lags, beyond_end, ends, metadata_by_partition(commits))


def metadata_by_partition(commits: Commits) -> Mapping[int, str]:
    """Return the metadata of commits, by partition; commits without metadata are left out."""
    return {number: commit.metadata for number, commit in commits.items() if commit.metadata}
