"""Builds the cluster's programs and images from Debian packages and Go modules.

Compiling takes minutes when Go's caches are empty, so each program is kept with the digest of what
it was made from, and made again only when that changes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from testcluster.settings import (
    BIN,
    EVENTING_CONFIG,
    EVENTING_VERSION,
    HERE,
    HOME,
    IMAGES,
    KUBERNETES_VERSION,
    REGISTRY,
    ROOT,
    SERVING_VERSION,
    say,
)
from testcluster.shell import ClusterError, run, succeeds

PACKAGES: Final = (
    "containerd", "runc", "containernetworking-plugins", "nftables", "iptables", "conntrack",
    "iproute2", "util-linux",
)  # fmt: skip
GO: Final = HERE / "go"
IMAGE_TOOL: Final = ROOT / "tools" / "images" / "tool"
SERVING: Final = ("activator", "autoscaler", "controller", "webhook", "queue")
SERVING_COMMANDS: Final = "knative.dev/serving/cmd"
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")

# Compiling queue-proxy with empty caches takes 98 CPU-seconds without either of these options, 81
# with the first and 70 with both.
_NO_DEBUGGER: Final = "-gcflags=all=-dwarf=false"
_GO_ENVIRONMENT: Final = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-buildvcs=false",
    "GOGC": os.environ.get("GOGC", "off"),  # compilers end before garbage collection pays
    "GOMEMLIMIT": os.environ.get("GOMEMLIMIT", "3GiB"),  # memory of each compiler
}


def build() -> None:
    """Build all programs and images that are missing or out of date. Waits for another build that
    runs at the same time."""
    for directory in (BIN, IMAGES):
        directory.mkdir(parents=True, exist_ok=True)
    with _alone():
        _install_packages()
        _go(IMAGE_TOOL, "image")
        _go(GO, "pause", "./pause")
        _go(GO, "kit", "./kit", link=_kubernetes_version())
        for program in SERVING:
            _go(GO, program, f"{SERVING_COMMANDS}/{program}")
        _image("pause", "kit.local/pause:1", "/pause")
        for program in SERVING:
            name = f"{REGISTRY}/knative/{program}:{SERVING_VERSION}"
            _image(program, name, f"/ko-app/{program}")


def build_queue_proxy() -> Path:
    """Build only Knative Serving's queue-proxy, and return the program's path; `make bench` runs it
    in front of a receiver."""
    BIN.mkdir(parents=True, exist_ok=True)
    with _alone():
        _go(GO, "queue", f"{SERVING_COMMANDS}/queue")
    return BIN / "queue"


def build_eventing() -> None:
    """Build Knative Eventing's controller and the Kubernetes programs, and copy Eventing's
    ConfigMaps and CRDs.

    Not a part of the cluster: tests/integration/test_knative_eventing runs it.
    """
    BIN.mkdir(parents=True, exist_ok=True)
    with _alone():
        _go(GO, "kit", "./kit", link=_kubernetes_version())
        program, digest = BIN / "eventing-controller", _digest(EVENTING_VERSION.encode())
        if _is_made(program, digest):
            return
        say("compiling eventing-controller")
        with tempfile.TemporaryDirectory() as copied:
            # A copy, as the Go module cache is read-only; it needs no go.mod of ours, since
            # Eventing's own replaces nothing.
            source = Path(copied) / "eventing"
            shutil.copytree(eventing_source(), source, ignore=shutil.ignore_patterns("vendor"))
            run("chmod", "-R", "u+w", source)
            options = ["-mod=mod", "-trimpath", _NO_DEBUGGER, "-ldflags=-s -w"]
            run(
                "go", "-C", source, "build", *options, "-o", program, "./cmd/controller",
                environment=_GO_ENVIRONMENT,
            )  # fmt: skip
            for folder in ("configmaps", "resources"):
                ignored = shutil.ignore_patterns("*.go")
                config = EVENTING_CONFIG / folder
                shutil.copytree(
                    source / "config" / "core" / folder, config, ignore=ignored, dirs_exist_ok=True
                )
        _made(program, digest)


def eventing_source() -> Path:
    """Return the folder of Knative Eventing in the Go module cache, CRDs included; it is fetched if
    missing."""
    module = f"knative.dev/eventing@{EVENTING_VERSION}"
    return Path(json.loads(run("go", "mod", "download", "-json", module))["Dir"])


def module_directory(module: str) -> Path:
    """Return the folder in the Go module cache of a module that Serving needs; it is fetched if
    missing."""
    download = json.loads(run("go", "-C", GO, "mod", "download", "-json", module))
    return Path(download["Dir"])


@contextmanager
def _alone() -> Iterator[None]:
    """Hold a lock during the block, so that only one process builds at a time."""
    with (HOME / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of the test cluster to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install_packages() -> None:
    """Install the missing Debian packages; raises `ClusterError` if Go or kubectl is missing."""
    missing = [package for package in PACKAGES if not succeeds("dpkg", "-s", package)]
    if missing:
        say(f"installing {' '.join(missing)} from Debian's packages")
        run("apt-get", "update", "-q")
        run(
            "apt-get", "install", "-q", "-y", "--no-install-recommends", *missing,
            environment={"DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
    for program, whence in (("go", "Go 1.26 or newer"), ("kubectl", "kubectl")):
        if shutil.which(program) is None:
            raise ClusterError(f"there is no `{program}` here: install {whence}")


def _kubernetes_version() -> str:
    """Return linker options that set the version; without them Knative takes the API server for too
    old."""
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    values = {
        "gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor,
        "gitTreeState": "clean", "gitCommit": "kit", "buildDate": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{k}={v}" for package in packages for k, v in values.items())


def _go(module: Path, program: str, package: str = ".", link: str = "") -> None:
    """Compile a package of a Go module to a program in `BIN`, unless it is up to date; `link` are
    linker options. A package of the module itself is named by its folder, as in `./kit`."""
    sources = sorted((*module.glob("go.*"), *(module / package).glob("*.go")))
    options = ["-trimpath", "-tags=grpcnotrace", _NO_DEBUGGER, f"-ldflags=-s -w {link}"]
    digest = _digest(*(word.encode() for word in options), *(p.read_bytes() for p in sources))
    if not _is_made(BIN / program, digest):
        say(f"compiling {program}")
        new = BIN / f".{program}.new"
        run(
            "go", "-C", module, "build", *options, "-o", new, package,
            environment=_GO_ENVIRONMENT,
        )  # fmt: skip
        new.replace(BIN / program)  # not overwritten: a running program keeps its old file
        _made(BIN / program, digest)


def _image(program: str, name: str, path: str) -> None:
    """Build an image named `name` with a program at `path`, unless it is up to date."""
    archive = IMAGES / f"{program}.tar"
    digest = _digest(name.encode(), _stamp(BIN / program).read_bytes())
    if not _is_made(archive, digest):
        run(
            BIN / "image", "build", "-t", name, "-o", archive, "--user", "65532",
            "--add", f"{BIN / program}:{path}", "--add", f"{CERTIFICATES}:{CERTIFICATES}",
            "--env", "KO_DATA_PATH=/var/run/ko", "--entrypoint", path,
        )  # fmt: skip
        _made(archive, digest)


def _digest(*parts: bytes) -> str:
    """Return a digest that identifies these parts."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _stamp(path: Path) -> Path:
    """Return the file that has the digest of what `path` was built from."""
    return path.with_name(f".{path.name}.made-from")


def _is_made(path: Path, digest: str) -> bool:
    """Whether a file exists and was built from what has this digest."""
    return path.exists() and _stamp(path).exists() and _stamp(path).read_text() == digest


def _made(path: Path, digest: str) -> None:
    """Note the digest of what a file was built from."""
    _stamp(path).write_text(digest)
