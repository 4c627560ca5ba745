"""func.yaml says what func knows, and nothing else (FN-7, FN-8, FN-12, UX-2).

The models are func's schema (schema/func_yaml-schema.json), as spec/functions.md has it; func
itself can't be had through the package registries.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from knafka.core.contract import parse_ingresses

FUNC_YAML = Path(__file__).parents[2] / "func.yaml"

Quantity = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi)?$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Path_ = Annotated[str, StringConstraints(pattern=r"^/")]


class Document(BaseModel):
    """One object of the file; what it doesn't name is refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Env(Document):
    name: Annotated[str, StringConstraints(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")] | None = None
    value: str | None = None


class Volume(Document):
    secret: str | None = None
    config_map: str | None = None
    persistent_volume_claim: dict[str, Any] | None = None
    empty_dir: dict[str, Any] | None = None
    path: Path_


class KafkaTransport(Document):
    brokers: str
    topic: str
    consumer_group: str | None = None


class Run(Document):
    envs: list[Env] = []
    volumes: list[Volume] = []
    start_timeout: str | None = None
    kafka: KafkaTransport | None = None


class Scale(Document):
    min: Annotated[int, Field(ge=0)] | None = None
    max: Annotated[int, Field(ge=0)] | None = None
    metric: Literal["concurrency", "rps"] | None = None
    target: Annotated[float, Field(ge=0.01)] | None = None
    utilization: Annotated[float, Field(ge=1, le=100)] | None = None


class Requests(Document):
    cpu: Quantity | None = None
    memory: Quantity | None = None


class Limits(Requests):
    concurrency: Annotated[int, Field(ge=0)] | None = None


class Resources(Document):
    requests: Requests = Requests()
    limits: Limits = Limits()


class Options(Document):
    scale: Scale = Scale()
    resources: Resources = Resources()


class HealthEndpoints(Document):
    liveness: Path_ | None = None
    readiness: Path_ | None = None


class Subscription(Document):
    source: str
    filters: dict[str, str] = {}


Deployer = Literal["knative", "raw", "keda"]


class Deploy(Document):
    namespace: str | None = None
    image: str | None = None
    annotations: dict[str, str] = {}
    labels: list[Env] = []
    options: Options = Options()
    health_endpoints: HealthEndpoints = HealthEndpoints()
    service_account_name: str | None = None
    image_pull_secret: str | None = None
    deployer: Deployer | None = None
    subscriptions: list[Subscription] = []
    management_disabled: bool = False


class Build(Document):
    builder: Literal["pack", "s2i"] | None = None
    buildpacks: list[str] = []
    builder_images: dict[str, str] = {}
    build_envs: list[Env] = []
    base_image: str | None = None
    pvc_size: str | None = None
    remote_storage_class: str | None = None
    git: dict[str, str] = {}
    volumes: list[Volume] = []


class Function(Document):
    spec_version: Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+$")]
    created: datetime
    name: Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
    domain: str | None = None
    runtime: Text
    registry: str | None = None
    registry_insecure: bool = False
    image: Text
    namespace: str | None = None
    deployer: Deployer | None = None
    invoke: Literal["http", "cloudevent"] = "http"
    build: Build = Build()
    run: Run = Run()
    deploy: Deploy = Deploy()


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FUNC_YAML.read_text())
    return loaded


@pytest.fixture
def function(document: dict[str, Any]) -> Function:
    return Function.model_validate(document)


def test_it_has_the_fields_that_func_requires_and_none_that_it_does_not_know(
    function: Function,
) -> None:
    """FN-7."""
    assert function.runtime == "python"
    assert function.run.kafka is None, "func has a Kafka transport for Go only (FN-8)"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(("specVersion",), None, id="no specVersion"),
        pytest.param(("created",), None, id="no created"),
        pytest.param(("invoke",), "kafka", id="an invoke that is none"),
        pytest.param(("run", "env"), [], id="env for envs"),
        pytest.param(("deploy", "options", "scale", "metric"), "cpu", id="a metric that is none"),
        pytest.param(("deploy", "healthEndpoints", "startup"), "/", id="a probe that is none"),
    ],
)
def test_the_schema_refuses_what_func_would(
    document: dict[str, Any], path: tuple[str, ...], value: Any
) -> None:
    """FN-7: without this, a schema that lets everything through would look the same."""
    broken = json.loads(json.dumps(document, default=str))
    *parents, last = path
    target = broken
    for each in parents:
        target = target[each]
    if value is None:
        del target[last]
    else:
        target[last] = value
    with pytest.raises(ValidationError):
        Function.model_validate(broken)


def test_nothing_in_it_is_what_knative_reserves(function: Function) -> None:
    """FN-12: the API server refuses such a Service."""
    assert {each.name for each in function.run.envs}.isdisjoint(
        {"PORT", "K_SERVICE", "K_REVISION", "K_CONFIGURATION", "K_SINK"}
    )


def test_its_probes_are_those_that_the_functions_answer(function: Function) -> None:
    """FN-4, FN-12."""
    assert function.deploy.health_endpoints.liveness == "/health/liveness"
    assert function.deploy.health_endpoints.readiness == "/health/readiness"


def test_its_contract_is_one_that_the_receiver_reads(function: Function) -> None:
    """UX-2: by the environment, and all of it."""
    environment = {each.name: each.value for each in function.run.envs}
    assert environment["FUNCTION_TARGET"] == "receive"
    (ingress,) = parse_ingresses(environment["KNAFKA_INGRESSES"] or "")
    assert ingress.path == "/default/default"
