"""Slurm's releases: who talks to whom, and the steps of an upgrade."""

from __future__ import annotations

import pytest

from gpucluster.slurm import releases


@pytest.mark.parametrize(
    ("controller", "nodes", "refused"),
    [
        ("26.05.5", {"a": "26.05.5", "b": "24.11.5"}, ""),
        ("24.11.5", {"a": ""}, ""),
        ("23.11.4", {"a": "22.05.9"}, ""),
        # Oracle Linux 9 as the controller, Ubuntu 24.04 as a node: slurmd would be refused, and apply would wait.
        ("22.05.9", {"gpu-1": "23.11.4", "gpu-2": "22.05.9"}, "gpu-1 23.11.4: a node must not be newer"),
        (
            "26.05.5",
            {"gpu-2": "22.05.8", "gpu-1": "22.05.8"},
            "gpu-1, gpu-2 22.05.8: slurmctld 26.05 understands 25.11",
        ),
        ("20.11.9", {}, "the oldest that can be configured is 22.05"),
        ("26.11.0", {"a": "26.05.5"}, ""),
        ("26.11.0", {"a": "27.05.0"}, "must not be newer"),
    ],
)
def test_hosts_that_cannot_work_together_are_named(controller: str, nodes: dict[str, str], refused: str) -> None:
    said = "; ".join(releases.refusals(controller, nodes))
    assert refused in said
    assert bool(refused) == bool(said)


@pytest.mark.parametrize(
    ("current", "target", "steps"),
    [
        ("24.11", "26.05", ("26.05",)),
        ("26.05", "26.05", ()),
        ("22.05", "26.05", ("23.11", "25.05", "26.05")),
        ("23.11", "25.11", ("25.05", "25.11")),
        ("26.05", "25.11", None),
        ("20.11", "26.05", None),
    ],
)
def test_an_upgrade_goes_in_steps_that_slurm_understands(
    current: str, target: str, steps: tuple[str, ...] | None
) -> None:
    assert releases.steps(current, target) == steps


def test_each_release_that_can_be_built_is_in_the_table() -> None:
    assert set(releases.BUILDABLE) <= set(releases.RELEASES)
    assert list(releases.BUILDABLE) == sorted(releases.BUILDABLE)
    assert releases.BUILDABLE[-1] == releases.NEWEST


def test_a_quick_start_does_not_begin_with_a_build() -> None:
    default = releases.default_release
    assert default(["Debian-12"], prefers_distribution=True) == "distribution"
    assert default(["Debian-13"], prefers_distribution=True) == "distribution"
    assert default(["Debian-13", "Debian-12"], prefers_distribution=True) == "26.05"
    assert default(["Ubuntu-24"], prefers_distribution=False) == "26.05"
