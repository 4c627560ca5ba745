"""Profiles of a running function (DSP-14): what they say, and who reads them."""

from __future__ import annotations

import asyncio
import base64
import gzip
import http.client
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
import uvloop
from support.gate import IN_CI

from knafka import serving, settings
from knafka.core.errors import InvalidDocument
from knafka.profiling import cpu, heap, server, threads
from knafka.profiling.format import Frame, Profile, ValueType, encode

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="a thread's CPU time is asked from Linux"
)

T = TypeVar("T", bound=Callable[..., None])
SECONDS = 1.0
"""Of a profile: enough looks to count also where others want the CPU."""
PROFILES = ["profile?seconds=0.1", "heap?seconds=0.1", "threads"]
MAIN, HOT, COLD = Frame("main", "m.py", 3), Frame("Ünï.hot", "m.py", 300), Frame("cold", "n.py", 7)
SMALL = Profile(
    types=[ValueType("samples", "count"), ValueType("cpu", "nanoseconds")],
    samples={(HOT, MAIN): (3, 30_000_000), (COLD, MAIN): (1, 10_000_000)},
    period_type=ValueType("cpu", "nanoseconds"),
    period=10_000_000,
    default="cpu",
    time=1_700_000_000.0,
    duration=0.04,
    comments=["said beside"],
)


def by_go(test: T) -> T:
    """Mark a test of Go's pprof, which Go compiles when it is first called: that takes minutes."""
    pytest.mark.timeout(300)(test)
    pytest.mark.go(test)
    return test


