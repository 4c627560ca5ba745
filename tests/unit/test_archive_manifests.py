"""A DeadLetterArchive's Job as Kubernetes gets it, and what is wrong with one in words."""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.operator_world import SETTINGS
from support.replacing import replace_in

from knafka.core.documents import parse
from knafka.core.errors import InvalidDocument
from knafka_jobs import pod, spark_launch
from knafka_operator.archives import manifests
from knafka_operator.archives.model import ARCHIVE, MAX_DAYS, DeadLetterArchive
from knafka_operator.archives.runs import parse_run_report
from knafka_operator.installation.naming import NameKind, Naming
from knafka_operator.model.sensors import KNAFKA

ROOT: Final = Path(__file__).parents[2]
WITH_IMAGE = replace(SETTINGS, jobs_image="knafka-jobs:1")
CLAIM: dict[str, Any] = {"storage": {"claim": {"name": "tables"}}}
BUCKET: dict[str, Any] = {
    "storage": {
        "url": "s3a://bucket/shop",
        "endpoint": "http://s3:9000",
        "credentials": {"name": "keys"},
    }
}
POD = {
    "KNAFKA_POD_NAME": "kept-7-x8s2k",
    "KNAFKA_POD_NAMESPACE": "shop",
    "KNAFKA_POD_IP": "10.0.0.7",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KNAFKA_MEMORY": "2048",
}


EXECUTOR = {
    "JAVA_HOME": "/java",
    "SPARK_HOME": "/spark",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dsecond=1",
    "SPARK_EXECUTOR_MEMORY": "1228m",
    "SPARK_DRIVER_URL": "spark://driver:7078",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "exec-1",
}
"""What Spark's Kubernetes scheduler gives an executor's pod."""


def archive(**spec: Any) -> DeadLetterArchive:
    metadata = {"namespace": "shop", "name": "kept", "uid": "uid-1", "generation": 2}
    document = {"apiVersion": KNAFKA, "kind": ARCHIVE, "metadata": metadata, "spec": spec}
    return parse(DeadLetterArchive, document)


def job(*, report: bool = False, **spec: Any) -> dict[str, Any]:
    made = manifests.job_manifest(
        archive(**spec), 7, "group", "kafka:9092", ("keys", "1"), WITH_IMAGE, report=report
    )
    return dict(made)


