"""Parsing: parses large documents outside the event loop, in one thread.

One thread, since Python runs one at a time: more would leave the loop a smaller share. Small
documents are parsed in the loop, as a handover takes longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from knafka.core.filters.filter_limits import characters_of

LARGE_DOCUMENT: Final = 4_096
"""Characters from which on a document is parsed in the thread. An expression of this length takes
up to 30 ms, a usual document 0.1 ms."""

_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="parser")
"""The one thread; shared by all callers in this process."""

T = TypeVar("T")


async def parse_off_loop(parse: Callable[[], T], size: int) -> T:
    """Call `parse`, which parses `size` characters or bytes: in the parser's thread if they are
    `LARGE_DOCUMENT` or more, else at once. Returns and raises what `parse` does."""
    if size < LARGE_DOCUMENT:
        return parse()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, parse)


def spec_size(document: Mapping[str, Any]) -> int:
    """Return the number of characters in the spec of a stored object; counting stops at
    `LARGE_DOCUMENT`."""
    return characters_of(document.get("spec"), LARGE_DOCUMENT)
