"""The main path, for real: a cluster is built through bad luck, used, and destroyed, on a local cloud of its own.

The tests run in the order of this file, on one cluster: each is a chapter of the same story.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

NAME = "e2e"
CLUSTER_YML = """\
version: 1
name: e2e
cloud:
  provider: local
network:
  vcn_cidr: 10.90.0.0/16
  public_subnet_cidr: 10.90.0.0/24
  private_subnet_cidr: 10.90.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller:
  shape: VM.Standard.E5.Flex
  ocpus: 4
  memory_gb: 32
pools:
  compute:
    shape: BM.GPU4.8
    count: 2
    max_count: 2
users:
  people:
    - name: alice
      full_name: Alice Example
      generate_key: true
"""


class Site:
    """A folder with a cluster.yml, a local cloud of its own, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "cluster.yml"
        self.file.write_text(CLUSTER_YML)
        self.home = folder / "cloud"
        self.env = {**os.environ, "GPUCLUSTER_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}

    def _argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpucluster", "--file", str(self.file), "--output", "json", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._argv(*words), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *words: str, timeout: float = 600) -> tuple[int, list[dict[str, Any]]]:
        done = subprocess.run(
            self._argv(*words),
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stdout, done.stdout
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, events

    def good(self, *words: str) -> dict[str, Any]:
        code, events = self.run(*words)
        assert code == 0, events[-8:]
        assert events[-1]["kind"] == "result"
        data: dict[str, Any] = events[-1]["data"]
        return data

    def as_alice(self, command: str, stdin: str = "") -> str:
        address = json.loads((self.folder / ".gpucluster" / "hosts.json").read_text())["hosts"][0]["address"]
        key = self.folder / ".gpucluster" / "ssh" / "alice_ed25519"
        argv = ["ssh", "-i", str(key), "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"]
        argv += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        argv += [f"alice@{address}", command]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def _containers(home: Path) -> list[str]:
    listed = subprocess.run(
        ["podman", "ps", "-a", "-q", "--filter", f"label=gpucluster.home={home}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def _networks(home: Path) -> list[str]:
    listed = subprocess.run(
        ["podman", "network", "ls", "-q", "--filter", f"label=gpucluster.home={home}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    folder = Path(tempfile.mkdtemp(prefix="gpucluster-e2e-"))
    made = Site(folder)
    try:
        yield made
    finally:
        made.run("destroy", "--delete-data")
        made.run("local", "stop")
        for container in _containers(made.home):
            subprocess.run(["podman", "rm", "-f", "-t", "0", container], check=False, capture_output=True)
        for network in _networks(made.home):
            subprocess.run(["podman", "network", "rm", "-f", network], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _read_until(process: subprocess.Popen[str], wanted: str, deadline: float) -> list[str]:
    """Lines of a running command up to the first that holds `wanted`."""
    assert process.stdout is not None
    lines: list[str] = []
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        line = process.stdout.readline()
        lines.append(line)
        if wanted in line:
            return lines
        if not line:
            break
    process.kill()
    pytest.fail(f"{wanted!r} was never said: {''.join(lines[-20:])}")


def test_wrong_input_creates_nothing(site: Site) -> None:
    good = site.file.read_text()
    site.file.write_text(good.replace("10.90.1.0/24", "10.99.1.0/24").replace("BM.GPU4.8", "BM.GPU4.9"))
    code, events = site.run("apply")
    site.file.write_text(good)
    assert code == 2
    assert len(events[-1]["data"]["findings"]) == 2
    assert all(finding["line"] for finding in events[-1]["data"]["findings"])
    assert not site.home.exists()


def test_apply_killed_in_terraform_leaves_a_state_from_which_the_next_goes_on(site: Site) -> None:
    run = site.start("apply")
    _read_until(run, "oci_core_vcn", 300)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()  # type: ignore[union-attr]
    code, events = site.run("status")
    assert code == 0, events


def test_a_second_apply_at_once_is_refused_and_ctrl_c_in_ansible_is_clean(site: Site) -> None:
    first = site.start("apply")
    lines = _read_until(first, '"name": "ansible", "status": "started"', 300)
    code, events = site.run("apply")
    assert code == 4, events
    assert f"pid {first.pid}" in events[-1]["message"]
    assert lines
    _read_until(first, '"kind": "task"', 60)
    first.send_signal(signal.SIGINT)
    rest, _ = first.communicate(timeout=120)
    assert first.returncode == 130, rest[-2000:]
    assert "Traceback" not in rest


def test_the_next_apply_converges_and_every_check_passes(site: Site) -> None:
    result = site.good("apply")
    assert result["status"] == "success"
    assert {check["status"] for check in result["checks"]} == {"pass"}
    names = " ".join(check["name"] for check in result["checks"])
    assert "two-node job" in names
    assert len(_containers(site.home)) == 3


def test_a_directory_user_logs_in_and_a_two_node_job_runs_to_its_end(site: Site) -> None:
    assert site.as_alice("id -un; id -gn; pwd").split() == ["alice", "privilege", "/mnt/home/alice"]
    site.as_alice("cat > job.sh", stdin="#!/bin/bash\nsrun bash -c 'echo $SLURMD_NODENAME $SLURM_JOB_GPUS'\n")
    job = site.as_alice("sbatch --parsable -N 2 --ntasks-per-node 1 --gres gpu:8 --wait -o out.txt job.sh")
    ran = site.as_alice("cat out.txt")
    assert sorted(line.split()[0] for line in ran.splitlines()) == ["compute-1", "compute-2"]
    assert all(line.split()[1] == "0,1,2,3,4,5,6,7" for line in ran.splitlines())
    assert "COMPLETED" in site.as_alice(f"sacct -X -n -j {job} -o State,AllocNodes")


def test_the_second_apply_changes_nothing(site: Site) -> None:
    result = site.good("apply")
    assert result["changes"] == 0
    assert set(result["changed"].values()) == {0}, result["changed"]


def test_plan_status_ssh_inventory_and_output_tell_the_same(site: Site) -> None:
    code, _ = site.run("plan", "--detailed-exitcode")
    assert code == 0
    status = site.good("status")
    assert [host["name"] for host in status["hosts"]] == ["e2e-controller", "compute-1", "compute-2"]
    assert {row["state"] for row in status["slurm"]} == {"idle"}
    said = subprocess.run(
        [sys.executable, "-m", "gpucluster", "-f", str(site.file), "ssh", "compute-2", "--", "hostname"],
        env=site.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "compute-2"
    inventory = site.good("inventory")["inventory"]
    assert set(inventory["all"]["children"]) == {"controller", "compute"}
    assert site.good("output")["outputs"]["cluster"]["contract_version"] == 1


def test_no_secret_is_readable_or_logged(site: Site) -> None:
    state = site.folder / ".gpucluster"
    open_files = [file for file in state.rglob("*") if file.is_file() and file.stat().st_mode & 0o044]
    assert state.stat().st_mode & 0o077 == 0
    private = [file for file in open_files if "tfstate" in file.name or "ed25519" in file.name]
    assert [file for file in private if not file.name.endswith(".pub")] == []
    munge = subprocess.run(
        [sys.executable, "-m", "gpucluster", "-f", str(site.file), "ssh", "--", "sudo base64 -w0 /etc/munge/munge.key"],
        env=site.env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert len(munge) > 100
    for file in state.rglob("*"):
        if file.is_file():
            assert munge[:60] not in file.read_text(errors="replace"), file


def test_the_clouds_server_may_die(site: Site) -> None:
    pid = site.good("local", "status")["pid"]
    os.kill(pid, signal.SIGKILL)
    result = site.good("verify")
    assert {check["status"] for check in result["checks"]} == {"pass"}


def test_destroy_refuses_while_alice_has_files(site: Site) -> None:
    code, events = site.run("destroy")
    assert code == 6, events[-3:]
    assert "of alice" in events[-1]["message"]
    assert len(_containers(site.home)) == 3


def test_destroy_leaves_nothing_behind(site: Site) -> None:
    run = site.start("destroy", "--delete-data")
    _read_until(run, '"deleted"', 300)
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()  # type: ignore[union-attr]
    site.good("destroy", "--delete-data")
    assert _containers(site.home) == []
    assert _networks(site.home) == []
    for left in ("filesystems", "exports", "instances"):
        assert list((site.home / left).iterdir()) == [], left
    assert sorted(entry.name for entry in (site.folder / ".gpucluster").iterdir()) == ["lock.json", "runs"]
    assert not site.good("local", "status")["running"]
    assert site.good("status")["state"] == "absent"
