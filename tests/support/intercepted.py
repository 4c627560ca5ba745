"""Calls of something asynchronous, seen before and after they are made: to fail, count or crash."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

Seen = Callable[[str, str], None]
"""Called with `before` or `after`, and the method's name; what it raises is the call's error."""


class Intercepted:
    """`inner`, each of whose coroutines `seen` sees."""

    def __init__(self, inner: Any, seen: Seen) -> None:
        self._inner = inner
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*arguments: Any, **named: Any) -> Any:
            self._seen("before", name)
            answer = await method(*arguments, **named)
            self._seen("after", name)
            return answer

        return call
