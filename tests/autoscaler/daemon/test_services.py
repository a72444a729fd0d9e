"""The program `gpucluster-autoscaler` as a process: the local cloud's server, and doubles of Slurm's commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpucluster.autoscaler.daemon import hooks
from tests.autoscaler.cloud_harness import Site
from tests.autoscaler.slurm_double import COMING, IDLE, LEAVING, UP, SlurmFile, commands, job
from tests.localcloud.api_harness import Api, running
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow

NODES = ("compute-e1", "compute-e2")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("cloud")) as started:
        yield started


class Machine:
    """A controller: its folders, its commands, and systemd's ear."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.state, self.spool, self.poke = folder / "state", folder / "spool", folder / "poke"
        self.state.mkdir(mode=0o700)
        self.spool.mkdir()
        self.config = site.write_policy(folder / "autoscaler.json")
        pool = site.policy.pools["compute"]
        self.slurm = SlurmFile(folder / "slurm.json", tuple(f"{pool.prefix}{n}" for n in range(1, pool.names + 1)))
        self.slurm.write()
        commands(folder / "bin", self.slurm.file)
        self.ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.ear.bind(str(folder / "notify"))
        self.ear.settimeout(PATIENCE_S)
        self.log = folder / "log"

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """`wait_for` a condition; the daemon's log is in the message of a failure."""
        return wait_for(what, holds, interval=0.1, state=self.log.read_text)

    def passes(self, number: int = 2) -> None:
        """Wait for so many whole passes of the daemon that begin after now."""
        for _ in range(number + 1):  # the first end that is seen may be of a pass that had begun before
            last = self._looked_at()
            self.until("the daemon makes another pass", lambda last=last: self._looked_at() != last)  # type: ignore[misc]

    def _looked_at(self) -> Any:
        return self.status["looked_at"]

    @property
    def status(self) -> dict[str, Any]:
        """What the daemon wrote after its last pass."""
        found: dict[str, Any] = json.loads((self.state / "status.json").read_text())
        return found

    @property
    def pool(self) -> dict[str, Any]:
        found: dict[str, Any] = self.status["pools"]["compute"]
        return found

    def launched(self) -> set[str]:
        """The nodes that have an instance."""
        return {one.freeform_tags["node"] for one in self.site.elastic()}

    def set_times(self, **times: float) -> None:
        """Set durations of the policy, before the daemon starts."""
        self.config.write_text(json.dumps({**json.loads(self.config.read_text()), "times": times}))

    def argv(self, command: str, *more: str) -> list[str]:
        own = {"--config": self.config, "--state": self.state, "--spool": self.spool, "--poke": self.poke}
        options = [word for option, path in own.items() for word in (option, str(path))]
        return [sys.executable, "-m", "gpucluster.autoscaler", command, *options, *more]

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "NOTIFY_SOCKET": str(self.folder / "notify"), "LANG": "C.UTF-8"}

    def ask(self, command: str, *more: str) -> subprocess.CompletedProcess[str]:
        root = Path(__file__).resolve().parents[3]
        return subprocess.run(
            self.argv(command, *more),
            env=self.environment,
            cwd=root,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def json(self, command: str, *more: str) -> Any:
        done = self.ask(command, *more, "--output", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    @contextmanager
    def daemon(self) -> Iterator[subprocess.Popen[bytes]]:
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self.argv("run", "--metrics", "127.0.0.1:0"),
                env=self.environment,
                cwd=Path(__file__).resolve().parents[3],
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            print(self.log.read_text())

    def heard(self, words: str) -> None:
        while words not in self.ear.recv(4096).decode():
            pass

    @property
    def events(self) -> list[dict[str, Any]]:
        whole, _, _ = self.log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def resume_hook(self, nodes: str, jobs: list[dict[str, Any]]) -> None:
        """What Slurm's ResumeProgram writes, by the hooks' own functions."""
        hooks.record(str(self.spool), "resume", nodes, {"jobs": jobs}, time.time_ns())
        hooks.send(str(self.poke), b"resume")


@pytest.fixture
def machine(api: Api, tmp_path: Path) -> Iterator[Machine]:
    (api.home / "faults.json").unlink(missing_ok=True)
    made = Machine(Site(api), tmp_path)
    yield made
    made.ear.close()
    (api.home / "faults.json").unlink(missing_ok=True)
    made.site.remove_elastic()


def test_a_job_gets_its_nodes_and_they_go_when_slurm_lets_them_go(machine: Machine) -> None:
    machine.set_times(tick=150.0)
    with machine.daemon() as daemon:
        machine.heard("READY=1")
        machine.heard("WATCHDOG=1")
        machine.until("there is a status", (machine.state / "status.json").exists)
        # Slurm powers two nodes up for a job; only the hook's poke wakes the daemon before the next minutes are over.
        machine.slurm.write(dict.fromkeys(NODES, COMING), [job("12", NODES)])
        machine.resume_hook("compute-e[1-2]", [{"job_id": 12, "nodes_resume": "compute-e[1-2]"}])
        machine.until("both are launched", lambda: machine.launched() == set(NODES))
        assert not list(machine.spool.iterdir())
        machine.until("both run", lambda: machine.pool["instances"] == {"RUNNING": 2})
        machine.slurm.write(dict.fromkeys(NODES, UP), [job("12", NODES, "RUNNING")])
        machine.until("both are in service", lambda: machine.pool["nodes"].get("allocated") == 2)
        # On a busy machine a command of Slurm may have been too slow for a pass.
        machine.until("all is well", lambda: machine.json("status")["healthy"])
        status = machine.json("status")
        assert (status["healthy"], status["problems"], status["cost_per_hour"]) == (True, [], 20.0)
        assert status["last_success_age"] < 150
        machine.slurm.write(dict.fromkeys(NODES, LEAVING))
        hooks.record(str(machine.spool), "suspend", "compute-e[1-2]", None, time.time_ns())
        hooks.send(str(machine.poke), b"suspend")
        machine.until("nothing is left", lambda: not machine.site.elastic())
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=PATIENCE_S) == 0
    events = machine.events
    launched = [event for event in events if event["event"] == "launched"]
    assert {event["node"] for event in launched} == set(NODES)
    assert all(event["gang"] == ["12"] and event["generation"] == 1 for event in launched)
    assert all(event["instance"] and event["opc_request_id"] for event in launched)
    # A pass that takes longer than ten seconds is interrupted, and so is the end of the daemon.
    if events[-1]["event"] == "stopped":
        assert not machine.poke.exists()


def test_metrics_tell_of_it(machine: Machine) -> None:
    machine.slurm.write({"compute-e1": COMING}, [job("12", ["compute-e1"])])
    with machine.daemon():
        machine.heard("READY=1")
        found = machine.until("it serves metrics", lambda: [one for one in machine.events if one["event"] == "metrics"])
        address = found[0]["address"]

        def text() -> str:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
                return str(answer.read().decode())

        def shows(line: str) -> bool:
            return line in text()

        machine.until("it has booted", partial(shows, 'gpucluster_scaleup_seconds_count{phase="boot"} 1.0'))
        machine.slurm.write({"compute-e1": UP}, [job("12", ["compute-e1"], "RUNNING")])
        for line in (
            'gpucluster_scaleup_seconds_count{phase="total"} 1.0',
            'gpucluster_oci_requests_total{code="200",op="launch_instance_configuration"} 1.0',
            'gpucluster_nodes{cloud_state="running",node_state="allocated",pool="compute"} 1.0',
            'gpucluster_gang_total{result="started"} 1.0',
            "gpucluster_cost_usd_per_hour 10",
        ):
            machine.until(line, partial(shows, line))
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://{address}/", timeout=PATIENCE_S)


def test_there_is_one_daemon(machine: Machine) -> None:
    with machine.daemon():
        machine.heard("READY=1")
        second = machine.ask("run")
        assert second.returncode == 4
        assert "another autoscaler" in second.stderr


def test_paused_it_does_nothing_until_it_is_resumed(machine: Machine) -> None:
    machine.set_times(tick=1.0, busy_tick=0.3)
    with machine.daemon():
        machine.heard("READY=1")
        machine.until("there is a status", (machine.state / "status.json").exists)
        assert "Paused (maintenance of the rack)" in machine.ask("pause", "maintenance", "of", "the", "rack").stdout
        machine.slurm.write({"compute-e1": COMING}, [job("12", ["compute-e1"])])
        machine.resume_hook("compute-e1", [])
        machine.until("its record is read", lambda: not list(machine.spool.iterdir()))
        machine.passes()
        assert not machine.site.elastic()
        assert machine.json("status")["paused"] == "maintenance of the rack"
        assert "paused" in machine.ask("status").stdout
        assert machine.json("resume") == {"version": 1, "paused": ""}
        machine.until("it is launched", machine.site.elastic)


def test_a_dry_run_reports_what_would_be_done_and_does_nothing(machine: Machine) -> None:
    machine.slurm.write(dict.fromkeys(NODES, COMING), [job("12", NODES)])
    before = sorted(machine.state.iterdir())
    plan = machine.json("plan", "--dry-run")
    assert [(action["kind"], action["node"]) for action in plan["actions"]] == [("launch", node) for node in NODES]
    assert all("12" in action["why"] for action in plan["actions"])
    text = machine.ask("plan", "--dry-run").stdout
    assert text.startswith("2 actions now:\n  launch compute-e1: ")
    assert sorted(machine.state.iterdir()) == before
    assert not machine.site.elastic()
    assert not machine.slurm.asked
    assert machine.ask("plan").returncode == 2


def test_explain_tells_of_now_and_before(machine: Machine) -> None:
    machine.slurm.write({"compute-e1": COMING}, [job("12", ["compute-e1"])])
    with machine.daemon():
        machine.heard("READY=1")
        machine.until("it is launched", lambda: [one for one in machine.events if one["event"] == "launched"])
        node = machine.json("explain", "compute-e1")
        assert any("powers up" in line for line in node["now"])
        assert any(entry["what"] == "launch" for entry in node["history"])
        assert "Before:" in machine.ask("explain", "compute-e1").stdout
        assert "Job 12" in machine.ask("explain", "12").stdout


def test_what_is_missing_is_reported_without_a_traceback(machine: Machine, tmp_path: Path) -> None:
    done = machine.ask("status", "--config", str(tmp_path / "nowhere.json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "can't read the policy" in done.stderr
    assert "gpucluster apply" in done.stderr
    done = machine.ask("status", "--state", str(tmp_path / "nowhere"))
    assert done.returncode == 5
    unhealthy = machine.json("status")
    assert unhealthy["problems"] == ["the daemon has run no reconcile pass yet"]
    assert machine.ask("status", "--check").returncode == 1
    machine.slurm.fail()
    done = machine.ask("plan", "--dry-run")
    assert done.returncode == 1
    assert "Unable to contact slurm controller" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_daemon_that_stopped_looking_is_not_healthy(machine: Machine) -> None:
    # After its end it is healthy for three of them. They are long, because the command that is asked may begin late.
    machine.set_times(tick=600.0)
    with machine.daemon():
        machine.heard("READY=1")
        machine.until("there is a status", (machine.state / "status.json").exists)
    file = machine.state / "status.json"
    assert file.stat().st_mode & 0o777 == 0o640
    assert machine.json("status")["healthy"]
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "looked_at": time.time() - 7200}))
    assert machine.json("status")["problems"] == ["the daemon's last reconcile pass was 2.0 h ago"]
    assert "NOT HEALTHY" in machine.ask("status").stdout


