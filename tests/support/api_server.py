"""As much of a Kubernetes API server as the real client needs.

Discovery, get, list in pages, watch, create, apply, merge patch, delete with finalizers. Knative
Services are Ready as soon as they are applied; the status is a subresource of all kinds.
"""

from __future__ import annotations

import copy
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

import kubernetes

CORE: Final = "v1"
SERVING: Final = "serving.knative.dev/v1"
KINDS: Final[dict[str, dict[str, str]]] = {
    CORE: {
        "ConfigMap": "configmaps",
        "Event": "events",
        "Namespace": "namespaces",
        "Pod": "pods",
        "Secret": "secrets",
        "Service": "services",
    },
    "eventing.knative.dev/v1": {"Broker": "brokers", "Trigger": "triggers"},
    SERVING: {"Service": "services"},
    "apiextensions.k8s.io/v1": {"CustomResourceDefinition": "customresourcedefinitions"},
}
"""apiVersion to kind to the plural in paths."""

DEEP: Final = "1500 objects within each other"
"""Stands for these in what is stored: an API server takes 10,000, and Python writes no such."""

Json = dict[str, Any]
Rights: TypeAlias = Callable[[Mapping[str, str]], bool]
"""Of a SelfSubjectAccessReview's resourceAttributes, whether that is allowed."""
REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
VERBS: Final = {"PATCH": "patch", "POST": "create", "DELETE": "delete"}


