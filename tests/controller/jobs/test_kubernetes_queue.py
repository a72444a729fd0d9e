"""Jobs of users in a real API server, with the real controllers of Jobs and quotas. There is no kubelet: a test states
what it would."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="workloads are rendered on the operator's machine")

from gpucluster.controller.conversation import RequestChannel
from gpucluster.controller.jobs import watch
from gpucluster.controller.jobs.kubernetes_queue import KubernetesQueue
from gpucluster.controller.kubernetes import hardware, people
from gpucluster.controller.kubernetes.person_objects import KubernetesUser, Quota
from gpucluster.kubernetes.manifests import workloads
from gpucluster.node_agent.accounts import Account
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.kubernetes.api_server import ApiServer, controllers, needs_api_server, pod_security, running
from tests.controller.kubernetes.objects import node
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    needs_api_server,
    pytest.mark.xdist_group("kubernetes-api-server"),
    pytest.mark.skipif(os.geteuid() != 0, reason="acts for other users: needs root"),
]

USER, PLACE = "nobody", "user-nobody"


class Site:
    """A cluster with a user who has a home and a quota of 8 GPUs."""

    def __init__(self, server: ApiServer, home: Path, *, engine: bool) -> None:
        self.server = server
        known = pwd.getpwnam(USER)
        home.mkdir(parents=True)
        os.chown(home, known.pw_uid, known.pw_gid)
        for folder in (home.parent, *home.parent.parents[:-2]):
            folder.chmod(0o755)
        self.owner = Account(USER, known.pw_uid, known.pw_gid, (known.pw_gid,), str(home))
        self.queue = KubernetesQueue(server.kubectl)
        person = KubernetesUser(USER, known.pw_uid, (known.pw_gid,), str(home))
        people.sync(server.kubectl, [person], Quota(gpus=8), engine=engine)
        for number in (1, 2):
            made = node(f"gpu-{number}")
            made["metadata"]["labels"] = {"gpucluster.io/pool": "gpu"}
            # What a pod's network and Kubernetes bring is no user's work.
            names = ["registry.k8s.io/pause:3.2", "quay.io/calico/node:v3.31.7", "site.test/tools:1"]
            images = [{"names": [name]} for name in names]
            made["status"] |= {"allocatable": {"nvidia.com/gpu": "8"}, "images": images}
            server.create(made)
        wait_for(
            "the quotas are known",
            lambda: all(each.get("status", {}).get("hard") for each in server.kubectl.list("resourcequotas")),
        )

    def submit(self, name: str, nodes: int = 2, gpus: int = 0, **more: Any) -> Path:
        work = workloads.Workload(name, nodes, "site.test/tools:1", ("bash",), {"job.sh": "true"}, gpus=gpus, **more)
        given = {
            "name": name, "files": {"job.yaml": {"text": "objects"}}, "manifests": workloads.kubernetes_job(work),
        }  # fmt: skip
        _name, place = self.queue.submit(self.owner, "mpi", {"job": {}}, given)
        return place

    def pods(self, name: str) -> list[dict[str, Any]]:
        return self.server.kubectl.list("pods", PLACE, labels=f"gpucluster.io/job={name}")

    def of_kubelet(self, pod: dict[str, Any], **status: Any) -> None:
        path = f"/api/v1/namespaces/{PLACE}/pods/{pod['metadata']['name']}/status"
        now = self.server.kubectl.get("pod", pod["metadata"]["name"], PLACE)
        whole = json.dumps({**now, "status": status})
        self.server.kubectl.run("replace", f"--raw={path}", "--filename=-", text=whole)


@pytest.fixture(scope="module", params=[False, True], ids=["of-kubeadm", "of-oracle"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """With each kind of control plane: users have certificates, or service accounts."""
    folder = tmp_path_factory.mktemp("kubernetes-jobs")
    with running(folder, *pod_security()) as server, controllers(server, "resourcequota", "job"):
        yield Site(server, folder / "homes" / USER, engine=request.param)


def test_a_job_is_the_users_from_its_pods_to_its_end(site: Site) -> None:
    place = site.submit("whole")
    assert (place / "job.json").stat().st_uid == site.owner.uid
    wait_for("the job has its two pods", lambda: len(site.pods("whole")) == 2)
    for pod in site.pods("whole"):
        assert pod["spec"]["securityContext"]["runAsUser"] == site.owner.uid
        site.of_kubelet(pod, phase="Running")
    wait_for("the job runs", lambda: site.queue.look("whole").state == "RUNNING")  # type: ignore[union-attr]
    (listed,) = [each for each in site.queue.jobs() if each.id == "whole"]
    assert (listed.user, listed.state) == (site.owner.name, "RUNNING")
    first = next(pod for pod in site.pods("whole") if pod["metadata"]["name"].startswith("whole-0-"))
    end = {"name": "workload", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    site.of_kubelet(first, phase="Failed", containerStatuses=[{**end, "state": {"terminated": {"exitCode": 66}}}])
    seen = site.queue.look("whole")
    assert seen is not None
    assert (seen.state, seen.exit_status, seen.uid) == ("FAILED", 66, site.owner.uid)
    assert "whole" not in [each.id for each in site.queue.jobs()]
    with pytest.raises(Refused, match="has a job whole"):
        site.submit("whole")
    site.queue.cancel(seen)
    assert site.queue.look("whole") is None
    for kind in ("jobs", "services", "configmaps"):
        assert not site.server.kubectl.list(kind, PLACE, labels="gpucluster.io/job=whole"), kind
    with pytest.raises(Failed, match="is there already, from an earlier job"):
        site.submit("whole")


def test_more_than_the_quota_ever_gives_is_refused_and_nothing_is_left(site: Site) -> None:
    with pytest.raises(Refused, match=r"can never start: it asks for nvidia.com/gpu 16 in all"):
        site.submit("large", gpus=8)
    assert site.queue.look("large") is None
    assert not (Path(site.owner.home) / "gpucluster-jobs" / "large").exists()


def test_a_job_asks_for_instances_of_divided_gpus_where_nodes_offer_them(site: Site) -> None:
    resource = "nvidia.com/mig-1g.10gb.me"
    asked: dict[str, Any] = {"pool": "gpu", "nodes": 2, "gpus": 1, "requirements": []}
    assert site.queue.check(site.owner, Path(site.owner.home), asked).refused == ""
    refused = site.queue.check(site.owner, Path(site.owner.home), {**asked, "gpu_resource": resource}).refused
    assert refused.startswith(f"0 nodes of the pool gpu offer 1 of {resource}, and the job wants 2")
    pools = [{"nodes": ["gpu-1", "gpu-2"], "labels": {"gpucluster.io/pool": "gpu"}, "emulated": {resource: "4"}}]
    hardware.arrange(site.server.kubectl, pools)
    assert site.queue.check(site.owner, Path(site.owner.home), {**asked, "gpu_resource": resource}).refused == ""
    site.submit("instances", gpus=1, gpu_resource=resource)
    wait_for("the job has its two pods", lambda: len(site.pods("instances")) == 2)
    for pod in site.pods("instances"):
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {resource: "1"}
    site.queue.cancel(site.queue.look("instances"))  # type: ignore[arg-type]


def test_a_quota_that_others_use_up_is_the_reason_of_a_job_that_waits(site: Site) -> None:
    site.submit("before", nodes=1, gpus=8)
    wait_for("the first job has its pod", lambda: len(site.pods("before")) == 1)
    site.submit("after", nodes=1, gpus=8)
    wait_for(
        "the second job shows what it waits for",
        lambda: "the quota of the user is used up" in site.queue.look("after").reason,  # type: ignore[union-attr]
    )
    for name in ("before", "after"):
        site.queue.cancel(site.queue.look(name))  # type: ignore[arg-type]


def test_what_the_policy_of_the_namespace_forbids_is_refused_before_anything_is_made(site: Site) -> None:
    with pytest.raises(Refused, match=r"the policy of the user's namespace forbids it: .*[Hh]ost ?[Nn]etwork"):
        site.submit("host", host_network=True)
    assert site.queue.look("host") is None


def test_an_operator_that_is_not_there_is_reported_with_the_launcher_that_needs_none(site: Site) -> None:
    work = workloads.Workload("set", 2, "site.test/tools:1", ("bash",), {"job.sh": "true"})
    given = {"name": "set", "files": {"job.yaml": {"text": ""}}, "manifests": workloads.jobset(work)}
    with pytest.raises(Refused, match="JobSet") as refused:
        site.queue.submit(site.owner, "mpi", {}, given)
    assert "--launcher kubernetes-job" in refused.value.hint
    assert site.queue.look("set") is None


def _definition(kind: str) -> dict[str, Any]:
    """A double of a kind of Kubeflow Trainer: any fields, and no controller behind it."""
    plural, group = f"{kind.lower()}s", "trainer.kubeflow.org"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }  # fmt: skip


def test_a_user_makes_a_trainjob_with_its_runtime_and_both_go_with_the_job(site: Site) -> None:
    kinds = ("trainjobs.trainer.kubeflow.org", "trainingruntimes.trainer.kubeflow.org")
    for kind in ("TrainJob", "TrainingRuntime"):
        site.server.kubectl.run("create", "--filename=-", text=json.dumps(_definition(kind)))
    for kind in kinds:
        site.server.kubectl.run("wait", "--for=condition=Established", f"customresourcedefinition/{kind}")
    work = workloads.Workload("train", 2, "site.test/tools:1", ("bash",), {"job.sh": "true"})
    given = {"name": "train", "files": {"job.yaml": {"text": ""}}, "manifests": workloads.trainjob(work)}
    site.queue.submit(site.owner, "mpi", {}, given)
    seen = site.queue.look("train")
    assert seen is not None
    assert seen.state == "PENDING"
    for kind in kinds:
        (made,) = site.server.kubectl.list(kind, PLACE, labels="gpucluster.io/job=train")
        assert made["metadata"]["name"] == "train"
    site.queue.cancel(seen)
    for kind in kinds:
        assert not site.server.kubectl.list(kind, PLACE, labels="gpucluster.io/job=train"), kind


def test_a_pod_without_its_image_ends_the_wait_with_the_reason_and_not_the_job(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpucluster.controller.kubernetes.job_objects._START_S", 0.1)
    site.submit("image", nodes=1)
    wait_for("the job has a pod", lambda: site.pods("image"))
    waits = {"waiting": {"reason": "ErrImageNeverPull", "message": "site.test/tools:1 is not present"}}
    status = {"name": "workload", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": waits}
    site.of_kubelet(site.pods("image")[0], phase="Pending", containerStatuses=[status])
    source, _end = os.pipe()
    target = os.open(os.devnull, os.O_WRONLY)
    try:
        with pytest.raises(Failed, match=r"can't go on: pod image-0-.*ErrImageNeverPull") as failed:
            watch.until_ended(RequestChannel(source, target), site.queue, "image", 60.0)
    finally:
        for descriptor in (source, _end, target):
            os.close(descriptor)
    assert failed.value.hint == "End it: gpucluster job cancel image"
    seen = site.queue.look("image")
    assert seen is not None
    site.queue.cancel(seen)


def test_nodes_gpus_and_images_are_checked_before(site: Site) -> None:
    def check(nodes: int = 2, gpus: int = 0, image: str = "site.test/tools:1", need: str = "container image") -> Any:
        wanted = [{"need": need, "name": image}]
        given = {"pool": "gpu", "nodes": nodes, "gpus": gpus, "requirements": wanted}
        return site.queue.check(site.owner, Path("/mnt/home"), given)

    assert check().requirements[0]["state"] == "met"
    unnamed = check(image="").requirements[0]
    assert (unnamed["state"], unnamed["message"]) == ("not met", "is not named; the nodes have site.test/tools:1")
    assert "they pull it when the job starts" in check(image="site.test/other:1").requirements[0]["message"]
    assert "has 2 nodes in Kubernetes, and the job wants 3" in check(nodes=3).refused
    assert "0 nodes of the pool gpu offer 9" in check(gpus=9).refused
    assert "outside of the home" in check(image="/mnt/home/data", need="data").requirements[0]["message"]


def test_who_has_no_namespace_is_told_so(site: Site) -> None:
    stranger = site.owner._replace(name="eve", uid=12345)
    with pytest.raises(Refused, match="eve has no namespace in Kubernetes"):
        site.queue.submit(stranger, "mpi", {}, {"name": "x", "manifests": [], "files": {}})
