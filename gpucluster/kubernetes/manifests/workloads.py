"""Work of several nodes as objects of Kubernetes: a pod on each node, which all run the same program.

The program finds its nodes in the environment: GPUCLUSTER_NODES (the names of all pods, in their order, as the DNS of
the cluster knows them), and its own number in GPUCLUSTER_INDEX or by its pod's name (GPUCLUSTER_POD). How pods are made
and how they are called is the one thing that the kinds differ in.

Facts
  Job          hostname and subdomain of a pod, with a headless Service of the subdomain's name: since 1.4. An indexed
               Job would be shorter; 1.20 drops `completionMode` without a word, so there is a Job for each node.
  JobSet       v1alpha2: pods are called NAME-GROUP-0-INDEX, in a subdomain with the name of the JobSet, which its
               controller makes; the index of a pod is in JOB_COMPLETION_INDEX.
  MPIJob       mpi-operator v2beta1: pods are called NAME-launcher and NAME-worker-INDEX in a subdomain with the
               name of the MPIJob. `runLauncherAsWorker` gives the launcher a place in the subdomain (0.5 and newer).
  PyTorchJob   training-operator 1.x: pods NAME-master-0 and NAME-worker-INDEX, each with a Service of its name.
  TrainJob     Kubeflow Trainer 2, v1alpha1: its controller makes a JobSet of the same name from a runtime, which is one
               of this work alone here. A runtime without a framework sets the number of pods and nothing else. The Job
               and the container of a trainer are called `node` (pkg/runtime/framework/plugins/{plainml,jobset} and
               pkg/webhooks/trainingruntime_webhook.go of 2.3.0).
  Kueue        takes objects with the label kueue.x-k8s.io/queue-name that are suspended, and lets all pods of one
               object start or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpucluster.kubernetes.labels import gpu_tolerations
from gpucluster.kubernetes.manifests import DOMAIN, Manifest, metadata
from gpucluster.kubernetes.manifests.networks import PodRdma
from gpucluster.kubernetes.manifests.queues import topology_annotations
from gpucluster.kubernetes.operator_apis import api_version
from gpucluster.node_agent.rules.devices import GPU_RESOURCES, NETWORKS

#: All objects of one piece of work have it, with its name: so it is listed and deleted.
JOB_LABEL = f"{DOMAIN}/job"
#: The number of a pod's node.
INDEX_LABEL = f"{DOMAIN}/job-index"
_POOL_LABEL = f"{DOMAIN}/pool"
_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_HOST = "kubernetes.io/hostname"
#: Where pods see the files of the work.
FILES = "/gpucluster-job"
_SERVICE = "workload"
#: The group of pods of a JobSet.
_GROUP = "node"
#: The label of the Job that a TrainJob's trainer is.
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_NCCL = "nccl.conf"
#: The name of a pod's claim, and of the request in it.
_CLAIM = "gpus"


@dataclass(frozen=True)
class Workload:
    """Work of several nodes.

    Args:
        name: of the objects: at most 40 of a-z, 0-9 and -.
        nodes: how many pods, each on a node of its own.
        command: what the container runs.
        files: name -> text, below `FILES`.
        namespace: "" for that of who creates the objects.
        home: the path at which the claim `home` of the namespace is mounted.
        uid, gid: of the user; None for those of the image.
        gpus, cpus, memory_gb: of each pod; 0: not asked for.
        gpu_resource: what `gpus` counts.
        gpu_claim: GPUs are devices of this DeviceClass, which each pod claims; "": they are a resource.
        seconds: how long it may take; 0 for ever.
        pool: whose nodes; "" for any.
        queue: the LocalQueue of Kueue that admits it, all pods or none; "" without.
        topology: the level of the RDMA network within which pods want to be, of `queues.LEVELS`; "" for none.
        topology_required: whether they must be.
        networks: NetworkAttachmentDefinitions of more interfaces, separated by commas.
        rdma_resource: the resource of an RDMA device; "" without.
        host_network: whether pods are in the network of their host.
        rdma: what pods need for the RDMA devices of their node.
        rdma_said: what the job prints of that when it starts; "" for nothing.
        privileged: whether containers have all rights on their host.
        environment: more variables of the containers.
        secret: the name of a Secret whose keys are variables, too; "" for none.
        mounts: more files: (a path, where they are as a volume of a pod has it).
        tolerations: besides those of nodes with GPUs.
        priority: the PriorityClass; "" for that of the namespace.
        annotations: more of the pods.
        shm_gb: the size of /dev/shm; 0: as much as the memory of the pod.
        nccl: settings of NCCL, for /etc/nccl.conf.
    """

    name: str
    nodes: int
    image: str
    command: tuple[str, ...]
    files: Mapping[str, str]
    namespace: str = ""
    home: str = "/home"
    uid: int | None = None
    gid: int | None = None
    gpus: int = 0
    gpu_resource: str = GPU_RESOURCES["nvidia"]
    gpu_claim: str = ""
    cpus: int = 0
    memory_gb: int = 0
    seconds: int = 0
    pool: str = ""
    queue: str = ""
    topology: str = ""
    topology_required: bool = False
    networks: str = ""
    rdma_resource: str = ""
    host_network: bool = False
    rdma: PodRdma = field(default_factory=PodRdma)
    rdma_said: str = ""
    privileged: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    mounts: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    tolerations: tuple[Mapping[str, str], ...] = ()
    priority: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    shm_gb: int = 0
    nccl: Mapping[str, str] = field(default_factory=dict)


def kubernetes_job(work: Workload) -> list[Manifest]:
    """A Job for each node and a headless Service: from 1.20 to the newest release, without any operator.

    Raises:
        ValueError: `queue` is set: Kueue would admit one node after the other.
    """
    if work.queue:
        raise ValueError("Kueue admits each Job alone, and so not all nodes or none")
    names = [f"{work.name}-{index}.{work.name}" for index in range(work.nodes)]
    jobs = []
    for index in range(work.nodes):
        pod = _pod(work, names, index=index)
        pod["spec"] |= {"hostname": f"{work.name}-{index}", "subdomain": work.name}
        pod["metadata"]["labels"][INDEX_LABEL] = str(index)
        jobs.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": _metadata(work, f"{work.name}-{index}"),
                "spec": _job(work, pod),
            }
        )
    return [*_beside(work), _service(work), *jobs]


def jobset(work: Workload) -> list[Manifest]:
    """A JobSet with one indexed Job: its pods start together where a queue is named."""
    names = _names_in_jobset(work)
    inner = {
        **_job(work, _pod(work, names)),
        "completionMode": "Indexed",
        "parallelism": work.nodes,
        "completions": work.nodes,
    }
    spec = {
        "replicatedJobs": [{"name": _GROUP, "replicas": 1, "template": {"spec": inner}}],
        "network": {"enableDNSHostnames": True, "subdomain": work.name},
        "failurePolicy": {"maxRestarts": 0},
        **_suspended(work),
    }
    return [*_beside(work), _object("JobSet", work, spec)]


def trainjob(work: Workload) -> list[Manifest]:
    """A TrainJob, and the TrainingRuntime that it alone refers to. The pods are those of a JobSet."""
    pod = _pod(work, _names_in_jobset(work), container=_GROUP)
    node = {
        "name": _GROUP,
        "replicas": 1,
        "template": {
            "metadata": {"labels": {_STEP: "trainer"}},
            "spec": {"backoffLimit": 0, "completionMode": "Indexed", "template": pod},
        },
    }
    network = {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    runtime = {
        "mlPolicy": {"numNodes": work.nodes},
        "template": {"spec": {"replicatedJobs": [node], "network": network, "failurePolicy": {"maxRestarts": 0}}},
    }
    reference = {"apiGroup": api_version("TrainingRuntime").partition("/")[0], "kind": "TrainingRuntime"}
    job = {"runtimeRef": {**reference, "name": work.name}, **_deadline(work), **_suspended(work)}
    made = {"apiVersion": api_version("TrainingRuntime"), "kind": "TrainingRuntime", "metadata": _metadata(work)}
    return [*_beside(work), {**made, "spec": runtime}, _object("TrainJob", work, job)]


def mpijob(work: Workload) -> list[Manifest]:
    """An MPIJob whose launcher is the first node. The image needs no ssh: the program starts the ranks itself."""
    workers = [f"{work.name}-worker-{index}.{work.name}" for index in range(work.nodes - 1)]
    names = [f"{work.name}-launcher.{work.name}", *workers]
    two = bool(workers)
    replicas = {"Launcher": _replica(_pod(work, names, index=0, two_groups=two), 1)}
    if workers:
        replicas["Worker"] = _replica(_pod(work, names, two_groups=two), len(workers))
    spec = {
        "slotsPerWorker": max(work.gpus, 1),
        "runLauncherAsWorker": True,
        "runPolicy": {"cleanPodPolicy": "Running", **_run_policy(work)},
        "mpiReplicaSpecs": replicas,
    }
    return [*_beside(work), _object("MPIJob", work, spec)]


def pytorchjob(work: Workload) -> list[Manifest]:
    """A PyTorchJob whose master is the first node."""
    workers = [f"{work.name}-worker-{index}" for index in range(work.nodes - 1)]
    names = [f"{work.name}-master-0", *workers]
    # The operator looks for a container of this name.
    two = bool(workers)
    replicas = {"Master": _replica(_pod(work, names, index=0, container="pytorch", two_groups=two), 1)}
    if workers:
        replicas["Worker"] = _replica(_pod(work, names, container="pytorch", two_groups=two), len(workers))
    spec = {
        "runPolicy": {"cleanPodPolicy": "Running", **_run_policy(work)},
        "pytorchReplicaSpecs": replicas,
    }
    return [*_beside(work), _object("PyTorchJob", work, spec)]


def _names_in_jobset(work: Workload) -> list[str]:
    return [f"{work.name}-{_GROUP}-0-{index}.{work.name}" for index in range(work.nodes)]


def _labels(work: Workload) -> dict[str, str]:
    return {JOB_LABEL: work.name}


def _metadata(work: Workload, name: str = "") -> dict[str, Any]:
    return metadata(name or work.name, work.namespace or None, _labels(work))


def _object(kind: str, work: Workload, spec: dict[str, Any]) -> Manifest:
    about = _metadata(work)
    if work.queue:
        about["labels"][_QUEUE_LABEL] = work.queue
    return {"apiVersion": api_version(kind), "kind": kind, "metadata": about, "spec": spec}


def _suspended(work: Workload) -> dict[str, Any]:
    return {"suspend": True} if work.queue else {}


def _deadline(work: Workload) -> dict[str, Any]:
    return {"activeDeadlineSeconds": work.seconds} if work.seconds else {}


def _run_policy(work: Workload) -> dict[str, Any]:
    return {"backoffLimit": 0, **_deadline(work), **_suspended(work)}


def _beside(work: Workload) -> list[Manifest]:
    """What the pods mount."""
    data = dict(work.files)
    if work.nccl:
        data[_NCCL] = "".join(f"{name}={value}\n" for name, value in sorted(work.nccl.items()))
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(work), "data": data}, *_claims(work)]


def _claims(work: Workload) -> list[Manifest]:
    """From which each pod gets a claim of its own, which ends with the pod."""
    if not work.gpus or not work.gpu_claim:
        return []
    request = {"deviceClassName": work.gpu_claim, "allocationMode": "ExactCount", "count": work.gpus}
    spec = {"spec": {"devices": {"requests": [{"name": _CLAIM, "exactly": request}]}}}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": _metadata(work)}
    return [{**made, "spec": spec}]


def _service(work: Workload) -> Manifest:
    """Names for the pods. They are known before the pods are ready: each waits for the others."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(work)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(work), "spec": spec}


