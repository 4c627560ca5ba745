"""A real cluster for the tests: `python -m testcluster COMMAND`, with tools/ on PYTHONPATH.

    build         compile and package what it needs; minutes at first, seconds later
    up            build, start Kubernetes and Knative Serving, print where the kubeconfig is
    eventing      compile Knative Eventing's controller, which one test runs without the cluster
    images [TAG]  build our images, the tests' too, and push them into its registry
    jobs [TAG]    build the image of the dead-letter jobs, 0.6 GB, and push it
    api-server ACT  `stop` it alone, what runs in the cluster runs on; or `start` it again
    down          stop it; what it knew stays, and `up` resumes
    purge         down, and delete its state; programs and Go's caches stay

README.md says what it is made of and how it is kept.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys

from testcluster import knative, node
from testcluster.build import build, build_eventing
from testcluster.settings import KUBECONFIG, REGISTRY_ADDRESS, ROOT, say
from testcluster.shell import ClusterError

IMAGE_RECIPES = ROOT / "tools" / "images" / "build.py"


def main(command: str = "", argument: str = "") -> None:
    """Carry out one command. Raises `ClusterError`, also for an unknown one."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        raise ClusterError("the test cluster needs Linux and root; or set KUBECONFIG to another")
    match command:
        case "build":
            build()
        case "eventing":
            build_eventing()
        case "up":
            build()
            node.start()
            knative.install()
            print(f"export KUBECONFIG={KUBECONFIG}")
        case "images":
            push_images("--test", argument or "latest")
        case "jobs":
            push_images("--jobs", argument or "latest")
        case "api-server" if argument == "stop":
            node.stop_api_server()
        case "api-server" if argument == "start":
            node.start_api_server()
        case "down":
            node.stop()
        case "purge":
            node.stop()
            node.purge()
        case _:
            raise ClusterError(f"no such command: {command}\n{__doc__}")
    say(f"{command}: done")


def push_images(which: str, tag: str) -> None:
    """Build images (`which`: an option of tools/images/build.py) and push them to the cluster's
    registry."""
    options = [which, "--tag", tag, "--push", REGISTRY_ADDRESS, "--insecure"]
    if subprocess.run([sys.executable, IMAGE_RECIPES, *options], stdout=sys.stderr).returncode:
        raise ClusterError("the images could not be built")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except ClusterError as error:
        sys.exit(f"error: {error}")
