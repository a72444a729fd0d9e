"""The launchers of Kubernetes: the script of a job runs in the first of its pods, and starts ranks in the others.

The pods exchange files in the home of the user, which all of them mount (`kubernetes_ask.sh`). So an image needs bash
and the workload and nothing else: no ssh, no kubectl, and no right of a pod to reach into another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from typing import NamedTuple, cast, get_args

from gpucluster.errors import InputError
from gpucluster.jobs import launchers, pod_options
from gpucluster.jobs.model import Job, JobScheduler, Kind, Launcher, Need, Option, Ranks, Requirement
from gpucluster.kubernetes.manifests import Manifest, networks, queues, to_yaml, workloads
from gpucluster.kubernetes.manifests.networks import PodRdma, RdmaAccess
from gpucluster.node_agent.rules.devices import GPU_CLASS, GPU_RESOURCES, instance_resource
from gpucluster.text import count

#: Names of objects get endings, and become names of hosts, which have at most 63 characters.
_JOB_NAME = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
_OBJECT = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_RESOURCE = r"[a-z0-9.-]+/[A-Za-z0-9._-]+"
#: Of an instance: as NVIDIA names it.
_PROFILE = r"[1-9]g\.[0-9]+gb([+-][a-z.]+)?"
_NO_ID = -1
_NO_RDMA = "none"
_NO_TOPOLOGY = "none"
_SCRIPT = "job.sh"
#: What each pod runs, and what the script asks the others with.
_NODE, _ASK = "kubernetes_node.sh", "kubernetes_ask.sh"

KUBERNETES = JobScheduler(
    "kubernetes",
    "Kubernetes",
    "kubectl create --filename",
    ".yaml",
    "{name}.out",
    (
        Option(
            "job_name",
            "the name of the objects; default: the name of the template",
            Kind.TEXT,
            pattern=_JOB_NAME,
        ),
        Option("image", "the container image, as the nodes have it or pull it", Kind.TEXT, pattern=r"\S+"),
        Option("namespace", "default: that of the kubeconfig", Kind.TEXT, pattern=_OBJECT),
        Option("home", "where pods see the claim `home` of the namespace", Kind.TEXT, "/home", pattern=r"/[^:\s]*"),
        Option("uid", "of the user; -1: the image's", Kind.INTEGER, _NO_ID, minimum=_NO_ID),
        Option("gid", "of the user; -1: the image's", Kind.INTEGER, _NO_ID, minimum=_NO_ID),
        Option("pool", "the nodes with this value of the label gpucluster.io/pool", Kind.NAME),
        Option("mig", "the profile of an instance of a divided GPU, such as 1g.10gb: each pod gets one, and no whole "
               "GPU", Kind.TEXT, pattern=_PROFILE),
        Option("gpu_claims", "pods claim their GPUs from NVIDIA's DRA driver (Kubernetes 1.34 and newer): they ask for "
               "no nvidia.com/gpu", Kind.FLAG, default=False),
        Option("cpus", "CPUs of each pod; 0: not asked for", Kind.INTEGER, 0, minimum=0),
        Option("memory_gb", "memory of each pod; 0: not asked for", Kind.INTEGER, 0, minimum=0),
        Option("time", "seconds that the job may take; 0: no limit", Kind.INTEGER, 0, minimum=0),
        Option("queue", "the LocalQueue of Kueue that starts all pods or none", Kind.TEXT, pattern=_OBJECT),
        Option("topology", "how near the nodes are to each other in the RDMA network, by Kueue and the place that OCI "
               "tells; needs a queue", Kind.CHOICE, _NO_TOPOLOGY, (_NO_TOPOLOGY, *queues.LEVELS)),
        Option("topology_required", "the job waits until all nodes are as near as that. Else they are as near as they "
               "can be", Kind.FLAG, default=False),
        Option("networks", "more interfaces: NetworkAttachmentDefinitions, separated by commas", Kind.TEXT,
               pattern=r"[a-z0-9@/,.-]+"),
        Option("network_interface", "the interface of these that NCCL and gloo take, such as net1", Kind.NAME),
        Option("rdma_resource", "the resource of an RDMA device, such as rdma/hca", Kind.TEXT, pattern=_RESOURCE),
        Option("host_network", "pods are in the network of their host", Kind.FLAG, default=False),
        Option("rdma", "how pods get all RDMA devices of their nodes: kubernetes.rdma of the cluster. none: they get "
               "the options networks, rdma_resource and host_network", Kind.CHOICE, _NO_RDMA,
               (_NO_RDMA, *get_args(RdmaAccess))),
        Option("env", "environment variables of the pods: words NAME=VALUE, as a shell has them", Kind.TEXT),
        Option("env_secret", "a Secret of the namespace: each of its keys is a variable of the pods", Kind.TEXT,
               pattern=_OBJECT),
        Option("mounts", "more files: SOURCE:PATH, separated by commas; a claim of the namespace, or a folder of the "
               "host from /, which is for operators", Kind.TEXT),
        Option("tolerations", "more taints that pods tolerate: KEY[=VALUE][:EFFECT], separated by commas", Kind.TEXT),
        Option("priority", "the PriorityClass of the pods", Kind.TEXT, pattern=_OBJECT),
        Option("annotations", "of the pods: words NAME=VALUE, as a shell has them", Kind.TEXT),
        Option("shm_gb", "the size of /dev/shm; 0: as much as the memory of the pod", Kind.INTEGER, 0, minimum=0),
        Option("privileged", "containers have all rights on their host; for operators", Kind.FLAG, default=False),
    ),
    more_gpus="Take a pool whose nodes have enough GPUs: --set pool=NAME",
    with_program="take an image that has it{plain}: --set image=NAME",
)  # fmt: skip


def _needs(job: Job) -> tuple[Requirement, ...]:
    how = "Name one that the nodes have or can pull: --set image=NAME"
    image = Requirement(Need.IMAGE, job.text("image"), how, inside=False)
    if job.template.ranks is not Ranks.MPI:
        return (image,)
    return (image, Requirement(Need.PROGRAM, "mpirun", "Take an image with Open MPI: --set image=NAME"))


def _wrapped(make: Callable[[workloads.Workload], list[Manifest]]) -> Callable[[Job, Mapping[str, str]], str]:
    """What makes the objects of a job, as YAML, from the texts of its files."""

    def wrap(job: Job, files: Mapping[str, str]) -> str:
        if not job.text("image"):
            raise InputError("no container image is named", hint="Name one that the nodes have: --set image=NAME")
        if job.text("queue") and job.launcher.name == KUBERNETES_JOB.name:
            others = [each.name for each in LAUNCHERS if each.name in job.template.launchers and each != KUBERNETES_JOB]
            raise InputError(
                "Kueue admits each Job alone, and not all nodes of kubernetes-job or none",
                hint=f"With a queue take another launcher: --launcher {' or '.join(others)}",
            )
        if job.text("topology") != _NO_TOPOLOGY and not job.text("queue"):
            raise InputError(
                "the option topology has no effect without a queue: Kueue places the pods",
                hint="Name a LocalQueue of the namespace, --set queue=NAME, and a launcher that takes one",
            )
        return to_yaml(make(_workload(job, files)))

    return wrap


def _workload(job: Job, files: Mapping[str, str]) -> workloads.Workload:
    programs = {name: resources.files(launchers).joinpath(name).read_text("utf-8") for name in (_NODE, _ASK)}
    uid, gid = int(job.number("uid")), int(job.number("gid"))
    nccl = dict(job.shape.nccl_environment) if job.shape and job.gpus and (job.rdma or not job.shape.rdma) else {}
    interface = job.text("network_interface")
    if interface:
        # With the first = NCCL compares the whole name.
        nccl["NCCL_SOCKET_IFNAME"] = f"={interface}"
    rdma = _rdma(job)
    if rdma.needs is not None and nccl:
        # Without a device NCCL would take sockets without a message. With this it takes RDMA or fails.
        nccl |= {"NCCL_NET": "IB", **rdma.needs.environment}
    return workloads.Workload(
        name=object_name(job),
        nodes=job.nodes,
        image=job.text("image"),
        command=("bash", f"{workloads.FILES}/{_NODE}"),
        files={**files, **programs},
        namespace=job.text("namespace"),
        home=job.text("home"),
        uid=None if uid == _NO_ID else uid,
        gid=None if gid == _NO_ID else gid,
        gpus=job.gpus,
        gpu_resource=gpu_resource(job),
        gpu_claim=GPU_CLASS if job.values["gpu_claims"] else "",
        cpus=int(job.number("cpus")),
        memory_gb=int(job.number("memory_gb")),
        seconds=int(job.number("time")),
        pool=job.text("pool"),
        queue=job.text("queue"),
        topology=level if (level := job.text("topology")) != _NO_TOPOLOGY else "",
        topology_required=bool(job.values["topology_required"]),
        networks=job.text("networks"),
        rdma_resource=job.text("rdma_resource"),
        host_network=bool(job.values["host_network"]),
        rdma=rdma.needs or PodRdma(),
        rdma_said=rdma.description,
        privileged=bool(job.values["privileged"]),
        environment=pod_options.variables(job.text("env")),
        secret=job.text("env_secret"),
        mounts=tuple((each.path, each.volume) for each in pod_options.mounts(job.text("mounts"))),
        tolerations=tuple(pod_options.tolerations(job.text("tolerations"))),
        priority=job.text("priority"),
        annotations=pod_options.pod_annotations(job.text("annotations")),
        shm_gb=int(job.number("shm_gb")),
        nccl=nccl,
    )


class _Rdma(NamedTuple):
    """What pods need for RDMA (None: they get none), and what the job prints of it."""

    needs: PodRdma | None = None
    description: str = ""


def _rdma(job: Job) -> _Rdma:
    """How the pods of a job get the RDMA devices of their nodes.

    Raises:
        InputError: the template has no meaning without, and they get none.
    """
    access, shape = job.text("rdma"), job.shape
    if access == _NO_RDMA or shape is None or not job.rdma or job.nodes == 1:
        return _Rdma()
    access, privileged = cast("RdmaAccess", access), bool(job.values["privileged"])
    why = "" if privileged else networks.refusal(access, shape)
    if not why and job.gpus < shape.gpus:
        why = f"RDMA devices go with all GPUs of a node ({shape.gpus}), and this job takes {job.gpus or 'none'}"
    if not why:
        devices = count(len(shape.rdma_devices), "device")
        description = f"{devices} on each node (kubernetes.rdma: {access})"
        return _Rdma(networks.pod_rdma(access, shape, privileged=privileged), description)
    if job.template.needs_rdma or Need.RDMA in {each.need for each in job.template.requirements(job)}:
        render = f"gpucluster job render {job.template.name} --launcher {job.launcher.name} --set image=IMAGE"
        raise InputError(
            f"the pods get no RDMA device: {why}",
            hint="Write kubernetes.rdma: device or sr-iov in cluster.yml. Or make it a job of an operator, with "
            f"storage of its own as the claim `home` there: {render} --set privileged=true --set "
            "namespace=gpucluster-operators",
        )
    return _Rdma(description=f"none, so the nodes reach each other by TCP: {why}")


def gpu_resource(job: Job) -> str:
    """What the pods of a job ask for as their GPUs."""
    profile = str(job.values.get("mig") or "")
    return instance_resource(profile) if profile else GPU_RESOURCES["nvidia"]


def object_name(job: Job) -> str:
    """The name of the objects of a job."""
    return job.name.replace("_", "-")


def _launcher(
    name: str,
    title: str,
    make: Callable[[workloads.Workload], list[Manifest]],
    ranks: tuple[Ranks, ...],
) -> Launcher:
    return Launcher(
        name, title, KUBERNETES, ranks, requirements=_needs, script=_SCRIPT, wrap=_wrapped(make), piece="pods"
    )


_BOTH = (Ranks.MPI, Ranks.ENVIRONMENT)
KUBERNETES_JOB = _launcher(
    "kubernetes-job", "pods of Jobs, one on each node: needs no operator", workloads.kubernetes_job, _BOTH
)
LAUNCHERS = (
    KUBERNETES_JOB,
    _launcher("jobset", "pods of a JobSet", workloads.jobset, _BOTH),
    _launcher("mpijob", "pods of an MPIJob (mpi-operator)", workloads.mpijob, (Ranks.MPI,)),
    _launcher("pytorchjob", "pods of a PyTorchJob (training-operator)", workloads.pytorchjob, (Ranks.ENVIRONMENT,)),
    _launcher("trainjob", "pods of a TrainJob (Kubeflow Trainer 2)", workloads.trainjob, (Ranks.ENVIRONMENT,)),
)
