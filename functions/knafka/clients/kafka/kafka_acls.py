"""ACLs: adds to Kafka's error which operation was refused, and the ACL that would allow it.

    in the body of `with explain_denials(topic=("Create", "orders"))`:
        LogError "Topic authorization failed."
        -> LogError "Create on topic orders is refused (Topic authorization failed.): add the ACL
           `--operation Create --topic orders` for this user"

Kafka's own error names the kind of resource, but neither the resource nor the operation. A request
may need several rights: the kind says which one was missing.

Not here: the requests (`kafka_admin`, `kafka_writer`, `kafka_reader`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from knafka.core.errors import LogError

Need: TypeAlias = tuple[str, str]
"""A right that a request needs: an operation, as `kafka-acls` names it, such as "Create", and the
name of the resource."""

_CLUSTER: Final = "kafka-cluster"
"""Kafka's name of the cluster as a resource."""


@contextmanager
def explain_denials(
    *,
    topic: Need | None = None,
    group: Need | None = None,
    transaction: Need | None = None,
    cluster: str = "",
) -> Iterator[None]:
    """Context manager whose body sends requests. If Kafka refuses one for want of a right, the
    `LogError` names the right. The parameters are the rights that the requests need: on a topic, a
    group, a transactional id, and the cluster, for which only the operation is given. None, or an
    empty operation: no right of that kind."""
    try:
        yield
    except LogError as error:
        raise name_missing_right(
            error, topic=topic, group=group, transaction=transaction, cluster=cluster
        ) from error


def name_missing_right(
    error: LogError,
    *,
    topic: Need | None = None,
    group: Need | None = None,
    transaction: Need | None = None,
    cluster: str = "",
) -> LogError:
    """Return an error that names the missing right and its ACL, if `error` is a refusal that
    doesn't name them yet; else return `error`. The other parameters are those of `explain_denials`;
    `error.denied` is the kind of the resource for which a right is missing."""
    needs = {
        "topic": topic,
        "group": group,
        "transactional-id": transaction,
        "cluster": (cluster, _CLUSTER) if cluster else None,
    }
    need = needs.get(error.denied)
    is_named_already = "--operation" in str(error)  # a part of the text below
    if need is None or is_named_already:
        return error
    operation, name = need
    resource = "--cluster" if error.denied == "cluster" else f"--{error.denied} {name}"
    return LogError(
        f"{operation} on {error.denied} {name} is refused ({error}): add the ACL "
        f"`--operation {operation} {resource}` for this user",
        retriable=error.retriable,
        denied=error.denied,
    )
