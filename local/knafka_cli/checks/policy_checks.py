"""Checks EventPolicies in files: what Knative's webhook would refuse, and probable mistakes.

Not here: which events they accept (`policies`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

from pydantic import Field, model_validator

from knafka.core.authorization import SERVICE_ACCOUNTS
from knafka.core.documents import parse, problem
from knafka.core.errors import InvalidDocument
from knafka.core.filters.filter_limits import DeclaredFilters
from knafka_cli.checks.impossible import contradictions
from knafka_cli.shared.cesql_calls import missing_functions
from knafka_client.declared.manifests import ObjectIdentity
from knafka_operator.model.channels import KafkaChannel
from knafka_operator.model.event_policies import EventPolicy, Requirement
from knafka_operator.model.resources import Broker, Declared, NonEmpty
from knafka_operator.senders.event_policies import StoredPolicy, applied_policies

ADDRESSED: Final = ("Broker", "KafkaChannel")
"""Kinds that policies can apply to and that are looked up among the files."""


class _Reference(Declared):
    """A reference to an object in the policy's namespace."""

    api_version: NonEmpty
    kind: NonEmpty
    name: NonEmpty


class _SourceReference(_Reference):
    """A reference to the object that sends events."""

    namespace: str | None = None


class _Selector(Declared):
    """Selects Brokers or channels by their labels."""

    api_version: NonEmpty
    kind: NonEmpty
    match_labels: dict[str, str] = Field(default_factory=dict)
    match_expressions: tuple[Requirement, ...] = ()


class _Target(Declared):
    """An entry of `spec.to`: to which objects the policy applies."""

    ref: _Reference | None = None
    selector: _Selector | None = None

    @model_validator(mode="after")
    def _require_one_reference(self) -> Self:
        """Raise an error unless the target has exactly one of `ref` and `selector`."""
        _require_exactly_one(ref=self.ref, selector=self.selector)
        return self


class _Sender(Declared):
    """An entry of `spec.from`: whose events are accepted."""

    ref: _SourceReference | None = None
    sub: str | None = None

    @model_validator(mode="after")
    def _require_one_sender(self) -> Self:
        """Raise an error unless the sender has exactly one of `ref` and `sub`, with `*` only at the
        end of `sub`."""
        _require_exactly_one(ref=self.ref, sub=self.sub or None)
        if self.sub is not None and "*" in self.sub[:-1]:
            raise problem(f"invalid value: {self.sub:.200}: '*' is only allowed as suffix", "sub")
        return self


class _PolicySpec(Declared):
    """The spec of an EventPolicy, as Knative's webhook validates it."""

    to: tuple[_Target, ...] = ()
    from_: tuple[_Sender, ...] = Field(default=(), alias="from")
    filters: DeclaredFilters = ()


class _Policy(Declared):
    """An EventPolicy with nothing but its spec."""

    spec: _PolicySpec = _PolicySpec()


def errors(policy: EventPolicy) -> list[str]:
    """Return a sentence for each error in an EventPolicy: what Knative's webhook refuses, unknown
    CESQL functions, and filters that no event can match."""
    try:
        spec = _parse_spec(policy)
    except InvalidDocument as error:
        return [str(error)]
    unknown_functions = missing_functions(spec.filters, "spec.filters")
    return [*unknown_functions, *contradictions(spec.filters, "spec.filters")]


def missing_objects(
    policy: EventPolicy, known_objects: Mapping[ObjectIdentity, Any]
) -> Iterator[ObjectIdentity]:
    """Yield the Brokers and KafkaChannels that an EventPolicy names in `spec.to` and that are not
    among the files."""
    for target in _spec_or_default(policy).to:
        if target.ref is not None and target.ref.kind in ADDRESSED:
            identity = ObjectIdentity(target.ref.kind, policy.metadata.namespace, target.ref.name)
            if identity not in known_objects:
                yield identity


def warnings(
    policy: EventPolicy, document: Mapping[str, Any], known_objects: Mapping[ObjectIdentity, Any]
) -> Iterator[str]:
    """Yield a sentence for each probable mistake in an EventPolicy, which was parsed from
    `document`; `known_objects` are the objects in the checked files."""
    spec = _spec_or_default(policy)
    if not spec.from_:
        yield "spec.from is empty: the policy accepts nobody"
    for number, sender in enumerate(spec.from_):
        if sender.sub and not _may_match_account(sender.sub):
            advice = f"give {SERVICE_ACCOUNTS}NAMESPACE:NAME"
            yield f"spec.from[{number}].sub: {sender.sub:.200} is no service account: {advice}"
    brokers_and_channels = [
        resource
        for identity, resource in known_objects.items()
        if isinstance(resource, (Broker, KafkaChannel))
        and identity.namespace == policy.metadata.namespace
    ]
    selector_targets = [
        target for target in spec.to if target.selector and target.selector.kind in ADDRESSED
    ]
    if selector_targets and not any(
        applied_policies([StoredPolicy(document)], broker) for broker in brokers_and_channels
    ):
        yield "spec.to selects nothing among the files"


def _may_match_account(sub: str) -> bool:
    """Whether some service account's subject can match `sub`, a subject in `spec.from` of a policy,
    where a final `*` stands for any text."""
    beginning = sub.removesuffix("*")
    if beginning.startswith(SERVICE_ACCOUNTS):
        return True
    # A pattern that is cut off within the common prefix of all service accounts matches them, too.
    return sub.endswith("*") and SERVICE_ACCOUNTS.startswith(beginning)


def _spec_or_default(policy: EventPolicy) -> _PolicySpec:
    """Return the policy's spec. If the spec can't be read, which `errors` reports, return a spec
    that names no objects, and about which `warnings` has nothing to say."""
    try:
        return _parse_spec(policy)
    except InvalidDocument:
        return _PolicySpec.model_construct(from_=(_Sender(sub=f"{SERVICE_ACCOUNTS}*"),))


def _parse_spec(policy: EventPolicy) -> _PolicySpec:
    """Parse a policy's spec as Knative's webhook does. Raises `InvalidDocument`."""
    return parse(_Policy, {"spec": policy.spec or {}}).spec


def _require_exactly_one(**fields: object) -> None:
    """Raise the error of Knative's webhook unless exactly one of two fields is set. `fields` are
    the two fields' values by name; None: the field isn't set."""
    set_fields = [name for name, value in fields.items() if value is not None]
    if len(set_fields) != 1:
        got = "neither" if not set_fields else "both"
        raise problem(f"expected exactly one, got {got}", *fields)
