"""The dashboards: what each one shows, as panels and their queries.

Queries use the recording rules of `ansible/roles/monitoring/files/rules` wherever there is one: they have joined what
belongs together, and know which exporter a node has.
"""

from __future__ import annotations

import json

from gpucluster.dashboards.boards import autoscaler, cluster, health, job, node, rdma
from gpucluster.dashboards.boards.names import CLUSTER, JOB, NODE
from gpucluster.dashboards.grafana import TAG, Json

__all__ = ["CLUSTER", "JOB", "NODE", "all_dashboards", "all_files"]


def all_dashboards() -> dict[str, Json]:
    """Each dashboard by the name of its file without `.json`."""
    boards = (cluster.cluster(), node.node(), job.job(), rdma.rdma(), autoscaler.autoscaler(), health.health())
    return {board["uid"].removeprefix(f"{TAG}-"): board for board in boards}


def all_files() -> dict[str, str]:
    """Each dashboard as the text of its file, by the name of the file, sorted."""
    return {
        f"{name}.json": json.dumps(board, indent=1, ensure_ascii=False) + "\n"
        for name, board in sorted(all_dashboards().items())
    }
