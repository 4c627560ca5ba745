"""Installations: one at a time on one data folder, and found by the other commands."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from threading import Timer

import pytest

from knafka_client.state.installation import DataFolderInUse, Installation, NotRunning, RunningState

STATE = RunningState(pid=1, url="http://127.0.0.1:8080", bootstrap_servers="127.0.0.1:9092")


def test_a_running_installation_is_found(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with installation.hold_lock():
        installation.write_state(STATE)
        assert Installation(tmp_path).read_state() == STATE


def test_a_second_one_on_the_same_data_is_refused_with_what_to_do(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with installation.hold_lock():
        installation.write_state(STATE)
        with (
            pytest.raises(DataFolderInUse, match=rf"already .*\(pid {os.getpid()}\).*--data-dir"),
            Installation(tmp_path).hold_lock(),
        ):
            pass
    with Installation(tmp_path).hold_lock():
        pass


def test_what_has_ended_is_not_found_even_if_it_left_its_state_behind(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with pytest.raises(NotRunning, match="knafka up"):
        installation.read_state()
    with installation.hold_lock():
        pass
    installation.write_state(STATE)  # as kill -9 leaves it
    with pytest.raises(NotRunning, match="knafka up"):
        installation.read_state()


def test_the_pid_is_known_from_the_first_moment_on_and_never_after_the_end(tmp_path: Path) -> None:
    """`knafka down` must not signal a process that has got the number since."""
    installation = Installation(tmp_path)
    assert installation.running_pid() is None
    with installation.hold_lock():
        assert installation.running_pid() == os.getpid()
    assert installation.running_pid() is None
    assert (tmp_path / "lock").read_text() == ""


def test_two_commands_that_look_at_once_do_not_take_each_other_for_one_that_runs(
    tmp_path: Path,
) -> None:
    """`knafka down` stopped a program that had the pid of a `knafka up` that was killed."""
    lock = tmp_path / "lock"
    lock.write_text("1")  # as kill -9 leaves it
    with lock.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert Installation(tmp_path).running_pid() is None


def test_a_lock_file_that_may_not_be_written_is_an_error_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    """As after `sudo knafka up`; root may write every file, but no folder."""
    (tmp_path / "lock").mkdir()
    with (
        pytest.raises(DataFolderInUse, match=r"can't be used .*lock.*: choose --data-dir"),
        Installation(tmp_path).hold_lock(),
    ):
        pass


def test_what_one_that_was_killed_left_behind_is_not_taken_for_the_next_ones(
    tmp_path: Path,
) -> None:
    installation = Installation(tmp_path)
    with installation.hold_lock():
        pass
    installation.write_state(STATE)
    installation.write_status("{}")
    with installation.hold_lock():
        assert installation.read_status() is None
        with pytest.raises(NotRunning):
            installation.read_state()


def test_whoever_looks_whether_it_runs_keeps_nobody_from_starting(tmp_path: Path) -> None:
    with Installation(tmp_path).hold_lock():
        pass
    looking = (tmp_path / "lock").open()
    fcntl.flock(looking, fcntl.LOCK_SH)
    closing = Timer(0.3, looking.close)  # longer than anybody looks
    closing.start()
    with Installation(tmp_path).hold_lock():
        closing.join()
