"""Jobs as objects of Kubernetes: what API servers take, and what pods do, as processes that share a home."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process, shapes
from gpucluster.errors import InputError
from gpucluster.jobs import choose, outputs, registry
from gpucluster.jobs.launchers.kubernetes import LAUNCHERS
from gpucluster.jobs.render import render
from gpucluster.kubernetes.labels import node_taints
from gpucluster.kubernetes.manifests.workloads import FILES, INDEX_LABEL, JOB_LABEL
from tests.documents import parse_all
from tests.jobs.test_render import SHELLCHECK
from tests.kubernetes.schemas import Invalid, validate_all
from tests.waiting import PATIENCE_S

_NAMES = tuple(each.name for each in LAUNCHERS)
#: The oldest release on which these operators run; Jobs are of every release.
_OLDEST = {"jobset": 27, "mpijob": 27, "pytorchjob": 27, "trainjob": 27}
_KINDS = {
    "kubernetes-job": "Job", "jobset": "JobSet", "mpijob": "MPIJob", "pytorchjob": "PyTorchJob", "trainjob": "TrainJob",
}  # fmt: skip


def objects(template: str, launcher: str, nodes: int = 2, shape: str = "", **given: str) -> list[dict[str, Any]]:
    chosen = registry.template(template)
    job = choose.describe(
        chosen, registry.launcher(chosen, launcher), {"image": "registry.example/work:1", **given},
        nodes=nodes, shape=shapes.get(shape) if shape else None,
    )  # fmt: skip
    rendered = render(job)
    return parse_all(rendered.files[rendered.script].text)


def _templates(value: Any) -> Iterator[dict[str, Any]]:
    """The parts of objects that describe a pod: its metadata and its spec."""
    if isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        else:
            for inner in value.values():
                yield from _templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _templates(inner)


def pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The specs of the pods in these objects."""
    return [each["spec"] for each in _templates(found)]


def pod_annotations(found: list[dict[str, Any]]) -> dict[str, str]:
    """Those of the pods in these objects."""
    return {key: text for each in _templates(found) for key, text in each["metadata"].get("annotations", {}).items()}


@pytest.mark.parametrize("launcher", _NAMES)
def test_api_servers_take_every_template_with_every_launcher(launcher: str) -> None:
    tried = 0
    everything = {
        "namespace": "user-alice", "home": "/mnt/home/alice", "uid": "2001", "gid": "2000", "pool": "gpu",
        "cpus": "8", "memory_gb": "64", "time": "3600", "networks": "gpucluster-system/rdma", "host_network": "true",
        "network_interface": "net1", "rdma_resource": "rdma/hca", "job_name": "mine",
    }  # fmt: skip
    cases: list[tuple[str, dict[str, str]]] = [("BM.GPU4.8", everything), ("BM.GPU.H100.8", {}), ("", {})]
    for template in registry.templates():
        if launcher in template.launchers:
            for shape, given in cases:
                found = objects(template.name, launcher, 2, shape, **given)
                validate_all(found, oldest=_OLDEST.get(launcher, 20))
                assert _KINDS[launcher] in {each["kind"] for each in found}
                tried += 1
    assert tried >= 6


def test_one_job_for_each_node_with_the_names_by_which_they_find_each_other() -> None:
    found = objects("pytorch_ddp", "kubernetes-job", nodes=3, job_name="mine", synthetic="1")
    jobs = [each for each in found if each["kind"] == "Job"]
    assert [each["metadata"]["name"] for each in jobs] == ["mine-0", "mine-1", "mine-2"]
    for index, each in enumerate(jobs):
        spec = each["spec"]["template"]["spec"]
        assert (spec["hostname"], spec["subdomain"]) == (f"mine-{index}", "mine")
        assert each["spec"]["template"]["metadata"]["labels"][INDEX_LABEL] == str(index)
        values = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
        assert values["GPUCLUSTER_NODES"] == "mine-0.mine mine-1.mine mine-2.mine"
        assert values["GPUCLUSTER_INDEX"] == str(index)
    service = next(each for each in found if each["kind"] == "Service")
    assert service["spec"] == {
        "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_LABEL: "mine"},
    }  # fmt: skip


