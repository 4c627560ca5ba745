"""What all tests share: a real Kafka on demand, and no event loop that nobody closes."""

import asyncio
import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from support.examples import examples
from support.gate import IN_CI
from support.loop_watch import LoopWatch

pytest_plugins = [
    "support.kafka",  # before what imports it
    "support.browser",
    "support.built_commands",
    "support.once_a_run",
    "support.mortal_kafka",
    "support.mock_kafka",
    "support.cluster",
    "support.compiled",
    "support.conformance",
    "support.func_source",
    "support.installation",
    "support.left_open",
    "support.letters",
    "support.report_browser",
    "support.logs",
    "support.markers",
    "support.file_order",
    "support.left_behind",
    "support.failures",
    "support.measuring",
    "support.prometheus",
    "support.quick_java",
    "support.raw_server",
    "support.receiving",
    "support.s3",
    "support.scaling",
    "support.spark",
    "support.transactions",
    "support.watchdog",
    # After what they import, so that asserts there are rewritten:
    "support.archiving",
    "support.channels",
    "support.guarded",
    "support.conformance_world",
    "support.behaviour",
    "support.behaviour_memory",
    "support.behaviour_local",
    "support.behaviour_cluster",
]


GARBAGE = 10_000
"""Objects made between two garbage collections: by Python's own 700, tests make 2.6 million of
them, each of which calls the loop watch and hypothesis twice."""


def pytest_configure(config: pytest.Config) -> None:
    # looptime asks for the current event loop in tests without one too, and asyncio would make one
    # that nobody closes; once it was set, to none, it makes none.
    asyncio.set_event_loop(None)
    # A busy machine is no bug, and what the gate tries should not change between two runs of it.
    hypothesis.settings.register_profile(
        "knafka", deadline=None, derandomize=IN_CI, max_examples=examples(100)
    )
    hypothesis.settings.load_profile("knafka")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep thousands of tests and their modules, which stay, out of every garbage collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GARBAGE)
        gc.enable()


WATCHED = tuple(Path(__file__).parent / folder for folder in ("unit", "property"))


@pytest.fixture(autouse=True)
def unblocked_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail where our code keeps the event loop from running for long: `support.loop_watch`."""
    if request.node.get_closest_marker("blocks_the_loop") or not any(
        request.path.is_relative_to(each) for each in WATCHED
    ):
        yield
        return
    watch = LoopWatch()
    with watch.watching():
        yield
    assert not watch.blocked, "the event loop was blocked: " + "\n".join(watch.blocked)
