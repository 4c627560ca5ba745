"""Jobs in processes of their own that are killed by SIGKILL in the middle."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

STAGES = ("3 dead-letter topics", "new dead letters", "folded into failures")
"""What a compaction says in the course of its run."""


def run_and_kill(
    command: Sequence[str], environment: Mapping[str, str], log: Path, after: str, delay: float
) -> None:
    """Run a job until so many seconds after it said that, or until it has ended by itself."""
    with log.open("a") as output:
        output.write(f"SIGKILL {delay:.1f} s after {after!r}\n")
        output.flush()
        begun = output.tell()
        job = subprocess.Popen(
            [sys.executable, "-m", "knafka_jobs", *command],
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    while after not in log.read_text()[begun:] and job.poll() is None:
        time.sleep(0.05)
    time.sleep(delay)
    with contextlib.suppress(ProcessLookupError):  # the last stage may be over by now
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