def _job(work: Workload, pod: dict[str, Any]) -> dict[str, Any]:
    """The spec of a Job that is not tried again: to go on after a failure takes a new job."""
    return {"backoffLimit": 0, **_deadline(work), "template": pod}


def _replica(pod: dict[str, Any], replicas: int) -> dict[str, Any]:
    return {"replicas": replicas, "restartPolicy": "Never", "template": pod}


def _pod(
    work: Workload,
    names: list[str],
    *,
    index: int | None = None,
    container: str = _SERVICE,
    two_groups: bool = False,
) -> dict[str, Any]:
    """The pods of one group.

    Args:
        names: of all pods.
        index: the number of the pod, where the group has one.
        two_groups: whether the object has another group.
    """
    environment = [
        {"name": "GPUCLUSTER_JOB", "value": work.name},
        {"name": "GPUCLUSTER_NODES", "value": " ".join(names)},
        {"name": "GPUCLUSTER_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HOME", "value": work.home},
    ]
    if index is not None:
        environment.append({"name": "GPUCLUSTER_INDEX", "value": str(index)})
    environment += [{"name": name, "value": value} for name, value in work.environment.items()]
    if work.rdma_said:
        environment.append({"name": "GPUCLUSTER_RDMA", "value": work.rdma_said})
    mounts = [
        {"name": "job", "mountPath": FILES, "readOnly": True},
        {"name": "home", "mountPath": work.home},
        # Ranks of one node exchange data here; a container has 64 MB by default.
        {"name": "memory", "mountPath": "/dev/shm"},  # noqa: S108 - of the container
    ]
    if work.nccl:
        mounts.append({"name": "job", "mountPath": f"/etc/{_NCCL}", "subPath": _NCCL, "readOnly": True})
    mounts += work.rdma.container.get("volumeMounts", ())
    mounts += [{"name": f"more-{number}", "mountPath": path} for number, (path, _volume) in enumerate(work.mounts)]
    size = {"sizeLimit": f"{work.shm_gb}G"} if work.shm_gb else {}
    rights: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": _identity(work),
        "containers": [
            {
                "name": container,
                "image": work.image,
                "imagePullPolicy": "IfNotPresent",
                "command": list(work.command),
                "env": environment,
                **({"envFrom": [{"secretRef": {"name": work.secret}}]} if work.secret else {}),
                "resources": _resources(work),
                "securityContext": {"privileged": True} if work.privileged else rights,
                "volumeMounts": mounts,
            }
        ],
        "volumes": [
            {"name": "job", "configMap": {"name": work.name, "defaultMode": 0o555}},
            {"name": "home", "persistentVolumeClaim": {"claimName": "home"}},
            {"name": "memory", "emptyDir": {"medium": "Memory", **size}},
            *work.rdma.volumes,
            *({"name": f"more-{number}", **volume} for number, (_path, volume) in enumerate(work.mounts)),
        ],
        # Each on a node of its own.
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": _HOST, "labelSelector": {"matchLabels": _labels(work)}}
                ]
            }
        },
    }
    if _claims(work):
        spec["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": work.name}]
    if work.pool:
        spec["nodeSelector"] = {_POOL_LABEL: work.pool}
    # Who names a pool means its nodes, also for work that takes none of their GPUs.
    tolerations = [*(gpu_tolerations() if work.gpus or work.pool else ()), *map(dict, work.tolerations)]
    if tolerations:
        spec["tolerations"] = tolerations
    if work.priority:
        spec["priorityClassName"] = work.priority
    if work.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    spec |= work.rdma.spec
    about: dict[str, Any] = {"labels": metadata(work.name, labels=_labels(work))["labels"]}
    networks = {NETWORKS: work.networks} if work.networks else {}
    near = (
        topology_annotations(work.topology, required=work.topology_required, two_groups=two_groups)
        if work.topology
        else {}
    )
    annotations = {**work.annotations, **work.rdma.annotations, **networks, **near}
    if annotations:
        about["annotations"] = annotations
    return {"metadata": about, "spec": spec}


def _identity(work: Workload) -> dict[str, Any]:
    """The user's uid. Without one the namespace or the image decides: runAsNonRoot would refuse images of root."""
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    if work.uid is None:
        return profile
    group = {} if work.gid is None else {"runAsGroup": work.gid}
    return {**profile, "runAsUser": work.uid, **group, "runAsNonRoot": work.uid != 0}


def _resources(work: Workload) -> dict[str, Any]:
    requests: dict[str, str] = {}
    if work.cpus:
        requests["cpu"] = str(work.cpus)
    if work.memory_gb:
        requests["memory"] = f"{work.memory_gb}G"
    if work.gpus and not work.gpu_claim:
        requests[work.gpu_resource] = str(work.gpus)
    if work.rdma_resource:
        requests[work.rdma_resource] = "1"
    requests |= work.rdma.container.get("resources", {}).get("limits", {})
    amounts = {"requests": requests, "limits": dict(requests)} if requests else {}
    return amounts | ({"claims": [{"name": _CLAIM}]} if _claims(work) else {})