@pytest.mark.parametrize("launcher", _NAMES)
def test_a_job_runs_as_the_user_in_their_home_and_without_rights(launcher: str) -> None:
    template = next(each for each in registry.templates() if launcher in each.launchers)
    for pod in pods(objects(template.name, launcher)):
        # Many images run as root by design; the policies of a user's namespace decide.
        assert not {"runAsUser", "runAsNonRoot"} & set(pod["securityContext"])
    for pod in pods(objects(template.name, launcher, uid="2001", gid="2000", home="/mnt/home/a", pool="cpu")):
        own = {"runAsUser": 2001, "runAsGroup": 2000, "runAsNonRoot": True}
        # Pod Security at `restricted` refuses pods that name no profile.
        assert pod["securityContext"] == {**own, "seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["automountServiceAccountToken"] is False
        assert {"name": "home", "persistentVolumeClaim": {"claimName": "home"}} in pod["volumes"]
        (container,) = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert {"name": "home", "mountPath": "/mnt/home/a"} in container["volumeMounts"]
        assert not any("hostPath" in each for each in pod["volumes"])
        assert pod["nodeSelector"] == {"gpucluster.io/pool": "cpu"}
        assert container["command"] == ["bash", f"{FILES}/kubernetes_node.sh"]


@pytest.mark.parametrize("launcher", [each for each in registry.template("mpi_allreduce").launchers if each in _NAMES])
@pytest.mark.parametrize("shape", ["BM.GPU4.8", "BM.GPU.MI300X.8", "VM.Standard.E5.Flex"])
def test_work_without_gpus_runs_on_the_nodes_of_the_pool_that_it_names(launcher: str, shape: str) -> None:
    taints = node_taints(shapes.get(shape))
    for pod in pods(objects("mpi_allreduce", launcher, pool="gpu")):
        assert [taint for taint in taints if not any(_tolerates(pod, taint))] == []
    # Without a pool it keeps away from nodes that others need for their GPUs.
    for pod in pods(objects("mpi_allreduce", launcher)):
        assert "tolerations" not in pod


def _tolerates(pod: dict[str, Any], taint: dict[str, str]) -> Iterator[bool]:
    """As the scheduler decides: the key is the same, and so is the effect, or a toleration has none."""
    for each in pod["tolerations"]:
        same = each["operator"] == "Exists" or each.get("value") == taint["value"]
        yield each["key"] == taint["key"] and each.get("effect", taint["effect"]) == taint["effect"] and same


def test_gpus_rdma_and_nccl_are_of_the_shape() -> None:
    found = objects(
        "nccl_tests", "kubernetes-job", shape="BM.GPU4.8", rdma_resource="rdma/hca", networks="rdma",
        network_interface="net1",
    )  # fmt: skip
    for pod in pods(found):
        asked = pod["containers"][0]["resources"]
        assert asked["limits"] == asked["requests"] == {"nvidia.com/gpu": "8", "rdma/hca": "1"}
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
        mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
        assert {"/etc/nccl.conf", "/dev/shm"} <= mounts
    job = next(each for each in found if each["kind"] == "Job")
    assert job["spec"]["template"]["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "rdma"}
    settings = dict(line.split("=", 1) for line in found[0]["data"]["nccl.conf"].splitlines())
    shape = shapes.get("BM.GPU4.8")
    assert settings == {**shape.nccl_environment, "NCCL_SOCKET_IFNAME": "=net1"}
    # Processors have nothing to do with it.
    found = objects("pytorch_ddp", "kubernetes-job", shape="VM.Standard.E5.Flex", synthetic="1")
    assert "nccl.conf" not in found[0]["data"]
    assert pods(found)[0]["containers"][0]["resources"] == {}


@pytest.mark.parametrize("launcher", _NAMES)
def test_pods_claim_their_gpus_where_the_job_sets_it(launcher: str) -> None:
    template = next(each for each in registry.templates() if launcher in each.launchers and not each.needs_rdma)
    found = objects(template.name, launcher, shape="BM.GPU.H100.8", gpu_claims="true", job_name="mine", cpus="8")
    # The schemas of Kubernetes from the first release that serves these claims to the newest.
    validate_all(found, oldest=34)
    with pytest.raises(Invalid, match=r"1\.33 does not serve resource\.k8s\.io/v1 ResourceClaimTemplate"):
        validate_all(found, oldest=33)
    (made,) = [each for each in found if each["kind"] == "ResourceClaimTemplate"]
    assert made["metadata"]["labels"][JOB_LABEL] == "mine"
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 8}
    for pod in pods(found):
        (own,) = pod["resourceClaims"]
        assert own["resourceClaimTemplateName"] == made["metadata"]["name"]
        resources = pod["containers"][0]["resources"]
        # Never both: a plugin and a driver would each give away a GPU.
        assert resources == {"requests": {"cpu": "8"}, "limits": {"cpu": "8"}, "claims": [{"name": own["name"]}]}
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    if "mpi_allreduce" in {template.name}:
        without = objects(template.name, launcher, gpu_claims="true")
        assert "ResourceClaimTemplate" not in {each["kind"] for each in without}, "it takes no GPU"


@pytest.mark.parametrize("launcher", _NAMES)
def test_a_pod_gets_one_instance_of_a_divided_gpu_and_no_whole_one(launcher: str) -> None:
    template = next(
        each for each in registry.templates()
        if launcher in each.launchers and not (each.whole_gpus or each.needs_rdma)
    )  # fmt: skip
    found = objects(template.name, launcher, shape="BM.GPU.H100.8", mig="1g.10gb+me")
    validate_all(found, oldest=_OLDEST.get(launcher, 20))
    for pod in pods(found):
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-1g.10gb.me": "1"}
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]


