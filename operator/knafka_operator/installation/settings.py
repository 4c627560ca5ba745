"""Settings: the operator's environment variables, read and checked once at start.

    KNAFKA_NAMESPACE        namespace of the operator and its ConfigMaps (required)
    KNAFKA_IMAGE            the functions' image (required)
    KNAFKA_BROKER_CLASSES   Broker classes that Knafka serves, comma-separated ("Kafka,kafka")
    KNAFKA_DEFAULT_CLASS    the one of these classes that webhooks give to a new Broker without a
                            class ("": the class in KNAFKA_BROKER_DEFAULTS, if Knafka serves it)
    KNAFKA_CONFIG           ConfigMap with the defaults for all Brokers ("kafka-broker-config")
    KNAFKA_BROKER_DEFAULTS  ConfigMap with class and delivery of Brokers that declare none, in
                            upstream's format ("knative-eventing/config-br-defaults")
    KNAFKA_FEATURES         ConfigMap that declares whether senders need tokens, and whether
                            receivers serve https, in upstream's format
                            ("knative-eventing/config-features")
    KNAFKA_KAFKA_FEATURES   ConfigMap with templates of the names of new topics and groups, in
                            eventing-kafka-broker's format
                            ("knative-eventing/config-kafka-features")
    KNAFKA_DIRECT           "enabled": senders bypass Knative's proxy, for Brokers that don't
                            declare it themselves ("disabled")
    KNAFKA_METRICS_TOKENS   tokens, comma-separated, of which a request for /metrics of operator and
                            functions needs one ("": it needs none)
    KNAFKA_TRUST_BUNDLES    namespace whose ConfigMaps labelled networking.knative.dev/trust-bundle
                            have certificate authorities that dispatchers trust ("": no namespace)
    KNAFKA_PROJECT_SECRETS  "true": a Secret named by a ConfigMap of another namespace is copied to
                            the Broker's namespace ("false")
    KNAFKA_CLUSTER_DOMAIN   DNS domain of the cluster ("cluster.local")
    KNAFKA_POD              fields for the pods of functions, as YAML ("")
    KNAFKA_RECEIVER_RESOURCES, KNAFKA_DISPATCHER_RESOURCES, KNAFKA_SHARD_RESOURCES
                            resources of functions' containers, as YAML: see `function_pods`
    KNAFKA_ISOLATION        dispatcher of Triggers that declare none and whose Broker declares none:
                            their "own", a "shared" one, or by their activity, "auto" ("own")
    KNAFKA_SHARD_SIZE       most Triggers in one shared dispatcher ("250")
    KNAFKA_RECORD_POSITION  "disabled": delivered events don't get the attributes with partition and
                            offset of their record ("enabled")
    KNAFKA_INITIAL_SCALE    pods with which a new Revision starts, "0" where Knative allows it ("1")
    KNAFKA_MAX_ROLLS        most functions that roll at a time after a change for all functions,
                            such as a new image ("2")
    KNAFKA_DELETION_TIMEOUT seconds after which a deletion no longer waits for Kafka ("60")
    KNAFKA_WEBHOOKS         "true": serve admission webhooks ("false")
    KNAFKA_POD_UID          the pod's UID, which distinguishes replicas of one name ("": random)
    KNAFKA_LOG_LEVEL        debug, info, warning, error ("info")
    KNAFKA_CHANNELS         "enabled": KafkaChannels and Subscriptions are served; no other
                            implementation in the cluster may serve them then ("disabled")
    KNAFKA_CHANNEL_CONFIG   ConfigMap with Kafka and defaults of all KafkaChannels
                            ("kafka-channel-config")
    KNAFKA_SUBSCRIPTIONS    controller that reconciles Subscriptions to KafkaChannels: our "own",
                            Knative's "eventing", or "auto": the latter where Knative Eventing's
                            CustomResourceDefinitions exist ("auto")
    KNAFKA_SENSORS          "enabled": Sensors are served ("disabled")
    KNAFKA_SOURCES          "enabled": KafkaSources are served; no other implementation in the
                            cluster should serve them then ("disabled")
    KNAFKA_SINKS            "enabled": KafkaSinks are served; no other implementation in the
                            cluster should serve them then ("disabled")
    KNAFKA_JOBS_IMAGE       image of the dead-letter jobs ("": DeadLetterArchives aren't served)
    KNAFKA_CONSOLE_URL      URL of the console for users, for the links in announcements of reports
                            ("": no links)
    KNAFKA_TRACE_URL        URL of a trace for users, with {trace} instead of its id, for the links
                            in reports ("": no links)
    KNAFKA_ALLOWED_SERVERS  patterns of the Kafka servers that may be connected to, host:port with
                            *, comma-separated ("*")
    KNAFKA_MAX_PARTITIONS, KNAFKA_MAX_REPLICATION
                            most partitions and replicas of a new topic ("1000", "10")
    KNAFKA_MAX_NAMESPACE_PARTITIONS
                            most partitions of a namespace's topics of one kind together, including
                            those of a new one ("10000")
    KNAFKA_MAX_SCALE        most pods that one object may declare for one function ("100")
    KNAFKA_MAX_NAMESPACE_MIN_SCALE
                            largest sum of min-scale of a namespace's Triggers, and of its
                            Subscriptions ("200")
    KNAFKA_MAX_JOB_TIMEOUT  most seconds for a DeadLetterArchive's Job ("172800")
    KNAFKA_LOCAL_ADDRESSES  "allowed": subscribers, sinks and token endpoints may be at loopback or
                            link-local addresses of functions and operator ("refused")
    KNAFKA_AWS_SERVERS, KNAFKA_AWS_ROLES
                            servers that may get a token of the operator's own AWS identity, and
                            roles that it may assume, if a user's Secret requires that ("")
    KNAFKA_PROFILING        "enabled": functions serve profiles on their pods' loopback ("disabled")

Not here: configuration of Brokers, which is in ConfigMaps that users may change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from knafka.core.errors import InvalidDocument
from knafka.core.tokens.caller_tokens import METRICS_TOKENS, parse_metrics_tokens
from knafka.core.trace_url import trace_url
from knafka.settings import allows_local_addresses, serves_profiles
from knafka_operator.installation.function_pods import FunctionPods
from knafka_operator.installation.function_tokens import FunctionTokens
from knafka_operator.installation.handler import Handler, parse_handler
from knafka_operator.installation.kafka_trust import (
    AWS_ROLES,
    AWS_SERVERS,
    KafkaTrust,
    parse_patterns,
)
from knafka_operator.installation.naming import Naming
from knafka_operator.installation.tracing import FunctionTracing
from knafka_operator.model.identity import Identity
from knafka_operator.model.isolation import Isolation, parse_isolation
from knafka_operator.model.maxima import Maxima
from knafka_operator.model.resources import BROKER_CLASSES, parse_whole_number

FEATURES_CONFIG_MAP: Final = "knative-eventing/config-features"
KAFKA_FEATURES: Final = "knative-eventing/config-kafka-features"
BROKER_DEFAULTS: Final = "knative-eventing/config-br-defaults"
"""Namespaces and names of ConfigMaps, by default."""
SHARD_SIZE: Final = 250
"""Most Triggers in one shared dispatcher, by default."""
MAX_SHARD_SIZE: Final = 10_000
"""The largest value of `KNAFKA_SHARD_SIZE`."""
LEVELS: Final = ("debug", "info", "warning", "error")
"""The values of `KNAFKA_LOG_LEVEL`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings, which stay the same while it runs except for `tokens`, `naming` and
    `tracing`."""

    namespace: str
    """Namespace of the operator and its ConfigMaps."""
    image: str
    """The functions' image."""
    identity: str = "knafka"
    """Identity of this replica in the Lease. In a pod the pod's name and UID, so that a restarted
    container keeps it; elsewhere it is random."""
    broker_classes: frozenset[str] = BROKER_CLASSES
    """Classes of the Brokers that Knafka serves."""
    default_class: str = ""
    """The class of a new Broker that declares none; empty: the ConfigMap `broker_defaults` may name
    it."""
    config: str = "kafka-broker-config"
    """Name of the ConfigMap with Kafka and defaults of all Brokers, in `namespace`."""
    broker_defaults: str = BROKER_DEFAULTS
    """Namespace and name of the ConfigMap with class and delivery of Brokers that declare none."""
    features: str = FEATURES_CONFIG_MAP
    """Namespace and name of the ConfigMap with Knative Eventing's features."""
    kafka_features: str = KAFKA_FEATURES
    """Namespace and name of the ConfigMap with eventing-kafka-broker's features, for its templates
    of names."""
    trust_bundles: str = ""
    """The namespace of the ConfigMaps with certificate authorities for destinations; empty: only
    the system's are trusted, and those that a destination names."""
    project_secrets: bool = False
    """Whether Secrets of other namespaces are copied to the Brokers that use them."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the cluster."""
    pods: FunctionPods = field(default_factory=FunctionPods)
    """Fields and resources of functions' pods."""
    isolation: Isolation = Isolation.OWN
    """Isolation of Triggers that declare none, and whose Broker declares none."""
    shard_size: int = SHARD_SIZE
    """Most Triggers in one shared dispatcher."""
    record_position: bool = True
    """Whether deliveries have `knativekafkapartition` and `knativekafkaoffset`."""
    initial_scale: int = 1
    """Pods with which a new Revision of a function starts."""
    max_rolls: int = 2
    """Most functions that roll at a time after a change for all functions."""
    deletion_timeout: float = 60.0
    """Seconds after which an object's deletion no longer waits for Kafka."""
    webhooks: bool = False
    """Whether admission webhooks are served."""
    log_level: str = "info"
    profiling: bool = False
    """Whether functions serve profiles; the operator serves none."""
    metrics_tokens: tuple[str, ...] = field(default=(), repr=False)
    """Requests for metrics must have one of these tokens; empty: no token is required."""
    direct: bool = False
    """Whether senders bypass Knative's proxy, for Brokers that don't declare it."""
    local_addresses: bool = False
    """Whether destinations and endpoints may be at addresses of the pod or the node
    (`core.addresses`)."""
    aws_servers: tuple[str, ...] = ()
    """Patterns of the servers that may get a token of the operator's AWS identity
    (`installation.kafka_trust`)."""
    aws_roles: tuple[str, ...] = ()
    """Patterns of the roles that the operator may assume for such a token."""
    trusts_statuses: bool = False
    """Whether a topic with records counts as the object's own although the topic's id in the status
    is empty. True only in the local mode: there only Knafka writes statuses, and data may be older
    than the recording of ids."""
    channels: bool = False
    """Whether KafkaChannels and Subscriptions are served."""
    channel_config: str = "kafka-channel-config"
    """Name of the ConfigMap with Kafka and defaults of all KafkaChannels, in `namespace`."""
    subscriptions: Handler = Handler.AUTO
    """Which controller reconciles Subscriptions to KafkaChannels."""
    sources: bool = False
    """Whether KafkaSources are served."""
    sinks: bool = False
    """Whether KafkaSinks are served."""
    sensors: bool = False
    """Whether Sensors are served."""
    jobs_image: str = ""
    """Image of the dead-letter jobs; empty: DeadLetterArchives are not served."""
    console_url: str = ""
    """URL of the console for users; empty: not known."""
    trace_url: str = ""
    """URL of a trace for users, with `{trace}` instead of its id; empty: not known."""
    allowed_servers: tuple[str, ...] = ("*",)
    """Patterns of the Kafka servers that may be connected to: `host:port` in lower case, with `*`
    for any characters, or `*` for any server."""
    maxima: Maxima = field(default_factory=Maxima)
    """Limits of what one object and one namespace may declare."""
    installation: str = ""
    """The UID of `namespace`, which distinguishes this installation from other clusters' at the
    same Kafka; empty: not known."""
    tokens: FunctionTokens = field(default_factory=FunctionTokens)
    """Tokens by which functions recognise the operator; the keys may change while it runs."""
    naming: Naming = field(default_factory=Naming)
    """Name templates of new topics and groups, updated from a ConfigMap (`runtime.naming`)."""
    tracing: FunctionTracing = field(default_factory=FunctionTracing)
    """Environment variables of functions about tracing, updated from ConfigMaps
    (`runtime.tracing`)."""

    @property
    def features_config(self) -> Identity:
        """Return namespace and name of the ConfigMap `features`."""
        namespace, _, name = self.features.partition("/")
        return Identity(namespace, name)

    @property
    def kafka_features_config(self) -> Identity:
        """Return namespace and name of the ConfigMap `kafka_features`."""
        namespace, _, name = self.kafka_features.partition("/")
        return Identity(namespace, name)

    @property
    def kafka_trust(self) -> KafkaTrust:
        """Return what a user's Secret may make the operator do: whether it may ask token endpoints
        at local addresses, for which servers it may get tokens of its own AWS identity, and which
        roles it may assume."""
        return KafkaTrust(self.local_addresses, self.aws_servers, self.aws_roles)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Read the settings from environment variables. Raises `InvalidDocument` with the
        variable's name."""

        def read_flag(name: str) -> bool:
            """Return whether a variable is `true`; by default it is `false`. Raises
            `InvalidDocument` if it is neither."""
            text = environment.get(name, "false").strip().lower()
            if text not in ("true", "false"):
                raise InvalidDocument(name, f"invalid value: {text:.80}: want true or false")
            return text == "true"

        def read_switch(name: str, default: str = "disabled") -> bool:
            """Return whether a variable is `enabled`. Raises `InvalidDocument` if it is neither
            that nor `disabled`."""
            text = environment.get(name, default).strip().lower()
            if text not in ("enabled", "disabled"):
                requirement = "want enabled or disabled"
                raise InvalidDocument(name, f"invalid value: {text:.80}: {requirement}")
            return text == "enabled"

        def read_number(name: str, default: int) -> int:
            """Return the value of a variable that is a whole number of 0 or more; `default` if it
            isn't set. Raises `InvalidDocument`."""
            return parse_whole_number(environment.get(name, str(default)), name, 0, 2**31 - 1)

        def read_required(name: str) -> str:
            """Return a variable's text. Raises `InvalidDocument` if it isn't set."""
            if not (text := environment.get(name, "").strip()):
                raise InvalidDocument(name, "is not set: see operator/deploy/operator.yaml")
            return text

        level = environment.get("KNAFKA_LOG_LEVEL", "info").lower()
        if level not in LEVELS:
            raise InvalidDocument(
                "KNAFKA_LOG_LEVEL", f"invalid value: {level:.80}: want {', '.join(LEVELS)}"
            )
        class_names = environment.get("KNAFKA_BROKER_CLASSES", ",".join(BROKER_CLASSES)).split(",")
        classes = frozenset(class_name.strip() for class_name in class_names if class_name.strip())
        default_class = environment.get("KNAFKA_DEFAULT_CLASS", "").strip()
        if default_class and default_class not in classes:
            requirement = f"want {', '.join(sorted(classes))}"
            raise InvalidDocument(
                "KNAFKA_DEFAULT_CLASS", f"invalid value: {default_class:.80}: {requirement}"
            )
        return cls(
            namespace=read_required("KNAFKA_NAMESPACE"),
            image=read_required("KNAFKA_IMAGE"),
            identity=_replica_identity(environment),
            broker_classes=classes,
            default_class=default_class,
            config=environment.get("KNAFKA_CONFIG", "kafka-broker-config"),
            broker_defaults=environment.get("KNAFKA_BROKER_DEFAULTS", BROKER_DEFAULTS),
            features=environment.get("KNAFKA_FEATURES", FEATURES_CONFIG_MAP),
            kafka_features=environment.get("KNAFKA_KAFKA_FEATURES", KAFKA_FEATURES),
            trust_bundles=_check_trust_bundles(environment.get("KNAFKA_TRUST_BUNDLES", "").strip()),
            project_secrets=read_flag("KNAFKA_PROJECT_SECRETS"),
            cluster_domain=environment.get("KNAFKA_CLUSTER_DOMAIN", "cluster.local"),
            pods=FunctionPods.from_environment(environment),
            isolation=parse_isolation(
                environment.get("KNAFKA_ISOLATION", Isolation.OWN).strip(), "KNAFKA_ISOLATION"
            ),
            shard_size=parse_whole_number(
                environment.get("KNAFKA_SHARD_SIZE", str(SHARD_SIZE)),
                "KNAFKA_SHARD_SIZE",
                1,
                MAX_SHARD_SIZE,
            ),
            record_position=read_switch("KNAFKA_RECORD_POSITION", "enabled"),
            initial_scale=read_number("KNAFKA_INITIAL_SCALE", 1),
            max_rolls=parse_whole_number(
                environment.get("KNAFKA_MAX_ROLLS", "2"), "KNAFKA_MAX_ROLLS", 1, 1000
            ),
            deletion_timeout=read_number("KNAFKA_DELETION_TIMEOUT", 60),
            webhooks=read_flag("KNAFKA_WEBHOOKS"),
            log_level=level,
            profiling=serves_profiles(environment),
            metrics_tokens=parse_metrics_tokens(environment.get(METRICS_TOKENS, "")),
            direct=read_switch("KNAFKA_DIRECT"),
            local_addresses=allows_local_addresses(environment),
            aws_servers=parse_patterns(environment.get(AWS_SERVERS, ""), AWS_SERVERS),
            aws_roles=parse_patterns(environment.get(AWS_ROLES, ""), AWS_ROLES),
            channels=read_switch("KNAFKA_CHANNELS"),
            channel_config=environment.get("KNAFKA_CHANNEL_CONFIG", "kafka-channel-config"),
            subscriptions=parse_handler(
                environment.get("KNAFKA_SUBSCRIPTIONS", Handler.AUTO).strip(),
                "KNAFKA_SUBSCRIPTIONS",
            ),
            sources=read_switch("KNAFKA_SOURCES"),
            sinks=read_switch("KNAFKA_SINKS"),
            sensors=read_switch("KNAFKA_SENSORS"),
            jobs_image=environment.get("KNAFKA_JOBS_IMAGE", "").strip(),
            console_url=_check_console_url(environment.get("KNAFKA_CONSOLE_URL", "").strip()),
            trace_url=trace_url(environment),
            maxima=Maxima.from_environment(environment),
            allowed_servers=_parse_server_patterns(environment.get("KNAFKA_ALLOWED_SERVERS", "*")),
        )


