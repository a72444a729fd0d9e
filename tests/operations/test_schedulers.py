"""Commands that only Slurm has, on clusters with another scheduler: bad input, with the next command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucluster.cluster import Cluster
from gpucluster.errors import InputError
from gpucluster.lifecycle.repair import Fix
from gpucluster.spec import load
from tests.spec.spec_texts import MINIMAL


@pytest.mark.parametrize(
    ("command", "words", "hint"),
    [
        (lambda cluster: cluster.verify(fix=Fix()), "verify --fix", "gpucluster replace NODE"),
        (lambda cluster: cluster.slurm.plan_upgrade(), "slurm upgrade", "gpucluster kubernetes upgrade --plan"),
        (
            lambda cluster: cluster.slurm.plan_upgrade("26.05"),
            "slurm upgrade",
            "gpucluster kubernetes upgrade --plan",
        ),
        (lambda cluster: cluster.container_images.list(), "an image for jobs of Enroot", "Name the image in a pod"),
        (lambda cluster: cluster.job_reports.report("7"), "job report", "kubectl get pods"),
    ],
)
def test_a_command_of_slurm_names_that_for_kubernetes(
    tmp_path: Path, command: Callable[[Cluster], Any], words: str, hint: str
) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(f"{MINIMAL}scheduler: kubernetes\n")
    with pytest.raises(InputError) as caught:
        command(Cluster(load(file)))
    assert caught.value.what == f"{words} needs Slurm, and the scheduler of this cluster is kubernetes"
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2
    assert not (tmp_path / ".gpucluster").exists(), "nothing was begun"