@pytest.mark.parametrize(
    ("template", "shape", "mig", "gpus", "says"),
    [
        ("nccl_tests", "BM.GPU.H100.8", "1g.10gb", None, "links between whole GPUs"),
        ("pytorch_ddp", "BM.GPU.H100.8", "1g.10gb", 2, "a pod gets one 1g.10gb, and not 2"),
        ("pytorch_ddp", "BM.GPU.H100.8", "1g.18gb", None, "no profile 1g.18gb. Known: 1g.10gb"),
        ("pytorch_ddp", "BM.GPU.A10.4", "1g.10gb", None, "no profile 1g.10gb. Known: none"),
        ("pytorch_ddp", "BM.GPU.H100.8", "1g.10gb", None, ""),
        ("pytorch_ddp", "", "1g.10gb", None, ""),
    ],
)
def test_what_can_not_run_on_an_instance_is_refused(
    template: str, shape: str, mig: str, gpus: int | None, says: str
) -> None:
    chosen = registry.template(template)
    job = choose.describe(
        chosen, registry.launcher(chosen, "kubernetes-job"), {"image": "work:1", "mig": mig}, nodes=1,
        shape=shapes.get(shape) if shape else None, gpus=gpus,
    )  # fmt: skip
    assert bool(choose.refusal(job)) == bool(says)
    assert says in choose.refusal(job)
    if not says:
        assert (job.gpus, job.per_node) == (1, 1)


def _said(found: list[dict[str, Any]]) -> str:
    """What the job prints of its RDMA devices."""
    (container,) = pods(found)[0]["containers"]
    return str({each["name"]: each.get("value") for each in container["env"]}["GPUCLUSTER_RDMA"])


def _nccl(found: list[dict[str, Any]]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in found[0]["data"]["nccl.conf"].splitlines())


