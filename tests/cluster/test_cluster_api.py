"""The Kubernetes API keeps what `Cluster` promises, as the cluster in memory does."""

from __future__ import annotations

import kubernetes
import pytest
from support.cluster import Cluster as RealCluster
from support.cluster_contract import ClusterContract
from support.installation import Installation

from knafka_operator.kube_api.cluster import ApiCluster
from knafka_operator.model.cluster import Cluster


class TestKubernetes(ClusterContract):
    @pytest.fixture
    def tested(self, cluster: RealCluster, installed: Installation) -> Cluster:
        path = str(cluster.kubeconfig)
        return ApiCluster(kubernetes.config.new_client_from_config(path))  # type: ignore[no-untyped-call]
