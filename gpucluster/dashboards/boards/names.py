"""What several dashboards use: their addresses, what the user has chosen, links to a node's or job's dashboard."""

from __future__ import annotations

from gpucluster.dashboards.grafana import Variable

CLUSTER, NODE, JOB, RDMA, AUTOSCALER, HEALTH = (
    f"gpucluster-{name}" for name in ("cluster", "node", "job", "rdma", "autoscaler", "health")
)
RED_ABOVE_0 = {1.0: "red"}
RED_BELOW_1 = {0.0: "red", 1.0: "green"}
TO_NODE = {"Node": f"/d/{NODE}?var-node=${{__value.text}}"}
TO_JOB = {"Job": f"/d/{JOB}?var-job_id=${{__value.text}}"}
POOL = Variable("pool", "Pool", "up", all=True)
OF_NODE = 'node="$node"'
OF_JOB = 'job_id="$job_id"'
OF_POOL = 'pool=~"$pool"'
ON_JOB_NODES = f"and on (node) gpucluster_job_node{{{OF_JOB}}}"
# The whole GPUs of a job, its instances of divided ones (MIG), and the GPUs on which it has one or the other.
ON_JOB_GPUS = f'and on (node, gpu) gpucluster_job_gpu{{{OF_JOB}, gpu_instance=""}}'
ON_JOB_INSTANCES = f"and on (node, gpu, gpu_instance) gpucluster_job_gpu{{{OF_JOB}}}"
ON_JOB_CARDS = f"and on (node, gpu) gpucluster_job_gpu{{{OF_JOB}}}"
