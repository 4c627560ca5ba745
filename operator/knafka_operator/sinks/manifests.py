"""Sink manifests: builds the Knative Service of a KafkaSink's receiver. Pure.

The contract is in the environment, not in a topic, so that a Kafka user with write access to one
topic is enough. A change creates a new Revision.
"""

from __future__ import annotations

from typing import Final

from knafka.core import documents, names
from knafka.core.contract import Ingress
from knafka.settings import INGRESSES
from knafka_operator.functions import receiver_services, services
from knafka_operator.functions.contract_variables import contract_variable
from knafka_operator.functions.services import KNATIVE_AUTOSCALING, Manifest
from knafka_operator.installation.settings import Settings
from knafka_operator.model.family import BROKERS
from knafka_operator.model.resources import KNAFKA_PREFIX, Resource

SINK_LABEL: Final = f"{KNAFKA_PREFIX}sink"
"""Label of objects that belong to one KafkaSink."""


def sink_receiver_name(sink: Resource) -> str:
    """Return the name of the Knative Service of a sink's receiver."""
    return names.child(sink.metadata.name, "-kn-sink-receiver")


def sink_receiver_service(
    sink: Resource,
    ingress: Ingress,
    secret: tuple[str, str] | None,
    settings: Settings,
    *,
    oidc: bool = False,
) -> Manifest:
    """Return the manifest of the Knative Service of a KafkaSink's receiver, with the sink's
    autoscaling annotations. `ingress` is the receiver's contract; `secret` is the mounted Secret's
    name and version, None: none is needed; `oidc`: whether the receiver verifies senders' tokens.

    Raises `NotReady` for a contract that is too large.
    """
    contract = documents.dump(ingress)
    advice = "have fewer or shorter EventPolicies apply to it"
    text = contract_variable([contract], "receiver", advice)
    declared = receiver_services.declared_scaling(sink)
    scaling = {
        KNATIVE_AUTOSCALING + key: value
        for key, value in receiver_services.RECEIVER_SCALING.items()
    }
    return services.knative_service(
        services.FunctionService(
            name=sink_receiver_name(sink),
            ownership=services.owned_metadata(sink, BROKERS, settings),
            labels={
                services.ROLE_LABEL: services.RECEIVER_ROLE,
                SINK_LABEL: names.child(sink.metadata.name, ""),
            },
            annotations={**scaling, **declared},
            declared={**declared, "contract": contract, "oidc": oidc},
            environment={"FUNCTION_TARGET": "receive", INGRESSES: text},
            secret=secret,
            resources=settings.pods.receiver_resources,
            tracing=settings.tracing.variables_of(services.owner_key(sink)),
            oidc=oidc,
        ),
        settings,
    )
