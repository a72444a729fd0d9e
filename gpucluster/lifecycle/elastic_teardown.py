"""Remove elastic nodes before Terraform removes what they need: their pool, their subnet, or the whole cluster.

Terraform does not know elastic nodes, and can't delete a network or a compute cluster that they are in. The autoscaler
is stopped first, so that it launches no others, and the owners of the jobs on these nodes are notified.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpucluster.cloud.elastic_instances import ElasticInstances
from gpucluster.operations.controller import ControllerConnection
from gpucluster.spec import ClusterSpec
from gpucluster.terraform.plan import TerraformPlan
from gpucluster.workspace.run import Run


class ElasticTeardown:
    """Removes the elastic nodes and builders of one cluster.

    Args:
        elastic: makes the client of elastic instances; only called after the cloud was started.
    """

    def __init__(
        self, spec: ClusterSpec, elastic: Callable[[], ElasticInstances], controller: ControllerConnection
    ) -> None:
        self._spec = spec
        self._elastic = elastic
        self._controller = controller

    def remove_obstacles(self, plan: TerraformPlan) -> None:
        """Remove the nodes whose pool is no longer elastic, and those that block a plan of Terraform."""
        elastic = self._elastic()
        present = elastic.instances()
        lost = set(re.findall(r'module\.pool\["([^"]+)"\]', " ".join(plan.lost("oci_core_compute_cluster"))))
        everywhere = bool(plan.lost("oci_core_subnet"))
        desired = self._spec.elastic_pools
        pools = {item.pool for item in present if everywhere or item.pool in lost or item.pool not in desired}
        if pools:
            nodes = [instance.node for instance in present if instance.pool in pools and not instance.builder]
            # Ansible starts the autoscaler again later, with the new policy, or uninstalls it.
            self._controller.stop_autoscaler(nodes, f"pool {', '.join(sorted(pools))} is being removed")
            elastic.remove(lambda instance: instance.pool in pools)

    def remove_all(self, run: Run) -> None:
        """Remove all elastic nodes of the cluster."""
        with run.phase("elastic nodes"):
            elastic = self._elastic()
            nodes = [instance.node for instance in elastic.instances() if not instance.builder]
            self._controller.stop_autoscaler(nodes, "the cluster is being removed")
            elastic.remove()
