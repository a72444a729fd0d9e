"""The watcher on a node: real processes, a real port, files as the prolog writes them.

A double: `nvidia-smi` is a script with rows in the form of the real one. It does not prove what the real one reports
of a job that hangs: those numbers were measured once, and are repeated here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.collect import watch as exporter_watch
from gpucluster.node_agent.exporter.exposition import page
from gpucluster.node_agent.watch import __main__ as watch
from gpucluster.node_agent.watch import collect, kept, ras
from gpucluster.node_agent.watch.judge import JobActivity, JobFinding, Limits
from tests.doubles import ras_server
from tests.doubles.clock import Clock
from tests.doubles.ras_server import RasServer
from tests.node_agent.exposition import having, of, series
from tests.node_agent.mig.divided import Divided
from tests.node_agent.watch.watched_node import SLEEPS, SPINS, Node, program, row


def watcher(node: Node, address: tuple[str, int], clock: Clock) -> watch.Watcher:
    return watch.Watcher(Limits(180.0, 1800.0), str(node.jobs), address=address, clock=clock)


def test_a_rank_that_sleeps_is_named_with_its_process(node: Node) -> None:
    clock = Clock()
    with program(SLEEPS) as guilty, program(SPINS) as waits:
        node.job("12", [0, 1])
        node.gpus(row(0), row(1, use=0))
        node.holders(f"GPU-0, {waits}", f"GPU-1, {guilty}")
        raw = json.loads(ras_server.json_text([{"AllReduce": 220}, {"AllReduce": 200}]))
        for rank, pid in zip(raw["communicators"][0]["ranks"], (waits, guilty)):
            rank["pid"] = pid
        with RasServer(json_text=json.dumps(raw)).running() as address:
            watching = watcher(node, address, clock)
            found = {}
            for _ in range(14):
                clock.now += 15
                found = watching.look()
    finding, own = found["12"]
    assert (finding.state, finding.rank, own) == (JobActivity.HUNG, ras.Rank(1, ras_server.HOST, guilty, 1), True)


def test_a_node_that_works_asks_nvidia_smi_once_a_look_and_nothing_else(node: Node) -> None:
    node.job("12", [0])
    node.gpus(row(0, "696.00", memory=32))
    server = RasServer()
    with server.running() as address:
        found = watcher(node, address, Clock()).look()
    assert found["12"][0].state is JobActivity.WORKING
    assert (len(node.asked), server.lines) == (1, [])


@pytest.mark.parametrize(
    ("stranger", "own", "state"),
    [
        (
            "0::/system.slice/cron.service\n",
            "0::/system.slice/slurmstepd.scope/job_12/step_0\n",
            JobActivity.STRAGGLING,
        ),
        ("0::/x/job_7/step_0\n", "1:devices:/slurm_n1/uid_0/job_12/step_0/task_0\n0::/\n", JobActivity.STRAGGLING),
        ("0::/x/job_12/step_1\n", "0::/x/job_12/step_0\n", JobActivity.WORKING),
        ("0::/docker/b\n", "0::/docker/a\n", JobActivity.WORKING),
    ],
)
def test_a_process_of_no_job_or_another_one_is_a_stranger(
    node: Node, stranger: str, own: str, state: JobActivity
) -> None:
    for pid, text in ((51, own), (52, own), (53, stranger)):
        (node.folder / f"proc/{pid}").mkdir(parents=True)
        (node.folder / f"proc/{pid}/cgroup").write_text(text)
    node.job("12", [0, 1])
    node.gpus(row(0, "427.50", 99, 10), row(1, "692.40", 100, 23))
    node.holders("GPU-0, 51", "GPU-1, 52", "GPU-1, 53")
    clock = Clock()
    watching = watch.Watcher(Limits(180.0, 1800.0), str(node.jobs), str(node.folder / "proc"), clock=clock)
    for _ in range(8):
        clock.now += 15
        finding, _own = watching.look()["12"]
    assert finding.state is state


def test_a_watcher_looks_soon_again_while_something_may_have_begun(node: Node) -> None:
    node.job("12", [0])
    pauses: list[float] = []
    for rows in ([row(0, "696.00", memory=32)], [row(0)]):
        node.gpus(*rows)
        node.holders(f"GPU-0, {os.getpid()}")
        file = node.folder / "seen.json"
        watch.serve(watcher(node, ("127.0.0.1", 1), Clock()), file, rounds=2, pause=pauses.append)
    (works, waits) = pauses
    assert watch.HURRIED_S < works <= watch.INTERVAL_S
    assert waits <= watch.HURRIED_S


def test_without_jobs_nothing_is_asked(node: Node) -> None:
    node.job("12", [])
    assert watcher(node, ("127.0.0.1", 1), Clock()).look() == {}
    assert node.asked == []


def test_the_port_of_another_user_is_not_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.job("12", [0])
    node.gpus(row(0))
    server = RasServer(json_text=ras_server.json_text([{"AllReduce": 1}]))
    with program(SLEEPS) as pid, server.running() as address:
        node.holders(f"GPU-0, {pid}")
        assert collect.listeners(address[1]) == {collect.owner(pid)} == {os.getuid()}
        monkeypatch.setattr(collect, "owner", lambda _pid, _proc: os.getuid() + 1)
        watcher(node, address, Clock()).look()
    assert server.lines == []


def test_an_answer_is_given_to_the_job_whose_processes_it_names(node: Node) -> None:
    with program(SLEEPS) as one, program(SLEEPS) as two:
        node.job("12", [0])
        node.job("13", [1])
        node.gpus(row(0), row(1))
        node.holders(f"GPU-0, {one}", f"GPU-1, {two}")
        text = ras_server.json_text([{"AllReduce": 1}, {"AllReduce": 1}], missing=[1], first_pid=two)
        with RasServer(json_text=text).running() as address:
            found = watcher(node, address, Clock()).look()
    assert "RAS gives no answer" in found["12"][0].words
    assert "rank 1 gives no answer to RAS" in found["13"][0].words


def test_a_job_that_begins_again_has_no_past(node: Node) -> None:
    clock = Clock()
    node.job("12", [0])
    node.gpus(row(0, "70.00", 0))
    watching = watcher(node, ("127.0.0.1", 1), clock)
    watching.look()
    clock.now += 1800
    assert watching.look()["12"][0].state is JobActivity.IDLE
    (node.jobs / "12.json").unlink()
    watching.look()
    node.job("12", [0])
    assert watching.look()["12"][0].state is JobActivity.WAITING


# --- divided GPUs (MIG) -----


def divided(node: Node, clock: Clock) -> tuple[Divided, watch.Watcher]:
    """A node with an nvidia-smi that prints what the driver reports of GPUs that are divided."""
    found = Divided(node.folder / "root")
    node.gpus("0, GPU-00000000, [N/A], [N/A], 71.00, 700.00", "1, GPU-00000002, [N/A], [N/A], 71.00, 700.00",
              "2, GPU-00000001, 0, 0, 70.00, 700.00")  # fmt: skip
    limits = Limits(180.0, 1800.0)
    return found, watch.Watcher(limits, str(node.jobs), found.proc, ("127.0.0.1", 1), clock, found.links)


def test_a_job_with_an_instance_is_not_judged_by_the_gpu_that_has_its_number(node: Node) -> None:
    """Slurm's number 2 is an instance of GPU 0, and not GPU 2, which is idle and belongs to no job."""
    clock = Clock()
    _divided, watching = divided(node, clock)
    node.job("12", [2])
    for _ in range(200):
        clock.now += 15
        (finding, own) = watching.look()["12"]
    assert (finding.state, finding.idle, own) == (JobActivity.UNMEASURED, {}, False)
    assert "GPU 0 instance 11" in finding.words
    assert finding.since == 1015.0
    # For nothing else is nvidia-smi asked, either.
    assert node.asked == []


