"""The client of the scheduler, by the policy, and the words for it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.kubernetes import KubernetesClient, KubernetesUnavailable
from gpucluster.autoscaler.daemon.schedulers import client, templates
from gpucluster.autoscaler.daemon.slurm import SlurmClient
from gpucluster.autoscaler.decide.explain import explain, explain_job, explain_node
from gpucluster.autoscaler.decide.pods import Pod, Toleration
from gpucluster.autoscaler.decide.types import Job, Memory, Observation
from gpucluster.autoscaler.policy import Policy
from tests.autoscaler.test_policy import on_kubernetes, written

KUBERNETES, SLURM = Policy.parse(on_kubernetes()), Policy.parse(written())


def test_the_policy_decides_whose_client_it_is(tmp_path: Path) -> None:
    made = [client(one, state=tmp_path, may_write=lambda: False, clock=time.time) for one in (SLURM, KUBERNETES)]
    assert [type(each) for each in made] == [SlurmClient, KubernetesClient]


def test_the_client_of_kubernetes_has_the_kubeconfig_of_the_policy(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(' '.join(sys.argv[1:3]))\n")
    program.chmod(0o755)
    assert KUBERNETES.kubernetes is not None
    policy = replace(KUBERNETES, kubernetes=replace(KUBERNETES.kubernetes, kubectl=str(program)))
    made = client(policy, state=tmp_path, may_write=lambda: False, clock=time.time)
    with pytest.raises(KubernetesUnavailable, match=r"--kubeconfig=/etc/gpucluster/autoscaler\.kubeconfig get"):
        made.nodes()


def test_a_new_node_takes_what_the_pool_offers_and_nothing_else() -> None:
    (made,) = templates(KUBERNETES)
    assert (made.names[0], len(made.names), made.max_nodes) == ("gpu-e1", 6, 2)
    tolerated = (Toleration("nvidia.com/gpu", exists=True),)
    selector = {"kubernetes.io/arch": "amd64", "gpucluster.io/pool": "gpu"}
    fitting = Pod("a/b", "a/b", 1, "", True, 0.0, {"nvidia.com/gpu": 8.0}, selector=selector, tolerations=tolerated)
    assert made.takes(fitting)
    assert not made.takes(replace(fitting, tolerations=()))
    assert not made.takes(replace(fitting, selector={"kubernetes.io/arch": "arm64"}))
    assert not made.takes(replace(fitting, needs={"nvidia.com/gpu": 9.0}))


def test_messages_name_the_scheduler_in_use() -> None:
    nobody = Observation(nodes={}, jobs={}, instances=())
    for policy, name, other in ((SLURM, "Slurm", "Kubernetes"), (KUBERNETES, "Kubernetes", "Slurm")):
        said = (*explain_node("gpu-e1", nobody, Memory(id=""), policy, 0.0),
                *explain_job("a/b", nobody, Memory(id=""), policy, 0.0))  # fmt: skip
        assert any(name in line for line in said)
        assert not any(other in line for line in said)


def _job(name: str, *called: str, state: str = "PENDING", reason: str = "Resources") -> Job:
    names = frozenset(f"user-ada/{each}" for each in (name, *called))
    return Job(f"user-ada/{name}", f"user-ada/{name}", state, reason, ("gpu",), (), 1, called=names)


def _explained(subject: str, *jobs: Job) -> str:
    seen = Observation(nodes={}, jobs={each.id: each for each in jobs}, instances=())
    return "\n".join(explain(subject, seen, Memory(id=""), KUBERNETES, 0.0))


@pytest.mark.parametrize("name", ["train", "user-ada/train", "train-0", "user-ada/train-0", "trainer"])
def test_a_gang_is_explained_by_each_of_its_names(name: str) -> None:
    gang = _job("train", "train-0", "train-1", "trainer")
    assert "Job user-ada/train waits for 1 node (Resources)" in _explained(name, gang, _job("other"))


def test_of_many_with_one_name_a_few_are_explained_those_that_wait_first() -> None:
    jobs = [_job(f"rank-{number}", "sweep", state="RUNNING" if number < 3 else "PENDING") for number in range(8)]
    said = _explained("sweep", *jobs)
    assert said.startswith("Job user-ada/rank-3 waits")
    assert "There are 3 more of this name: user-ada/rank-0, user-ada/rank-1, user-ada/rank-2" in said


def test_an_unknown_name_is_reported_with_the_names_to_give() -> None:
    said = _explained("nothing", _job("train"))
    assert "no elastic node nothing, and no pod, job or gang of this name that has not ended" in said
    assert "NAMESPACE/NAME" in said
    assert "Kubernetes lists no node gpu-e1" in _explained("gpu-e1")
    silent = explain("train", Observation(None, None, ()), Memory(id=""), KUBERNETES, 0.0)
    assert silent == ("Kubernetes does not answer",)


def test_a_job_that_is_not_admitted_yet_is_explained() -> None:
    said = _explained("train", _job("train", reason="SchedulingGated"))
    assert (
        "(SchedulingGated): its pods have scheduling gates. What has set them, such as Kueue, has to admit it" in said
    )
