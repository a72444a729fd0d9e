"""What a measurement becomes as a job: its nodes, its limits and its environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpucluster.controller.measure import launch, request
from gpucluster.node_agent import accounts
from gpucluster.node_agent.nccl import text_output
from tests.controller.measure.requests import NCCL


def test_a_job_has_its_nodes_for_itself_and_ends_in_time() -> None:
    argv = launch.argv(request.read(NCCL), f"{launch.PREFIX}x-1")
    wanted = {"--exclusive", "--nodelist=gpu-1,gpu-2", "--time=10", "--ntasks=16", "--ntasks-per-node=8", "--mpi=pmix"}
    assert wanted < set(argv)
    assert "--container-mounts=/mnt/home/tools:/mnt/home/tools" in argv
    assert argv[-3:] == ["/mnt/home/tools/all_reduce_perf", "-b", "1G"]


def test_a_job_has_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "secret")
    made = {**accounts.environment(accounts.account("nobody")), **launch.settings(request.read(NCCL))}
    assert made["NCCL_IB_HCA"] == "=mlx5_0"
    assert made["USER"] == "nobody"
    assert "MY_TOKEN" not in made


#: What nvidia-smi prints of two ranks of our own, a program of another user, and one that it may not name.
_ON_GPUS = "71, /opt/nccl-tests/build/all_reduce_perf\n4711, python3\n72, all_reduce_perf\n4712, [Not Found]\n"


@pytest.mark.parametrize(
    ("given", "others"),
    [
        (f"cat <<'end'\n{_ON_GPUS}end", ("gpu-1: python3 (process 4711)", "gpu-1: [Not Found] (process 4712)")),
        ("echo 'No running processes found'", ()),
        ("echo 'Unable to determine the device handle' >&2; exit 15", ()),
    ],
)
def test_the_first_process_of_a_node_reports_what_else_uses_its_gpus(
    tmp_path: Path, given: str, others: tuple[str, ...]
) -> None:
    for name, text in {"nvidia-smi": given, "all_reduce_perf": "echo 'it ran' \"$@\""}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.defpath}", "SLURMD_NODENAME": "gpu-1"}
    argv = ["sh", "-c", launch.NCCL_SCRIPT, "measure", "", "-b", "1G"]
    said = [
        subprocess.run(argv, env={**path, "SLURM_LOCALID": rank}, capture_output=True, text=True, check=True).stdout
        for rank in ("0", "1")
    ]
    assert [text.splitlines()[-1] for text in said] == ["it ran -b 1G"] * 2
    assert [text_output.parse(text.splitlines()).others for text in said] == [others, ()]