class ApiServer:
    """Serves on a free port while it is entered; objects are kept by their path."""

    def __init__(self) -> None:
        self.kinds = {version: dict(kinds) for version, kinds in KINDS.items()}
        self.objects: dict[str, Json] = {}
        self.asked: list[str] = []
        """Paths of all requests, as they arrived; watches apart."""
        self.calls: list[str] = []
        """The same with their methods."""
        self.watched: list[tuple[str, Mapping[str, str]]] = []
        """Path and query of each watch."""
        self.refused: dict[str, int] = {}
        """Path to the status that it is answered with."""
        self.raw: dict[str, str] = {}
        """Path to the text that it is answered with."""
        self.users: dict[str, Rights] | None = None
        """Token to what its bearer may do; None: nobody is asked for one."""
        self._cuts = 0
        """How often every watch was cut off."""
        self._version = 100
        self._changed = threading.Condition()
        self._events: list[tuple[int, str, str, Json]] = []
        """resourceVersion, type, path and object of each change."""
        self.oldest = 0
        """The resourceVersion before which nobody knows any more what happened."""

    def path(self, api_version: str, kind: str, namespace: str, name: str) -> str:
        root = "/apis" if "/" in api_version else "/api"
        plural = self.kinds[api_version][kind]
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}/{api_version}{where}/{plural}/{name}"

    def put(self, api_version: str, kind: str, namespace: str, name: str, **more: Any) -> None:
        """Store an object as a user would; what is in its status stays."""
        path = self.path(api_version, kind, namespace, name)
        with self._changed:
            before = self.objects.get(path, {})
            kept = {"status": before["status"]} if "status" in before else {}
            metadata = {
                **before.get("metadata", {}),
                "namespace": namespace,
                "name": name,
                **more.pop("metadata", {}),
            }
            ours = {"apiVersion": api_version, "kind": kind, "metadata": metadata}
            self._store(path, {**kept, **ours, **more})

    def found(self, api_version: str, kind: str, namespace: str, name: str) -> Json | None:
        with self._changed:
            found = self.objects.get(self.path(api_version, kind, namespace, name))
            return copy.deepcopy(found)

    def forget_history(self) -> None:
        """Whoever follows from before must list again; those who follow now are cut off."""
        with self._changed:
            self.oldest = self._version
            self._events.clear()
        self.cut_off()

    def cut_off(self) -> None:
        """End every watch, as a connection that breaks."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def remove(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete as a user would."""
        with self._changed:
            self._delete(self.path(api_version, kind, namespace, name))

    def _store(self, path: str, document: Json) -> Json:
        before = self.objects.get(path)
        metadata = document["metadata"]
        if before is not None and before == document:
            return before
        self._version += 1
        document["metadata"] = {
            **metadata,
            "uid": metadata.get("uid") or f"uid-{self._version}",
            "resourceVersion": str(self._version),
            "generation": metadata.get("generation", 1)
            + int(before is not None and before.get("spec") != document.get("spec")),
        }
        self.objects[path] = document
        self._event("MODIFIED" if before else "ADDED", path, document)
        self._collect(path)
        return document

    def _delete(self, path: str) -> Json | None:
        found = self.objects.get(path)
        if found is None:
            return None
        if found["metadata"].get("finalizers"):
            going = {**found["metadata"], "deletionTimestamp": "2026-11-23T01:00:00Z"}
            return self._store(path, {**found, "metadata": going})
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        del self.objects[path]
        self._event("DELETED", path, found)
        return found

    def _collect(self, path: str) -> None:
        metadata = self.objects[path]["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            self._delete(path)

    def _event(self, type_: str, path: str, document: Json) -> None:
        self._events.append((self._version, type_, path, copy.deepcopy(document)))
        self._changed.notify_all()

    def answer(
        self, method: str, path: str, body: Any, query: Mapping[str, str], token: str = ""
    ) -> Any:
        self.asked.append(path)
        self.calls.append(f"{method} {path}")
        if refusal := self.refusal(method, path, token):
            return refusal, {"message": "forbidden" if refusal == 403 else "Unauthorized"}
        if path == REVIEWS:
            return 201, self._review(body, token)
        if path in self.raw:
            return 200, self.raw[path]
        if (status := self.refused.get(path)) is not None:
            return status, {"message": "refused"}
        if method == "GET" and (found := self._discovery(path)) is not None:
            return 200, found
        with self._changed:
            return copy.deepcopy(self._answer(method, path, body, query))

    def refusal(self, method: str, path: str, token: str) -> int:
        """The status for who may not do this; 0: he may."""
        if self.users is None:
            return 0
        if (rights := self.users.get(token)) is None:
            return 401
        return 0 if path == REVIEWS or rights(_attributes(method, path)) else 403

    def _review(self, body: Json, token: str) -> Json:
        rights = None if self.users is None else self.users[token]
        asked = body["spec"]["resourceAttributes"]
        return {**body, "status": {"allowed": rights is None or rights(asked)}}

    def _answer(self, method: str, path: str, body: Any, query: Mapping[str, str]) -> Any:
        part = path.removesuffix("/status")
        is_status, path = part != path, part
        if method == "GET" and self._is_list(path):
            return 200, self._list(path, query)
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return 409, {"message": "it exists"}
            return 201, self._store(path, body)
        stored = self.objects.get(path)
        if method == "PATCH" and stored is not None:
            version = body.get("metadata", {}).get("resourceVersion")
            if version not in (None, stored["metadata"]["resourceVersion"]):
                return 409, {"message": "the object has been modified"}
        if method == "PATCH" and "fieldManager" in query and "force" in query:
            stored = self._apply(path, stored, body)
        elif method == "PATCH" and stored is not None:
            of = ("status",) if is_status else tuple(key for key in body if key != "status")
            stored = self._store(path, merged(stored, {key: body[key] for key in of}))
        elif method == "DELETE":
            stored = self._delete(path)
        if stored is None:
            return 404, {"kind": "Status", "status": "Failure", "message": f"no {path}"}
        return 200, stored

    def _apply(self, path: str, stored: Json | None, body: Json) -> Json:
        document = {**(stored or {}), **body}
        if stored is not None:
            document["metadata"] = {**stored["metadata"], **body["metadata"]}
        if body["apiVersion"] == SERVING:
            revision = f"{body['metadata']['name']}-00001"
            document["status"] = {
                "latestCreatedRevisionName": revision,
                "latestReadyRevisionName": revision,
                "conditions": [{"type": "Ready", "status": "True"}],
            }
        return self._store(path, document)

    def _is_list(self, path: str) -> bool:
        plurals = {plural for kinds in self.kinds.values() for plural in kinds.values()}
        return path.rpartition("/")[2] in plurals and path not in self.objects

    def selected(self, path: str, document: Json, at: str, query: Mapping[str, str]) -> bool:
        """Whether a list or watch of `path` shows the object at `at`."""
        root, _, plural = path.rpartition("/")
        if not at.startswith(f"{root}/") or at.split("/")[-2] != plural:
            return False
        labels = document["metadata"].get("labels") or {}
        for term in query.get("labelSelector", "").split(","):
            key, given, value = term.partition("=")
            if key.startswith("!"):
                holds = key[1:] not in labels
            else:
                holds = not key or (labels.get(key) == value if given else key in labels)
            if not holds:
                return False
        return True

    def _list(self, path: str, query: Mapping[str, str]) -> Json:
        at = sorted(
            each for each in self.objects if self.selected(path, self.objects[each], each, query)
        )
        begin = int(query.get("continue", 0))
        end = begin + int(query.get("limit", len(at) + 1))
        metadata = {"resourceVersion": str(self._version)}
        if end < len(at):
            metadata["continue"] = str(end)
        return {
            "kind": "List",
            "metadata": metadata,
            "items": [self.objects[x] for x in at[begin:end]],
        }

    def events(self, path: str, query: Mapping[str, str]) -> Iterator[Json | None]:
        """A watch: what has happened since, as it happens; None: nothing for a moment."""
        self.watched.append((path, dict(query)))
        version, cuts = int(query["resourceVersion"]), self._cuts
        while cuts == self._cuts:
            with self._changed:
                too_old = version < self.oldest
                new = [each for each in self._events if each[0] > version]
                if not new and not too_old:
                    self._changed.wait(0.5)
            if too_old:
                yield {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
                return
            if not new:
                yield None
            version = new[-1][0] if new else version
            for _, type_, at, document in new:
                if self.selected(path, document, at, query):
                    yield {"type": type_, "object": document}

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


def _attributes(method: str, path: str) -> dict[str, str]:
    """What a request asks for, as rights have it."""
    parts = path.strip("/").split("/")
    group = "" if parts[0] == "api" else parts[1]
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "", "")[:3]
    verb = VERBS.get(method) or ("get" if name else "list")
    return {
        "verb": verb, "group": group, "resource": plural, "subresource": subresource,
        "namespace": namespace, "name": name,
    }  # fmt: skip


def merged(document: Json, patch: Mapping[str, Any]) -> Json:
    """RFC 7386."""
    result = dict(document)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            had = result.get(key)
            result[key] = merged(had if isinstance(had, dict) else {}, value)
        else:
            result[key] = value
    return result


@contextmanager
def api_server() -> Iterator[tuple[ApiServer, kubernetes.client.ApiClient]]:
    """A server, and the real client of it."""
    server = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            parts = urlsplit(self.path)
            path = unquote(parts.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            if query.get("watch", "").lower() == "true" and path not in server.refused:
                return self._watch(path, query)
            token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
            sent = json.loads(body or b"null")
            status, found = server.answer(self.command, path, sent, query, token)
            answer = found.encode() if path in server.raw else _text(found)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)
            return None

        def _watch(self, path: str, query: Mapping[str, str]) -> None:
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            try:
                for event in server.events(path, query):
                    line = b"\n" if event is None else _text(event) + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            except OSError:
                return  # the client has hung up

        do_GET = do_PATCH = do_POST = do_DELETE = _answer

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    http = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    configuration = kubernetes.client.Configuration()
    configuration.host = f"http://127.0.0.1:{http.server_port}"
    configuration.connection_pool_maxsize = 64
    client = kubernetes.client.ApiClient(configuration)
    try:
        yield server, client
    finally:
        server.cut_off()
        client.rest_client.pool_manager.clear()
        http.shutdown()
        http.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """A server whose `server_close` ends its connections and waits for their threads."""

    daemon_threads = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._connections: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


def _text(found: Any) -> bytes:
    deep = '{"not":' * 1500 + "{}" + "}" * 1500
    return json.dumps(found).replace(f'"{DEEP}"', deep).encode()


def _group(name: str, version: str) -> dict[str, Any]:
    preferred = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [preferred], "preferredVersion": preferred}


def kubeconfig(folder: Path, server: str = "http://127.0.0.1:1") -> Path:
    """A file of two contexts: `dev`, whose namespace is shop, and `plain`, the current one."""
    contexts = [
        {"name": "dev", "context": {"cluster": "c", "user": "u", "namespace": "shop"}},
        {"name": "plain", "context": {"cluster": "c", "user": "u"}},
    ]
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "plain",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": contexts,
    }
    file = folder / "config"
    file.write_text(json.dumps(found))
    return file
