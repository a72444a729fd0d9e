"""Which Slurm a cluster runs, and the steps to another release: from the output of Slurm's programs."""

from __future__ import annotations

import pytest

from gpucluster.errors import InputError, ToolError
from gpucluster.operations.slurm_upgrade import SlurmReleases
from gpucluster.spec import loads
from tests.doubles.controller import ControllerDouble
from tests.spec.spec_texts import LOCAL

ANSWER = """\
controller slurm-wlm {controller}
node compute-1 {node}
node compute-2 N/A
jobs 3
"""


def at(release: str, controller: str, node: str = "24.11.5") -> SlurmReleases:
    text = LOCAL.replace("  accounting: true\n", f'  accounting: true\n  release: "{release}"\n')
    answer = ANSWER.format(controller=controller, node=node) if controller else "controller \njobs 0\n"
    return SlurmReleases(loads(text), ControllerDouble(answer))  # type: ignore[arg-type]


def test_versions_and_jobs_are_read() -> None:
    plan = at("26.05", "24.11.5").check()
    assert plan.to_dict() == {
        "version": "24.11.5",
        "nodes": {"compute-1": "24.11.5"},
        "release": "26.05",
        "steps": ("26.05",),
        "running_jobs": 3,
        "warnings": (),
    }


def test_what_is_known_against_the_target_is_said() -> None:
    """Of the version that would be built, not of the one that runs."""
    (said,) = at("25.11", "25.05.8").plan().warnings
    assert said.startswith("Slurm 25.11.7 has known vulnerabilities of 2026-09")


def test_login_nodes_are_asked_because_slurm_does_not_know_theirs() -> None:
    slurm = at("26.05", "24.11.5")
    spec = slurm._spec.model_copy(update={"login": slurm._spec.login.model_copy(update={"count": 2})})
    answer = ANSWER.format(controller="24.11.5", node="24.11.5") + "node demo-login-1 24.11.4\nnode demo-login-2 \n"
    controller = ControllerDouble(answer)
    plan = SlurmReleases(spec, controller).plan()  # type: ignore[arg-type]
    assert plan.nodes == {"compute-1": "24.11.5", "demo-login-1": "24.11.4"}
    assert [f"{name} srun --version" in controller.asked[0].command for name in ("demo-login-1", "demo-login-2")] == [
        True,
        True,
    ]


def test_an_interrupted_upgrade_is_continued() -> None:
    # The controller has the new release, a node has not.
    assert at("26.05", "26.05.5").check().steps == ()


def test_more_than_one_step_is_refused_and_the_first_is_named() -> None:
    slurm = at("26.05", "22.05.8")
    assert slurm.plan().steps == ("23.11", "25.05", "26.05")
    with pytest.raises(InputError) as caught:
        slurm.check()
    assert "gpucluster slurm upgrade --to 23.11" in caught.value.hint


@pytest.mark.parametrize(
    ("release", "controller", "says"),
    [
        ("25.11", "26.05.5", "does not go back"),
        ("26.05", "20.11.9", "older than any step needs"),
        ("distribution", "24.11.5", "no release of Slurm that could be built"),
    ],
)
def test_what_is_not_an_upgrade_is_refused(release: str, controller: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        at(release, controller).plan()
    assert says in str(caught.value)


def test_a_controller_without_slurm_is_not_a_cluster_yet() -> None:
    with pytest.raises(ToolError) as caught:
        at("26.05", "").plan()
    assert "gpucluster apply" in caught.value.hint
