"""Runs one Kubernetes node: each part is a process in one network namespace of this machine.

The machine reaches Pods and Services; nothing in the cluster reaches the outside. Nothing enforces
NetworkPolicies.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from string import Template
from typing import Final

from testcluster import settings
from testcluster.settings import (
    API_SERVICE_IP,
    BIN,
    CGROUP,
    CONTAINERD,
    HERE,
    HOST_IP,
    IMAGES,
    KUBECONFIG,
    LOGS,
    NETWORK_NAMESPACE,
    NODE,
    NODE_IP,
    PIDS,
    PKI,
    POD_CIDR,
    REGISTRY,
    REGISTRY_ADDRESS,
    SERVICE_CIDR,
    STATE,
    say,
)
from testcluster.shell import apply, in_namespace, run, succeeds, wait_until

HOST_LINK: Final = f"{NETWORK_NAMESPACE[:10]}-host"  # a link's name has 15 letters at most
CGROUPS: Final = Path("/sys/fs/cgroup")
CPU_SHARES_OF_PODS: Final = 8_192
"""Weight of all pods together. Linux gives each session outside of them 1024 (autogroup): each part
of the cluster, each Kafka, all tests. With the kernel's 1024 for all pods these started, and
answered, too late."""
NICENESS: Final = -5
"""Of each part's session, which so weighs 3121: pods and tests wait for the API server."""
CTR: Final = ("ctr", "--address", CONTAINERD, "--namespace", "k8s.io")
PARTS: Final = (
    "kubelet", "kube-proxy", "kube-controller-manager", "kube-scheduler", "coredns", "ingress",
    "kube-apiserver", "etcd", "registry",
)  # fmt: skip
"""The processes that `stop` ends at once; containerd comes after its containers."""


def start() -> None:
    """Start all parts that don't run yet, and return once the node takes pods."""
    for directory in (LOGS, PIDS, STATE / "etcd", STATE / "kubelet", STATE / "logpods"):
        directory.mkdir(parents=True, exist_ok=True)
    _make_network()
    _make_certificates()
    _write_configuration()
    _make_cgroups()
    kit = BIN / "kit"
    _start("etcd", kit, "etcd", *_ETCD)
    _start("containerd", "containerd", "--config", STATE / "containerd.toml")
    _start(
        "registry", BIN / "image", "registry",
        "--listen", REGISTRY_ADDRESS, "--dir", STATE / "registry",
    )  # fmt: skip
    _start_api_server()
    wait_until(lambda: succeeds(*CTR, "version"), "containerd", 30)
    _import_images()
    say("images are imported")
    _wait_for_api_server()
    say("the API server is ready")
    if _pid("kubelet") is None:
        # A cluster that is resumed would wait a minute for the leases of Knative's former pods.
        _kubectl_succeeds("delete", "leases", "--all", "--namespace=knative-serving")
    _start("kube-controller-manager", kit, "kube-controller-manager", *_CONTROLLER_MANAGER)
    _start("kube-scheduler", kit, "kube-scheduler", *_SCHEDULER)
    _start("kube-proxy", kit, "kube-proxy", "--config", STATE / "kube-proxy.yaml")
    _start("kubelet", kit, "kubelet", *_KUBELET)
    _start("coredns", kit, "coredns", "-conf", STATE / "Corefile", "-quiet")
    apply(_fill((HERE / "config" / "services.yaml").read_text()))
    ready = ("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=5s")
    wait_until(lambda: _kubectl_succeeds(*ready), "the node", 120)
    account = ("get", "serviceaccount", "default")
    wait_until(lambda: _kubectl_succeeds(*account), "the default service account", 60)
    say("the node is ready")


def stop_api_server() -> None:
    """Stop only the API server; pods run on."""
    _stop("kube-apiserver")


def start_api_server() -> None:
    """Start the API server again, and return once it answers."""
    _start_api_server()
    _wait_for_api_server()


