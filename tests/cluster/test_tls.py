"""TLS on a real Kubernetes: trust bundles are mounted, and a receiver ends TLS itself."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from support.cluster import OPERATOR_NAMESPACE, Cluster
from support.installation import READY, ROOT, Installation
from support.web_certificates import WebAuthority

DEPLOY = ROOT / "operator" / "deploy"
FEATURES = "tls-features"

pytestmark = [pytest.mark.timeout(300), pytest.mark.alone]


@contextmanager
def components(cluster: Cluster) -> Iterator[None]:
    """Their rights; what they set is the test's to set."""
    paths = [str(DEPLOY / each / "rbac.yaml") for each in ("trust-bundles", "tls")]
    try:
        for path in paths:
            cluster.kubectl("apply", "-f", path)
        yield
    finally:
        for path in paths:
            cluster.kubectl("delete", "-f", path, "--ignore-not-found")
        cluster.kubectl(
            *("delete", "configmap", FEATURES, "corporate", "--ignore-not-found"),
            *("-n", OPERATOR_NAMESPACE),
        )


def test_events_come_in_by_tls_and_dispatchers_mount_the_bundles(
    installed: Installation, namespace: str
) -> None:
    cluster, authority = installed.cluster, WebAuthority("one")
    host = f"default-kn-receiver-tls.{namespace}.svc.cluster.local"

    def config_map(name: str, labels: dict[str, str], **data: str) -> None:
        metadata = {"name": name, "namespace": OPERATOR_NAMESPACE, "labels": labels}
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        cluster.apply(document)

    with components(cluster):
        config_map(FEATURES, {}, **{"transport-encryption": "permissive"})
        labels = {"networking.knative.dev/trust-bundle": "true"}
        config_map("corporate", labels, **{"ca.crt": authority.certificate})
        secret = {"name": "receiver-tls", "namespace": namespace}
        files = authority.files(host)
        cluster.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "stringData": files}
        )
        features = f"{OPERATOR_NAMESPACE}/{FEATURES}"
        with installed.settings(KNAFKA_FEATURES=features, KNAFKA_TRUST_BUNDLES=OPERATOR_NAMESPACE):
            annotations = {
                "knafka.dev/tls-secret": "receiver-tls",
                "autoscaling.knative.dev/min-scale": "1",
            }
            installed.broker(namespace, annotations=annotations)
            subscriber = installed.subscriber(namespace)
            installed.trigger(namespace, "mail", subscriber.ref)
            cluster.wait_for(
                lambda: installed.status("broker", "default", namespace).get("addresses"),
                READY, "an https address",
            )  # fmt: skip
            https, plain = installed.status("broker", "default", namespace)["addresses"]
            assert https["CACerts"] == authority.certificate
            assert (plain["name"], https["url"]) == ("http", f"https://{host}/{namespace}/default")
            service = cluster.get("service", "default-kn-receiver-tls", namespace)
            assert service is not None
            url = https["url"].replace(host, service["spec"]["clusterIP"])
            context = ssl.create_default_context(cadata=authority.certificate)
            headers = {"ce-specversion": "1.0", "ce-type": "t", "ce-source": "/s", "ce-id": "1"}
            with httpx.Client(verify=context) as client:
                extensions = {"sni_hostname": host}
                answer = client.post(url, headers=headers, extensions=extensions)
            assert answer.status_code == 202
            subscriber.wait_for(1)
            assert subscriber.ids() == ["1"]
            copy = cluster.get("configmap", "knafka-trust-bundle", namespace)
            assert copy is not None
            assert copy["data"]["bundle.pem"] == authority.certificate
            for each in ("trigger", "broker"):
                cluster.kubectl("delete", each, "--all", "-n", namespace, "--timeout=90s")