@pytest.mark.parametrize("template", ["nccl_tests", "rdma_perftest", "pytorch_ddp"])
@pytest.mark.parametrize("access", ["device", "sr-iov"])
def test_a_user_gets_the_rdma_devices_of_the_clusters_mode_without_any_privilege(template: str, access: str) -> None:
    given = {"rdma": access, "uid": "10001", "gid": "10001"}
    given |= {"synthetic": "1"} if template == "pytorch_ddp" else {}
    found = objects(template, "kubernetes-job", 2, "BM.GPU4.8", **given)
    validate_all(found)
    networks = pod_annotations(found)["k8s.v1.cni.cncf.io/networks"].split(",")
    assert len(networks) == 16
    for pod in pods(found):
        (container,) = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        asked = container["resources"]["limits"]
        assert asked == {"nvidia.com/gpu": "8", **({"nvidia.com/rdma-vf": "16"} if access == "sr-iov" else {})}
        assert "hostNetwork" not in pod
        assert not any("hostPath" in each for each in pod["volumes"])
        assert _said(found) == f"16 devices on each node (kubernetes.rdma: {access})"
    # NCCL fails without RDMA, where it would go on by TCP and report nothing.
    assert _nccl(found)["NCCL_NET"] == "IB"
    host_names = shapes.get("BM.GPU4.8").nccl_environment["NCCL_IB_HCA"]
    assert _nccl(found)["NCCL_IB_HCA"] == ("mlx5" if access == "sr-iov" else host_names)


@pytest.mark.parametrize(
    ("access", "shape", "why"),
    [
        ("host", "BM.GPU4.8", "only pods in the network of their host"),
        ("device", "BM.GPU.MI300X.8", "only the device plugin of NVIDIA's GPUs"),
    ],
)
def test_who_gets_no_rdma_is_told_why_and_a_measurement_of_it_is_refused(access: str, shape: str, why: str) -> None:
    for template in ("nccl_tests", "rdma_perftest"):
        with pytest.raises(InputError, match=why) as caught:
            objects(template, "kubernetes-job", shape=shape, rdma=access)
        assert "gpucluster-operators" in caught.value.hint
        # The command of the hint, as it stands, is accepted.
        words = shlex.split(caught.value.hint.partition("gpucluster job render ")[2])
        options = dict(zip(words[1::2], words[2::2], strict=True))
        given = dict(each.split("=", 1) for each in words if "=" in each)
        assert set(options) == {"--launcher", "--set"}
        validate_all(objects(words[0], options["--launcher"], 2, shape, rdma=access, **given))
    found = objects("pytorch_ddp", "kubernetes-job", shape=shape, rdma=access, synthetic="1")
    assert _said(found).startswith("none, so the nodes reach each other by TCP: ")
    assert why in _said(found)
    assert "NCCL_NET" not in _nccl(found)
    assert pod_annotations(found) == {}
    # An operator's pods have it.
    for template in ("nccl_tests", "rdma_perftest"):
        found = objects(template, "kubernetes-job", shape=shape, rdma=access, privileged="true")
        validate_all(found)
        for pod in pods(found):
            assert pod["containers"][0]["securityContext"] == {"privileged": True}
            assert {"name": "infiniband", "hostPath": {"path": "/dev/infiniband"}} in pod["volumes"]
            assert pod.get("hostNetwork", False) is (access == "host")
        assert "NCCL_NET" in _nccl(found)


def test_one_node_needs_no_rdma_and_a_part_of_a_node_gets_none() -> None:
    found = objects("pytorch_ddp", "kubernetes-job", nodes=1, shape="BM.GPU4.8", rdma="device", synthetic="1")
    assert pod_annotations(found) == {}
    assert "NCCL_NET" not in _nccl(found)
    chosen = registry.template("pytorch_ddp")
    given = {"image": "work:1", "synthetic": "1", "rdma": "device"}
    launcher, shape = registry.launcher(chosen, "kubernetes-job"), shapes.get("BM.GPU4.8")
    rendered = render(choose.describe(chosen, launcher, given, nodes=2, shape=shape, gpus=4))
    found = parse_all(rendered.files[rendered.script].text)
    assert "RDMA devices go with all GPUs of a node (8), and this job takes 4" in _said(found)


