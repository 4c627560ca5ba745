"""Pages of docs/ as somebody follows them: blocks are taken out of a page and run by bash.

A block is what a page has indented by four spaces. Nothing of it is changed but the words that
`Shell.instead` lists, which on a page stand for the reader's own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from support.installation import ROOT

from knafka_cli.shared import dead_letter_jobs

BIN: Final = Path(sys.executable).parent


def blocks(page: str) -> Sequence[str]:
    """All of a page below docs/, in its order."""
    text = (ROOT / "docs" / page).read_text()
    found = re.findall(r"(?m)(?<=\n\n)(?: {4}.*\n(?:\n(?= {4}))*)+", text)
    return [textwrap.dedent(each).strip() for each in found]


def block(page: str, *begins: str) -> str:
    """The only one whose first lines begin so."""
    pattern = r".*\n".join(re.escape(each) for each in begins)
    (found,) = [each for each in blocks(page) if re.match(pattern, each)]
    return found


@dataclass(frozen=True, slots=True)
class Shell:
    """Somebody's who has a Java and a checkout with `make jobs` done."""

    folder: Path
    """It is their home, too."""
    kubeconfig: Path
    instead: Mapping[str, str]
    java_home: str

    @classmethod
    def opened(cls, folder: Path, kubeconfig: Path, instead: Mapping[str, str]) -> Shell:
        """In a folder with what a checkout and a home have; anything may be written there."""
        for name, target in {
            ".venv": BIN.parent,
            ".cache": Path("~/.cache").expanduser(),
            "crds": ROOT / "crds",
            "operator": ROOT / "operator",
            "examples/chat": ROOT / "examples" / "chat",
        }.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).symlink_to(target, target_is_directory=True)
        # Jars that Spark lacks are fetched, too, as by any command that needs them.
        java_home = dead_letter_jobs.spark_environment(print, s3=True)["JAVA_HOME"]
        return cls(folder, kubeconfig, instead, java_home)

    def written(self, text: str) -> str:
        """With their own words."""
        words = "|".join(re.escape(each) for each in sorted(self.instead, key=len, reverse=True))
        return re.sub(
            rf"(?<![\w-])(?:{words})(?![\w-])", lambda found: self.instead[found[0]], text
        )

    def run(self, *commands: str, within: float = 1_500.0) -> str:
        """What these blocks print, one after another in one shell; each of them has to succeed."""
        script = self.written("\n".join(commands))
        environment = {
            **os.environ,
            "HOME": str(self.folder),
            "JAVA_HOME": self.java_home,
            "KUBECONFIG": str(self.kubeconfig),
            "NO_PROXY": "*",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=within)
        except BaseException:
            # With all that it has started: a Spark would go on by itself.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        print(f"{textwrap.indent(script, '$ ')}\n{said}")
        if process.returncode:
            pytest.fail(f"exit code {process.returncode} of\n{script}\n{said}")
        return said
