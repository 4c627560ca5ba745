"""What all tests share: a real Kafka on demand, and no event loop that nobody closes."""

import asyncio

import hypothesis
import pytest
from support.gate import IN_CI

pytest_plugins = [
    "support.cluster",
    "support.conformance",
    "support.installation",
    "support.kafka",
    "support.letters",
    "support.logs",
    "support.mortal_kafka",
    "support.raw_server",
    "support.receiving",
    "support.scaling",
    "support.spark",
    "support.conformance_world",  # after what it imports, so that asserts there are rewritten
]


def pytest_configure(config: pytest.Config) -> None:
    # looptime asks for the current event loop in tests without one too, and asyncio would make one
    # that nobody closes; once it was set, to none, it makes none.
    asyncio.set_event_loop(None)
    # A busy machine is no bug, and what the gate tries should not change between two runs of it.
    hypothesis.settings.register_profile("knafka", deadline=None, derandomize=IN_CI)
    hypothesis.settings.load_profile("knafka")