@pytest.mark.parametrize("use", ["0", "100"])
def test_a_job_with_a_whole_gpu_and_an_instance_is_not_called_idle_or_hung(node: Node, use: str) -> None:
    """Its whole GPU has no process, or waits for a rank: what runs on the instance is not seen."""
    clock = Clock()
    _divided, watching = divided(node, clock)
    node.gpus(f"2, GPU-00000001, {use}, 0, 118.00, 700.00")
    node.job("12", [0, 11])
    for _ in range(200):
        clock.now += 15
        found = watching.look()
    assert found["12"][0].state is JobActivity.UNMEASURED
    assert not watching.hurried()


def test_a_whole_gpu_beside_divided_ones_is_judged_as_before(node: Node) -> None:
    clock = Clock()
    _divided, watching = divided(node, clock)
    node.job("12", [11])
    node.job("13", [0])
    for _ in range(200):
        clock.now += 15
        found = watching.look()
    assert (found["12"][0].state, set(found["12"][0].idle)) == (JobActivity.IDLE, {2})
    assert found["13"][0].state is JobActivity.UNMEASURED


def test_numbers_that_nothing_explains_are_not_those_of_gpus(node: Node) -> None:
    clock = Clock()
    found, watching = divided(node, clock)
    (found.root / "proc/driver/nvidia-caps/mig-minors").unlink()
    node.job("12", [2])
    (finding, _own) = watching.look()["12"]
    assert (finding.state, "does not report which ones" in finding.words) == (JobActivity.UNMEASURED, True)


