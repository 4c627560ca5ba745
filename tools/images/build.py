"""Builds Knafka's container images from Debian packages and locked wheels, without an engine.

    python tools/images/build.py [--tag TAG] [--test | --jobs] [--compiled] [--push REGISTRY …]

    knafka             the functions: FUNCTION_TARGET says which; `python3 -m knafka`
    knafka-operator    the operator: `python3 -m knafka_operator`; the console of a cluster:
                       `python3 -m knafka_console`
    knafka-quickstart  the subscribers of examples/quickstart, under functions-framework
    knafka-channel-example
                       the same of examples/channel
    knafka-jobs        with --jobs, and no other: the dead-letter jobs, with Java and Spark
    knafka-test        with --test: subscribers, by themselves and under functions-framework
    knafka-test-func   with --test: a function under func's own runtime
    knafka-func        with --test: our functions as func's host builder makes an image of them

Archives go to build/images/ (for `docker load`, `ctr images import` or a push). Layers lie from
what changes least to what changes most: Python, dependencies, source. All byte code is compiled
here, since a container's user can't keep any, and compiling is what a cold start would wait for.
Needs Debian 12 (`apt-get download`), Python 3.11 and Go; no root.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
OUT: Final = ROOT / "build" / "images"
CACHE: Final = Path(
    os.environ.get("KNAFKA_IMAGES_HOME", "~/.cache/knafka/images")
).expanduser()  # layers and the image tool, which are built once and kept
REPOSITORY: Final = "registry.local:5000"  # the archives' registry; a push renames the image
USER: Final = "65532"  # by number: Knative and `runAsNonRoot` can't look names up
PYTHON: Final = "python3.11"

PACKAGES: Final = (
    "base-files libc6 libgcc-s1 libcrypt1 zlib1g libbz2-1.0 liblzma5 libssl3 libffi8 libsqlite3-0 "
    "libuuid1 libexpat1 libzstd1 media-types netbase tzdata ca-certificates busybox "
    "python3.11-minimal libpython3.11-minimal libpython3.11-stdlib tini"
).split()
JAVA_PACKAGES: Final = "openjdk-17-jre-headless libstdc++6 bash libtinfo6".split()
"""Debian packages that Spark needs, bash among them for its launcher."""
JAVA_HOME: Final = "/usr/lib/jvm/java-17"
UNUSED: Final = (
    "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian", "usr/share/bug",
    f"usr/lib/{PYTHON}/lib2to3", f"usr/lib/{PYTHON}/distutils", f"usr/lib/{PYTHON}/pydoc_data",
)  # fmt: skip
EXAMPLES: Final = {
    "knafka-quickstart": "quickstart",
    "knafka-channel-example": "channel",
    "knafka-sensor-example": "sensor",
    "knafka-chat-example": "chat",
}
"""Images of subscribers -> the folder of their example."""
FUNC_RUNTIME: Final = "func-python==0.8.1"


class ImageError(Exception):
    """An image can't be built; the text says why."""


