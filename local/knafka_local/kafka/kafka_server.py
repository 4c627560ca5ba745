"""One Kafka node of our own: Apache Kafka in KRaft mode, broker and controller in one process.

It is formatted when new, started, watched and stopped here, and dies with the process that started
it. What was acknowledged survives `kill -9` of that node, since it lies in the page cache, and the
node may move to another port from one start to the next. Everything lies in one directory:
`topics/` (Kafka's), `kafka.log`, and the configuration, which is written anew at each start.
Not here: restarting (the supervisor does that: see `wait`), and replicas: it is a development node.
A port in use and a foreign directory are refused. In local mode it listens on loopback without TLS;
tests give it listeners with security (tests/support/secure_kafka.py). More than 400 lines, so that
all that concerns the life of a node is in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from knafka_client.sockets import HOST, free_port, is_port_open
from knafka_local.kafka.kafka_distribution import KafkaDistribution, LocalKafkaError
from knafka_local.processes.children import Child, Command

NODE_ID: Final = "1"
"""Kafka's `node.id` of the only node."""
CLIENTS: Final = "CLIENTS"
"""Name of the listener for clients."""
CONTROLLER: Final = "CONTROLLER"
"""Name of the listener of the KRaft controller."""

KAFKA_START_TIMEOUT: Final = 120.0  # seconds; 3 on an idle machine, 14 seen on a busy one
KAFKA_STOP_TIMEOUT: Final = 15.0  # seconds until SIGKILL; 0.5 on an idle machine
KAFKA_LOCK_TIMEOUT: Final = 5.0  # seconds for a node killed a moment ago to release its files
KAFKA_PROBE_TIMEOUT: Final = 2.0  # seconds for one metadata request
KAFKA_PROBE_INTERVAL: Final = 0.05  # seconds between two looks at a node that is starting

KAFKA_JVM_FLAGS: Final = (
    "-Xmx256m",  # idle, it holds 60 MB; 1 MiB records and their batches need the rest
    "-XX:TieredStopAtLevel=1",  # the faster start and the smaller code cache of C1 alone
    "-Djava.net.preferIPv4Stack=true",  # we listen on 127.0.0.1 only
    "-XX:ErrorFile=kafka.crash.log",  # a name that `_refuse_foreign_files` knows
    "-XX:-CreateCoredumpOnCrash",  # other files in the directory, which it doesn't know
    "-XX:-DumpReplayDataOnError",
)
"""Flags of the node's JVM; comments name the reason."""

DEVELOPMENT_NODE: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",  # a misspelt topic must fail here as in production
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "offsets.retention.minutes": str(365 * 24 * 60),  # default: a week; a laptop may rest longer
    "offsets.topic.num.partitions": "4",  # default: 50; each costs files, and time at every start
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "log.segment.bytes": str(64 * 1024 * 1024),  # default: 1 GiB; small, so that compaction is seen
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),  # default: 128 MiB, from the heap
    "num.network.threads": "2",
    "num.io.threads": "4",
    "group.initial.rebalance.delay.ms": "0",  # default: 3 s, which delay the first record
    "group.min.session.timeout.ms": "1000",  # default: 6 s; tests see dead members leave
    # Default: 45 s, for which a killed member's partitions aren't read (docs/decisions/0013).
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.session.timeout.ms": "1000",
    # Default: 9 s; the controller refuses a node that was killed until the session of its previous
    # run has ended.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # Default: 500; a node that rests wakes three threads each time to write a record that says
    # nothing, a third of what it costs: 3.6 % of a core, 2.3 without.
    "metadata.max.idle.interval.ms": "0",
}
"""Broker properties that differ from Kafka's defaults; comments name the default and the reason."""

SHOWN_LOG_LINES: Final = 8
"""Number of lines of Kafka's log that an error shows."""
KAFKA_START_ATTEMPTS: Final = 3
"""How often the node is started at most until it has loaded its consumer groups."""
GROUPS_NOT_LOADED: Final = b"Failed to load metadata from __"
"""The log line of a node that began to load its consumer groups before their partition was online,
which happens to a node that was killed under load. It doesn't serve the groups of that partition
until it is restarted, since no other node can be elected (KAFKA-16030)."""

_LOGGING: Final = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = kafka.log
appender.file.filePattern = kafka.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m (%c)%n%xEx
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 5MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""
"""Kafka's logging configuration (log4j2): warnings and errors, to kafka.log and one older file."""


