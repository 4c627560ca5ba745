"""KubernetesApi: what one user asks of an API server, under that user's own rights.

Not here: what the objects mean; and the operator's own client, which applies and watches
(`knafka_operator.runtime.cluster`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import kubernetes
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from knafka_operator.model.cluster import ClusterError, Conflict, Document, NotAllowed

API_SERVER_TIMEOUT: Final = 15.0
"""Seconds for one request."""
MERGE_PATCH: Final = "application/merge-patch+json"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?").fullmatch


class Unauthenticated(NotAllowed):
    """The API server doesn't know who asks: no token, or one that isn't valid any more."""


class Objects(NamedTuple):
    """Which kind, as paths have it: `Objects("eventing.knative.dev/v1", "triggers")`."""

    version: str
    plural: str

    @property
    def group(self) -> str:
        return self.version.rpartition("/")[0]


class KubernetesApi:
    """Raises `ClusterError` with what was asked; `NotAllowed` if the user may not,
    `Unauthenticated` if there is no such user. For any number of threads."""

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self._client = client

    def list(self, objects: Objects, namespace: str | None = None) -> Sequence[Document] | None:
        """In one namespace, or in all; None: there is no such kind."""
        if namespace is not None and _NAME(namespace) is None:
            raise ClusterError(f"{namespace!r:.80} is no name of a namespace")
        where = f"in {namespace}" if namespace else "in all namespaces"
        # Version 0: as the API server remembers it, so that looking often costs etcd nothing.
        path = f"{_path(objects, namespace)}?{urlencode({'resourceVersion': '0'})}"
        answer = self.ask(f"list {objects.plural} {where}", "GET", path)
        if answer is None:
            return None
        items: Sequence[Document] = json.loads(answer).get("items") or []
        return items

    def get(self, objects: Objects, namespace: str, name: str) -> Document | None:
        """An object; None: there is none, or the name is none that an object can have, such as
        `..`."""
        if _NAME(namespace) is None or _NAME(name) is None:
            return None
        answer = self.ask(
            f"get {objects.plural} {namespace}/{name}", "GET", _path(objects, namespace, name)
        )
        return None if answer is None else json.loads(answer)

    def create(self, objects: Objects, namespace: str, body: Mapping[str, Any]) -> Document | None:
        """Create an object. None: the cluster doesn't have the kind. Raises `Conflict` if the
        object exists."""
        if _NAME(namespace) is None:
            return None
        what = f"create {objects.plural} {namespace}/{body['metadata']['name']}"
        answer = self.ask(what, "POST", _path(objects, namespace), body)
        return None if answer is None else json.loads(answer)

    def annotate(self, objects: Objects, namespace: str, name: str, key: str, value: str) -> bool:
        """Whether the object is there."""
        body = {"metadata": {"annotations": {key: value}}}
        what, path = f"patch {objects.plural} {namespace}/{name}", _path(objects, namespace, name)
        return self.ask(what, "PATCH", path, body, MERGE_PATCH) is not None

    def patch(
        self,
        objects: Objects,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Document | None:
        """Merge `body` into the object, or into its `subresource`; None: it is gone. Raises
        `Conflict` if the body has another `resourceVersion` than the stored object."""
        path = _path(objects, namespace, name) + (f"/{subresource}" if subresource else "")
        answer = self.ask(
            f"patch {objects.plural} {namespace}/{name}", "PATCH", path, body, MERGE_PATCH
        )
        return None if answer is None else json.loads(answer)

    def may(
        self, verb: str, objects: Objects, namespace: str, name: str, subresource: str = ""
    ) -> bool:
        """Whether the user may, by a SelfSubjectAccessReview."""
        attributes = {
            "verb": verb, "group": objects.group, "resource": objects.plural,
            "subresource": subresource, "namespace": namespace, "name": name,
        }  # fmt: skip
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self.ask(f"review rights to {objects.plural}", "POST", path, review)
        return answer is not None and json.loads(answer)["status"].get("allowed") is True

    def ask(
        self,
        what: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes | None:
        """The answer's body; None: 404. `what` begins with verb and plural, for a person."""
        data = None if body is None else json.dumps(body).encode()
        return answered(what, lambda: self._send(method, path, data, content_type))

    def _send(self, method: str, path: str, body: bytes | None, content_type: str) -> Any:
        configuration = self._client.configuration
        headers = {"Content-Type": content_type}
        if token := configuration.auth_settings().get("BearerToken"):
            headers[token["key"]] = token["value"]
        # Not by `call_api`, whose arguments are others from release to release.
        answer = self._client.rest_client.pool_manager.request(
            method,
            f"{configuration.host}{path}",
            body=body,
            headers=headers,
            timeout=API_SERVER_TIMEOUT,
            redirect=False,  # a token goes to no other address
        )
        if not 200 <= answer.status < 300:
            failed = ApiException(status=answer.status, reason=answer.reason)
            failed.body = answer.data.decode(errors="replace")
            raise failed
        return answer


def answered(what: str, ask: Callable[[], Any]) -> bytes | None:
    """The API server's answer; None: it answered 404. Raises `ClusterError`."""
    try:
        data: bytes = ask().data
    except ApiException as error:
        if error.status == 404:
            return None
        if error.status in (401, 403):
            kind = Unauthenticated if error.status == 401 else NotAllowed
            verb, plural = what.split()[:2]
            raise kind(
                f"can't {what}: {_message(error)}: ask for a role that may {verb} "
                f"{plural.lower()}, or name another --context"
            ) from error
        other = Conflict if error.status == 409 else ClusterError
        raise other(f"can't {what}: {_message(error)}") from error
    except (HTTPError, OSError, ValueError) as error:
        raise ClusterError(
            f"can't {what}: the API server does not answer ({error}): is the --context right, "
            "and `kubectl version` answered?"
        ) from error
    return data


def _path(objects: Objects, namespace: str | None = None, name: str | None = None) -> str:
    root = "/apis" if objects.group else "/api"
    where = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    which = f"/{quote(name, safe='')}" if name else ""
    return f"{root}/{objects.version}{where}/{objects.plural}{which}"


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return f"{error.status} {error.reason}"
