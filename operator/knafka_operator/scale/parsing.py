"""Parsing: documents that are large are read beside the event loop, in one thread for all.

One thread, since Python runs one at a time: several would leave the loop a smaller share. What is
small is read where it is asked for, as handing it over takes longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from knafka.core.filter_limits import characters_of

LARGE_DOCUMENT: Final = 4_096
"""Characters of a document from which on it is read in the thread: an expression of that length
takes up to 30 ms to parse, a document of usual size a tenth of one."""

_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="parser")

T = TypeVar("T")


async def parsed_off_loop(read: Callable[[], T], size: int) -> T:
    """Call `read`, which parses `size` characters or bytes: in a thread if they are many. Returns
    and raises what it does."""
    if size < LARGE_DOCUMENT:
        return read()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, read)


def spec_size(document: Mapping[str, Any]) -> int:
    """Characters in the spec of a declared object, counted no further than `LARGE_DOCUMENT`."""
    return characters_of(document.get("spec"), LARGE_DOCUMENT)