class KafkaServer:
    """A single Kafka node, broker and controller, with its data in `directory`.

    The directory may be new, or one that this class made before. `host` is the address to listen
    on. `port` 0 takes a free port at the first start and keeps it. `listeners` maps the name of
    each further listener to its security protocol; each gets a free port. `properties` override
    `DEVELOPMENT_NODE`, as in Kafka's server.properties, and `format_arguments` are arguments for
    `kafka.tools.StorageTool`. Only one event loop may use it.
    """

    def __init__(
        self,
        distribution: KafkaDistribution,
        directory: Path,
        *,
        host: str = HOST,
        port: int = 0,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        format_arguments: Sequence[str] = (),
    ) -> None:
        self._distribution = distribution
        self._host = host
        self._ports = {CLIENTS: port, **dict.fromkeys(listeners or {}, 0), CONTROLLER: 0}
        """The port of each listener, by its name; 0: the next start takes a free one."""
        self._protocols = {CLIENTS: "PLAINTEXT", **(listeners or {}), CONTROLLER: "PLAINTEXT"}
        """The security protocol of each listener, by its name."""
        self._properties = properties or {}
        self._format_arguments = format_arguments
        self._node: Child | None = None
        """The node's process, which may have ended; None: it was never started."""
        self.directory = directory.resolve()
        self.log_file = self.directory / "kafka.log"
        self.cluster_id = ""
        """Id of the Kafka cluster, known once it is started; it belongs to the directory and never
        changes."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of the listener for clients; a port not given is 0 until the first start."""
        return self.address(CLIENTS)

    def address(self, listener: str) -> str:
        """Return `host:port` of a listener; a port not given is 0 until the first start."""
        return f"{self._host}:{self._ports[listener]}"

    @property
    def pid(self) -> int | None:
        """The process id of the running node; None if it doesn't run."""
        return self._node.pid if self._node is not None and self._node.is_running else None

    async def start(self) -> None:
        """Start the node; returns once it takes requests.

        Raises `LocalKafkaError` if the port is taken, if the directory isn't ours or is in use, or
        if Kafka doesn't come up; no process is left then. A node that ended may be started again.
        """
        if self.pid is not None:
            raise LocalKafkaError(f"Kafka already runs on {self.directory}")
        await self.stop()  # a node that ended by itself is still registered as a child
        await asyncio.to_thread(self._check_directory)
        # The controller's port may be another each time: nobody else knows it.
        self._ports = _take_ports(self._host, {**self._ports, CONTROLLER: 0})
        await asyncio.to_thread(self._write_configuration)
        log_size_before = self._log_size()
        if not self._is_formatted():
            await self._format(log_size_before)
        self.cluster_id = _read_properties(self._meta_properties)["cluster.id"]
        for _ in range(KAFKA_START_ATTEMPTS):
            log_size_before = self._log_size()
            self._node = await self._start_java("kafka.Kafka", self._server_properties.name)
            try:
                await self._wait_until_ready(self._node, log_size_before)
            except BaseException:
                await asyncio.shield(self.stop())
                raise
            if GROUPS_NOT_LOADED not in self._logged_since(log_size_before):
                return
            await self.stop()  # it would never serve some groups, so start it again
        raise self._failure_with_log("Kafka could not load its consumer groups", log_size_before)

    async def stop(self) -> None:
        """Stop the node, with SIGKILL after `KAFKA_STOP_TIMEOUT` seconds. Does nothing if it
        doesn't run."""
        if self._node is not None:
            await self._node.stop()

    async def wait(self) -> int:
        """Wait until the node ends for any reason; returns its exit code, 143 after `stop`. Raises
        `LocalKafkaError` if it was never started."""
        if self._node is None:
            raise LocalKafkaError(f"Kafka was never started on {self.directory}")
        return await self._node.wait()

    @property
    def _topics_directory(self) -> Path:
        """The directory in which Kafka keeps the topics' records and its own files."""
        return self.directory / "topics"

    @property
    def _meta_properties(self) -> Path:
        """The file in which Kafka keeps the ids of the cluster and the node."""
        return self._topics_directory / "meta.properties"

    @property
    def _server_properties(self) -> Path:
        """The node's configuration."""
        return self.directory / "server.properties"

    @property
    def _log4j_properties(self) -> Path:
        """The configuration of the node's log."""
        return self.directory / "log4j2.properties"

    def _is_formatted(self) -> bool:
        """Whether formatting the directory for this node has finished."""
        return self._meta_properties.exists()  # Kafka writes it last, and by a rename

    def _log_size(self) -> int:
        """Return the size of Kafka's log file in bytes; 0 if it doesn't exist."""
        return self.log_file.stat().st_size if self.log_file.exists() else 0

    def _check_directory(self) -> None:
        """Raise `LocalKafkaError` if the directory belongs to another program or another node, or
        if a node still runs on it after `KAFKA_LOCK_TIMEOUT` seconds."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._refuse_foreign_files()
        if not self._is_formatted():
            return
        node_id = _read_properties(self._meta_properties).get("node.id")
        if node_id != NODE_ID:
            raise LocalKafkaError(
                f"{self._topics_directory} belongs to node {node_id} of another Kafka: give ours "
                "an empty directory or one that Knafka made"
            )
        deadline = time.monotonic() + KAFKA_LOCK_TIMEOUT
        while _is_locked(self._topics_directory / ".lock"):
            if time.monotonic() > deadline:
                raise LocalKafkaError(
                    f"another Kafka runs on {self.directory}: stop it, or choose another directory"
                )
            time.sleep(KAFKA_PROBE_INTERVAL)

    def _refuse_foreign_files(self) -> None:
        """Raise `LocalKafkaError` if the directory holds a file that this class doesn't write."""
        ours = {
            self._topics_directory.name,
            self._server_properties.name,
            self._log4j_properties.name,
        }
        foreign = [
            entry.name
            for entry in self.directory.iterdir()
            if entry.name not in ours and not entry.name.startswith(f"{self.log_file.stem}.")
        ]
        if foreign:
            raise LocalKafkaError(
                f"{self.directory} holds {foreign[0]}, which is not Knafka's: give Kafka an empty "
                "directory or one that Knafka made"
            )

    def _write_configuration(self) -> None:
        """Write the node's properties and logging configuration, with its current ports.

        Paths are relative to the node's directory, in which it runs: an absolute path may have
        characters that mean something else in these files, such as a comma in `log.dirs`, or
        letters that Java misreads as ISO-8859-1.
        """
        addresses = {name: f"{name}://{self.address(name)}" for name in self._ports}
        _write_properties(
            self._server_properties,
            {
                "process.roles": "broker,controller",
                "node.id": NODE_ID,
                # Static voters: no endpoint is kept on disk, so that ports may change.
                "controller.quorum.voters": f"{NODE_ID}@{self.address(CONTROLLER)}",
                "listeners": ",".join(addresses.values()),
                "advertised.listeners": ",".join(
                    address for name, address in addresses.items() if name != CONTROLLER
                ),
                "inter.broker.listener.name": CLIENTS,
                "controller.listener.names": CONTROLLER,
                "listener.security.protocol.map": ",".join(
                    f"{name}:{protocol}" for name, protocol in self._protocols.items()
                ),
                "log.dirs": self._topics_directory.name,
                **DEVELOPMENT_NODE,
                **self._properties,
            },
        )
        self._log4j_properties.write_text(_LOGGING)

    async def _format(self, log_size_before: int) -> None:
        """Format the directory for a new cluster with a random id. Raises `LocalKafkaError`, with
        what Kafka logged after `log_size_before` bytes of its log, if that fails; `TimeoutError`
        after `KAFKA_START_TIMEOUT` seconds."""
        formatting = await self._start_java(
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={secrets.token_urlsafe(16)}",  # `=`, since it may begin with a dash
            f"--config={self._server_properties.name}",
            "--ignore-formatted",
            *self._format_arguments,
        )
        try:
            async with asyncio.timeout(KAFKA_START_TIMEOUT):
                code = await formatting.wait()
        finally:
            await asyncio.shield(formatting.stop())
        if code:
            raise self._failure_with_log(
                f"Kafka could not format {self._topics_directory}", log_size_before
            )

    async def _start_java(self, main_class: str, *arguments: str) -> Child:
        """Start a JVM that runs `main_class` of Kafka's jars in the node's directory, and return
        its process. The kernel kills it when this thread ends. Raises `OSError`."""
        java = str(self._distribution.java.absolute())  # JAVA_HOME may be a relative path
        logging = f"-Dlog4j2.configurationFile={self._log4j_properties.name}"
        return await Child.start(
            Command(
                (java, *KAFKA_JVM_FLAGS, logging, main_class, *arguments),
                self.log_file,
                # In a locale that isn't UTF-8, Java can't use a directory whose name isn't ASCII.
                {"CLASSPATH": self._distribution.class_path, "LC_ALL": "C.UTF-8"},
                self.directory,
                stop_timeout=KAFKA_STOP_TIMEOUT,
            )
        )

    async def _wait_until_ready(self, node: Child, log_size_before: int) -> None:
        """Wait until the node answers. Raises `LocalKafkaError` if it ends first or takes too long,
        with what Kafka logged after `log_size_before` bytes; also if another cluster answers."""
        ended = asyncio.create_task(node.wait())
        ready = asyncio.create_task(await_cluster(self.bootstrap_servers, self.cluster_id))
        try:
            await asyncio.wait(
                {ended, ready}, timeout=KAFKA_START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done():
                raise self._failure_with_log(
                    f"Kafka ended with code {ended.result()}", log_size_before
                )
            if not ready.done():
                raise self._failure_with_log(
                    f"Kafka was not ready in {KAFKA_START_TIMEOUT:.0f} s", log_size_before
                )
            ready.result()  # raises if another cluster answers at the address
        finally:
            ended.cancel()
            ready.cancel()

    def _logged_since(self, log_size_before: int) -> bytes:
        """Return what Kafka has logged since its log file had `log_size_before` bytes."""
        if not self.log_file.exists():
            return b""
        with self.log_file.open("rb") as log:
            log.seek(log_size_before)
            return log.read()

    def _failure_with_log(self, problem: str, log_size_before: int) -> LocalKafkaError:
        """Return an error with `problem` and the last `SHOWN_LOG_LINES` lines that Kafka logged
        after its log file had `log_size_before` bytes, without stack traces."""
        lines = self._logged_since(log_size_before).decode(errors="replace").splitlines()
        messages = [line for line in lines if line.strip() and not line.startswith("\tat ")]
        shown = messages[-SHOWN_LOG_LINES:]
        return LocalKafkaError("\n  ".join([f"{problem}; see {self.log_file}:", *shown]))


async def await_cluster(bootstrap_servers: str, cluster_id: str) -> None:
    """Wait until a broker answers at `bootstrap_servers`.

    Raises `LocalKafkaError` if it belongs to another cluster than `cluster_id`.
    """
    host, _, port = bootstrap_servers.rpartition(":")
    answered_id = None
    while answered_id is None:
        if await is_port_open(host, int(port)):
            answered_id = await asyncio.to_thread(_ask_cluster_id, bootstrap_servers)
        if answered_id is None:
            await asyncio.sleep(KAFKA_PROBE_INTERVAL)
    if answered_id != cluster_id:
        raise LocalKafkaError(
            f"{bootstrap_servers} is cluster {answered_id}, not ours ({cluster_id}): choose "
            "another port with --kafka-port, or use that Kafka with --bootstrap-servers "
            f"{bootstrap_servers}"
        )


def _ask_cluster_id(bootstrap_servers: str) -> str | None:
    """Return the broker's cluster id; None until the broker is registered and takes requests."""
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        cluster = client.list_topics(timeout=KAFKA_PROBE_TIMEOUT)
    except KafkaException:
        return None
    return str(cluster.cluster_id) if cluster.brokers else None


def _take_ports(host: str, ports: Mapping[str, int]) -> dict[str, int]:
    """Return the port of each listener, with a free one in place of 0. Raises `LocalKafkaError` if
    one is in use."""
    with contextlib.ExitStack() as stack:  # all sockets stay bound, so that no port is taken twice
        free_ports = {}
        for name, port in ports.items():
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore TIME_WAIT
            try:
                listener.bind((host, port or free_port()))
            except OSError as error:
                is_taken = error.errno == errno.EADDRINUSE
                problem = "is in use by another process" if is_taken else f"can't be used ({error})"
                raise LocalKafkaError(
                    f"port {port} {problem}: choose another with --kafka-port, or use a Kafka "
                    f"that runs already with --bootstrap-servers {host}:{port}"
                ) from None
            free_ports[name] = listener.getsockname()[1]
        return free_ports


def _is_locked(path: Path) -> bool:
    """Whether a running Kafka holds the lock file. The kernel frees the lock when that process
    dies."""
    if not path.exists():
        return False
    with path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _read_properties(path: Path) -> dict[str, str]:
    """Return the keys and values of a Java properties file without escapes or continued lines."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def _write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    escapes = str.maketrans({"\\": "\\\\", "\n": "\\n"})
    lines = [f"{key}={value}".translate(escapes) for key, value in properties.items()]
    path.write_text("\n".join(lines) + "\n")
