"""The func.yaml of both ways to deploy say what func knows, and nothing else (FN-7, FN-8, UX-2).

    func.yaml             a prebuilt image (FN-12)
    functions/func.yaml   built from source by func's host builder (FN-13)

and those that docs/how-to/deploy-with-func.md has for a dispatcher and a Sensor.

The models are func's schema (schema/func_yaml-schema.json), as spec/functions.md has it; func
itself can't be had through the package registries.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel
from support.pages import blocks

from knafka import settings

ROOT = Path(__file__).parents[2]
PREBUILT, FROM_SOURCE = "func.yaml", "functions/func.yaml"

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
    # The schema's own list lacks `host`, which func takes and writes.
    builder: Literal["host", "pack", "s2i"] | None = None
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
    image: Text | None = None
    namespace: str | None = None
    deployer: Deployer | None = None
    invoke: Literal["http", "cloudevent"] = "http"
    build: Build = Build()
    run: Run = Run()
    deploy: Deploy = Deploy()


ON_PAGE = {
    re.findall(r"name: (\S+)", text)[0]: text
    for text in blocks("how-to/deploy-with-func.md")
    if text.startswith("specVersion")
}
DISPATCHER, SENSOR = "mail-dispatcher", "fulfilment"


@pytest.fixture(params=[PREBUILT, FROM_SOURCE, DISPATCHER, SENSOR])
def text(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    return ON_PAGE[name] if name in ON_PAGE else (ROOT / name).read_text()


@pytest.fixture
def document(text: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(text)
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


def test_only_the_one_that_is_not_built_names_an_image() -> None:
    """FN-12, FN-13: func names a built one by the registry that it is told."""
    prebuilt, from_source = (
        Function.model_validate(yaml.safe_load((ROOT / each).read_text()))
        for each in (PREBUILT, FROM_SOURCE)
    )
    assert (prebuilt.image, prebuilt.build.builder) == ("knafka:latest", None)
    assert (from_source.image, from_source.build.builder) == (None, "host")
    assert prebuilt.run == from_source.run
    assert prebuilt.deploy == from_source.deploy


def test_func_makes_no_event_of_a_request(function: Function) -> None:
    """FN-3: with `cloudevent` its scaffolding would take the body, and answer 400 to a drain."""
    assert function.invoke == "http"


def test_nothing_is_lost_when_func_rewrites_the_file(text: str) -> None:
    """It keeps no comments: what there is to say is in docs/how-to/deploy-with-func.md."""
    assert "#" not in text


@pytest.mark.parametrize("folder", [".", "functions"])
def test_git_ignores_what_func_keeps_beside_the_file(folder: str) -> None:
    """func appends the line to the .gitignore beside func.yaml unless one there begins so."""
    assert "/.func" in (ROOT / folder / ".gitignore").read_text().splitlines()


@pytest.mark.parametrize(
    ("where", "value"),
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
    document: dict[str, Any], where: tuple[str, ...], value: Any
) -> None:
    """FN-7: without this, a schema that lets everything through would look the same."""
    broken = json.loads(json.dumps(document, default=str))
    *parents, last = where
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


def environment(name: str) -> dict[str, str]:
    text = ON_PAGE[name] if name in ON_PAGE else (ROOT / name).read_text()
    function = Function.model_validate(yaml.safe_load(text))
    return {each.name or "": each.value or "" for each in function.run.envs}


@pytest.mark.parametrize("name", [PREBUILT, FROM_SOURCE])
def test_its_contract_is_one_that_the_receiver_reads(name: str) -> None:
    """UX-2: by the environment, and all of it."""
    assert environment(name)["FUNCTION_TARGET"] == "receive"
    (ingress,) = settings.ingresses(environment(name))
    assert ingress.path == "/default/default"


def test_the_pages_contracts_are_those_of_a_dispatcher_and_a_sensor() -> None:
    """FN-10: nobody wakes them, so they drain from their start, in one pod at least."""
    assert environment(DISPATCHER)["FUNCTION_TARGET"] == "dispatch"
    egress = settings.egress(environment(DISPATCHER))
    assert environment(SENSOR)["FUNCTION_TARGET"] == "sense"
    sensor = settings.sensor(environment(SENSOR))
    assert (egress.topic, sensor.topic) == ("orders", "orders")
    for name in (DISPATCHER, SENSOR):
        assert settings.drain_settings(environment(name)).at_start
        assert yaml.safe_load(ON_PAGE[name])["deploy"]["options"]["scale"] == {"min": 1, "max": 1}
