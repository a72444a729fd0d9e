"""Elastic nodes that are in the way: the cluster goes, or the ground that they stand on.

Terraform does not know them, and can't delete what they stand in. The autoscaler is stopped first, so that it launches
no others, and jobs on the nodes that go are told.
"""

from __future__ import annotations

import re

from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.operations.controller import Controller
from gpucluster.terraform.plan import Plan
from gpucluster.workspace.run import Run


class Withdrawal:
    """Removes the elastic nodes and builders of one cluster."""

    def __init__(self, tools: Toolbox, controller: Controller) -> None:
        self._tools = tools
        self._controller = controller

    def make_way(self, plan: Plan) -> None:
        """Remove those that the wish has no place for any more, and those that hinder a plan of Terraform."""
        elastic = self._tools.elastic()
        here = elastic.instances()
        lost = set(re.findall(r'module\.pool\["([^"]+)"\]', " ".join(plan.lost("oci_core_compute_cluster"))))
        everywhere = bool(plan.lost("oci_core_subnet"))
        wished = self._tools.spec.elastic_pools
        pools = {one.pool for one in here if everywhere or one.pool in lost or one.pool not in wished}
        if pools:
            nodes = [one.node for one in here if one.pool in pools and not one.builder]
            # The next run of the autoscaler is with the new policy: Ansible starts it again, or takes it away.
            self._controller.stop_autoscaler(nodes, f"pool {', '.join(sorted(pools))} is being removed")
            elastic.remove(lambda one: one.pool in pools)

    def remove_all(self, run: Run) -> None:
        """Remove every one of the cluster."""
        with run.phase("elastic nodes"):
            elastic = self._tools.elastic()
            nodes = [one.node for one in elastic.instances() if not one.builder]
            self._controller.stop_autoscaler(nodes, "the cluster is being removed")
            elastic.remove()
