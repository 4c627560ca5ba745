"""How far a group is behind on a partition, by what it has committed."""

from __future__ import annotations

import pytest

from knafka.core.progress import Progress, encode
from knafka.ports.log import OffsetAndMetadata, lag_of


def committed(offset: int, *settled: tuple[int, int]) -> OffsetAndMetadata:
    metadata, complete = encode(offset, Progress(settled), 0)
    assert complete
    return OffsetAndMetadata(offset, metadata)


@pytest.mark.parametrize(
    ("group", "start", "end", "lag"),
    [
        pytest.param(None, 5, 20, 15, id="nothing committed"),
        pytest.param(OffsetAndMetadata(20), 5, 20, 0, id="at the end"),
        pytest.param(OffsetAndMetadata(12), 5, 20, 8, id="behind"),
        pytest.param(OffsetAndMetadata(2), 5, 20, 15, id="records have expired"),
        pytest.param(OffsetAndMetadata(30), 5, 20, 15, id="beyond the end: all that is there"),
        pytest.param(OffsetAndMetadata(12, "somebody's own"), 5, 20, 8, id="another's metadata"),
        pytest.param(committed(12, (13, 20)), 5, 20, 1, id="all settled but one"),
        pytest.param(committed(12, (13, 15), (18, 20)), 5, 20, 4, id="settled in part"),
        pytest.param(committed(12, (13, 5000)), 14, 20, 1, id="expired below, still not nothing"),
    ],
)
def test_lag_counts_what_is_not_settled(
    group: OffsetAndMetadata | None, start: int, end: int, lag: int
) -> None:
    """One event in backoff before six million settled ones keeps one dispatcher awake, not all."""
    assert lag_of(group, start, end) == lag
