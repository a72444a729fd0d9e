"""The hooks as Slurm starts them: a file, its interpreter with `-IS`, an empty environment.

Under the real Slurm: test_real_slurm.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpucluster.autoscaler import policy
from gpucluster.autoscaler.daemon import hooks
from gpucluster.autoscaler.daemon.spool import KINDS, Spool
from gpucluster.node_agent.interpreter import PYTHON
from tests.processor import growth
from tests.waiting import PATIENCE_S

RESUME = {"all_nodes_resume": "gpu-e[1-2]", "jobs": [{"job_id": 7, "nodes_resume": "gpu-e[1-2]"}]}


@dataclass(frozen=True)
class Installed:
    """The three hooks in a directory, with paths of their own."""

    folder: Path

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    @property
    def poke(self) -> Path:
        return self.folder / "poke"

    def call(
        self, name: str, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        argv = [str(self.folder / "bin" / name), *arguments]
        return subprocess.run(
            argv, env=environment or {}, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def records(self) -> list[dict[str, object]]:
        return [json.loads(file.read_text()) for file in sorted(self.spool.glob("*.json"))]


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    made = Installed(tmp_path)
    for folder in ("bin", "spool"):
        (tmp_path / folder).mkdir()
    first, _newline, rest = Path(hooks.__file__).read_text().partition("\n")
    assert first == f"#!{PYTHON} -IS"
    for name in [*hooks.KINDS, "hooks.py"]:
        target = tmp_path / "bin" / name
        target.write_text(f"#!{sys.executable} -IS\n{rest}")
        target.chmod(0o755)
    settings = {"spool": str(made.spool), "poke": str(made.poke)}
    (tmp_path / "bin" / "hooks.json").write_text(json.dumps(settings))
    return made


def test_the_paths_are_those_of_the_policy() -> None:
    # The hooks import nothing of ours, so these stand twice.
    assert (Path(hooks.SPOOL), Path(hooks.WAKE_UP_SOCKET)) == (policy.SPOOL_DIRECTORY, policy.POKE_SOCKET)
    assert set(hooks.KINDS.values()) == KINDS


def test_they_need_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(hooks.__file__).read_text(), feature_version=(3, 9))
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imports == {"contextlib", "json", "os", "socket", "sys", "time"}
    assert {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)} == {"__future__"}


def test_without_a_file_beside_them_the_paths_are_the_constants(tmp_path: Path) -> None:
    assert hooks.paths(str(tmp_path)) == (hooks.SPOOL, hooks.WAKE_UP_SOCKET)
    (tmp_path / "hooks.json").write_text("[]")
    assert hooks.paths(str(tmp_path)) == (hooks.SPOOL, hooks.WAKE_UP_SOCKET)
    (tmp_path / "hooks.json").write_text('{"spool": "/s"}')
    assert hooks.paths(str(tmp_path)) == ("/s", hooks.WAKE_UP_SOCKET)


@pytest.mark.parametrize("name", sorted(hooks.KINDS))
def test_one_call_is_one_record_that_the_spool_reads(installed: Installed, name: str) -> None:
    before = time.time()
    done = installed.call(name, "gpu-e[1-2],other-e7")
    after = time.time()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ((file, intent),) = Spool(installed.spool).read()
    assert intent.kind == hooks.KINDS[name]
    assert intent.nodes == ("gpu-e1", "gpu-e2", "other-e7")
    assert before <= intent.at <= after
    assert (installed.spool / file).stat().st_mode & 0o777 == 0o640
    assert os.listdir(installed.spool) == [file]


def test_the_resume_file_is_copied_at_once(installed: Installed, tmp_path: Path) -> None:
    file = tmp_path / "resume"
    file.write_text(json.dumps(RESUME))
    installed.call("resume", "gpu-e[1-2]", environment={"SLURM_RESUME_FILE": str(file), "SLURM_CONF": "/x"})
    assert installed.records()[0]["resume"] == RESUME
    ((_, intent),) = Spool(installed.spool).read()
    assert intent.jobs == {"7": ("gpu-e1", "gpu-e2")}


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff\xfe", b"[" * 200_000])
def test_a_resume_file_that_is_missing_or_broken_costs_only_itself(
    installed: Installed, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "resume"
    if content is not None:
        file.write_bytes(content)
    done = installed.call("resume", "gpu-e1", environment={"SLURM_RESUME_FILE": str(file)})
    assert (done.returncode, done.stderr) == (0, "")
    (record,) = installed.records()
    assert (record["nodes"], record["resume"]) == ("gpu-e1", None)


def test_the_daemon_is_poked(installed: Installed) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(installed.poke))
        receiver.settimeout(PATIENCE_S)
        assert installed.call("suspend", "gpu-e1").returncode == 0
        assert receiver.recv(100) == b"suspend"


def fill(address: Path) -> None:
    """Send until a socket that no program reads takes no more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(BlockingIOError):
        sender.setblocking(False)
        while True:
            sender.sendto(b"suspend", str(address))