def test_while_slurm_is_away_nothing_is_destroyed_and_it_goes_on_afterwards(machine: Machine) -> None:
    """Scenarios 12 and 13."""
    machine.slurm.write({"compute-e1": UP}, [job("12", ["compute-e1"], "RUNNING")])
    machine.slurm.write({"compute-e1": COMING}, [job("12", ["compute-e1"])])
    with machine.daemon() as daemon:
        machine.until("it is launched", machine.site.elastic)
        # A launch is sent by a thread, and may be there before the pass that decided it has ended.
        machine.until("there is a status", (machine.state / "status.json").exists)
        machine.slurm.fail()
        machine.until("Slurm is a problem", lambda: machine.status["problems"])
        assert not machine.json("status")["healthy"]
        assert "slurm: " in machine.json("status")["problems"][0]
        machine.slurm.write({"compute-e1": IDLE})
        machine.resume_hook("compute-e1", [])
        machine.until("no problem is left", lambda: not machine.status["problems"])
        assert machine.json("status")["healthy"]
        assert len(machine.site.elastic()) == 1
        assert daemon.poll() is None
    said = [event["event"] for event in machine.events if event["event"].startswith("slurm:")]
    assert len(said) == 2  # once that it is away, once that it is back


def test_the_program_needs_no_more_than_what_the_controller_has() -> None:
    """The controller's environment has what `gpucluster.wheels` requires; nothing else of our dependencies."""
    absent = ("click", "rich", "pydantic", "ansible_runner", "python_terraform", "starlette", "uvicorn", "grpc", "tf")
    modules = ("__main__", "daemon.join", "daemon.ledger", "daemon.loop", "daemon.oci", "daemon.slurm", "daemon.spool",
               "daemon.metrics", "daemon.logs", "simulation.command", "decide.explain")  # fmt: skip
    lines = [f"import sys; sys.modules.update(dict.fromkeys({absent!r}))"]
    lines += [f"import gpucluster.autoscaler.{module}" for module in modules]
    lines += ["import gpucluster.autoscaler.__main__ as program", "program._parser()"]
    lines += ["import gpucluster.configuration.ansible_playbook  # which the join service runs"]
    lines += ["heavy = {'oci', 'yaml', 'ansible'} & set(sys.modules)", "assert not heavy, heavy"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
