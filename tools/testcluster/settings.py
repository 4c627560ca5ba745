"""Folders, addresses and versions of the test cluster; environment variables override the values of
`_setting`.

`KNAFKA_CLUSTER_HOME` is the folder of everything that is kept; the other names are those below with
`KNAFKA_CLUSTER_` before them. Standard library only: this runs before there is a virtual
environment.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final


def _setting(name: str, default: str) -> str:
    """Return the environment variable `KNAFKA_CLUSTER_`name, or the default."""
    return os.environ.get(f"KNAFKA_CLUSTER_{name}", default)


HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
HOME: Final = Path(_setting("HOME", "~/.cache/knafka/cluster")).expanduser().resolve()
BIN: Final = HOME / "bin"
IMAGES: Final = HOME / "images"  # archives that the node imports when it starts
STATE: Final = HOME / "state"  # etcd, containerd, kubelet: what `purge` removes
LOGS: Final = HOME / "log"
PKI: Final = STATE / "pki"
PIDS: Final = STATE / "pids"
KUBECONFIG: Final = HOME / "kubeconfig"
CONTAINERD: Final = STATE / "containerd.sock"

NETWORK_NAMESPACE: Final = _setting("NETNS", "knafka")
NODE: Final = _setting("NODE", "node1")
# 198.18.0.0/15 is set aside for tests (RFC 2544): it is nobody's address on the way out.
HOST_IP: Final = _setting("HOST_IP", "198.18.0.1")  # the machine, seen from the cluster
NODE_IP: Final = _setting("NODE_IP", "198.18.0.2")  # node, API server, registry, ingress
POD_CIDR: Final = _setting("POD_CIDR", "198.18.64.0/18")
SERVICE_CIDR: Final = _setting("SERVICE_CIDR", "198.19.0.0/16")
API_SERVICE_IP: Final = _setting("API_SERVICE_IP", "198.19.0.1")
DNS_IP: Final = _setting("DNS_IP", "198.19.0.10")
REGISTRY: Final = "registry.local:5000"
REGISTRY_ADDRESS: Final = f"{NODE_IP}:5000"
CGROUP: Final = f"/{NETWORK_NAMESPACE}-cluster"

KUBERNETES_VERSION: Final = "v1.35.4"  # of go/go.mod
SERVING_VERSION: Final = "v0.50.0"  # of go/go.mod
EVENTING_VERSION: Final = "v0.43.0"
EVENTING_CONFIG: Final = HOME / "eventing-config"  # its ConfigMaps and CRDs

_BEGAN = time.monotonic()


def say(text: str) -> None:
    """Print a line of progress to stderr, with the seconds since the command began."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", file=sys.stderr, flush=True)