def test_an_answer_of_ras_is_not_given_to_the_only_job_that_is_measured(node: Node) -> None:
    """In a container no number of a process is known, and the answer may be of the job that has an instance."""
    clock = Clock()
    with program(SLEEPS) as pid:
        found, _watching = divided(node, clock)
        # With the real /proc the whole GPU is known by the number of its file.
        node.gpus("1, GPU-00000001, 100, 0, 118.00, 700.00")
        node.holders(f"GPU-00000001, {pid}")
        node.job("12", [11])
        text = ras_server.json_text([{"AllReduce": 1}, {"AllReduce": 1}], missing=[1], first_pid=4_000_000)
        with RasServer(json_text=text).running() as address:
            for jobs, said in ((["12"], "rank 1 gives no answer"), (["12", "13"], "RAS gives no answer")):
                node.job(jobs[-1], [11] if jobs == ["12"] else [0])
                clock.now += 15
                limits = Limits(180.0, 1800.0)
                watching = watch.Watcher(limits, str(node.jobs), "/proc", address, clock, found.links)
                assert said in watching.look()["12"][0].words


def test_what_is_not_measured_is_shown_and_not_sent(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    _divided, watching = divided(node, clock)
    node.job("12", [2])
    file = node.folder / "seen.json"
    watch.serve(watching, file, rounds=1)
    capsys.readouterr()
    assert watch.main(["show", "--file", str(file)]) == 0
    assert "job 12 is unmeasured" in capsys.readouterr().out
    sent: list[str] = []

    def send(text: str) -> bool:
        sent.append(text)
        return True

    watch.JobReporter(send, file, clock).look()
    assert sent == []


# --- what is kept and shown -----


def shown(file: Path) -> str:
    collector = exporter_watch.Watch(Place(watch=str(file)))
    return page(line for subject in collector.subjects() for line in collector.samples(subject))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Of the exporter's collector."""
    clock = Clock()
    monkeypatch.setattr(exporter_watch, "time", SimpleNamespace(monotonic=clock))
    return clock


def test_what_was_found_is_on_the_page_of_the_exporter(tmp_path: Path, clock: Clock) -> None:
    rank = ras.Rank(2, "10.0.0.11", 1399, 2)
    hung = kept.seen("12", JobFinding(JobActivity.HUNG, clock.now - 200, "words", rank, "AllReduce"), "gpu-1")
    works = kept.seen("13", JobFinding(JobActivity.WORKING, clock.now, idle={3: 7200.0}), "")
    kept.write([hung, works], clock.now, tmp_path / "jobs.json")
    found = series(shown(tmp_path / "jobs.json"))
    assert of(found, "gpucluster_job_state", job_id="12", state="hung") == 1
    assert of(found, "gpucluster_job_state_seconds", job_id="12", state="hung") == 200
    info = {"job_id": "12", "state": "hung", "rank": "2", "process": "1399", "host": "gpu-1", "collective": "AllReduce"}
    assert of(found, "gpucluster_job_rank_info", **info) == 1
    assert of(found, "gpucluster_job_gpu_idle_seconds", job_id="13", gpu="3") == 7200


def test_an_old_file_holds_no_alert(tmp_path: Path, clock: Clock) -> None:
    kept.write([kept.seen("12", JobFinding(JobActivity.HUNG, 1.0), "")], clock.now, tmp_path / "jobs.json")
    clock.now += exporter_watch.OLDEST_S + 60
    found = series(shown(tmp_path / "jobs.json"))
    assert having(found, "gpucluster_job_state") == {}
    assert of(found, "gpucluster_job_watch_age_seconds") == exporter_watch.OLDEST_S + 60


def test_rounds_write_the_file_and_report_once_what_is_idle(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    node.job("12", [0])
    node.gpus(row(0, "70.00", 0))
    file = node.folder / "seen.json"

    def pause(_seconds: float) -> None:
        clock.now += 900

    watch.serve(watcher(node, ("127.0.0.1", 1), clock), file, rounds=5, pause=pause)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("job 12 is idle since ")
    assert "1 of its GPUs have had no process for 0.5 GPU hours" in line
    assert watch.main(["show", "--file", str(file)]) == 0
    assert "1 of its GPUs have had no process for 1.0 GPU hours" in capsys.readouterr().out


def test_nvidia_smi_that_fails_is_reported_once(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.job("12", [0])
    (node.folder / "gpus").unlink()
    file = node.folder / "seen.json"
    watch.serve(watcher(node, ("127.0.0.1", 1), Clock()), file, rounds=3, pause=lambda _: None)
    assert capsys.readouterr().err.count("nvidia-smi ended with status 1") == 1
    assert watch.main(["show", "--file", str(file)]) == 1
