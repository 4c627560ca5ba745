"""Whether this is the gate, where what is missing is a failure and never a skip."""

import os
from typing import Final

import pytest

IN_CI: Final = os.environ.get("CI", "").lower() in ("true", "1")
IN_GATE: Final = "KNAFKA_BURST" not in os.environ
"""Whether `make chaos` doesn't run, whose bursts are larger."""
only_chaos: Final = pytest.mark.only_chaos
"""Marks what the gate shows elsewhere (docs/design/tests.md says where); `make chaos` runs it."""
