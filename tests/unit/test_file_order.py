"""The order in which files of tests are handed out (tests/support/file_order.py)."""

from __future__ import annotations

from support.file_order import alternated


def test_files_that_wait_and_files_that_compute_alternate_until_there_are_no_more() -> None:
    waiting = [["kafka-1", "kafka-2"], ["browser"]]
    computing = [["drain-1", "drain-2"], ["filter"], ["scaler"]]
    assert [*alternated(waiting, computing)] == [
        *("kafka-1", "kafka-2", "drain-1", "drain-2"),
        *("browser", "filter", "scaler"),
    ]
