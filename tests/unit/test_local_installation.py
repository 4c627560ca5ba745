"""Installations: one at a time on one data folder, and found by the other commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from knafka_local.installation import Installation, InUse, NotRunning, State

STATE = State(pid=1, url="http://127.0.0.1:8080", bootstrap_servers="127.0.0.1:9092")


def test_a_running_installation_is_found(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with installation.held():
        installation.write(STATE)
        assert Installation(tmp_path).running() == STATE


def test_a_second_one_on_the_same_data_is_refused_with_what_to_do(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with installation.held():
        installation.write(STATE)
        with (
            pytest.raises(InUse, match=r"already \(pid 1\).*--data"),
            Installation(tmp_path).held(),
        ):
            pass
    with Installation(tmp_path).held():
        pass


def test_what_has_ended_is_not_found_even_if_it_left_its_state_behind(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    with pytest.raises(NotRunning, match="knafka up"):
        installation.running()
    with installation.held():
        pass
    installation.write(STATE)  # as kill -9 leaves it
    with pytest.raises(NotRunning, match="knafka up"):
        installation.running()