def test_the_pod_of_the_example_on_kubernetes_item_by_item() -> None:
    """Seed 003's `gpu-pod0`: one A100, the interface nic0 in the pod, a folder of the host, NCCL told what to take."""
    found = objects(
        "pytorch_ddp", "kubernetes-job", 2, synthetic="1", image="pytorch-23.09-py3-custom", networks="nic0",
        privileged="true", mounts="/root/script:/mydir", network_interface="net1",
        env="NCCL_DEBUG=TRACE NCCL_SOCKET_IFNAME=net1 NCCL_SOCKET_FAMILY=AF_INET",
    )  # fmt: skip
    validate_all(found)
    assert pod_annotations(found) == {"k8s.v1.cni.cncf.io/networks": "nic0"}
    for pod in pods(found):
        (container,) = pod["containers"]
        assert (container["image"], container["imagePullPolicy"]) == ("pytorch-23.09-py3-custom", "IfNotPresent")
        assert container["securityContext"] == {"privileged": True}
        values = {each["name"]: each.get("value") for each in container["env"]}
        assert (values["NCCL_DEBUG"], values["NCCL_SOCKET_IFNAME"]) == ("TRACE", "net1")
        assert values["NCCL_SOCKET_FAMILY"] == "AF_INET"
        (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == "/mydir")
        (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
        assert volume["hostPath"] == {"path": "/root/script", "type": "Directory"}
    # MASTER_ADDR and MASTER_PORT: the job finds the first of its pods itself.
    assert 'give "MASTER_ADDR=$first"' in found[0]["data"]["job.sh"]


def test_a_queue_starts_all_pods_or_none() -> None:
    for launcher, template in (
        ("jobset", "pytorch_ddp"), ("mpijob", "mpi_allreduce"), ("pytorchjob", "pytorch_ddp"),
        ("trainjob", "pytorch_ddp"),
    ):  # fmt: skip
        found = objects(template, launcher, queue="gpus")
        validate_all(found, oldest=27)
        owner = found[-1]
        assert owner["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
        assert owner["spec"].get("suspend", owner["spec"].get("runPolicy", {}).get("suspend")) is True
    with pytest.raises(InputError, match="admits each Job alone") as caught:
        objects("pytorch_ddp", "kubernetes-job", queue="gpus")
    assert caught.value.hint == "With a queue take another launcher: --launcher jobset or pytorchjob or trainjob"
    # A job of one node is whole in any case, and the rule stays simple.
    with pytest.raises(InputError):
        objects("pytorch_ddp", "kubernetes-job", nodes=1, queue="gpus")


def test_a_trainjob_has_a_runtime_of_its_own_with_the_names_that_its_controller_looks_for() -> None:
    found = objects("pytorch_ddp", "trainjob", 3, job_name="mine", time="3600")
    kinds = [each["kind"] for each in found]
    assert kinds == ["ConfigMap", "TrainingRuntime", "TrainJob"], "the runtime is there before its job"
    runtime, job = found[1]["spec"], found[2]["spec"]
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": found[1]["metadata"]["name"]}
    assert job == {"runtimeRef": reference, "activeDeadlineSeconds": 3600}
    # With a framework its controller would put variables of its own beside ours, and a port.
    assert runtime["mlPolicy"] == {"numNodes": 3}
    (group,) = runtime["template"]["spec"]["replicatedJobs"]
    assert group["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (container,) = group["template"]["spec"]["template"]["spec"]["containers"]
    assert (group["name"], container["name"]) == ("node", "node")
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert values["GPUCLUSTER_NODES"] == "mine-node-0-0.mine mine-node-0-1.mine mine-node-0-2.mine"


_PREFERRED, _REQUIRED = "kueue.x-k8s.io/podset-preferred-topology", "kueue.x-k8s.io/podset-required-topology"
_GROUP = "kueue.x-k8s.io/podset-group-name"


@pytest.mark.parametrize(
    ("launcher", "template", "groups"),
    [
        ("jobset", "pytorch_ddp", 1), ("mpijob", "mpi_allreduce", 2), ("pytorchjob", "pytorch_ddp", 2),
        ("trainjob", "pytorch_ddp", 1),
    ],
)  # fmt: skip
def test_pods_tell_kueue_how_near_they_want_to_be(launcher: str, template: str, groups: int) -> None:
    """Kueue places two groups of pods as one only if they request it, and refuses that of one group."""
    near = {"queue": "gpus", "topology": "local-block"}
    label = "oci.oraclecloud.com/rdma.local_block_id"
    for nodes in (1, 3):
        found = objects(template, launcher, nodes, **near)
        validate_all(found, oldest=27)
        all_pods = list(_templates(found))
        assert len(all_pods) == (groups if nodes > 1 else 1)
        for pod in all_pods:
            expected = {_PREFERRED: label} | ({_GROUP: "nodes"} if len(all_pods) > 1 else {})
            assert pod["metadata"]["annotations"] == expected
    assert _REQUIRED in pod_annotations(objects(template, launcher, 3, topology_required="true", **near))
    assert not pod_annotations(objects(template, launcher, 3, queue="gpus"))
    with pytest.raises(InputError, match="without a queue"):
        objects(template, launcher, 3, topology="island")


def test_what_is_not_a_name_of_an_object_is_refused() -> None:
    for wrong in ("Mine", "a_b", "x" * 41, "-a", "1a"):
        with pytest.raises(InputError, match="job_name"):
            objects("pytorch_ddp", "kubernetes-job", job_name=wrong)
    with pytest.raises(InputError, match="no container image is named"):
        objects("pytorch_ddp", "kubernetes-job", image="")


# --- pods -----


class Pods:
    """The pods of one job as processes of this machine, with a home of their own.

    Attributes:
        silent: seconds after which a pod that shows no life is given up.
    """

    def __init__(self, place: Path, found: list[dict[str, Any]]) -> None:
        self.silent = int(PATIENCE_S)
        self._home, self._files, self._bin = place / "home", place / "files", place / "bin"
        for folder in (self._home, self._files, self._bin):
            folder.mkdir(exist_ok=True)
        for name, text in found[0]["data"].items():
            (self._files / name).write_text(text)
            (self._files / name).chmod(0o555)
        self._specs = pods(found)
        self._place = place
        self._running: list[subprocess.Popen[str]] = []

    def program(self, name: str, text: str) -> None:
        (self._bin / name).write_text(textwrap.dedent(text))
        (self._bin / name).chmod(0o755)

    def start(self, number: int) -> subprocess.Popen[str]:
        values = {one["name"]: one["value"] for one in self._specs[number]["containers"][0]["env"] if "value" in one}
        environment = {
            **values, "HOME": str(self._home), "PATH": f"{self._bin}:{os.environ['PATH']}",
            "GPUCLUSTER_SILENT_S": str(self.silent), "GPUCLUSTER_FILES": str(self._files),
            "GPUCLUSTER_POD": f"pod-{number}",
        }  # fmt: skip
        argv = ["bash", str(self._files / "kubernetes_node.sh")]
        running = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self._running.append(running)
        return running

    def run(self) -> list[tuple[int, str]]:
        """Status and output of each pod. The first one is started last."""
        started = [self.start(number) for number in reversed(range(len(self._specs)))][::-1]
        ended = [each.communicate(timeout=PATIENCE_S)[0] for each in started]
        return [(each.returncode, said) for each, said in zip(started, ended, strict=True)]

    def close(self) -> None:
        for each in self._running:
            if each.poll() is None:
                os.killpg(each.pid, 9)
                each.communicate()
        # What a pod starts has a session of its own, and a real pod would end it.
        for pid in process.pids_with_variable("HOME", str(self._home)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


_TOLD = """\
    #!/bin/bash
    case $1 in -c) exit 0 ;; esac
    echo "$RANK/$WORLD_SIZE local $LOCAL_RANK at $MASTER_ADDR in $GPUCLUSTER_NODE"
    [ "$RANK" != "${FAIL:-}" ] || exit 3
    """


@pytest.fixture
def training(tmp_path: Path) -> Any:
    made = Pods(
        tmp_path,
        objects("pytorch_ddp", "kubernetes-job", nodes=3, ranks_per_node="2", synthetic="1", job_name="train"),
    )
    made.program("python3", _TOLD)
    yield made
    made.close()


def test_ranks_in_all_pods_learn_who_they_are_and_the_first_pod_prints_it_all(training: Pods) -> None:
    (first, printed), *others = training.run()
    assert first == 0, printed
    assert [status for status, _said in others] == [0, 0]
    told = sorted(line for line in printed.splitlines() if " local " in line)
    assert told == [
        f"{rank}/6 local {rank % 2} at train-0.train in train-{rank // 2}.train" for rank in range(6)
    ]  # fmt: skip
    # The judge needs that alone.
    assert (outputs.header(printed) or {})["nodes"] == 3


def test_ranks_know_a_name_of_their_user_where_the_image_knows_none(training: Pods) -> None:
    training.program("id", '#!/bin/bash\n[ "$1" != -un ] || exit 1\necho 10001\n')
    training.program("python3", "#!/bin/bash\necho user=$USER login=$LOGNAME\n")
    (first, printed), *_others = training.run()
    assert first == 0, printed
    assert set(re.findall(r"user=\S+ login=\S+", printed)) == {"user=10001 login=10001"}


def test_a_second_job_of_the_same_name_is_not_disturbed_by_what_the_first_has_left(training: Pods) -> None:
    assert [status for status, _said in training.run()] == [0, 0, 0]
    again = training.run()
    assert [status for status, _said in again] == [0, 0, 0], again
    assert again[0][1].count(" local ") == 6


def test_a_rank_that_fails_ends_the_job_with_its_status(training: Pods) -> None:
    training.program("python3", _TOLD.replace("${FAIL:-}", "5") + '    [ "$RANK" = 5 ] || exec sleep 300\n')
    (first, printed), *others = training.run()
    assert first == 3, printed
    assert [status for status, _said in others] == [0, 0]


def test_a_module_that_one_pod_lacks_is_reported_before_anything_ran(training: Pods) -> None:
    training.program("python3", '#!/bin/bash\n[ "$GPUCLUSTER_INDEX" != 2 ] || exit 1\nexit 0\n')
    (first, printed), *_others = training.run()
    assert first == 66
    assert "python3 has no module torch" in printed


def test_a_pod_that_is_lost_ends_the_job(training: Pods) -> None:
    training.program("python3", _TOLD + "    exec sleep 300\n")
    # The others show every two seconds that they live, and later on a busy machine.
    training.silent = 10
    started = [training.start(number) for number in range(3)]
    first = started[0]
    assert first.stdout is not None
    lines = iter(first.stdout)
    next(line for line in lines if " local 0 " in line)
    os.killpg(started[2].pid, 9)
    rest = "".join(lines)
    assert first.wait(timeout=PATIENCE_S) == 69
    assert "the pod of train-2.train has been silent" in rest


@pytest.mark.skipif(not shutil.which("mpirun") or not shutil.which("mpicc"), reason="Open MPI is not installed")
def test_open_mpi_reaches_the_other_pods_without_ssh(tmp_path: Path) -> None:
    """Both daemons are on this machine, so the one thing that differs from two pods is the number of hosts."""
    made = Pods(tmp_path, objects("mpi_allreduce", "kubernetes-job", job_name="mpi", largest="1024"))
    # Open MPI wants to be told that this is root, and that there may be fewer processors than ranks.
    made.program("mpirun", f'#!/bin/bash\nexec {shutil.which("mpirun")} --allow-run-as-root --oversubscribe "$@"\n')
    made.program("ssh", "#!/bin/bash\necho ssh is not needed >&2\nexit 1\n")
    try:
        (first, printed), (second, _said) = made.run()
    finally:
        made.close()
    assert (first, second) == (0, 0), printed
    assert '"ranks": 2, "wanted": 2' in printed
    started = (tmp_path / "home/gpucluster-jobs/mpi/.pods").glob("run.*/1.*.doing")
    assert any("orted" in each.read_text() or "prted" in each.read_text() for each in started)


def test_shellcheck_has_no_complaint_about_what_pods_run(tmp_path: Path) -> None:
    files = []
    for template, launcher in (("pytorch_ddp", "kubernetes-job"), ("mpi_allreduce", "mpijob")):
        for name, text in objects(template, launcher, network_interface="net1")[0]["data"].items():
            if name.endswith(".sh"):
                files.append(tmp_path / f"{template}-{name}")
                files[-1].write_text(text)
    done = subprocess.run(
        [str(SHELLCHECK), "--shell=bash", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[:4000]
