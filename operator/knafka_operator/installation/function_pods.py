"""Function pods: reads pod fields and resources that an installation sets for functions. Pure.

    KNAFKA_POD                   fields of the pod's spec, as YAML
    KNAFKA_RECEIVER_RESOURCES    requests and limits of the receiver's container, as YAML
    KNAFKA_DISPATCHER_RESOURCES  requests and limits of a dispatcher's container
    KNAFKA_SHARD_RESOURCES       requests and limits of a shared dispatcher's container

The fields have Kubernetes' names and are passed on unchanged. Knative Serving always accepts
`imagePullSecrets` and resources, and the others if its ConfigMap `config-features` allows them
(`POD_FIELD_FEATURES`); a refusal becomes a condition of the Broker or Trigger.

Not here: fields that Knafka sets itself (containers, volumes, service account).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from knafka.core.errors import InvalidDocument

POD: Final = "KNAFKA_POD"
RECEIVER_RESOURCES: Final = "KNAFKA_RECEIVER_RESOURCES"
DISPATCHER_RESOURCES: Final = "KNAFKA_DISPATCHER_RESOURCES"
SHARD_RESOURCES: Final = "KNAFKA_SHARD_RESOURCES"
"""Names of the environment variables that the module's docstring explains."""

POD_FIELD_FEATURES: Final[Mapping[str, str]] = {
    "affinity": "kubernetes.podspec-affinity",
    "nodeSelector": "kubernetes.podspec-nodeselector",
    "priorityClassName": "kubernetes.podspec-priorityclassname",
    "runtimeClassName": "kubernetes.podspec-runtimeclassname",
    "schedulerName": "kubernetes.podspec-schedulername",
    "tolerations": "kubernetes.podspec-tolerations",
    "topologySpreadConstraints": "kubernetes.podspec-topologyspreadconstraints",
}
"""Fields of a pod, and the key of `config-features` that allows each to be used."""

_FIELD_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("imagePullSecrets", "tolerations", "topologySpreadConstraints"), list),
    **dict.fromkeys(("affinity", "nodeSelector"), dict),
    **dict.fromkeys(("priorityClassName", "runtimeClassName", "schedulerName"), str),
}
"""The type of each field that a pod may have."""
_TYPE_NAMES: Final[Mapping[type, str]] = {
    list: "a list of objects",
    dict: "an object",
    str: "a string",
}
"""The types, as messages name them."""
_RESOURCE_FIELDS: Final = ("requests", "limits")
"""The fields that a container's resources may have."""

DEFAULT_RESOURCES: Final[Mapping[str, Any]] = {
    "requests": {"cpu": "25m", "memory": "64Mi"},
    "limits": {"memory": "1Gi"},
}
"""Requests for an idle function, and a memory limit that it doesn't reach even in a burst, so that
it can't take memory from other pods on its node. CPU has no limit, as a burst may use what is
free."""
DEFAULT_SHARD_RESOURCES: Final[Mapping[str, Any]] = {
    "requests": {"cpu": "100m", "memory": "192Mi"},
    "limits": {"memory": "1Gi"},
}
"""Resources of a shared dispatcher: 268 MB were measured with 200 Triggers (docs/decisions/0018).
They must have a memory limit, as the process divides that among its Triggers."""


@dataclass(frozen=True, slots=True)
class FunctionPods:
    """Pod fields of all functions of an installation, and the resources of each kind of
    function."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every function's pod, as in Kubernetes; only those in `_FIELD_TYPES`."""
    receiver_resources: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_RESOURCES)
    dispatcher_resources: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_RESOURCES)
    shard_resources: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_SHARD_RESOURCES)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> FunctionPods:
        """Read the `KNAFKA_POD` and `KNAFKA_…_RESOURCES` variables. Raises `InvalidDocument` with
        the names of variable and field."""
        spec = _parse_yaml_mapping(environment, POD)
        for key, value in spec.items():
            if key not in _FIELD_TYPES:
                allowed_fields = ", ".join(sorted(_FIELD_TYPES))
                raise InvalidDocument(POD, f"unknown field {key!s:.80}: want {allowed_fields}")
            _check_value(f"{POD}.{key}", value, _FIELD_TYPES[key])
        return cls(
            spec,
            _parse_resources(environment, RECEIVER_RESOURCES),
            _parse_resources(environment, DISPATCHER_RESOURCES),
            _parse_resources(environment, SHARD_RESOURCES, DEFAULT_SHARD_RESOURCES),
        )


def needed_features(message: str) -> str:
    """Return a sentence that says which features to enable, if Knative Serving refused pod fields
    with `message`, such as `must not set the field(s): spec.template.spec.tolerations`; empty for
    any other message."""
    if "must not set the field" not in message:
        return ""
    features = [
        feature for name, feature in POD_FIELD_FEATURES.items() if f"spec.{name}" in message
    ]
    if not features:
        return ""
    keys = ", ".join(sorted(features))
    return f"set {keys} to enabled in ConfigMap config-features of Knative Serving, or change {POD}"


def _parse_yaml_mapping(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """Parse an environment variable that holds a YAML mapping; empty if it isn't set or is
    empty. Raises `InvalidDocument`."""
    try:
        parsed = yaml.safe_load(environment.get(name, "")) or {}
    except yaml.YAMLError as error:
        raise InvalidDocument(name, f"no YAML: {error!s:.300}") from None
    if parsed:  # an empty variable counts as not set; an empty field is refused
        _check_value(name, parsed, dict)
    return dict(parsed)


def _parse_resources(
    environment: Mapping[str, str], name: str, default: Mapping[str, Any] = DEFAULT_RESOURCES
) -> Mapping[str, Any]:
    """Parse the environment variable `name`, which holds a container's resources as YAML; returns
    `default` if the variable isn't set. Raises `InvalidDocument` for a field other than `requests`
    and `limits`, and for an amount that is neither text nor a number."""
    if not environment.get(name, "").strip():
        return default
    resources = _parse_yaml_mapping(environment, name)
    for key, amounts in resources.items():
        if key not in _RESOURCE_FIELDS:
            allowed_fields = ", ".join(_RESOURCE_FIELDS)
            raise InvalidDocument(name, f"unknown field {key!s:.80}: want {allowed_fields}")
        _check_value(f"{name}.{key}", amounts, dict)
        for resource, amount in amounts.items():
            if isinstance(amount, bool) or not isinstance(amount, str | int | float):
                where = f"{name}.{key}.{resource!s:.80}"
                raise InvalidDocument(where, "want a quantity, such as 100m or 128Mi")
    return resources


def _check_value(where: str, value: object, type_: type) -> None:
    """Raise `InvalidDocument` unless a value has this type and isn't empty; a list must contain
    only mappings. `where` is the environment variable's name, or `VARIABLE.FIELD`."""
    is_valid = isinstance(value, type_) and value
    if is_valid and isinstance(value, list):
        is_valid = all(isinstance(element, dict) for element in value)
    if not is_valid:
        raise InvalidDocument(where, f"invalid value: {value!s:.80}: want {_TYPE_NAMES[type_]}")