def rotate_signing_key(private: str, public: str) -> None:
    """Add a key (PEM) for service accounts' tokens: from its next start on the API server signs
    with it, and still accepts tokens signed with the earlier keys."""
    key = PKI / f"sa-{len(_signing_keys())}.key"
    key.write_text(private)
    key.with_suffix(".pub").write_text(public)


def signing_key() -> Path:
    """Return the file (PEM) of the private key that signs service accounts' tokens."""
    return _signing_keys()[-1]


def start_ingress() -> None:
    """Start Knative's ingress; its custom resources must be defined already."""
    _start(
        "ingress", BIN / "kit", "ingress", "--kubeconfig", PKI / "ingress.kubeconfig",
        "--public", f"{NODE_IP}:80", "--private", f"{NODE_IP}:81",
        "--private-domain", "knative-ingress.kube-system.svc.cluster.local",
    )  # fmt: skip


def stop() -> None:
    """End all processes and containers, and take the network down; the state stays."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(_stop, PARTS))
    networks = _remove_containers()
    _stop("containerd")
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounted if m.startswith(f"{STATE}/")), reverse=True):
        succeeds("umount", "-l", mount)
    for network in networks:
        succeeds("ip", "netns", "delete", network)
    for route in (POD_CIDR, SERVICE_CIDR):
        succeeds("ip", "route", "delete", route)
    succeeds("ip", "link", "delete", HOST_LINK)
    succeeds("ip", "netns", "delete", NETWORK_NAMESPACE)
    for hierarchy in CGROUPS.iterdir():
        for directory, _, _ in os.walk(f"{hierarchy}{CGROUP}", topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(directory)


def purge() -> None:
    """Delete the state of a stopped cluster; programs and images stay."""
    shutil.rmtree(STATE, ignore_errors=True)
    shutil.rmtree(LOGS, ignore_errors=True)
    KUBECONFIG.unlink(missing_ok=True)


def _make_network() -> None:
    """Make the cluster's network namespace, its link to the machine, and the machine's routes to
    Pods and Services, unless it exists."""
    if Path(f"/run/netns/{NETWORK_NAMESPACE}").exists():
        return
    run("ip", "netns", "add", NETWORK_NAMESPACE)
    run("ip", "link", "add", HOST_LINK, "type", "veth", "peer", "eth0", "netns", NETWORK_NAMESPACE)
    run("ip", "address", "add", f"{HOST_IP}/30", "dev", HOST_LINK)
    run("ip", "link", "set", HOST_LINK, "up")
    run(*in_namespace("ip", "link", "set", "lo", "up"))
    run(*in_namespace("ip", "address", "add", f"{NODE_IP}/30", "dev", "eth0"))
    run(*in_namespace("ip", "link", "set", "eth0", "up"))
    # Other addresses of this range must not leave by the machine's default route.
    run("ip", "route", "replace", "unreachable", "198.18.0.0/15", "metric", "4096")
    for cidr in (POD_CIDR, SERVICE_CIDR):
        run("ip", "route", "replace", cidr, "via", NODE_IP)
    # The API server calls webhooks at their Service's address: without a default route there must
    # be some route before kube-proxy's rules can rewrite it.
    run(*in_namespace("ip", "route", "add", SERVICE_CIDR, "dev", "lo", "src", NODE_IP))
    kernel = {
        "net.ipv4.ip_forward": 1,
        "net.ipv4.conf.all.rp_filter": 0,
        "net.ipv4.ip_unprivileged_port_start": 1024,
    }
    run(*in_namespace("sysctl", "-qw", *(f"{name}={value}" for name, value in kernel.items())))


def _make_certificates() -> None:
    """Make the cluster's certificates and kubeconfigs unless they exist, and copy the admin's
    kubeconfig to `KUBECONFIG`."""
    if not (PKI / "admin.kubeconfig").exists():
        run(
            BIN / "kit", "certs", "--dir", PKI, "--node", NODE, "--server", f"https://{NODE_IP}:6443",
            "--san", ",".join((NODE_IP, HOST_IP, API_SERVICE_IP, NODE)),
        )  # fmt: skip
    shutil.copy(PKI / "admin.kubeconfig", KUBECONFIG)
    KUBECONFIG.chmod(0o600)


def _write_configuration() -> None:
    """Write the configuration files of all parts from the templates in `config`."""
    files = {
        "containerd.toml": STATE / "containerd.toml",
        "cni.conflist": STATE / "cni" / "10-kit.conflist",
        "registry.toml": STATE / "registries" / REGISTRY / "hosts.toml",
        "resolv.conf": STATE / "resolv.conf",
        "kubelet.yaml": STATE / "kubelet.yaml",
        "kube-proxy.yaml": STATE / "kube-proxy.yaml",
        "Corefile": STATE / "Corefile",
    }
    for name, path in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_fill((HERE / "config" / name).read_text()))


def _fill(template: str) -> str:
    """Return a template with the names in `settings` filled in."""
    return Template(template).substitute(vars(settings))


def _make_cgroups() -> None:
    """Make the cgroup under which the kubelet puts pods, in each hierarchy of cgroup v1, and give
    it `CPU_SHARES_OF_PODS`."""
    for hierarchy in CGROUPS.iterdir():
        ours = Path(f"{hierarchy}{CGROUP}")
        if not hierarchy.is_symlink() and hierarchy.name != "unified":
            ours.mkdir(exist_ok=True)
        shares = ours / "cpu.shares"
        if shares.exists():
            shares.write_text(str(CPU_SHARES_OF_PODS))
        if hierarchy.name == "cpuset":
            for name in ("cpuset.cpus", "cpuset.mems"):
                (ours / name).write_text((hierarchy / name).read_text())


def _import_images() -> None:
    """Import the image archives that containerd hasn't imported yet."""
    imported = STATE / "imported"
    imported.mkdir(exist_ok=True)
    for archive in sorted(IMAGES.glob("*.tar")):
        mark = imported / f"{archive.name}.{archive.stat().st_mtime_ns}"
        if not mark.exists():
            run(*CTR, "images", "import", archive)
            mark.touch()


