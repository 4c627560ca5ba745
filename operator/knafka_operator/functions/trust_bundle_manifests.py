"""Trust bundles: merges the installation's certificate authorities into one ConfigMap per
namespace. Pure.

    ConfigMaps labelled networking.knative.dev/trust-bundle: "true"  (Knative Eventing's namespace)
      -> one ConfigMap, knafka-trust-bundle, in each namespace with a dispatcher, which mounts it

Not here: reading and writing them (`functions.trust_bundles`), and what a dispatcher does with it
(`knafka.clients.http.trust_bundles`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from knafka_operator.functions.services import TRUST_BUNDLE, with_common_labels
from knafka_operator.model.resources import CORE, are_certificates

TRUST_BUNDLE_LABEL: Final = "networking.knative.dev/trust-bundle"
"""Knative's label of trust bundles; its value is `true`."""
FILE: Final = "bundle.pem"
"""The key of a copy, and so the name of the file that dispatchers read."""
MAX_BUNDLE_BYTES: Final = 900_000
"""Most bytes of all certificates together: the API server refuses a ConfigMap above 1 MiB."""

_find_certificates = re.compile(
    r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]{1,100000}?-----END CERTIFICATE-----"
).findall
"""Returns the certificates in PEM form in a text, without checking what they contain."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The authorities of all ConfigMaps together."""

    pem: str = ""
    """The certificates of all authorities, one below the other; empty: there are none."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """The problem of each ConfigMap that isn't used completely, by its name."""


def merge_certificates(config_maps: Iterable[Mapping[str, Any]]) -> Bundle:
    """Merge the certificates of ConfigMaps without duplicates, in the order of the ConfigMaps'
    names.

    Invalid certificates are left out, and so are those that would exceed `MAX_BUNDLE_BYTES`. The
    result names the problem of each ConfigMap that has no certificate, or one that is left out.
    """
    merged = dict[str, None]()  # an ordered set
    problems, size = dict[str, str](), 0
    for document in sorted(config_maps, key=lambda config_map: str(config_map["metadata"]["name"])):
        name = str(document["metadata"]["name"])
        # The items of a list have no kind, so they are no parsed models, and `data` may be null.
        data = document.get("data") or {}
        found_certificates = [
            certificate for key in sorted(data) for certificate in _find_certificates(data[key])
        ]
        usable = [
            certificate
            for certificate in found_certificates
            # A merged one was checked already.
            if certificate in merged or are_certificates(certificate)
        ]
        unusable_count = len(found_certificates) - len(usable)
        if not found_certificates:
            problems[name] = "it holds no certificate: want PEM in its data"
        elif unusable_count:
            problems[name] = f"{unusable_count} of its certificates can't be read: want PEM"
        for certificate in usable:
            if certificate in merged:
                continue
            if size + len(certificate) + 1 > MAX_BUNDLE_BYTES:
                problems[name] = (
                    f"all certificates together have more than {MAX_BUNDLE_BYTES} bytes"
                )
                break
            merged[certificate] = None
            size += len(certificate) + 1
    return Bundle("".join(f"{certificate}\n" for certificate in merged), problems)


def bundle_config_map(namespace: str, bundle: Bundle) -> Mapping[str, Any]:
    """Return the manifest of the ConfigMap that dispatchers of this namespace mount."""
    return {
        "apiVersion": CORE,
        "kind": "ConfigMap",
        "metadata": {
            "name": TRUST_BUNDLE,
            "namespace": namespace,
            "labels": dict(with_common_labels({})),
        },
        "data": {FILE: bundle.pem},
    }


def is_bundle(document: Mapping[str, Any]) -> bool:
    """Whether a ConfigMap has Knative's label of trust bundles. `document` needs only metadata."""
    return (document["metadata"].get("labels") or {}).get(TRUST_BUNDLE_LABEL) == "true"
