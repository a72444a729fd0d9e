"""Work on Kubernetes: the objects that `gpucluster job render` prints, as a user of the directory runs them.

Real: Open MPI of Debian 13, whose ranks are started by files in the user's home. No GPU and no RDMA is here.
"""

from __future__ import annotations

import json

import pytest

from tests.e2e.kubernetes_site import KubernetesSite
from tests.e2e.site_harness import PATIENCE_TO_BUILD_S
from tests.kubernetes_sources import TOOLS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(PATIENCE_TO_BUILD_S)]

LABEL = "--selector=gpucluster.io/job=mpi-allreduce"
#: What a job is made of.
KINDS = "jobs,services,configmaps"


def test_an_all_reduce_of_mpi_on_two_nodes_sums_rightly(kubernetes: KubernetesSite) -> None:
    words = ("--launcher", "kubernetes-job", "--set", f"image={TOOLS}", "--set", "largest=1048576")
    rendered = kubernetes.plain("job", "render", "mpi_allreduce", "--nodes", "2", *words)
    assert rendered.returncode == 0, rendered.stderr
    # kubectl on the controller with the rights of the user, as their kubeconfig gives them.
    alice = ("--as=alice", "--namespace=user-alice")
    kubernetes.kubectl("create", "--filename=-", *alice, stdin=rendered.stdout)
    try:
        ended: dict[str, int] = {}

        def both() -> bool:
            for job in kubernetes.get("jobs", LABEL, *alice)["items"]:
                status = job["status"]
                ended.update({job["metadata"]["name"]: status.get("succeeded", 0) - status.get("failed", 0)})
            return len(ended) == 2 and all(ended.values())

        kubernetes.until("both jobs have ended", both)
        said = kubernetes.kubectl("logs", "job/mpi-allreduce-0", *alice)
        described = kubernetes.kubectl("describe", "pods", LABEL, *alice)
        assert ended == {"mpi-allreduce-0": 1, "mpi-allreduce-1": 1}, said + described
        last = json.loads([line for line in said.splitlines() if line.startswith("{")][-1])
        assert (last["ranks"], last["hosts"], last["wrong"]) == (2, 2, 0)
        assert len({each["spec"]["nodeName"] for each in kubernetes.get("pods", LABEL, *alice)["items"]}) == 2
        # The output is in the user's home, and is theirs.
        output = "gpucluster-jobs/mpi-allreduce/mpi-allreduce.out"
        assert kubernetes.as_alice(f"stat -c %U {output}; tail -n1 {output}").splitlines()[0] == "alice"
    finally:
        kubernetes.kubectl("delete", KINDS, LABEL, *alice)
        kubernetes.as_alice("rm -rf gpucluster-jobs")