def _signing_keys() -> list[Path]:
    """Return the private keys' files, the newest last."""
    return [PKI / "sa.key", *sorted(PKI.glob("sa-*.key"), key=lambda key: int(key.stem[3:]))]


def _start_api_server() -> None:
    """Start the API server with all signing keys, of which it signs with the newest."""
    keys = [
        option
        for key in _signing_keys()
        for option in ("--service-account-key-file", key.with_suffix(".pub"))
    ]
    signs = ("--service-account-signing-key-file", signing_key())
    _start("kube-apiserver", BIN / "kit", "kube-apiserver", *_API_SERVER, *keys, *signs)


def _wait_for_api_server() -> None:
    """Wait until the API server is ready. Raises `ClusterError` after 120 s."""
    wait_until(lambda: _kubectl_succeeds("get", "--raw", "/readyz"), "the API server", 120)


def _kubectl_succeeds(*arguments: str) -> bool:
    """Run kubectl against the cluster, and return whether its exit code is 0."""
    return succeeds("kubectl", "--kubeconfig", KUBECONFIG, *arguments)


def _start(name: str, *command: object) -> None:
    """Start a part in the cluster's network, unless it runs already."""
    if _pid(name) is not None:
        return
    with (LOGS / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            in_namespace(*command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Tests share two cores with these processes, so memory is cheaper than frequent garbage
            # collection.
            env={**os.environ, "GOGC": "300"},
        )
    (PIDS / name).write_text(str(process.pid))
    # A kernel without groups for sessions has no such file.
    with contextlib.suppress(OSError):
        Path(f"/proc/{process.pid}/autogroup").write_text(str(NICENESS))


def _pid(name: str) -> int | None:
    """Return the process id of a part if it runs; None if not, or if the id is another program's
    now."""
    try:
        pid = int((PIDS / name).read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if any(name.encode() in word for word in words) else None


def _stop(name: str) -> None:
    """End a part: by SIGTERM, and after 5 s by SIGKILL."""
    if (pid := _pid(name)) is not None:
        for sign, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
            deadline = time.monotonic() + patience
            while _pid(name) is not None and time.monotonic() < deadline:
                time.sleep(0.05)
    (PIDS / name).unlink(missing_ok=True)


def _remove_containers() -> set[str]:
    """Kill and remove all containers; return the names of their network namespaces."""
    networks: set[str] = set()
    if _pid("containerd") is None:
        return networks
    containers = run(*CTR, "containers", "list", "--quiet").split()
    for container in containers:
        about = run(*CTR, "containers", "info", container)
        networks |= {word for word in about.replace('"', "/").split("/") if word[:4] == "cni-"}
    tasks = run(*CTR, "tasks", "list", "--quiet").split()
    for task in tasks:
        succeeds(*CTR, "tasks", "kill", "--signal", "SIGKILL", "--all", task)
    for task in tasks:
        succeeds(*CTR, "tasks", "delete", "--force", task)
    for container in containers:
        succeeds(*CTR, "containers", "delete", container)
    return networks


_ETCD: Final = (
    "--name", "kit", "--data-dir", STATE / "etcd", "--unsafe-no-fsync", "--log-level", "warn",
    "--listen-client-urls", "http://127.0.0.1:2379",
    "--advertise-client-urls", "http://127.0.0.1:2379",
    "--listen-peer-urls", "http://127.0.0.1:2380",
    "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
    "--initial-cluster", "kit=http://127.0.0.1:2380",
)  # fmt: skip
_API_SERVER: Final = (
    "--etcd-servers", "http://127.0.0.1:2379",
    "--advertise-address", NODE_IP, "--bind-address", "0.0.0.0", "--secure-port", "6443",
    "--service-cluster-ip-range", SERVICE_CIDR, "--allow-privileged=true",
    "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
    "--client-ca-file", PKI / "ca.crt",
    "--tls-cert-file", PKI / "apiserver.crt", "--tls-private-key-file", PKI / "apiserver.key",
    "--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
    "--kubelet-client-certificate", PKI / "apiserver-kubelet-client.crt",
    "--kubelet-client-key", PKI / "apiserver-kubelet-client.key",
    "--kubelet-preferred-address-types", "InternalIP",
    "--proxy-client-cert-file", PKI / "front-proxy-client.crt",
    "--proxy-client-key-file", PKI / "front-proxy-client.key",
    "--requestheader-client-ca-file", PKI / "front-proxy-ca.crt",
    "--requestheader-allowed-names", "front-proxy-client",
    "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
    "--requestheader-group-headers", "X-Remote-Group",
    "--requestheader-username-headers", "X-Remote-User",
)  # fmt: skip
_CONTROLLER_MANAGER: Final = (
    "--kubeconfig", PKI / "controller-manager.kubeconfig",
    "--authentication-kubeconfig", PKI / "controller-manager.kubeconfig",
    "--authorization-kubeconfig", PKI / "controller-manager.kubeconfig",
    "--bind-address", "127.0.0.1", "--leader-elect=false",
    "--use-service-account-credentials=true", "--root-ca-file", PKI / "ca.crt",
    "--service-account-private-key-file", PKI / "sa.key",
    "--cluster-signing-cert-file", PKI / "ca.crt", "--cluster-signing-key-file", PKI / "ca.key",
)  # fmt: skip
_SCHEDULER: Final = (
    "--kubeconfig", PKI / "scheduler.kubeconfig",
    "--authentication-kubeconfig", PKI / "scheduler.kubeconfig",
    "--authorization-kubeconfig", PKI / "scheduler.kubeconfig",
    "--bind-address", "127.0.0.1", "--leader-elect=false",
)  # fmt: skip
_KUBELET: Final = (
    "--config", STATE / "kubelet.yaml", "--kubeconfig", PKI / "kubelet.kubeconfig",
    "--root-dir", STATE / "kubelet", "--hostname-override", NODE, "--node-ip", NODE_IP,
)  # fmt: skip
