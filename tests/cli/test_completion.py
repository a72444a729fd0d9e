"""What a shell offers for names, asked as bash asks: the real program, with the files of a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = """\
version: 1
name: demo
pools:
  compute: {count: 2}
  gpu: {count: 1}
users:
  people: [{name: alice}, {name: amir}, {name: bob}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yml").write_text(CLUSTER)
    state = tmp_path / ".gpucluster"
    state.mkdir()
    names = ("demo-controller", "demo-login", "compute-1", "compute-2", "gpu-1")
    saved = [{"name": name, "address": "10.0.0.1", "booted": None} for name in names]
    (state / "hosts.json").write_text(json.dumps({"hosts": saved}))
    return tmp_path


def offered(folder: Path, line: str, cwd: Path | None = None) -> list[str]:
    """What bash would show after these words; the last one is incomplete, or empty after a space."""
    words = line.split(" ")
    variables = {"_GPUCLUSTER_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    program = "from gpucluster.__main__ import main; import sys; sys.argv[0] = 'gpucluster'; main()"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=cwd or folder, env={**os.environ, **variables}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [row.partition(",")[2] for row in done.stdout.splitlines() if row]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("gpucluster replace ", ["compute-1", "compute-2", "gpu-1"]),
        ("gpucluster replace compute-1 c", ["compute-2"]),
        ("gpucluster ssh demo-l", ["demo-login"]),
        ("gpucluster ssh cont", ["controller"]),
        ("gpucluster logs g", ["gpu-1"]),
        ("gpucluster rollout --pool c", ["compute"]),
        ("gpucluster image bake ", ["compute", "gpu"]),
        ("gpucluster user edit a", ["alice", "amir"]),
        ("gpucluster kubeconfig --user b", ["bob"]),
        ("gpucluster support-bundle --host gpu", ["gpu-1"]),
        ("gpucluster user edit z", []),
        ("gpucluster job submit nccl", ["nccl_tests"]),
        ("gpucluster job show nccl_tests --launcher mpir", ["mpirun"]),
        ("gpucluster job submit nccl_tests --pool g", ["gpu"]),
        ("gpucluster job submit nccl_tests --user b", ["bob"]),
    ],
)
def test_names_are_offered(folder: Path, line: str, names: list[str]) -> None:
    assert offered(folder, line) == names


def test_the_named_file_counts(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for line in (
        f"gpucluster --file {folder}/cluster.yml replace g",
        f"gpucluster replace -f {folder}/cluster.yml g",
    ):
        assert offered(folder, line, cwd=elsewhere) == ["gpu-1"], line
    assert offered(folder, "gpucluster replace g", cwd=elsewhere) == []
    monkeypatch.setenv("GPUCLUSTER_FILE", f"{folder}/cluster.yml")
    assert offered(folder, "gpucluster replace g", cwd=elsewhere) == ["gpu-1"]


@pytest.mark.parametrize("text", ["", "pools: [", "pools: 7\nusers: {people: 3}\n", "- a\n", "\x00"])
def test_a_file_that_is_wrong_offers_nothing_and_prints_nothing(folder: Path, text: str) -> None:
    (folder / "cluster.yml").write_text(text)
    (folder / ".gpucluster" / "hosts.json").write_text(text)
    for line in ("gpucluster replace ", "gpucluster user show ", "gpucluster rollout --pool "):
        assert offered(folder, line) == []


def test_the_newest_run_is_offered_first(folder: Path) -> None:
    runs = folder / ".gpucluster" / "runs"
    runs.mkdir()
    names = [f"202601{day}T030405-abcdef" for day in ("01", "02")]
    for name in names:
        (runs / f"{name}.json").write_text(json.dumps({"run": name, "command": "apply", "status": "success"}))
    assert offered(folder, "gpucluster logs 2026") == names[::-1]