def pprof(tmp_path: Path, profile: bytes, *options: str) -> str:
    """What Go's own tool makes of it: nothing of ours has a part in reading."""
    go = shutil.which("go")
    if go is None:
        assert not IN_CI, "needs Go"
        pytest.skip("needs Go")
    file = tmp_path / "profile.pb.gz"
    file.write_bytes(profile)
    command = [go, "tool", "pprof", *options, str(file)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def share(profile: Profile, value: str, function: str) -> float:
    """Of all that was counted, what was with this function on the stack."""
    index = [each.type for each in profile.types].index(value)
    total = sum(values[index] for values in profile.samples.values())
    of = [
        values[index]
        for stack, values in profile.samples.items()
        if any(frame.function.endswith(function) for frame in stack)
    ]
    return sum(of) / total


@contextmanager
def running(target: Callable[[threading.Event], None]) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=target, args=[stop], name="worker")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def busy_loop(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def idle_wait(stop: threading.Event) -> None:
    stop.wait()


@by_go
def test_gos_pprof_reads_what_was_written(tmp_path: Path) -> None:
    raw = pprof(tmp_path, encode(SMALL), "-raw")
    assert "PeriodType: cpu nanoseconds" in raw
    assert "Period: 10000000" in raw
    assert "Duration: 40ms" in raw or "Duration: 0.04" in raw
    assert "samples/count cpu/nanoseconds" in raw
    assert re.search(r"^ +3 +30000000: 1 2 *$", raw, re.MULTILINE)
    assert re.search(r"^ +1 +10000000: 3 2 *$", raw, re.MULTILINE)
    assert re.search(r"^ +1: 0x0 M=1 Ünï\.hot m\.py:300", raw, re.MULTILINE)
    assert re.search(r"^ +3: 0x0 M=1 cold n\.py:7", raw, re.MULTILINE)
    assert "said beside" in pprof(tmp_path, encode(SMALL), "-comments")
    top = pprof(tmp_path, encode(SMALL), "-top")
    assert re.search(r"30ms 75.00% .* Ünï\.hot", top)


@by_go
def test_an_empty_profile_is_one_as_well(tmp_path: Path) -> None:
    empty = Profile(SMALL.types, {}, SMALL.period_type, 1, "cpu")
    assert "cpu/nanoseconds" in pprof(tmp_path, encode(empty), "-raw")


def test_a_hot_function_has_most_of_the_cpu_time() -> None:
    with running(busy_loop), running(idle_wait):
        found = cpu.profile(SECONDS)
    assert share(found, "cpu", "busy_loop") > 0.5
    assert share(found, "cpu", "idle_wait") < 0.05
    assert share(found, "wall", "idle_wait") > 0.2


@by_go
def test_the_cpu_profile_is_seen_by_gos_pprof(tmp_path: Path) -> None:
    with running(busy_loop):
        found = encode(cpu.profile(SECONDS))
    top = pprof(tmp_path, found, "-top", "-cum")
    (line,) = (each for each in top.splitlines() if each.endswith(" busy_loop"))
    assert float(line.split()[4].removesuffix("%")) > 50


def burst() -> None:
    sum(range(40_000))


def bursts(loop: asyncio.AbstractEventLoop) -> None:
    """As an event loop works: some work, then a wait."""
    burst()
    loop.call_later(0.0005, bursts, loop)


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_bursts_of_an_event_loop_are_seen(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Looks from beside come when a loop waits again: they saw nothing else."""

    async def main() -> Profile:
        loop = asyncio.get_running_loop()
        bursts(loop)
        return await loop.run_in_executor(None, cpu.profile, SECONDS, loop)

    with asyncio.Runner(loop_factory=factory) as runner:
        found = runner.run(main())
    assert share(found, "cpu", "burst") > 0.5
    assert signal.getsignal(signal.SIGPROF) is signal.SIG_IGN


async def test_a_loop_that_is_stuck_is_looked_at_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "TIMER_TIMEOUT", 0.05)
    loop = asyncio.get_running_loop()
    found: list[Profile] = []
    thread = threading.Thread(target=lambda: found.append(cpu.profile(SECONDS, loop)))
    thread.start()
    while thread.is_alive():
        burst()
    assert share(found[0], "cpu", "burst") > 0.5
    await asyncio.sleep(0)
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0


def test_the_main_thread_of_a_forked_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """functions-framework serves in a fork, where Python 3.11 has the parent's number for it."""
    monkeypatch.setattr(threading.main_thread(), "_native_id", 1)
    found: list[Profile] = []
    thread = threading.Thread(target=lambda: found.append(cpu.profile(SECONDS)))
    thread.start()
    while thread.is_alive():
        burst()
    assert share(found[0], "cpu", "burst") > 0.5
    assert share(found[0], "cpu", "without Python)") < 0.1


def test_looks_are_rarer_where_they_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: object) -> tuple[()]:
        until = time.thread_time() + 0.002
        while time.thread_time() < until:
            pass
        return ()

    monkeypatch.setattr(cpu, "_stack_of", slow)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(min(seconds, 0.05))

    with running(idle_wait):
        cpu.profile(SECONDS, sleep=sleep)
    assert max(waits[1:-1]) > 2 * cpu.SAMPLE_INTERVAL


def test_cpu_time_of_threads_without_python_has_their_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running(busy_loop):
        monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
        began = time.process_time()
        found = cpu.profile(SECONDS)
        used = time.process_time() - began
    (native,) = (
        values
        for (frame, *_), values in found.samples.items()
        if "without Python" in frame.function
    )
    assert native[0] == 0
    assert native[2] > used / 3 * 1e9


def test_the_heap_profile_has_what_was_allocated_meanwhile_and_is_held() -> None:
    held: list[bytes] = []

    def hold(_: float) -> None:
        held.append(base64.b64decode(b"AAAA" * 1_000_000))
        base64.b64decode(b"AAAA" * 2_000_000)

    found = heap.profile(1, hold)
    assert not tracemalloc.is_tracing()
    held_by_decoding = sum(
        size
        for stack, (_, size) in found.samples.items()
        if any(frame.function.endswith("b64decode") for frame in stack)
    )
    # A garbage collection that it causes may keep some thousand bytes of its own.
    assert 3_000_000 <= held_by_decoding < 3_100_000


def test_a_process_that_traces_all_its_life_is_shown_whole_and_at_once() -> None:
    def sleep(_: float) -> None:
        raise AssertionError("nothing to wait for")

    tracemalloc.start()
    try:
        held = [bytearray(2_000_000)]
        found = heap.profile(30, sleep)
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert max(size for _, size in found.samples.values()) >= len(held[0])


async def test_threads_and_tasks_are_shown_where_they_are() -> None:
    ready = asyncio.Event()

    async def inner() -> None:
        ready.set()
        await asyncio.sleep(60)

    async def outer() -> None:
        await inner()

    task = asyncio.create_task(outer(), name="the task")
    await ready.wait()
    loop = asyncio.get_running_loop()
    with running(idle_wait):
        text = await asyncio.to_thread(threads.describe_threads_and_tasks, loop)
        found = await asyncio.to_thread(threads.thread_profile)
    task.cancel()
    assert re.search(r"thread worker \(\d+\)\n(?:.+\n)+.* in idle_wait\n", text)
    assert re.search(r"task the task: \S+outer\n.* in \S+outer\n(?:.+\n)+?.* in \S+inner\n", text)
    functions = {frame.function for stack in found.samples for frame in stack}
    assert any(function.endswith("idle_wait") for function in functions)


@pytest.fixture
def port() -> Iterator[int]:
    found = server.start(port=0)
    yield found.server_address[1]
    found.shutdown()
    found.server_close()


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_the_index_names_what_there_is(port: int) -> None:
    for path in ("/debug/pprof", "/debug/pprof/"):
        status, body = get(port, path)
        assert status == 200
        for line in body.decode().splitlines():
            if line.startswith("/"):
                assert get(port, line.split()[0].replace("=30", "=0.05"))[0] == 200, line


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_comes_over_http(name: str, port: int) -> None:
    status, body = get(port, f"/debug/pprof/{name}")
    assert status == 200
    assert gzip.decompress(body)


@by_go
@pytest.mark.parametrize("name", PROFILES)
def test_gos_pprof_reads_what_comes_over_http(name: str, port: int, tmp_path: Path) -> None:
    assert "Samples:" in pprof(tmp_path, get(port, f"/debug/pprof/{name}")[1], "-raw")


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/", 404, "/debug/pprof/profile"),
        ("/profile", 404, "/debug/pprof/profile"),
        ("/debug/pprof/what", 404, "/debug/pprof/profile"),
        ("/debug/pprof/profile?seconds=-1", 400, "seconds: invalid value: -1"),
        ("/debug/pprof/heap?seconds=nan", 400, "seconds: invalid value: nan"),
        ("/debug/pprof/profile?seconds=1e9", 400, "up to 600"),
    ],
)
def test_what_is_not_there_is_refused(path: str, status: int, says: str, port: int) -> None:
    answered, body = get(port, path)
    assert answered == status
    assert says in body.decode()


