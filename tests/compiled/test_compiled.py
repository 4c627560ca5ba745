"""The compiled modules themselves, beside the tests of their code (`make test-compiled`)."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path

import pytest
from support.compiled import ROOT, compiled_modules

import knafka
from knafka.core import offsets
from knafka.core.offsets import OffsetTracker


@pytest.mark.parametrize("module", compiled_modules())
def test_a_compiled_module_lies_beside_the_source_of_the_checkout(module: str) -> None:
    path = Path(*module.split(".")[1:]).with_suffix(".py")
    installed = Path(str(knafka.__file__)).parent / path
    assert installed.read_bytes() == (ROOT / "functions" / "knafka" / path).read_bytes()


def test_a_traceback_names_file_and_line_of_compiled_code() -> None:
    tracker: OffsetTracker[str] = OffsetTracker()
    tracker.track(7, "first")
    with pytest.raises(ValueError, match="offset 5 was read after 7") as raised:
        tracker.track(5, "second")
    frames = traceback.extract_tb(raised.value.__traceback__)[1:]
    lines = Path(str(offsets.__file__).partition(".")[0] + ".py").read_text().splitlines()
    assert [(frame.filename, frame.name) for frame in frames] == [
        ("knafka/core/offsets.py", "track"),
        ("knafka/core/offsets.py", "skip"),
    ]
    assert [lines[(frame.lineno or 0) - 1].partition("  #")[0].strip() for frame in frames] == [
        "self.skip(offset)",
        'raise ValueError(f"offset {offset} was read after {self._next - 1}")',
    ]


def test_a_class_that_is_compiled_has_no_python_code() -> None:
    """So that a run of pure modules by mistake can't pass."""
    assert not inspect.isfunction(OffsetTracker.track)
