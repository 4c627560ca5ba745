"""A Kubernetes API server on a `MemoryCluster`, for the real client."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from urllib.parse import parse_qs, unquote

from support.api_server import ApiServer

from knafka_operator.runtime.memory_cluster import MemoryCluster

NOT_FOUND = 404, {"kind": "Status", "status": "Failure", "message": "not found"}
CONFLICT = 409, {"kind": "Status", "status": "Failure", "message": "it already exists"}
FORBIDDEN = 403, {"kind": "Status", "status": "Failure", "message": "it is forbidden"}


class MemoryApi(ApiServer):
    """Objects are those of `cluster`."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.forbidden: set[str] = set()
        """Kinds of which nothing may be asked."""
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: Any, query: str = "") -> tuple[int, Any]:
        self.asked.append(path)
        if method == "GET" and (found := self._discovery(path)) is not None:
            return 200, found
        try:
            api_version, kind, namespace, name, status = self._named(path)
        except LookupError:
            return NOT_FOUND
        if kind in self.forbidden:
            return FORBIDDEN
        with self._lock:
            answer = self._answer(
                method, (api_version, kind, namespace, name), body, query, status=status
            )
            return asyncio.run(answer)

    async def _answer(
        self, method: str, key: tuple[str, str, str, str], body: Any, query: str, *, status: bool
    ) -> tuple[int, Any]:
        api_version, kind, _, name = key
        match method:
            case "GET" if not name:
                selector = parse_qs(query).get("labelSelector", [""])[0]
                labels = dict(each.split("=") for each in unquote(selector).split(",") if each)
                found = await self.cluster.list(api_version, kind, labels)
                return 200, {"kind": f"{kind}List", "items": found}
            case "POST":
                created = await self.cluster.create(body)
                return (201, body) if created else CONFLICT
            case "PATCH" if status:
                stored = await self.cluster.get(*key)
                if stored is None:
                    return NOT_FOUND
                await self.cluster.write_status(stored, body["status"])
                return 200, await self.cluster.get(*key)
            case "PATCH":
                return 200, await self.cluster.apply(body)
        stored = await self.cluster.get(*key)
        if stored is None:
            return NOT_FOUND
        if method == "DELETE":
            await self.cluster.delete(*key)
        return 200, stored

    def _named(self, path: str) -> tuple[str, str, str, str, bool]:
        """apiVersion, kind, namespace and name of a path, and whether it is of the status."""
        parts = path.strip("/").split("/")
        version_parts = 1 if parts[0] == "api" else 2
        api_version = "/".join(parts[1 : 1 + version_parts])
        rest = parts[1 + version_parts :]
        namespace = ""
        if rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        kinds = {plural: kind for kind, plural in self.kinds[api_version].items()}
        name = rest[1] if len(rest) > 1 else ""
        return api_version, kinds[rest[0]], namespace, name, rest[2:] == ["status"]