def main(arguments: Sequence[str]) -> None:
    """Build the images that the command line names, and push them with `--push`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", default="latest")
    parser.add_argument("--test", action="store_true", help="the images of the tests too")
    parser.add_argument(
        "--jobs", action="store_true", help="only the image of the dead-letter jobs"
    )
    parser.add_argument("--push", metavar="REGISTRY", help="such as registry.example.com/team")
    parser.add_argument("--insecure", action="store_true", help="push over plain HTTP")
    parser.add_argument("--compiled", action="store_true", help="compile the functions' hot paths")
    chosen = parser.parse_args(arguments)
    if sys.version_info[:2] != (3, 11):
        raise ImageError("byte code for the image must come from Python 3.11: start this with it")
    OUT.mkdir(parents=True, exist_ok=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    if chosen.jobs:
        _jobs(chosen.tag)
        _finish(["knafka-jobs"], chosen)
        return
    names = ["knafka", "knafka-operator", *EXAMPLES]
    functions = _dependencies("functions")
    knafka = ["functions/knafka"]
    if chosen.compiled:
        _run("make", "compiled", cwd=ROOT)
        built = ROOT / "build" / "compiled" / "functions"
        knafka = [str(path) for path in (built / "knafka", *built.glob("*.so"))]
    _source("knafka", chosen.tag, functions, [*knafka, "functions/main.py"], "knafka")
    _source(
        "knafka-operator", chosen.tag, _dependencies("operator"),
        [
            "functions/knafka", "operator/knafka_operator", "local/knafka_console",
            "local/knafka_client", "spark_jobs/knafka_jobs",
        ],
        "knafka_operator",
    )  # fmt: skip
    for name, example in EXAMPLES.items():
        source = f"examples/{example}/subscriber/main.py"
        _source(name, chosen.tag, functions, [source], "functions_framework")
    if chosen.test:
        subscribers = "tools/testcluster/subscribers"
        _source(
            "knafka-test", chosen.tag, functions,
            [f"{subscribers}/subscriber.py", f"{subscribers}/framework_function.py"], "subscriber",
        )  # fmt: skip
        _source(
            "knafka-test-func", chosen.tag, _func_runtime(),
            [f"{subscribers}/func_function.py"], "func_function",
        )  # fmt: skip
        _build_as_func("knafka-func", chosen.tag)
        names += ["knafka-test", "knafka-test-func", "knafka-func"]
    _finish(names, chosen)


def _finish(names: Sequence[str], chosen: argparse.Namespace) -> None:
    """Print the built archives and their sizes, and push them with the option `--push`."""
    for name in names:
        archive = OUT / f"{name}.tar"
        print(f"{archive.relative_to(ROOT)}: {archive.stat().st_size / 1e6:.0f} MB", flush=True)
        if chosen.push:
            insecure = ["--insecure"] if chosen.insecure else []
            image = f"{chosen.push}/{name}:{chosen.tag}"
            print(_run(_tool(), "push", *insecure, archive, image), end="", flush=True)


def _jobs(tag: str) -> None:
    """Build the image of the dead-letter jobs."""
    path = ROOT / "requirements" / "spark_jobs.lock"
    of_hash = "--no-binary=pyspark", "--require-hashes", "-r", path  # it comes as source only
    base = _installed("spark_jobs", path.read_bytes(), *of_hash, base=_java())
    _source(
        "knafka-jobs", tag, base, ["functions/knafka", "spark_jobs/knafka_jobs"],
        "knafka_jobs.pod", "--env", f"JAVA_HOME={JAVA_HOME}",
        "--env", "SPARK_HOME=/app/dependencies/pyspark",
    )  # fmt: skip


def _source(
    name: str, tag: str, base: Path, sources: Sequence[str], module: str, *options: str
) -> None:
    """Build an image: our sources, compiled, over the layer `base`; it runs `module`."""
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "source"
        target.mkdir()
        for source in sources:
            where, path = target / Path(source).name, ROOT / source
            if path.is_dir():
                shutil.copytree(path, where, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(path, where)
        _compile(target, "/app/source")
        _build(
            f"{REPOSITORY}/{name}:{tag}", OUT / f"{name}.tar", base, {target: "/app/source"},
            "--user", USER, "--workdir", "/app", *options,
            "--env", "PYTHONPATH=/app/source:/app/dependencies",
            # A container's first process has no default action for signals, so a SIGTERM during
            # Python's own start would be lost, and the pod would live on for its grace period.
            "--entrypoint", "/usr/bin/tini-static", "--entrypoint", "--",
            "--entrypoint", "python3", "--entrypoint", "-m", "--entrypoint", module,
        )  # fmt: skip


def _dependencies(lock: str) -> Path:
    """Return the layer of the packages in requirements/`lock`.lock; it is built if missing."""
    path = ROOT / "requirements" / f"{lock}.lock"
    return _installed(lock, path.read_bytes(), "--require-hashes", "-r", path)


def _func_runtime() -> Path:
    """Return the layer of func's runtime, which can't be installed with functions-framework."""
    return _installed("func", FUNC_RUNTIME.encode(), FUNC_RUNTIME)


def _build_as_func(name: str, tag: str) -> None:
    """Build an image of our functions as func's host builder does; only Python and the files' owner
    differ."""
    with tempfile.TemporaryDirectory() as directory:
        function, build = Path(directory) / "func", ".func/builds/by-hash/test"
        ignored = shutil.ignore_patterns("__pycache__", ".func")
        shutil.copytree(ROOT / "functions", function, ignore=ignored)
        write_func_scaffolding(function / build, function)
        install_func_scaffolding(function / build)
        _build(
            f"{REPOSITORY}/{name}:{tag}", OUT / f"{name}.tar", _python(), {function: "/func"},
            "--user", "1000:1000", "--workdir", "/func/",
            "--env", f"PYTHONPATH=/func/{build}/lib", "--env", "LISTEN_ADDRESS=[::]:8080",
            "--entrypoint", "python", "--entrypoint", f"/func/{build}/service/main.py",
        )  # fmt: skip


def install_func_scaffolding(folder: Path) -> None:
    """Install the project in `folder` and its dependencies into its `lib`, as func does by pip."""
    _run(
        # By uv, which takes a second where pip takes ten. It would take a folder for unchanged if
        # its pyproject.toml is, so both packages are refreshed.
        sys.executable, "-m", "uv", "--quiet", "pip", "install", "--python", sys.executable,
        "--target", "lib", "--link-mode=hardlink", "--refresh-package=function",
        "--refresh-package=service", ".", cwd=folder,
    )  # fmt: skip


def write_func_scaffolding(folder: Path, function: Path) -> None:
    """Write into `folder` the project that func's host builder generates for a Python function
    whose `invoke` is http; `function` is the function's folder, which may contain `folder` (FN-5,
    FN-13)."""
    (folder / "service").mkdir(parents=True)
    (folder / "f").symlink_to(os.path.relpath(function, folder))
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "service"\nversion = "0.1.0"\nrequires-python = ">=3.10"\n'
        f'dependencies = ["{FUNC_RUNTIME}", "function @ {{root:uri}}/f"]\n\n'
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        "[tool.hatch.metadata]\nallow-direct-references = true\n"
    )
    (folder / "service" / "__init__.py").touch()
    (folder / "service" / "main.py").write_text(
        "from func_python.http import serve\nfrom function import new\n\n"
        'if __name__ == "__main__":\n    serve(new)\n'
    )


def _installed(name: str, inputs: bytes, *what: object, base: Path | None = None) -> Path:
    """Return the layer of packages that pip installs with the options `what`, over `base` (Python's
    if None); it is built if `inputs` or the base have changed."""
    base = base or _python()
    archive = CACHE / f"{name}-{_digest(inputs, base.name.encode())}.tar"
    if not archive.exists():
        print(f"installing the dependencies of {name}", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            target = Path(directory) / "dependencies"
            _run(
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                "--no-compile", "--only-binary=:all:", "--target", target, *what,
            )  # fmt: skip
            for unused in [target / "bin", *target.rglob("__pycache__"), *target.rglob("*.pyi")]:
                shutil.rmtree(unused) if unused.is_dir() else unused.unlink()
            _compile(target, "/app/dependencies")
            _build("knafka/dependencies", archive, base, {target: "/app/dependencies"})
    return archive


def _java() -> Path:
    """Return the layer of Java and of Spark's jars, over Python's; it is built if missing."""
    sys.path[:0] = [str(ROOT / folder) for folder in ("functions", "local")]
    # It needs requirements/local.lock.
    from knafka_local.kafka.kafka_distribution import obtain_for_spark

    python, jars_of = _python(), ROOT / "local" / "knafka_local" / "kafka"
    pins = b"".join((jars_of / f"{name}.sha256").read_bytes() for name in ("spark", "s3"))
    recipe = (inspect.getsource(_unpack_java), *JAVA_PACKAGES, *UNUSED, python.name)
    digest = _digest(*(part.encode() for part in recipe), pins)
    archive = CACHE / f"java-{digest}.tar"
    if not archive.exists():
        print("unpacking Java from Debian's packages, and fetching jars", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            root, jars = Path(directory) / "root", Path(directory) / "jars"
            _unpack_java(root, Path(directory))
            jars.mkdir()
            for jar in obtain_for_spark(s3=True, progress=print):
                shutil.copy(jar, jars)
            _build("knafka/java", archive, python, {root: "/", jars: "/app/jars"})
    return archive


def _unpack_java(root: Path, packages: Path) -> None:
    """Unpack Java's packages without their scripts, and write Java's store of authorities."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
    from cryptography.x509 import load_pem_x509_certificates

    _run("apt-get", "download", "--quiet", *JAVA_PACKAGES, "ca-certificates", cwd=packages)
    certificates = packages / "authorities"
    for package in sorted(packages.glob("*.deb")):
        of_authorities = package.name.startswith("ca-certificates_")
        _run("dpkg-deb", "--extract", package, certificates if of_authorities else root)
    for unused in UNUSED:
        shutil.rmtree(root / unused, ignore_errors=True)
    (home,) = (root / "usr" / "lib" / "jvm").glob("java-17-openjdk-*")
    (root / JAVA_HOME.lstrip("/")).symlink_to(home.name)
    (root / "usr" / "bin").mkdir(exist_ok=True)
    (root / "usr" / "bin" / "env").symlink_to("/bin/busybox")  # for the launcher's #!/usr/bin/env
    authorities = certificates / "usr" / "share" / "ca-certificates"
    pem = b"".join(each.read_bytes() for each in sorted(authorities.rglob("*.crt")))
    trusted = [
        pkcs12.PKCS12Certificate(each, str(number).encode())
        for number, each in enumerate(load_pem_x509_certificates(pem))
    ]
    store = root / "etc" / "ssl" / "certs" / "java" / "cacerts"
    store.parent.mkdir(parents=True, exist_ok=True)
    # Java's default password: the store has no secrets.
    password = BestAvailableEncryption(b"changeit")
    store.write_bytes(pkcs12.serialize_java_truststore(trusted, password))


