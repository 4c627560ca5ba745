"""What a run makes once for all of its workers, such as a cluster (`support.once_a_run`)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.once_a_run import OnceARun


def _workers(folder: Path, count: int) -> list[OnceARun]:
    """As in `count` processes: each has files of its own open."""
    workers = [OnceARun(folder) for _ in range(count)]
    for worker in workers:
        worker.begin()
    return workers


def _fails() -> None:
    raise OSError("no room")


def test_the_first_worker_makes_it_and_all_get_it(tmp_path: Path) -> None:
    made: list[str] = []

    def start() -> dict[str, str]:
        made.append("it")
        return {"address": "127.0.0.1:9092"}

    workers = _workers(tmp_path, 4)
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda worker: worker.get("kafka", start), workers))
        list(pool.map(OnceARun.finish, workers))
    assert got == [{"address": "127.0.0.1:9092"}] * 4
    assert made == ["it"]


def test_who_made_it_ends_it_when_every_worker_is_done(tmp_path: Path) -> None:
    ended: list[str] = []
    first, second = _workers(tmp_path, 2)
    first.get("cluster", lambda: 1, lambda: ended.append("cluster"))
    first.get("kafka", lambda: 2, lambda: ended.append("kafka"))
    assert second.get("kafka", _fails) == 2
    ending = threading.Thread(target=first.finish)
    ending.start()
    ending.join(0.2)
    assert (ending.is_alive(), ended) == (True, [])
    second.finish()
    ending.join(30)
    assert ended == ["kafka", "cluster"], "what was made last ends first"


def test_a_worker_that_comes_after_the_end_makes_it_anew(tmp_path: Path) -> None:
    """As pytest-xdist starts one in place of a worker that died."""
    (first,) = _workers(tmp_path, 1)
    first.get("kafka", lambda: 1)
    first.finish()
    (second,) = _workers(tmp_path, 1)
    assert second.get("kafka", lambda: 2) == 2
    second.finish()


def test_what_could_not_be_made_is_tried_once(tmp_path: Path) -> None:
    first, second = _workers(tmp_path, 2)
    with pytest.raises(OSError, match="no room"):
        first.get("cluster", _fails)
    with pytest.raises(RuntimeError, match=r"cluster: another worker has failed: .*no room"):
        second.get("cluster", lambda: 1)
    second.finish()
    first.finish()


def test_what_one_worker_holds_another_waits_for(tmp_path: Path) -> None:
    first, second = _workers(tmp_path, 2)
    held = threading.Event()

    def hold() -> None:
        with second.holding("settings"):
            held.set()

    waiting = threading.Thread(target=hold)
    with first.holding("settings"):
        waiting.start()
        assert not held.wait(0.2)
    waiting.join(30)
    assert held.is_set()
