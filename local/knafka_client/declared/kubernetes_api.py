"""KubernetesApi: requests to an API server under one user's own rights.

Not here: the operator's client, which applies and watches (`knafka_operator.kube_api.cluster`).
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
"""The most seconds that one request takes."""
MERGE_PATCH: Final = "application/merge-patch+json"
"""Content type of a JSON merge patch (RFC 7386)."""
_match_legal_name: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?").fullmatch
"""Matches what may be the name of an object or namespace."""


class Unauthenticated(NotAllowed):
    """The API server doesn't know the user: no token, or one that is no longer valid."""


class Objects(NamedTuple):
    """A kind as URL paths have it, by its version and plural: `Objects("eventing.knative.dev/v1",
    "triggers")`."""

    version: str
    plural: str

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.version.rpartition("/")[0]


class KubernetesApi:
    """Sends a user's requests to an API server; safe to use from several threads.

    Methods raise `ClusterError` with the failed request, `NotAllowed` if the user lacks the right,
    and `Unauthenticated` if the token isn't valid.
    """

    def __init__(self, client: kubernetes.client.ApiClient) -> None:
        self._client = client

    def list(self, objects: Objects, namespace: str | None = None) -> Sequence[Document] | None:
        """Return all objects of a kind in one namespace, or in all namespaces (None). The result is
        None if the cluster doesn't have the kind."""
        if namespace is not None and _match_legal_name(namespace) is None:
            raise ClusterError(f"{namespace!r:.80} is no name of a namespace")
        scope = f"in {namespace}" if namespace else "in all namespaces"
        # Version 0: the API server answers from its cache, without asking etcd.
        path = f"{_object_path(objects, namespace)}?{urlencode({'resourceVersion': '0'})}"
        answer = self.ask(f"list {objects.plural} {scope}", "GET", path)
        if answer is None:
            return None
        items: Sequence[Document] = json.loads(answer).get("items") or []
        return items

    def get(self, objects: Objects, namespace: str, name: str) -> Document | None:
        """Return one object; None if it doesn't exist, also if no object can have this name, such
        as `..`."""
        if _match_legal_name(namespace) is None or _match_legal_name(name) is None:
            return None
        answer = self.ask(
            f"get {objects.plural} {namespace}/{name}",
            "GET",
            _object_path(objects, namespace, name),
        )
        return None if answer is None else json.loads(answer)

    def create(self, objects: Objects, namespace: str, body: Mapping[str, Any]) -> Document | None:
        """Create an object and return it; None if the cluster doesn't have the kind, or no
        namespace can have this name.

        Raises `Conflict` if the object exists.
        """
        if _match_legal_name(namespace) is None:
            return None
        request_text = f"create {objects.plural} {namespace}/{body['metadata']['name']}"
        answer = self.ask(request_text, "POST", _object_path(objects, namespace), body)
        return None if answer is None else json.loads(answer)

    def annotate(self, objects: Objects, namespace: str, name: str, key: str, value: str) -> bool:
        """Set the annotation `key` of an object to `value`; returns False if the object doesn't
        exist."""
        body = {"metadata": {"annotations": {key: value}}}
        path = _object_path(objects, namespace, name)
        request_text = f"patch {objects.plural} {namespace}/{name}"
        return self.ask(request_text, "PATCH", path, body, MERGE_PATCH) is not None

    def patch(
        self,
        objects: Objects,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Document | None:
        """Merge `body` into an object or its `subresource`; returns the patched object, or None if
        there is no such object.

        Raises `Conflict` if the body has another `resourceVersion` than the stored object.
        """
        path = _object_path(objects, namespace, name) + (f"/{subresource}" if subresource else "")
        answer = self.ask(
            f"patch {objects.plural} {namespace}/{name}", "PATCH", path, body, MERGE_PATCH
        )
        return None if answer is None else json.loads(answer)

    def is_allowed(
        self, verb: str, objects: Objects, namespace: str, name: str, subresource: str = ""
    ) -> bool:
        """Whether the user may do `verb` (`get`, `patch` …) with this object or its `subresource`,
        by a SelfSubjectAccessReview. With an empty `name`: with all objects of the kind in the
        namespace."""
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
        request_text: str,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> bytes | None:
        """Send a request; returns the body of the answer, or None if it was 404.

        `request_text` describes the request in error messages; its first words are the verb and the
        kind's plural (`list triggers in shop`). `body` is sent as JSON.
        """
        data = None if body is None else json.dumps(body).encode()
        return read_answer(request_text, lambda: self._send(method, path, data, content_type))

    def _send(self, method: str, path: str, body: bytes | None, content_type: str) -> Any:
        """Send a request with the client's credentials; returns urllib3's response. Raises
        `ApiException` unless the status is 2xx, and urllib3's `HTTPError` if there is no answer."""
        configuration = self._client.configuration
        headers = {"Content-Type": content_type}
        if token := configuration.auth_settings().get("BearerToken"):
            headers[token["key"]] = token["value"]
        # The client's own `call_api` isn't used, since its arguments change between releases.
        answer = self._client.rest_client.pool_manager.request(
            method,
            f"{configuration.host}{path}",
            body=body,
            headers=headers,
            timeout=API_SERVER_TIMEOUT,
            redirect=False,  # a token goes to no other address
        )
        if not 200 <= answer.status < 300:
            exception = ApiException(status=answer.status, reason=answer.reason)
            exception.body = answer.data.decode(errors="replace")
            raise exception
        return answer


def read_answer(request_text: str, ask: Callable[[], Any]) -> bytes | None:
    """Send a request by calling `ask`, which returns the API server's response; returns the
    response's body, or None if it was 404.

    `request_text` is for messages, and begins with verb and kind, such as `get Secret
    default/kafka`. Raises `ClusterError` for any other error: as `Unauthenticated` (401),
    `NotAllowed` (403) or `Conflict` (409), which are subclasses.
    """
    try:
        data: bytes = ask().data
    except ApiException as error:
        if error.status == 404:
            return None
        if error.status in (401, 403):
            denial = Unauthenticated if error.status == 401 else NotAllowed
            verb, plural = request_text.split()[:2]
            raise denial(
                f"can't {request_text}: {_error_message(error)}: ask for a role that may {verb} "
                f"{plural.lower()}, or name another --context"
            ) from error
        error_class = Conflict if error.status == 409 else ClusterError
        raise error_class(f"can't {request_text}: {_error_message(error)}") from error
    except (HTTPError, OSError, ValueError) as error:
        raise ClusterError(
            f"can't {request_text}: the API server does not answer ({error}): is the --context "
            "right, and `kubectl version` answered?"
        ) from error
    return data


def _object_path(objects: Objects, namespace: str | None = None, name: str | None = None) -> str:
    """Return the URL path of the object `name`; without a name, of all objects of the kind in the
    namespace; without a namespace either, of those in all namespaces."""
    root = "/apis" if objects.group else "/api"
    namespace_part = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    name_part = f"/{quote(name, safe='')}" if name else ""
    return f"{root}/{objects.version}{namespace_part}/{objects.plural}{name_part}"


def _error_message(error: ApiException) -> str:
    """Return the error's message from the API server, or else the status code."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, TypeError, KeyError):
        return f"{error.status} {error.reason}"