def _python() -> Path:
    """Return the layer of Python without the rest of Debian; it is built if missing."""
    recipe = (inspect.getsource(_unpack_python), *PACKAGES, *UNUSED)
    archive = CACHE / f"python-{_digest(*(part.encode() for part in recipe))}.tar"
    if not archive.exists():
        print(f"unpacking {PYTHON} from Debian's packages", flush=True)
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory) / "root"
            _unpack_python(root, Path(directory))
            _compile(root / "usr" / "lib" / PYTHON, f"/usr/lib/{PYTHON}")
            _build(
                "knafka/python", archive, None, {root: "/"},
                "--env", "PYTHONUNBUFFERED=1", "--env", "LANG=C.UTF-8",
            )  # fmt: skip
    return archive


def _unpack_python(root: Path, packages: Path) -> None:
    """Unpack Python's packages without running their scripts, and do here what these would do."""
    _run("apt-get", "download", "--quiet", *PACKAGES, cwd=packages)
    for package in sorted(packages.glob("*.deb")):
        _run("dpkg-deb", "--extract", package, root)
    for unused in UNUSED:
        shutil.rmtree(root / unused, ignore_errors=True)
    for place in ("tmp", "proc", "sys", "dev", "app"):
        (root / place).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    for name in ("python3", "python"):
        (root / "usr" / "bin" / name).symlink_to(PYTHON)
    for applet in _run(root / "bin" / "busybox", "--list").split():
        if not (root / "bin" / applet).exists():
            (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text(
        f"root:x:0:0:root:/root:/bin/sh\nnonroot:x:{USER}:{USER}::/tmp:/bin/sh\n"
    )
    (root / "etc" / "group").write_text(f"root:x:0:\nnonroot:x:{USER}:\n")
    authorities = sorted((root / "usr" / "share" / "ca-certificates").rglob("*.crt"))
    bundle = root / "etc" / "ssl" / "certs" / "ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(b"".join(certificate.read_bytes() for certificate in authorities))


def _compile(directory: Path, inside: str) -> None:
    """Compile a folder, which the image has at `inside`, to byte code that ignores the files'
    times, which layers don't keep."""
    _run(
        sys.executable, "-m", "compileall", "-q", "-j0", "--invalidation-mode", "unchecked-hash",
        "-s", directory, "-p", inside, directory,
    )  # fmt: skip


def _build(
    name: str, archive: Path, base: Path | None, add: dict[Path, str], *options: str
) -> None:
    """Write an image's archive: the folders `add`, at these paths, over the image `base`."""
    trees = [word for source, target in add.items() for word in ("--add", f"{source}:{target}")]
    start = ["--base", base] if base else []
    part = archive.with_suffix(".part")
    _run(_tool(), "build", "-t", name, "-o", part, *start, *trees, *options)
    part.replace(archive)


def _tool() -> Path:
    """Return the image tool; it is compiled if its source has changed (1 to 10 seconds)."""
    source = Path(__file__).resolve().parent / "tool"
    digest = _digest(*(path.read_bytes() for path in sorted(source.iterdir())))
    tool = CACHE / f"image-{digest}"
    if not tool.exists():
        environment = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
        _run(
            "go", "-C", source, "build", "-trimpath", "-ldflags=-s -w", "-o", tool, ".",
            environment=environment,
        )  # fmt: skip
    return tool


def _digest(*parts: bytes) -> str:
    """Return 16 hexadecimal digits that identify these parts."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _run(
    *command: object, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True
    )
    if done.returncode:
        raise ImageError(f"{' '.join(words)[:200]}: code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ImageError as error:
        sys.exit(f"error: {error}")