def test_one_profile_is_taken_at_a_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    began, end = threading.Event(), threading.Event()

    def profile(seconds: float, loop: object) -> Profile:
        began.set()
        end.wait(30)
        return SMALL

    monkeypatch.setattr(cpu, "profile", profile)
    with running(lambda _: assert_first(port)):
        assert began.wait(30)
        assert get(port, "/debug/pprof/heap?seconds=1")[0] == 409
        assert get(port, "/debug/pprof/threads?debug=1")[0] == 200
        end.set()


def assert_first(port: int) -> None:
    assert get(port, "/debug/pprof/profile")[0] == 200


def test_a_port_that_is_taken_is_replaced_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server((server.ADDRESS, 0)) as taken:
        number = taken.getsockname()[1]
        with caplog.at_level(logging.WARNING, "knafka.profiling"):
            other = server.start(port=number)
    try:
        assert other.server_address[1] not in (0, number)
        assert f"http://127.0.0.1:{other.server_address[1]}/debug/pprof/" in caplog.text
    finally:
        other.shutdown()
        other.server_close()


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({settings.PROFILING: "disabled"}, False),
        ({settings.PROFILING: "Enabled"}, True),
    ],
)
def test_profiling_is_off_unless_enabled(environment: dict[str, str], wanted: bool) -> None:
    assert settings.serves_profiles(environment) is wanted


def test_a_word_that_is_neither_is_refused() -> None:
    with pytest.raises(InvalidDocument, match=r"^KNAFKA_PROFILING: .*enabled or disabled"):
        settings.serves_profiles({settings.PROFILING: "true"})


async def test_a_function_that_wants_it_is_served_on_8008(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[object, ...]] = []
    monkeypatch.setattr(server, "start", lambda *given: started.append(given))
    serving.start_profiling({})
    assert started == []
    serving.start_profiling({settings.PROFILING: "enabled"})
    assert started == [(asyncio.get_running_loop(),)]
    assert server.PORT == 8008


def test_a_function_without_profiling_imports_none_of_it() -> None:
    probe = (
        "import sys, asyncio\n"
        "from knafka import serving\n"
        "import knafka.receiver.function, knafka.dispatcher.function\n"
        "async def main(): serving.start_profiling({})\n"
        "asyncio.run(main())\n"
        "print({'knafka.profiling', 'tracemalloc', 'http.server'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", probe]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "set()"