def test_a_daemon_that_hangs_or_is_dead_makes_no_difference(installed: Installed) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(installed.poke))
        fill(installed.poke)
        assert installed.call("suspend", "gpu-e1").returncode == 0
    # The socket is there, and no program behind it.
    assert installed.poke.exists()
    assert installed.call("resume", "gpu-e1").returncode == 0
    assert len(installed.records()) == 2


def test_what_it_does_grows_with_the_jobs_and_no_faster(tmp_path: Path) -> None:
    """How long a call takes is in `benchmarks/run.py hook`."""

    def work(count: int) -> Callable[[], object]:
        jobs = [{"job_id": n, "nodes_resume": f"gpu-e{n}", "nodes_alloc": f"gpu-e{n}"} for n in range(count)]
        nodes = f"gpu-e[0-{count - 1}]"
        file, spool = tmp_path / f"resume-{count}", tmp_path / f"spool-{count}"
        file.write_text(json.dumps({"jobs": jobs, "all_nodes_resume": nodes}))
        spool.mkdir()

        def call() -> None:
            path = hooks.record(str(spool), "resume", nodes, hooks.resume_file(str(file)), time.time_ns())
            assert Path(path).stat().st_size > 20 * count

        return call

    assert growth(work, 2_000, 20_000) < 30


def test_without_a_spool_it_fails_soon_and_in_words(installed: Installed) -> None:
    installed.spool.rmdir()
    done = installed.call("resume", "gpu-e1")
    assert done.returncode == 1
    assert "resume of gpu-e1 was not written" in done.stderr
    assert "No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts small file systems")
@pytest.mark.parametrize(("options", "words"), [("size=4k,nr_inodes=100", "No space left"), ("ro", "Read-only")])
def test_a_full_or_read_only_disk(installed: Installed, options: str, words: str) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(installed.spool)]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("no right to mount")
    try:
        if "size" in options:
            (installed.spool / "filler").write_bytes(b"x" * 4096)
        done = installed.call("resume", "gpu-e1")
        assert done.returncode == 1
        assert words in done.stderr
        assert "Traceback" not in done.stderr
        # Nothing half written stays behind.
        assert [name for name in os.listdir(installed.spool) if name != "filler"] == []
    finally:
        subprocess.run(["umount", str(installed.spool)], check=True)


@pytest.mark.parametrize("arguments", [(), ("",)])
def test_a_call_that_is_not_slurms(installed: Installed, arguments: tuple[str, ...]) -> None:
    done = installed.call("resume", *arguments)
    assert done.returncode == 1
    assert "usage" in done.stderr
    assert installed.call("hooks.py", "gpu-e1").returncode == 1
    assert installed.records() == []


def test_what_is_wrong_goes_to_the_systems_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "log")
    monkeypatch.setattr(hooks, "_SYSLOG", address)
    monkeypatch.setattr(hooks, "SPOOL", str(tmp_path / "none"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(PATIENCE_S)
        assert hooks.main([str(tmp_path / "resume-fail"), "gpu-e1"]) == 1
        said = receiver.recv(1000).decode()
    assert said.startswith(f"<28>gpucluster-hook[{os.getpid()}]: resume_fail of gpu-e1 was not written")


def test_many_at_a_time_lose_nothing(installed: Installed) -> None:
    children = [
        subprocess.Popen([str(installed.folder / "bin" / "suspend"), f"gpu-e{number}"], env={}) for number in range(20)
    ]
    assert [child.wait(timeout=PATIENCE_S) for child in children] == [0] * 20
    assert {intent.nodes for _, intent in Spool(installed.spool).read()} == {(f"gpu-e{n}",) for n in range(20)}
