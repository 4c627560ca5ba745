"""The console as a function of the cluster (decision 0025): each viewer sees and does what the
viewer's own token may."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.gate import only_chaos
from support.installation import ROOT, Installation

from knafka_console.web.server import CHANGE_HEADER
from knafka_console.web.sign_in import NAMESPACES_COOKIE

pytestmark = pytest.mark.usefixtures("brokers_go")

NAME = "knafka-console"


class Console:
    """The function at its address, from zero if it must."""

    def __init__(self, installed: Installation, namespace: str) -> None:
        self._cluster = installed.cluster
        self._namespace = namespace
        for file in ("rbac.yaml", "service.yaml"):
            manifests = (ROOT / "operator" / "deploy" / "console" / file).read_text()
            manifests = manifests.replace(
                ": knafka-operator:latest", f": {self._cluster.image('knafka-operator')}"
            )
            self._cluster.apply(manifests)
        installed.until_ready("ksvc", NAME, OPERATOR_NAMESPACE)
        status = installed.status("ksvc", NAME, OPERATOR_NAMESPACE)
        self._host = urlsplit(status["url"]).netloc

    def viewer(self, name: str, *roles: str) -> str:
        """A token of one who has these roles in the namespace."""
        of = ("-n", self._namespace)
        self._cluster.kubectl("create", "serviceaccount", name, *of)
        for role in roles:
            self._cluster.kubectl(
                "create", "rolebinding", f"{name}-{role}", f"--clusterrole={role}",
                f"--serviceaccount={self._namespace}:{name}", *of,
            )  # fmt: skip
        return self._cluster.kubectl("create", "token", name, *of).strip()

    def ask(self, token: str, path: str, method: str = "GET") -> httpx.Response:
        headers = {"cookie": f"{NAMESPACES_COOKIE}={self._namespace}", CHANGE_HEADER: "1"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        return self._cluster.request(self._host, path, method=method, headers=headers)

    def triggers(self, token: str) -> list[dict[str, Any]]:
        answer = self.ask(token, "/api/state")
        found: list[dict[str, Any]] = answer.json()["triggers"] if answer.is_success else []
        return found


@only_chaos
def test_each_viewer_sees_and_does_what_the_viewers_token_may(
    installed: Installation, cluster: Cluster, namespace: str
) -> None:
    console = Console(installed, namespace)
    subscriber = installed.subscriber(namespace)
    address = installed.broker(namespace)
    installed.trigger(namespace, "all", subscriber.ref)
    for number in range(3):
        assert installed.send(address, str(number)).status_code == 202
    subscriber.wait_for(3)

    ada = console.viewer("ada", "knafka-console-viewer")
    (shown,) = cluster.wait_for(
        lambda: [
            each for each in console.triggers(ada) if (each["delivered"], each["lag"]) == (3, 0)
        ],
        60, "the console shows that all were delivered",
    )  # fmt: skip
    assert (shown["namespace"], shown["name"]) == (namespace, "all")
    (broker,) = console.ask(ada, "/api/state").json()["brokers"]
    assert (broker["name"], broker["accepted"]) == ("default", 3)

    pause = f"/api/triggers/{namespace}/all/pause"
    assert console.ask("", "/api/state").status_code == 401
    nobody = console.ask(console.viewer("eve"), "/api/state").json()
    assert (nobody["brokers"], nobody["triggers"]) == ([], [])
    assert any("forbidden" in each for each in nobody["problems"]), "it is said why"
    assert console.ask(ada, pause, "POST").status_code == 403
    editor = console.viewer("bob", "knafka-console-viewer", "knafka-console-editor")
    assert console.ask(editor, pause, "POST").is_success
    cluster.wait_for(
        lambda: console.triggers(ada)[0]["health"] == "paused", 60, "the Trigger is paused"
    )
