"""ACLs: what Kafka refused of whom, and the ACL that would allow it.

    with needing(topic=("Create", "orders")): ...      LogError "Topic authorization failed."
        -> LogError "Create on topic orders is refused (Topic authorization failed.): add the ACL
           `--operation Create --topic orders` for this user"

Kafka's own answer has the kind of resource and neither its name nor the operation. One request may
need several: the kind says which one it was.

Not here: asking (`kafka_admin`, `kafka_writer`, `kafka_reader`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from knafka.core.errors import LogError

Need: TypeAlias = tuple[str, str]
"""An operation, as `kafka-acls` has it, and the name of the resource."""

_CLUSTER: Final = "kafka-cluster"
"""Kafka's name of the only resource of its kind."""


@contextmanager
def needing(
    *,
    topic: Need | None = None,
    group: Need | None = None,
    transaction: Need | None = None,
    cluster: str = "",
) -> Iterator[None]:
    """Context in which a refusal by Kafka names the rights that it needed; `cluster` is an
    operation on the cluster."""
    try:
        yield
    except LogError as error:
        raise named(
            error, topic=topic, group=group, transaction=transaction, cluster=cluster
        ) from error


def named(
    error: LogError,
    *,
    topic: Need | None = None,
    group: Need | None = None,
    transaction: Need | None = None,
    cluster: str = "",
) -> LogError:
    """The error with what it needed, if it is a refusal that doesn't say so yet."""
    needs = {
        "topic": topic,
        "group": group,
        "transactional-id": transaction,
        "cluster": (cluster, _CLUSTER) if cluster else None,
    }
    need = needs.get(error.denied)
    if need is None or "--operation" in str(error):
        return error
    operation, name = need
    resource = "--cluster" if error.denied == "cluster" else f"--{error.denied} {name}"
    return LogError(
        f"{operation} on {error.denied} {name} is refused ({error}): add the ACL "
        f"`--operation {operation} {resource}` for this user",
        retriable=error.retriable,
        denied=error.denied,
    )
