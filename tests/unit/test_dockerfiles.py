"""The Dockerfiles: the gate has no container engine, so they are checked by reading them."""

from __future__ import annotations

import ast
import json
import re
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = ("functions/Dockerfile", "operator/Dockerfile")
JOBS = "spark_jobs/Dockerfile"


def instructions(dockerfile: str, lock: str | None = None) -> list[tuple[str, str]]:
    """Instruction and arguments, continued lines joined, comments left out.

    `lock` is the build argument LOCK; None: the Dockerfile's own.
    """
    text = re.sub(r"(?m)^\s*#.*\n", "", (ROOT / dockerfile).read_text()).replace("\\\n", " ")
    default = re.search(r"(?m)^ARG LOCK=(\S+)$", text)
    assert default is not None
    text = text.replace("${LOCK}", lock or default[1])
    lines = (line.strip() for line in text.splitlines())
    return [
        (name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line)
    ]


@pytest.mark.parametrize(
    ("dockerfile", "suffix"), [*product(DOCKERFILES, ("", "-aws")), (JOBS, "")]
)
def test_what_is_copied_is_there_and_not_ignored(dockerfile: str, suffix: str) -> None:
    allowed = {
        line[1:].removesuffix("/**")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [
        words.split()[0]
        for name, words in instructions(dockerfile, Path(dockerfile).parent.name + suffix)
        if name == "COPY" and not words.startswith("--from")
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(Path(source).match(pattern) for pattern in allowed), source


@pytest.mark.parametrize("dockerfile", [*DOCKERFILES, JOBS])
def test_dependencies_are_those_of_a_lock_and_checked_by_hash(dockerfile: str) -> None:
    found = [words for name, words in instructions(dockerfile) if "pip install" in words]
    assert len(found) == (2 if dockerfile == JOBS else 1)
    for installs in found:
        assert "--require-hashes" in installs
        assert "--only-binary=:all:" in installs
        lock = Path(installs.split(" -r ")[1].split()[0]).name
        pinned = (ROOT / "requirements" / lock).read_text()
        assert re.search(r"^[a-z][\w.-]*==[^ ]+ \\\n    --hash=sha256:", pinned, re.MULTILINE)


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_with_aws_it_has_the_signer_of_tokens_and_else_not(dockerfile: str) -> None:
    """docs/decisions/0020"""
    for suffix, has in (("", False), ("-aws", True)):
        lock = Path(dockerfile).parent.name + suffix
        pinned = (ROOT / "requirements" / f"{lock}.lock").read_text()
        assert ("\naws-msk-iam-sasl-signer-python==" in pinned) is has


@pytest.mark.parametrize("dockerfile", [*DOCKERFILES, JOBS])
def test_it_starts_as_the_images_that_the_gate_runs_do(dockerfile: str) -> None:
    """tools/images/build.py: the user, the paths, and tini before Python."""
    built = (ROOT / "tools/images/build.py").read_text()
    last = dict(instructions(dockerfile))
    assert f'USER: Final = "{last["USER"]}"' in built
    path = re.search(r"PYTHONPATH=(\S+)", last["ENV"])
    assert path is not None
    assert f'"PYTHONPATH={path[1]}"' in built
    tini, dashes, python, option, module = json.loads(last["ENTRYPOINT"])
    assert (Path(tini).name, dashes, python, option) == ("tini", "--", "python3", "-m")
    file = module.replace(".", "/")
    assert [*ROOT.glob(f"*/{file}/__main__.py"), *ROOT.glob(f"*/{file}.py")] != []
    if dockerfile == JOBS:
        # What a pod would otherwise have to find or fetch.
        assert f'"{module}"' in built
        spark = re.search(r"SPARK_HOME=(\S+)", last["ENV"])
        java = re.search(r"JAVA_HOME=(\S+)", last["ENV"])
        assert spark is not None
        assert java is not None
        assert f'"SPARK_HOME={spark[1]}"' in built
        assert f'JAVA_HOME: Final = "{java[1]}"' in built


def test_every_image_that_an_example_names_is_built_from_its_subscribers() -> None:
    """By the tool that needs no engine, so that every example can be tried on a cluster."""
    named = {
        (folder.name, image)
        for folder in (ROOT / "examples").iterdir()
        for manifest in folder.glob("*.yaml")
        for image in re.findall(r"image: (\S+):latest", manifest.read_text())
    }
    tool = (ROOT / "tools/images/build.py").read_text()
    declared = re.search(r"^EXAMPLES: Final = (\{.*?\})$", tool, re.MULTILINE | re.DOTALL)
    assert declared is not None
    built = ast.literal_eval(declared[1])
    assert named == {(example, image) for image, example in built.items()}
    for example, _ in named:
        assert (ROOT / "examples" / example / "subscriber" / "main.py").is_file()
