"""Reads the JSON bodies of requests."""

from __future__ import annotations

from typing import TypeVar

from aiohttp import web

from knafka.core import documents
from knafka.core.documents import Model
from knafka.core.errors import InvalidDocument

M = TypeVar("M", bound=Model)
"""The class of a request's document."""


async def read_document(model: type[M], request: web.Request) -> M:
    """Read a request's body, which is JSON, as a document of this class. Raises `InvalidDocument`.

    JSON is UTF-8, whatever charset the request names.
    """
    try:
        text = (await request.read()).decode()
    except UnicodeDecodeError:
        raise InvalidDocument("", "the request's body is not UTF-8") from None
    return documents.parse_json(model, text)
