"""As much of a Kubernetes API server as the real client needs: discovery, get, apply, delete."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import kubernetes

KINDS: Final[dict[str, dict[str, str]]] = {
    "v1": {"ConfigMap": "configmaps", "Secret": "secrets", "Service": "services"},
    "eventing.knative.dev/v1": {"Broker": "brokers", "Trigger": "triggers"},
    "serving.knative.dev/v1": {"Service": "services"},
}
"""apiVersion to kind to the plural in paths."""


class ApiServer:
    """Serves on a free port while it is entered; objects are kept by their path."""

    def __init__(self) -> None:
        self.kinds = {version: dict(kinds) for version, kinds in KINDS.items()}
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        """Paths of all requests, as they arrived."""
        self.refused: dict[str, int] = {}
        """Path to the status that it is answered with."""

    def path(self, api_version: str, kind: str, namespace: str, name: str) -> str:
        root = "/apis" if "/" in api_version else "/api"
        plural = self.kinds[api_version][kind]
        return f"{root}/{api_version}/namespaces/{namespace}/{plural}/{name}"

    def put(self, api_version: str, kind: str, namespace: str, name: str, **more: Any) -> None:
        metadata = {"namespace": namespace, "name": name}
        self.objects[self.path(api_version, kind, namespace, name)] = {
            "apiVersion": api_version, "kind": kind, "metadata": metadata, **more,
        }  # fmt: skip

    def answer(self, method: str, path: str, body: Any, query: str = "") -> tuple[int, Any]:
        self.asked.append(path)
        if (status := self.refused.get(path)) is not None:
            return status, {"message": "refused"}
        if method == "GET" and (found := self._discovery(path)) is not None:
            return 200, found
        path = path.removesuffix("/status")
        if method == "PATCH" and isinstance(body, dict):
            self.objects[path] = {**self.objects.get(path, {}), **body}
        if (stored := self.objects.get(path)) is None:
            return 404, {"kind": "Status", "status": "Failure", "message": f"no {path}"}
        if method == "DELETE":
            del self.objects[path]
        return 200, stored

    def _discovery(self, path: str) -> Any:
        if path == "/version":
            return {"gitVersion": "v1.35.0"}
        if path == "/apis":
            groups = [each.split("/") for each in self.kinds if "/" in each]
            return {"kind": "APIGroupList", "groups": [_group(*each) for each in groups]}
        version = path.removeprefix("/apis/").removeprefix("/api/")
        if version not in self.kinds or ("/" in version) != path.startswith("/apis/"):
            return None
        resources = []
        for kind, plural in self.kinds[version].items():
            for name in (plural, f"{plural}/status"):
                given = {"name": name, "kind": kind, "namespaced": True, "singularName": ""}
                resources.append({**given, "verbs": ["get", "patch", "delete"]})
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


@contextmanager
def api_server(
    server: ApiServer | None = None,
) -> Iterator[tuple[ApiServer, kubernetes.client.ApiClient]]:
    """A server, an empty one if none is given, and the real client of it."""
    server = server or ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            url = urlsplit(self.path)
            asked = json.loads(body or b"null")
            status, found = server.answer(self.command, unquote(url.path), asked, url.query)
            answer = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    configuration = kubernetes.client.Configuration()
    configuration.host = f"http://127.0.0.1:{http.server_port}"
    client = kubernetes.client.ApiClient(configuration)
    try:
        yield server, client
    finally:
        client.rest_client.pool_manager.clear()
        http.shutdown()
        http.server_close()
        thread.join()


def _group(name: str, version: str) -> dict[str, Any]:
    preferred = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [preferred], "preferredVersion": preferred}