def _check_console_url(text: str) -> str:
    """Return the value of `KNAFKA_CONSOLE_URL`. Raises `InvalidDocument` unless it is empty or an
    HTTP URL without a query."""
    if text and re.fullmatch(r"https?://[^\s?#@<>\"']+", text) is None:
        requirement = "want http:// or https://, a host and maybe a path"
        raise InvalidDocument("KNAFKA_CONSOLE_URL", f"invalid value: {text:.200}: {requirement}")
    return text


def _check_trust_bundles(text: str) -> str:
    """Return the value of `KNAFKA_TRUST_BUNDLES`. Raises `InvalidDocument` unless it is empty or a
    legal name of a namespace."""
    if text and re.fullmatch(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", text) is None:
        requirement = "want the name of a namespace, such as knative-eventing"
        raise InvalidDocument("KNAFKA_TRUST_BUNDLES", f"invalid value: {text:.80}: {requirement}")
    return text


def _parse_server_patterns(text: str) -> tuple[str, ...]:
    """Parse the comma-separated patterns of Kafka servers that objects may name. Raises
    `InvalidDocument` if there is none or one is malformed."""
    patterns = tuple(pattern.strip().lower() for pattern in text.split(",") if pattern.strip())
    for pattern in patterns:
        # The pattern for any server, `*`, has no port.
        if pattern != "*" and re.fullmatch(r"[a-z0-9*._\[\]:-]+:(?:[0-9]+|\*)", pattern) is None:
            requirement = "want host:port, with * for any characters, such as *.kafka.svc:9092"
            raise InvalidDocument(
                "KNAFKA_ALLOWED_SERVERS", f"invalid value: {pattern:.80}: {requirement}"
            )
    if not patterns:
        requirement = "want patterns of servers, or * for any"
        raise InvalidDocument(
            "KNAFKA_ALLOWED_SERVERS", f"invalid value: it is empty: {requirement}"
        )
    return patterns


def _replica_identity(environment: Mapping[str, str]) -> str:
    """Return this replica's identity in the Lease: the host name, which is the pod's name, and the
    pod's UID or a random text."""
    host = environment.get("HOSTNAME", "knafka")
    return f"{host}_{environment.get('KNAFKA_POD_UID') or uuid4().hex}"
