"""What a measurement becomes, and the order of jobs. The jobs themselves: tests/operations/test_measuring_slurm.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.measure import baseline, launch, request
from gpucluster.controller.measure.__main__ import main, serve
from gpucluster.controller.measure.result import startable
from gpucluster.node_agent import accounts
from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.nccl import text_output

NCCL: dict[str, Any] = {
    "id": "1", "kind": "nccl", "nodes": ["gpu-1", "gpu-2"], "partition": "gpu", "minutes": 10, "gpus": 8,
    "program": "/mnt/home/tools/all_reduce_perf", "image": "/mnt/home/x.sqsh", "mpi": "pmix",
    "arguments": ["-b", "1G"], "settings": {"NCCL_IB_HCA": "=mlx5_0"},
}  # fmt: skip
RDMA: dict[str, Any] = {
    "id": "2", "kind": "rdma", "nodes": ["gpu-1", "gpu-2"], "partition": "gpu", "minutes": 3, "devices": ["mlx5_0"],
}  # fmt: skip


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


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": []}, {"nodes": ["a", "a"]}, {"nodes": ["a;reboot"]}, {"nodes": "gpu-1"}, {"minutes": 0},
        {"minutes": 100_000}, {"gpus": 0}, {"kind": "shell"}, {"program": "$(reboot)"}, {"settings": ["a"]},
        {"partition": "x y"}, {"id": None}, {"arguments": ["`id`"]}, {"image": "a b"}, {"minutes": True},
        {"kind": "rdma", "devices": []}, {"kind": "rdma", "devices": ["mlx5_0"], "nodes": ["gpu-1"]},
    ],
)  # fmt: skip
def test_what_is_not_a_measurement_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        request.read({**NCCL, **change})


@pytest.mark.parametrize("given", [None, [], "x", {}, {"id": "1"}])
def test_what_is_not_a_request_is_refused(given: Any) -> None:
    with pytest.raises(Refused):
        request.read(given)


def test_jobs_that_share_no_node_run_together_and_none_is_overtaken_for_ever() -> None:
    wanted = [request.read({**NCCL, "id": str(n), "nodes": nodes}) for n, nodes in enumerate(
        (["a", "b"], ["b", "c"], ["c", "d"], ["e", "f"])
    )]  # fmt: skip
    assert [each.id for each in startable(wanted, [], 64)] == ["0", "3"]


def talk(*lines: Any) -> tuple[RequestChannel, int]:
    """A conversation whose other end has said this, and is gone; and the descriptor with the answers."""
    here, there = os.pipe()
    os.write(there, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    os.close(there)
    answers, target = os.pipe()
    return RequestChannel(here, target), answers


def test_a_user_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    conversation, answers = talk({"operation": "begin", "arguments": {"user": "nobody-of-that-name", "who": "me"}})
    assert serve(tmp_path / "folder", conversation) == Refused.status
    assert "there is no user" in json.loads(os.read(answers, 9999))["error"]["message"]


def test_an_end_is_not_an_error(tmp_path: Path) -> None:
    conversation, _answers = talk()
    assert serve(tmp_path, conversation) == 0


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpucluster.controller.conversation._MOST", 10)
    conversation, _answers = talk("x" * 100)
    with pytest.raises(Disconnected):
        conversation.request()


def test_only_root_measures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["serve"]) == 1
    assert "only root" in capsys.readouterr().err


def test_a_baseline_that_can_not_be_read_is_none(tmp_path: Path) -> None:
    assert baseline.load(tmp_path) == {}
    (tmp_path / "baseline.json").write_text("{broken")
    assert baseline.load(tmp_path) == {}
    baseline.merge(tmp_path, {"a": 1})
    assert baseline.merge(tmp_path, {"b": 2}) == baseline.load(tmp_path) == {"a": 1, "b": 2}
    assert [file.name for file in tmp_path.iterdir()] == ["baseline.json"]