def container(made: dict[str, Any]) -> dict[str, Any]:
    (found,) = made["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment(made: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(made)["env"] if "value" in each}


def settings_of(words: list[str]) -> dict[str, str]:
    """Spark's, of what its launcher is started with."""
    given = [word for flag, word in itertools.pairwise(words) if flag == "--conf"]
    return dict(each.split("=", 1) for each in given)


def test_the_job_says_all_that_its_pod_has_to_do() -> None:
    made = full()
    arguments = container(made)["args"]
    given = pod._pod_parser().parse_args(arguments)
    assert (given.tables, str(given.broker)) == ("/archive/dead-letters", "shop/default")
    assert (given.bootstrap_servers, given.group) == ("kafka:9092", "group")
    assert (given.keep_hours, given.days, given.report) == (48, 7, True)
    assert (given.resolved_hours, given.unresolved_hours) == (720, None)
    assert container(made)["image"] == "knafka-jobs:1"


def test_the_longest_retention_and_timeline_are_what_a_pod_takes() -> None:
    longest = {"resolved": f"P{MAX_DAYS}D", "unresolved": f"P{MAX_DAYS}D"}
    spec = {**CLAIM, "retention": longest, "report": {"schedule": "0 6 * * *", "days": MAX_DAYS}}
    made = manifests.job_manifest(
        archive(**spec), 7, "group", "kafka:9092", ("keys", "1"), WITH_IMAGE, report=True
    )
    words = container(dict(made))["args"]
    given = pod._pod_parser().parse_args(words)
    assert (given.resolved_hours, given.unresolved_hours) == (24 * MAX_DAYS, 24 * MAX_DAYS)
    assert given.days == MAX_DAYS
    for option in ("--resolved-hours", "--unresolved-hours", "--keep-hours", "--days"):
        for value in ("inf", "nan", "1e400"):
            with pytest.raises(SystemExit):
                pod._pod_parser().parse_args([*words, option, value])


def report_arguments(address: str, **report: Any) -> dict[str, str]:
    made = manifests.job_manifest(
        archive(**CLAIM, report={"schedule": "0 6 * * *", **report}), 7, "group", "kafka:9092",
        None, replace(WITH_IMAGE, console_url="https://console.test", trace_url="http://z/{trace}"),
        report=True, address=address,
    )  # fmt: skip
    given = pod._pod_parser().parse_args(container(dict(made))["args"])
    return {each: getattr(given, each) for each in ("archive", "announce", "console_url")}


def test_a_report_is_told_to_the_broker_unless_that_is_not_wanted() -> None:
    broker = "http://default-kn-receiver.shop.svc.cluster.local/shop/default"
    told = {"archive": "kept", "announce": broker, "console_url": "https://console.test"}
    assert report_arguments(broker) == told
    untold = {"archive": "kept", "announce": "", "console_url": ""}
    assert report_arguments(broker, announce=False) == untold
    assert report_arguments("") == untold, "it has no address"


@pytest.mark.parametrize(
    "address",
    [
        "http://here.test/$(AWS_SECRET_ACCESS_KEY)",
        "file:///etc/passwd",
        "http://user@here.test/",
        "http://here.test/ --tables=/",
    ],
)
def test_an_address_that_somebody_wrote_into_a_status_puts_no_key_into_a_request(
    address: str,
) -> None:
    assert report_arguments(address)["announce"] == ""


def full() -> dict[str, Any]:
    spec = {
        **CLAIM,
        "compaction": {"keep": "P2D"},
        "report": {"schedule": "0 6 * * *", "days": 7},
        "retention": {"resolved": "P30D"},
    }
    made = manifests.job_manifest(
        archive(**spec), 7, "group", "kafka:9092", ("keys", "1"), WITH_IMAGE, report=True
    )
    return dict(made)


def test_a_pod_that_fails_is_not_tried_again_by_kubernetes_and_an_evicted_one_is() -> None:
    spec = job(**CLAIM)["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "Ignore"
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert spec["podReplacementPolicy"] == "Failed", "else two are at the tables"
    assert spec["activeDeadlineSeconds"] == 21_600
    assert spec["ttlSecondsAfterFinished"] > 0


def test_its_pod_fits_the_restricted_security_standard_and_has_no_token() -> None:
    made = job(**CLAIM)
    spec, security = made["spec"]["template"]["spec"], container(made)["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert security["runAsNonRoot"]
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    mounts = container(made)["volumeMounts"]
    assert {each["mountPath"] for each in mounts} == {
        "/tmp",
        "/archive",
        "/var/run/secrets/knafka/kafka",
    }
    assert {each["name"] for each in spec["volumes"]} == {each["name"] for each in mounts}
    assert container(made)["resources"] == {
        "requests": {"cpu": "500m", "memory": "2Gi"},
        "limits": {"memory": "2Gi"},
    }


def test_an_object_store_gets_its_endpoint_and_only_its_keys_of_the_secret() -> None:
    made = job(**BUCKET)
    of_spark = json.loads(environment(made)["KNAFKA_SPARK"])
    assert of_spark["spark.hadoop.fs.s3a.endpoint"] == "http://s3:9000"
    assert of_spark["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    assert "s3a://bucket/shop" in " ".join(container(made)["args"])
    keys = [each["name"] for each in container(made)["env"] if "secretKeyRef" in str(each)]
    assert keys == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"]
    assert "envFrom" not in container(made)


def test_a_bucket_of_aws_needs_neither_endpoint_nor_region() -> None:
    def of_spark(**storage: Any) -> Any:
        made = environment(job(storage={"url": "s3a://bucket/shop", **storage}))
        return json.loads(made.get("KNAFKA_SPARK", "{}"))

    assert of_spark() == {}
    named = {"spark.hadoop.fs.s3a.endpoint.region": "eu-central-1"}
    assert of_spark(region="eu-central-1") == named


def test_executors_are_pods_of_the_same_image_that_may_not_make_pods() -> None:
    made = job(**BUCKET, executors=3, resources={"requests": {"cpu": 2}})
    spec = made["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is True
    account, binding = manifests.account_manifests(archive(**BUCKET, executors=3))
    assert account["metadata"]["name"] == spec["serviceAccountName"]
    assert binding["roleRef"]["name"] == manifests.DRIVER_ROLE
    assert binding["metadata"]["namespace"] == "shop", "no other namespace's pods"
    words = spark_launch.submit_arguments({**POD, **environment(made)})
    found = settings_of(words)
    assert words[:2] == ["--master", "k8s://https://10.96.0.1:443"]
    assert found["spark.executor.instances"] == "3"
    assert found["spark.executor.cores"] == "2"
    assert found["spark.dynamicAllocation.enabled"] == "false"
    assert found["spark.kubernetes.container.image"] == "knafka-jobs:1"
    assert found["spark.kubernetes.namespace"] == "shop"
    assert found["spark.kubernetes.driver.pod.name"] == "kept-7-x8s2k", "executors go with it"
    heap, more = found["spark.executor.memory"], found["spark.executor.memoryOverhead"]
    assert int(heap[:-1]) + int(more[:-1]) == 2048
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    template = json.loads(environment(made)["KNAFKA_EXECUTOR_TEMPLATE"])["spec"]
    assert template["automountServiceAccountToken"] is False
    assert template["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


def test_driver_and_executors_talk_to_nobody_who_has_not_the_runs_secret() -> None:
    """Their ports are open to the cluster; the secret is Spark's own, new with each run."""
    made = job(**BUCKET, executors=3)
    words = spark_launch.submit_arguments({**POD, **environment(made)})
    found = settings_of(words)
    assert found["spark.authenticate"] == "true"
    assert found["spark.network.crypto.enabled"] == "true"
    assert found["spark.network.crypto.saslFallback"] == "false"
    assert not any("authenticate.secret" in word for word in words), "ps shows these"
    command = spark_launch.executor_command({**EXECUTOR, "_SPARK_AUTH_SECRET": "the secret"})
    assert "the secret" not in " ".join(command)


def test_without_executors_spark_is_in_that_pod_alone() -> None:
    words = spark_launch.submit_arguments({**POD, **environment(job(**CLAIM))})
    assert words[:2] == ["--master", "local[*]"]
    assert not any("kubernetes" in word for word in words)


def test_an_executor_is_started_as_sparks_own_image_does() -> None:
    command = spark_launch.executor_command(EXECUTOR)
    assert command[:5] == ["/java/bin/java", "-Dsecond=1", "-Dlast=1", "-Xms1228m", "-Xmx1228m"]
    assert command[6] == "/spark/jars/*:/app/jars/*"
    assert command[7] == spark_launch.EXECUTOR_CLASS
    assert command[8:10] == ["--driver-url", "spark://driver:7078"]


def test_what_no_two_places_share_tells_them_apart() -> None:
    def root(**storage: Any) -> str:
        return manifests.storage_root("shop", archive(storage=storage).spec.storage)

    assert root(url="s3a://bucket/a/") == root(url="s3a://bucket/a")
    found = {
        root(url="s3a://bucket/a"),
        root(url="s3a://bucket/b"),
        root(claim={"name": "a"}),
        root(claim={"name": "a", "path": "b"}),
        root(claim={"name": "b"}),
    }
    assert len(found) == 5


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, "missing field(s): spec.storage"),
        ({"storage": {}}, "expected exactly one, got none: spec.storage.claim, spec.storage.url"),
        (
            {"storage": {**CLAIM["storage"], "url": "s3a://b/x"}},
            "expected exactly one, got both: spec.storage.claim, spec.storage.url",
        ),
        ({"storage": {"url": "http://b/x"}}, "want one of s3a://, abfss://, gs://"),
        ({"storage": {"url": "s3a://b/../x"}}, "want one of s3a://, abfss://, gs://"),
        ({"storage": {"url": "s3a://b/$(x)"}}, "want one of s3a://, abfss://, gs://"),
        ({"storage": {"claim": {"name": "a", "path": "../b"}}}, "want a folder below the claim"),
        ({"storage": {**CLAIM["storage"], "region": "eu"}}, "spec.storage.region"),
        ({"storage": {"url": "s3a://b/x", "region": "a b"}}, "want a name such as eu-central-1"),
        ({**CLAIM, "compaction": {"number": 0}}, "spec.compaction.number"),
        ({**CLAIM, "compaction": {"age": "PT0S"}}, "want a duration that is longer than 0"),
        ({**CLAIM, "compaction": {"age": "1h"}}, "want an ISO-8601 duration"),
        ({**CLAIM, "report": {"schedule": "daily"}}, "spec.report.schedule"),
        (
            {**CLAIM, "report": {"schedule": "0 6 * * *", "timeZone": "Mars"}},
            "spec.report.timeZone",
        ),
        (
            {**CLAIM, "retention": {"resolved": "P2D", "unresolved": "P1D"}},
            "spec.retention.resolved: is longer than that of unresolved failures",
        ),
        ({**CLAIM, "retention": {"resolved": "P3000Y"}}, "spec.retention.resolved: invalid value"),
        (
            {**CLAIM, "retention": {"unresolved": f"P{MAX_DAYS + 1}D"}},
            f"spec.retention.unresolved: invalid value: want at most P{MAX_DAYS}D",
        ),
        (
            {**CLAIM, "report": {"schedule": "0 6 * * *", "days": MAX_DAYS + 1}},
            "spec.report.days",
        ),
        ({**CLAIM, "executors": -1}, "spec.executors"),
        ({**CLAIM, "resources": {"limits": {"cpu": 1}}}, "spec.resources.limits"),
        ({**CLAIM, "resources": {"limits": {"memory": "much"}}}, "want a quantity"),
        ({**CLAIM, "tables": "/tmp"}, "spec.tables: unknown field"),
    ],
)
def test_what_is_wrong_is_told_by_its_field(spec: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        archive(**spec)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"records": 3}', {"records": 3}),
        ("knafka: 3 topics\nknafka: error: no\n\n", {"error": "knafka: error: no"}),
        ("[1]", {"error": "[1]"}),
        ("", {}),
    ],
)
def test_a_termination_message_is_a_result_or_the_end_of_a_log(text: str, found: Any) -> None:
    assert parse_run_report(text) == found


def test_the_example_of_a_backtest_says_what_its_pod_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may do no more than an archive's Job, and Spark has its share of the container."""
    example = yaml.safe_load((ROOT / "examples/sensor-backtest/job.yaml").read_text())
    made, ours = container(example), container(job(**CLAIM))
    assert made["securityContext"] == ours["securityContext"]
    wanted = {"name": "KNAFKA_MEMORY", **made["env"][0]}
    divisor = wanted["valueFrom"]["resourceFieldRef"]
    assert divisor == {"containerName": "backtest", "resource": "limits.memory", "divisor": "1Mi"}
    mounted = {each["mountPath"]: each["name"] for each in made["volumeMounts"]}
    assert mounted.keys() == {"/sensor", spark_launch.WRITABLE_FOLDER}
    volumes = {each["name"] for each in example["spec"]["template"]["spec"]["volumes"]}
    assert volumes == set(mounted.values())

    given: list[argparse.Namespace] = []

    def run(parsed: argparse.Namespace, progress: object) -> dict[str, Any]:
        given.append(parsed)
        return {"events": 0}

    monkeypatch.setattr(pod, "backtest", run)
    replace_in(monkeypatch, pod, "os", environ={"KNAFKA_MEMORY": "2048"})
    monkeypatch.chdir("/")
    assert pod.main(made["args"]) == 0
    assert (str(given[0].sensor), given[0].topic) == (
        "/sensor/sensor.json",
        "knative-broker-default-default",
    )


def test_a_job_knows_the_templates_of_names_where_there_are_any() -> None:
    """It asks no API server what a topic or group is called."""
    naming = Naming()
    settings = replace(WITH_IMAGE, naming=naming)

    def given() -> dict[str, str]:
        of = archive(storage={"url": "s3a://bucket/shop"})
        made = manifests.job_manifest(of, 7, "group", "kafka:9092", None, settings)
        return environment(dict(made))

    assert "KNAFKA_NAME_TEMPLATES" not in given()
    for kind in (NameKind.BROKER_TOPIC, NameKind.TRIGGER_GROUP):
        naming.set_current_template(kind, f"{kind.name}-{{{{ .UID }}}}")
    lines = given()["KNAFKA_NAME_TEMPLATES"].splitlines()
    assert lines == ["BROKER_TOPIC-{{ .UID }}", "TRIGGER_GROUP-{{ .UID }}"]


def test_no_two_archives_of_a_namespace_share_the_name_of_a_job() -> None:
    """`a.b` and `a-b` did: while the one's Job ran, the other had `JobNotOurs`."""
    archives = ["kept", "a-b", "a.b", "a-b-1", "9", "x" * 52, "x" * 50 + ".y"]
    job_names = {manifests.job_name(archive, run) for archive in archives for run in (1, 11)}
    assert len(job_names) == 2 * len(archives)
    assert all(len(name) <= 63 and "." not in name for name in job_names)
    assert manifests.job_name("kept", 7) == "kept-7"
