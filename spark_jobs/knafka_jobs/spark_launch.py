"""Builds the command lines that launch Spark in a pod: the arguments of the driver, and the command
of an executor.

    submit_arguments(environment)    of this process: alone in its pod, or with executors
    executor_command(environment)    of a pod that Spark's Kubernetes scheduler starts

Pure: environment variables in, words of a command line out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

JARS: Final = "/app/jars/*"
"""Class path of the jars for Kafka, Delta and S3 in the image."""
SERVICE_ACCOUNT_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes mounts the pod's token and CA."""
WRITABLE_FOLDER: Final = "/tmp"
"""The only folder of the container that can be written to."""
EXECUTOR_TEMPLATE_FILE: Final = Path(WRITABLE_FOLDER, "executor.json")
"""The pod template of executors, written when the job starts."""
HEAP_SHARE: Final = 0.6
"""Share of a container's memory for the heap. The rest is for threads, code, buffers outside the
heap and Python."""
MIN_HEAP_MIB: Final = 512
"""The smallest heap, in MiB."""
LOOPBACK: Final = "127.0.0.1"
"""Address on which Spark listens when it runs without executors."""
DRIVER_PORT: Final = 7078
"""Port at which executors reach the driver."""
BLOCKS_PORT: Final = 7079
"""Port at which executors fetch the driver's blocks."""
MIN_OVERHEAD_MIB: Final = 384
"""The least memory of an executor outside its heap, in MiB: Spark's own minimum."""

POD_SPARK_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.local.dir": "/tmp/spark",
    "spark.sql.warehouse.dir": "/tmp/spark-warehouse",
    "spark.dynamicAllocation.enabled": "false",
}
"""Spark settings of every job in a pod."""

EXECUTOR_CLASS: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
"""Main class of an executor."""
_JAVA_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)").fullmatch
"""Matches the names of the variables by which Spark passes Java's options, in their order."""


def submit_arguments(environment: Mapping[str, str]) -> list[str]:
    """Return the arguments with which PySpark launches Spark's driver in a pod, from these
    environment variables:

    KNAFKA_MEMORY                 MiB of this container: its heap is a share of it
    KNAFKA_SPARK                  more of Spark's settings, a JSON object
    KNAFKA_EXECUTORS              number of executors; 0: `local[*]`
    KNAFKA_EXECUTOR_{IMAGE,CPU}   of each executor; memory is this container's
    KNAFKA_POD_{NAME,NAMESPACE,IP}

    The last two lines are needed only with executors. Raises `KeyError` if one is missing then.
    """
    memory = int(environment.get("KNAFKA_MEMORY", "2048"))
    heap = max(MIN_HEAP_MIB, int(memory * HEAP_SHARE))
    executors = int(environment.get("KNAFKA_EXECUTORS", "0"))
    settings = {**POD_SPARK_SETTINGS, **json.loads(environment.get("KNAFKA_SPARK", "{}"))}
    master = "local[*]"
    if not executors:
        settings |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    else:
        host = environment["KUBERNETES_SERVICE_HOST"]
        port = environment["KUBERNETES_SERVICE_PORT"]
        url_host = f"[{host}]" if ":" in host else host  # an IPv6 address needs brackets
        master = f"k8s://https://{url_host}:{port}"
        overhead = max(MIN_OVERHEAD_MIB, memory - heap)
        settings |= _executor_settings(environment, executors, heap, overhead)
    words = ["--master", master, "--driver-memory", f"{heap}m", "--driver-class-path", JARS]
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return [*words, "pyspark-shell"]


def _executor_settings(
    environment: Mapping[str, str], number: int, heap: int, overhead: int
) -> dict[str, str]:
    """Return the Spark settings of a driver that starts `number` executors, each in its own pod.
    `heap` and `overhead` are an executor's memory in and outside its heap, in MiB. Raises
    `KeyError` for a missing variable."""
    cpu, name = environment["KNAFKA_EXECUTOR_CPU"], environment["KNAFKA_POD_NAME"]
    return {
        "spark.executor.instances": str(number),
        "spark.executor.cores": str(max(1, _whole_cores(cpu))),
        "spark.executor.memory": f"{heap}m",
        "spark.executor.memoryOverhead": f"{overhead}m",
        "spark.kubernetes.executor.request.cores": cpu,
        "spark.kubernetes.container.image": environment["KNAFKA_EXECUTOR_IMAGE"],
        "spark.kubernetes.executor.podTemplateFile": str(EXECUTOR_TEMPLATE_FILE),
        # The end of this pod's name is what differs; a whole name may be too long for a prefix.
        "spark.kubernetes.executor.podNamePrefix": name[-40:].lstrip("-"),
        # Its content is already on the class path, and creating a ConfigMap needs a permission.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.namespace": environment["KNAFKA_POD_NAMESPACE"],
        # Kubernetes deletes executors with this pod, also if it is killed.
        "spark.kubernetes.driver.pod.name": name,
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.authenticate.oauthTokenFile": f"{SERVICE_ACCOUNT_FOLDER}/token",
        "spark.kubernetes.authenticate.caCertFile": f"{SERVICE_ACCOUNT_FOLDER}/ca.crt",
        # Without authentication, everybody who reaches the ports can run tasks and read Kafka's
        # credentials. Spark makes a secret for each run and hands it to executors in an environment
        # variable, never in arguments.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.saslFallback": "false",
        "spark.driver.host": environment["KNAFKA_POD_IP"],
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.blockManager.port": str(BLOCKS_PORT),
    }


def _whole_cores(cpu: str) -> int:
    """Return the number of whole cores in a Kubernetes CPU quantity: 2 for `2500m` or `2.5`."""
    return int(cpu[:-1]) // 1000 if cpu.endswith("m") else int(float(cpu))


def executor_command(environment: Mapping[str, str]) -> list[str]:
    """Return the command line that starts an executor in its pod: the same as in Spark's own image,
    which has it in kubernetes/dockerfiles/spark/entrypoint.sh. Raises `KeyError` if a variable that
    Spark sets for its executors is missing."""
    numbered_java_options = sorted(
        (int(match[1]), value) for key, value in environment.items() if (match := _JAVA_OPTION(key))
    )
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    spark_jars = f"{environment['SPARK_HOME']}/jars/*"
    variables_by_option = {
        "driver-url": "SPARK_DRIVER_URL",
        "executor-id": "SPARK_EXECUTOR_ID",
        "cores": "SPARK_EXECUTOR_CORES",
        "app-id": "SPARK_APPLICATION_ID",
        "hostname": "SPARK_EXECUTOR_POD_IP",
        "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "podName": "SPARK_EXECUTOR_POD_NAME",
    }
    return [
        f"{environment['JAVA_HOME']}/bin/java",
        *(option for _, option in numbered_java_options),
        f"-Xms{memory}",
        f"-Xmx{memory}",
        "-cp",
        f"{spark_jars}:{JARS}",
        EXECUTOR_CLASS,
        *(
            word
            for option, variable in variables_by_option.items()
            for word in (f"--{option}", environment[variable])
        ),
    ]
