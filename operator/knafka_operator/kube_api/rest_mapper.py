"""REST mapper: finds the REST path of a kind in the API server, and caches the kinds of each
apiVersion, including missing ones.

The dynamic client's own discovery isn't used: it drops its whole cache for each kind that it
doesn't find, isn't thread-safe, and accepts `*` as a kind. Here each apiVersion is looked up
separately, so that a misspelt kind costs no other look-ups, and is looked up less and less often.
`forget` is called for a new CustomResourceDefinition.

Not here: requests for objects (`cluster`).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import kubernetes
from kubernetes.dynamic.exceptions import NotFoundError
from kubernetes.dynamic.resource import Resource

KINDS_TTL: Final = 600.0
"""Seconds for which the kinds of an apiVersion are cached."""
MISSING_KIND_TTL: Final = 15.0
"""Seconds for which a missing kind isn't looked up again, at first. They double after each look-up
without a change."""
MAX_MISSING_KIND_TTL: Final = 300.0
"""Most seconds for which a missing kind isn't looked up again."""

_API_VERSION = re.compile(
    r"(?:(?P<group>[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)/)?(?P<version>[a-z][a-z0-9]{0,62})"
).fullmatch
"""Matches an apiVersion; the matched `group` is None for the core group."""
_KIND = re.compile(r"[A-Za-z](?:[-A-Za-z0-9]{0,61}[A-Za-z0-9])?").fullmatch
"""Matches the name of a kind."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """The answer to a look-up of one apiVersion."""

    listed_at: float
    """When its kinds were listed, by the mapper's clock (seconds)."""
    kinds: Mapping[str, Any]
    """The `kubernetes.dynamic` resource of each kind; empty if the apiVersion doesn't exist."""
    missing_kind_ttl: float = MISSING_KIND_TTL
    """Seconds until a kind that isn't listed is looked up again."""


class RestMapper:
    """Finds the API resource of a kind. Thread-safe; no lock is held during requests."""

    def __init__(
        self, client: kubernetes.client.ApiClient, now: Callable[[], float] = time.monotonic
    ) -> None:
        # Without the client's own discovery, which would request all kinds at once.
        self._client = kubernetes.dynamic.DynamicClient(client, discoverer=lambda *_: None)  # type: ignore[no-untyped-call]
        self._now = now
        self._lock = threading.Lock()
        self._listed: dict[str, _Listed] = {}
        """The last answer, by apiVersion."""

    def find(self, api_version: str, kind: str, timeout: float) -> Any:
        """Return the `kubernetes.dynamic` resource of a kind; None: there is no such kind. Blocks
        unless the answer is cached. Raises the client's errors if the API server doesn't answer
        within `timeout` seconds, or refuses.
        """
        version_match = _API_VERSION(api_version)
        if version_match is None or _KIND(kind) is None:
            return None
        now = self._now()
        with self._lock:
            cached = self._listed.get(api_version)
        if cached is not None:
            resource = cached.kinds.get(kind)
            ttl = cached.missing_kind_ttl if resource is None else KINDS_TTL
            if now - cached.listed_at < ttl:
                return resource
        kinds = self._list_kinds(version_match["group"], version_match["version"], timeout)
        missing_kind_ttl = MISSING_KIND_TTL
        # Without a change since the last look-up, the next one for a missing kind comes later.
        if cached is not None and cached.kinds.keys() == kinds.keys():
            missing_kind_ttl = min(2 * cached.missing_kind_ttl, MAX_MISSING_KIND_TTL)
        with self._lock:
            self._drop_outdated(now)
            self._listed[api_version] = _Listed(now, kinds, missing_kind_ttl)
        return kinds.get(kind)

    def _drop_outdated(self, now: float) -> None:
        """Drop outdated answers, so that misspelt apiVersions don't accumulate. An empty answer
        stays for twice its `missing_kind_ttl`, so that the next look-up can double that. The caller
        holds the lock."""
        self._listed = {
            api_version: listed
            for api_version, listed in self._listed.items()
            if now - listed.listed_at < (KINDS_TTL if listed.kinds else 2 * listed.missing_kind_ttl)
        }

    def is_known(self, api_version: str, kind: str) -> bool:
        """Whether the last look-up of the apiVersion found this kind; False if there was none.
        Makes no request."""
        with self._lock:
            listed = self._listed.get(api_version)
        return listed is not None and kind in listed.kinds

    def forget(self, group: str) -> None:
        """Forget the kinds of an API group, so that `find` asks the API server for them again. Call
        it when they have changed."""
        with self._lock:
            for api_version in list(self._listed):
                if api_version.startswith(f"{group}/"):
                    del self._listed[api_version]

    def _list_kinds(self, group: str | None, version: str, timeout: float) -> dict[str, Any]:
        """Ask the API server for the kinds of a group (None: the core group) and version. Returns
        the `kubernetes.dynamic` resource of each kind, with its subresources; empty if the version
        doesn't exist."""
        prefix = "api" if group is None else "apis"
        path = "/".join(filter(None, (prefix, group, version)))
        try:
            answer = self._client.request("get", path, serialize=False, _request_timeout=timeout)
        except NotFoundError:
            return {}
        resources = json.loads(answer.data).get("resources") or []
        subresources: dict[str, dict[str, Any]] = {}
        for resource in resources:
            # A subresource is listed as RESOURCE/NAME, such as `services/status`.
            parent, _, name = resource["name"].partition("/")
            if name:
                subresources.setdefault(parent, {})[name] = resource
        return {
            resource["kind"]: Resource(  # type: ignore[no-untyped-call]
                prefix=prefix,
                group=group,
                api_version=version,
                kind=resource["kind"],
                name=resource["name"],
                namespaced=resource["namespaced"],
                client=self._client,
                subresources=subresources.get(resource["name"]),
            )
            for resource in resources
            if "/" not in resource["name"]
        }
