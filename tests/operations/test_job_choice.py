"""Which job runs on a pool whose GPUs are divided: what the spec of the cluster decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.jobs import choose, registry
from gpucluster.jobs.model import Job
from gpucluster.operations.job_choice import check_divided, job_for, own_launchers
from gpucluster.spec import ClusterSpec, loads
from tests.spec.spec_texts import KEY, OCI

USER = "- name: alice\n      uid: 12001"

_SEVEN = '[{mig_devices: {"1g.10gb": 7}}]'
_SOME = '[{devices: [0, 1], mig_devices: {"1g.10gb": 7}}, {devices: [2], mig_devices: {"3g.40gb": 2}}]'


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "operator.pub").write_text(KEY)
    monkeypatch.chdir(tmp_path)


def spec(mig: str, scheduler: str = "kubernetes") -> ClusterSpec:
    text = f"scheduler: {scheduler}\n" + OCI.replace("    max_count: 8\n", "").replace("- name: alice", USER)
    return loads(text.replace("    count: 2\n", f"    count: 2\n    gpus: {{mig: {mig}}}\n", 1) if mig else text)


def choice(of: ClusterSpec, template: str = "pytorch_ddp", gpus: int | None = None, **settings: str) -> Job:
    chosen = registry.template(template)
    launcher = "kubernetes-job" if of.scheduler == "kubernetes" else chosen.launchers[0]
    job = job_for(of, chosen, registry.launcher(chosen, launcher), settings, nodes=2, pool="h100")
    job = job if gpus is None else replace(job, gpus=gpus)
    assert choose.refusal(job) == ""
    check_divided(of, "h100", job)
    return job


def test_where_there_is_one_kind_of_instance_a_pod_gets_one() -> None:
    job = choice(spec(_SEVEN))
    assert (job.values["mig"], job.gpus, job.per_node) == ("1g.10gb", 1, 1)


def test_where_there_is_a_choice_the_user_has_it() -> None:
    of = spec(_SOME)
    with pytest.raises(InputError, match=r"5 of 8 GPUs of its nodes are not divided .*, and the job takes 8") as raised:
        choice(of)
    assert raised.value.hint == "Take an instance: --set mig=1g.10gb; or whole GPUs: --gpus 5"
    assert choice(of, gpus=5).gpus == 5
    assert choice(of, mig="3g.40gb").gpus == 1
    assert choice(of, "nccl_tests", gpus=4).gpus == 4


@pytest.mark.parametrize(
    ("mig", "profile", "says"),
    [
        (_SOME, "2g.20gb", r"its GPUs are not divided into 2g.20gb \(gpus.mig\)"),
        ("", "1g.10gb", r"its GPUs are not divided, and the option mig is 1g.10gb"),
    ],
)
def test_an_instance_that_the_pool_does_not_make_is_refused(mig: str, profile: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        choice(spec(mig), mig=profile)


def test_a_measurement_of_links_between_gpus_has_no_meaning_on_instances() -> None:
    with pytest.raises(InputError, match="the links between whole GPUs"):
        choice(spec(_SEVEN), "nccl_tests")


def test_jobs_claim_gpus_where_the_cluster_has_nvidias_dra_driver() -> None:
    of = spec("")
    assert choice(of).values["gpu_claims"] is False
    claims = of.model_copy(update={"kubernetes": of.kubernetes.model_copy(update={"gpus": "dra-driver"})})
    job = choice(claims)
    assert (job.values["gpu_claims"], job.gpus) == (True, 8)


def test_with_slurm_templates_count_whole_gpus() -> None:
    with pytest.raises(InputError, match=r"templates count whole GPUs, .* divided \(gpus.mig\)") as raised:
        choice(spec(_SEVEN, "slurm"))
    assert "sbatch --gres=gpu:1g.10gb:1" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("scheduler", "more", "launchers"),
    [
        ("slurm", "", ["srun", "mpirun"]),
        ("slurm", "containers: {runtimes: [enroot]}\n", ["pyxis", "srun", "mpirun"]),
        ("kubernetes", "", ["kubernetes-job", "jobset", "mpijob"]),
        ("none", "", []),
    ],
)
def test_a_cluster_offers_the_launchers_that_it_can_run(scheduler: str, more: str, launchers: list[str]) -> None:
    text = f"scheduler: {scheduler}\n{more}" + OCI.replace("    max_count: 8\n", "").replace("- name: alice", USER)
    assert own_launchers(loads(text), registry.template("nccl_tests")) == launchers
