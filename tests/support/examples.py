"""How many examples a property is tried with.

`KNAFKA_EXAMPLES` is the share of them that a run takes: `make test-fast` takes a fifth, with a new
seed each time, `make chaos` eight times as many; everything else takes them as they are.
"""

from __future__ import annotations

import os
from typing import Final

SHARE: Final = float(os.environ.get("KNAFKA_EXAMPLES", "1"))
FEWEST: Final = 5
"""Examples that a property is tried with at least, unless it wants fewer by itself."""


def examples(number: int) -> int:
    """This run's share of `number` examples, for `hypothesis.settings(max_examples=…)`."""
    return max(min(number, FEWEST), round(number * SHARE))
