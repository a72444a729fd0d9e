"""The command `gpucluster-agent exporter` as hosts have it: a page, a file, a service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gpucluster.node_agent.exporter import __main__ as command
from gpucluster.node_agent.exporter.collect import gpu
from tests.addresses import free_port
from tests.agent_program import install
from tests.node_agent.exporter.trees import IB, IRDMA, MLX5, port, write
from tests.node_agent.exposition import Series, having, of, series
from tests.waiting import PATIENCE_S, wait_for


def agent(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-I", str(install(folder)), "exporter", *words]


def host(folder: Path) -> list[str]:
    """Options for a host with RDMA devices of two vendors and a job."""
    port(folder / "sys", "mlx5_0", IB, MLX5)
    port(folder / "sys", "irdma0", (), IRDMA)
    write(folder / "jobs/12.json", json.dumps({"version": 1, "job_id": "12", "gpus": ["0"]}))
    return [f"--sysfs-root={folder / 'sys'}", f"--proc-root={folder / 'proc'}", f"--jobs={folder / 'jobs'}"]


def whole(found: Series) -> bool:
    """Whether all collectors have answered within their limits, which a busy machine may not let them."""
    return set(having(found, "gpucluster_exporter_collector_up").values()) == {1}


def test_the_command_prints_a_page(tmp_path: Path) -> None:
    words = agent(tmp_path, "--once", *host(tmp_path))

    def printed() -> str:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        if not whole(series(done.stdout)):
            return ""
        assert done.stderr == ""
        return done.stdout

    text = wait_for("the command prints a page with all collectors", printed)
    found = series(text)
    assert of(found, "gpucluster_job_gpu", job_id="12", gpu="0", uuid="") == 1
    assert of(found, "gpucluster_rdma_received_bytes_total", device="mlx5_0", port="1") == 4 * IB.index("port_rcv_data")
    if shutil.which("promtool"):
        # What the linter finds of names that were chosen so; it ends with 1 where it can't read the page.
        said = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        named = {
            line.split()[0] for line in said.stderr.splitlines() if line.endswith("should not include type 'counter'")
        }
        assert named == {"gpucluster_rdma_counter_total"}, said
        assert (said.returncode, len(said.stderr.splitlines())) == (3, len(named)), said


def test_the_command_writes_a_file_for_node_exporter(tmp_path: Path) -> None:
    file = tmp_path / "out.prom"
    file.write_text("old")
    words = agent(tmp_path, f"--textfile={file}", *host(tmp_path))

    def written() -> bool:
        assert subprocess.run(words, check=False).returncode == 0
        return whole(series(file.read_text()))

    wait_for("the command writes a page with all collectors", written)
    assert of(series(file.read_text()), "gpucluster_job_node", job_id="12") == 1
    assert file.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in tmp_path.iterdir() if "out.prom" in each.name] == ["out.prom"]
    done = subprocess.run(agent(tmp_path, f"--textfile={tmp_path}/none/x"), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{tmp_path}/none/" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_serves_until_it_is_ended_and_leaves_nothing(tmp_path: Path) -> None:
    number = free_port()
    words = ["serve", f"--listen=:{number}", "--toward=127.0.0.1", "--allow=127.0.0.1", *host(tmp_path)]
    started = subprocess.Popen(agent(tmp_path, *words), start_new_session=True)

    def served() -> Series:
        assert started.poll() is None
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/metrics", timeout=PATIENCE_S) as answer:
            found = series(answer.read().decode())
        return found if whole(found) else {}

    try:
        found = wait_for("the exporter serves a page with all collectors", served, ignore=urllib.error.URLError)
        assert of(found, "gpucluster_job_node", job_id="12") == 1
        workers = [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(int(name)) == started.pid]
        assert len(workers) == 3
    finally:
        started.terminate()
        assert started.wait() == -15
    left = [Path("/proc", str(pid)) for pid in workers]
    wait_for("no collector outlives the exporter", lambda: not any(each.exists() for each in left))


def _parent(pid: int) -> int:
    try:
        text = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return 0
    return int(text[text.rindex(")") + 2 :].split()[1])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ([], 2), (["--once", "serve"], 2), (["serve"], 2), (["serve", "--listen=x"], 2), (["serve", "--listen=:1"], 2),
        (["--once", "--collectors=nosuch"], 2), (["serve", "--listen=192.0.2.1:1", "--toward=x"], 2),
        (["serve", "--listen=1.2.3.4.5:80"], 1), (["serve", "--listen=127.0.0.1:99999"], 1),
        (["--address-toward=nowhere.invalid"], 1),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_in_words(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        found = command.main(words)
    except SystemExit as ended:
        found = int(str(ended.code))
    assert found == status
    assert "gpucluster-agent exporter" in capsys.readouterr().err


def test_the_collector_of_gpus_runs_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    write(tool, "#!/bin/sh\necho '0, GPU-1, 97, 1024, 143771, 612.45, 61'\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu, "FIRST_S", PATIENCE_S)
    limitless = {name: each._replace(seconds=10 * PATIENCE_S) for name, each in command.COLLECTORS.items()}
    monkeypatch.setattr(command, "COLLECTORS", limitless)
    assert command.main(["--once", "--collectors=gpu"]) == 0
    assert "gpucluster_gpu_power_watts" in capsys.readouterr().out
    assert command.main(["--once"]) == 0
    assert "gpucluster_gpu_" not in capsys.readouterr().out
