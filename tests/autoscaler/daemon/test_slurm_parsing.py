"""Reading Slurm: lines as Slurm 22.05 and 24.11 print them, and lines that no Slurm should print. No Slurm runs here.

The lines of 24.11 are as the real one prints them (test_real_slurm reads it again); the signs behind states are those
of the manual of older versions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpucluster.autoscaler.daemon.slurm import BATCH, SlurmClient, SlurmUnavailable
from gpucluster.autoscaler.decide.types import Annotate, Delay, DrainNodes, Hold, Launch, MarkDown, Node, PowerDown
from tests.processor import growth

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.00"
    " AvailableFeatures=a,b=c ActiveFeatures=(null) Gres=gpu:a100:8 NodeAddr={name} NodeHostName={name} Port=6818"
    " Version=24.11.5 OS=Linux 6.1.0-28-cloud-amd64 #1 SMP PREEMPT_DYNAMIC State= Debian RealMemory=1000 AllocMem=0"
    " FreeMem=N/A Sockets=4 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A"
    " Partitions=gpu  BootTime=None SlurmdStartTime=None LastBusyTime=Unknown ResumeAfterTime=None"
    " CfgTRES=cpu=4,mem=1000M,billing=4 AllocTRES= CurrentWatts=0 AveWatts=0 "
)


def pool_of(name: str) -> str:
    return "gpu" if name.startswith("gpu-e") else ""


class Said(SlurmClient):
    """A Slurm whose commands print what the test states, by the program's name. It proves nothing about Slurm."""

    def __init__(self, tmp_path: Path, **texts: str) -> None:
        super().__init__((sys.executable, str(tmp_path / "said.py")), pool_of=pool_of, timeout=60)
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        (tmp_path / "said.py").write_text(
            "import json, os, pathlib, sys\n"
            "here = pathlib.Path(__file__).parent\n"
            "with (here / 'calls').open('a') as calls: print(json.dumps(sys.argv[1:]), file=calls)\n"
            "sys.stdout.write((here / sys.argv[1]).read_text())\n"
        )


def line(name: str = "gpu-e1", state: str = "IDLE+CLOUD", rest: str = "") -> str:
    return NODE.format(name=name, state=state) + rest


def record(*values: str) -> str:
    return "\x1f".join(values) + "\x1e\n"


JOB = (
    "7",
    "N/A",
    "PENDING",
    "gpu,other",
    "",
    "2",
    "4294901758",
    "0",
    "1795262742",
    "1",
    "1",
    "vision",
    "Priority",
    "ann",
)


def read_nodes(text: str) -> dict[str, Node]:
    return SlurmClient(pool_of=pool_of)._nodes(text)


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", {"IDLE", "CLOUD", "POWERED_DOWN"}),
        ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", {"MIXED", "CLOUD", "NOT_RESPONDING", "POWERING_UP"}),
        ("DOWN*+CLOUD+DRAIN", {"DOWN", "NOT_RESPONDING", "CLOUD", "DRAIN"}),
        ("ALLOCATED#+CLOUD", {"ALLOCATED", "POWERING_UP", "CLOUD"}),
        ("IDLE%+CLOUD", {"IDLE", "POWERING_DOWN", "CLOUD"}),
        ("IDLE~+CLOUD", {"IDLE", "POWERED_DOWN", "CLOUD"}),
    ],
)
def test_states(state: str, flags: set[str]) -> None:
    assert read_nodes(line(state=state))["gpu-e1"].flags == flags


@pytest.mark.parametrize(
    ("rest", "reason", "user"),
    [
        ("", "", ""),
        ("Reason=ResumeTimeout reached [slurm@1795262769] ", "ResumeTimeout reached", "slurm"),
        (
            "Reason=broken = fan [rack 7] State=IDLE [ann@2026-11-21T12:00:00]",
            "broken = fan [rack 7] State=IDLE",
            "ann",
        ),
        ("Reason=two\nlines [root@1] Comment=a b [c] ", "two\nlines", "root"),
        ("Reason=x [root@Unknown] Extra=d InstanceType=VM", "x", "root"),
    ],
)
def test_reasons(rest: str, reason: str, user: str) -> None:
    text = "\n".join([line("gpu-e1", rest=rest), line("gpu-e2"), ""])
    found = read_nodes(text)
    assert list(found) == ["gpu-e1", "gpu-e2"]
    assert (found["gpu-e1"].reason, found["gpu-e1"].reason_user) == (reason, user)
    assert (found["gpu-e2"].reason, found["gpu-e2"].reason_user) == ("", "")


def test_instance_ids() -> None:
    assert (
        read_nodes(line(rest=" InstanceId=ocid1.instance.x InstanceType="))["gpu-e1"].instance_id == "ocid1.instance.x"
    )
    assert read_nodes(line())["gpu-e1"].instance_id == ""


def test_only_elastic_nodes_are_listed() -> None:
    lines = [
        line("gpu-e1", "IDLE+CLOUD"),
        line("gpu-1", "IDLE"),
        line("old-e1", "IDLE+CLOUD"),
        line("gpu-e2", "FUTURE"),
    ]
    found = read_nodes("\n".join(lines))
    assert {name: node.pool for name, node in found.items()} == {"gpu-e1": "gpu", "old-e1": "", "gpu-e2": "gpu"}


def test_a_cluster_without_nodes() -> None:
    assert read_nodes("") == {}
    assert read_nodes("\n") == {}


@pytest.mark.parametrize(
    "text",
    [
        "slurm_load_node error: Unable to contact slurm controller",
        "NodeName=",
        "NodeName=gpu-e1 State=IDLE",
        line()[:300],
        "\x00",
    ],
)
def test_nodes_that_can_not_be_read_are_no_answer(text: str) -> None:
    with pytest.raises(SlurmUnavailable, match="can't be read"):
        read_nodes(text)


def test_a_listing_that_is_cut_off_is_not_an_answer() -> None:
    text = "\n".join(line(f"gpu-e{number}") for number in range(1, 30))
    whole = read_nodes(text)
    for end in range(0, len(text), 97):
        try:
            found = read_nodes(text[:end])
        except SlurmUnavailable:
            continue
        assert found == {name: whole[name] for name in list(whole)[: len(found)]}


def test_a_long_line_is_a_line() -> None:
    text = line().replace("a,b=c", "f" * 50_000) + "\n" + line("gpu-e2")
    assert list(read_nodes(text)) == ["gpu-e1", "gpu-e2"]


def test_what_reading_nodes_costs_grows_with_them_and_no_faster() -> None:
    rest = "Reason=ResumeTimeout reached [slurm@1795262769] InstanceId=ocid1.instance.oc1.x InstanceType="

    def work(count: int) -> Callable[[], object]:
        text = "\n".join(line(f"gpu-e{number}", "DOWN+CLOUD+POWERED_DOWN", rest) for number in range(1, count + 1))

        def read() -> None:
            assert len(read_nodes(text)) == count

        return read

    assert growth(work, 500, 5_000) < 30


def test_jobs(tmp_path: Path) -> None:
    records = [
        record(*JOB),
        record("8", "N/A", "RUNNING", "gpu", "gpu-e[1-2],x", "3", "1", "2", "N/A", "1", "0", "(null)", "None", "bob"),
        record("10", "9", "CONFIGURING", "gpu", "gpu-e7", "1-4", "1", "0", "5", "0", "1", "", "None", "a|b c"),
        record(
            "11",
            "0",
            "PENDING",
            "gpu",
            "(null)",
            "1",
            "0",
            "0",
            "N/A",
            "1",
            "1",
            "lab",
            "job requeued in held state",
            "x",
        ),
    ]
    said = Said(tmp_path, squeue="".join(records))
    found = said.jobs()
    waiting, running, part, held = found["7"], found["8"], found["10"], found["11"]
    assert (waiting.gang, waiting.state, waiting.reason, waiting.nodes) == ("7", "PENDING", "Priority", ())
    assert (waiting.partitions, waiting.node_count, waiting.priority) == (("gpu", "other"), 2, 4294901758)
    assert (waiting.eligible_at, waiting.requeue, waiting.user) == (1795262742.0, True, "ann")
    assert [each.account for each in (waiting, running, part, held)] == ["vision", "", "", "lab"]
    assert (running.nodes, running.restarts, running.eligible_at) == (("gpu-e1", "gpu-e2", "x"), 2, 0.0)
    # An interactive job can't be run again, whatever its flag states.
    assert not running.requeue
    assert (part.gang, part.node_count, part.requeue, part.user) == ("9", 1, False, "a|b c")
    assert (held.gang, held.reason, held.nodes) == ("11", "JobHeldAdmin", ())


def test_no_jobs(tmp_path: Path) -> None:
    assert Said(tmp_path, squeue="").jobs() == {}


@pytest.mark.parametrize(
    "text",
    [
        "squeue: error",
        record(*JOB)[:-5],
        record(*JOB) + "rest",
        record(*JOB[:-1]),
        record(*JOB, "more"),
        record("x", *JOB[1:]),
        record(*JOB[:4], "gpu-e[", *JOB[5:]),
    ],
)
def test_jobs_that_can_not_be_read_are_no_answer(tmp_path: Path, text: str) -> None:
    with pytest.raises(SlurmUnavailable, match="can't be read"):
        Said(tmp_path, squeue=text).jobs()


def test_what_reading_jobs_costs_grows_with_them_and_no_faster(tmp_path: Path) -> None:
    def work(count: int) -> Callable[[], object]:
        folder = tmp_path / str(count)
        folder.mkdir()
        said = Said(folder, squeue="".join(record(str(number), *JOB[1:]) for number in range(count)))

        def read() -> None:
            assert len(said.jobs()) == count

        return read

    assert growth(work, 1_000, 10_000) < 30


# --- Slurm that is not well -----


def broken(tmp_path: Path, script: str, timeout: float = 60) -> SlurmClient:
    program = tmp_path / "broken"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return SlurmClient((str(program),), pool_of=pool_of, timeout=timeout)


CALLS = {
    "nodes": lambda slurm: slurm.nodes(),
    "some": lambda slurm: slurm.node_states(["gpu-e1"]),
    "jobs": lambda slurm: slurm.jobs(),
    "version": lambda slurm: slurm.version(),
    "power down": lambda slurm: slurm.apply(PowerDown(("gpu-e1",), "")),
    "mark down": lambda slurm: slurm.apply(MarkDown(("gpu-e1",), "")),
    "drain": lambda slurm: slurm.apply(DrainNodes(("gpu-e1",), "")),
    "delay": lambda slurm: slurm.apply(Delay("7", 5.0, "")),
    "hold": lambda slurm: slurm.apply(Hold("7", "")),
    "tell": lambda slurm: slurm.apply(Annotate("7", "")),
}


@pytest.mark.parametrize(
    ("script", "timeout", "words"),
    [
        ("echo slurm_load: Unable to contact slurm controller >&2; exit 1", 60, "Unable to contact"),
        ("exec sleep 600", 0.3, "did not end within"),
        ("exit 1", 60, "without a message"),
    ],
    ids=["down", "hanging", "silent"],
)
@pytest.mark.parametrize("call", sorted(CALLS))
def test_one_error_whatever_is_wrong(tmp_path: Path, call: str, script: str, timeout: float, words: str) -> None:
    with pytest.raises(SlurmUnavailable, match=words):
        CALLS[call](broken(tmp_path, script, timeout))


def test_a_program_that_is_missing_or_dead_is_not_slurm(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable):
        SlurmClient((str(tmp_path / "none"),), pool_of=pool_of).nodes()
    assert not SlurmClient((str(tmp_path / "none"),), pool_of=pool_of).alive()


@pytest.mark.parametrize(
    ("said", "alive"),
    [
        ("Slurmctld(primary) at ctl is UP\n", True),
        ("Slurmctld(primary) at ctl is UP\nSlurmctld(backup) at b is DOWN\n", True),
        ("Slurmctld(primary) at ctl is DOWN\nSlurmctld(backup) at b is UP\n", False),
        ("", False),
    ],
)
def test_alive(tmp_path: Path, said: str, alive: bool) -> None:
    assert Said(tmp_path, scontrol=said).alive() is alive


def test_version(tmp_path: Path) -> None:
    assert Said(tmp_path, scontrol="slurm 24.11.5\n").version() == (24, 11, 5)
    assert Said(tmp_path, scontrol="slurm-wlm 22.05.8\n").version() == (22, 5, 8)


# --- words, and commands as they are given -----


def calls(tmp_path: Path) -> list[list[str]]:
    return [json.loads(text) for text in (tmp_path / "calls").read_text().splitlines()]


def test_many_nodes_go_in_batches(tmp_path: Path) -> None:
    names = tuple(f"gpu-e{number}" for number in range(1, 2 * BATCH + 2))
    Said(tmp_path, scontrol="").apply(PowerDown(names, "why"))
    given = [call[2].removeprefix("nodename=").split(",") for call in calls(tmp_path)]
    assert [len(some) for some in given] == [BATCH, BATCH, 1]
    assert tuple(name for some in given for name in some) == names
    assert {tuple(call[3:]) for call in calls(tmp_path)} == {("state=power_down_force",)}


def test_no_nodes_are_no_command(tmp_path: Path) -> None:
    said = Said(tmp_path, scontrol="")
    said.apply(PowerDown((), "why"))
    assert said.node_states([]) == {}
    assert not (tmp_path / "calls").exists()


def test_a_delay_is_counted_from_now_on_the_loops_clock(tmp_path: Path) -> None:
    said = Said(tmp_path, scontrol="")
    said._clock = lambda: 1000.0
    said.apply(Delay("7", 1090.4, 'no "host"\nis free'))
    said.apply(Delay("7", 900.0, ""))
    assert calls(tmp_path) == [
        ["scontrol", "update", "jobid=7", "starttime=now+90", "admincomment=no 'host' is free"],
        ["scontrol", "update", "jobid=7", "starttime=now+0", "admincomment="],
    ]


def test_only_who_waits_at_a_terminal_is_notified(tmp_path: Path) -> None:
    interactive = (*JOB[:10], "0", *JOB[11:])
    said = Said(tmp_path, scontrol="", squeue=record(*JOB) + record("8", *interactive[1:]))
    said.jobs()
    said.apply(Annotate("7", "words"))
    said.apply(Annotate("8", "words"))
    notified = [call[2:] for call in calls(tmp_path) if call[1] == "notify"]
    assert notified == [["8", "words"]]


def test_what_is_not_slurms_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Launch"):
        Said(tmp_path).apply(Launch("gpu-e1", "gpu", 1, "t", ""))


def test_the_environment_of_the_caller_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TZ": "Asia/Tokyo", "SQUEUE_STATES": "PD", "SLURM_CLUSTERS": "x", "SLURM_CONF": "/c"}.items():
        monkeypatch.setenv(name, value)
    slurm = broken(tmp_path, "env | sort; exit 1")
    with pytest.raises(SlurmUnavailable) as caught:
        slurm.nodes()
    said = caught.value.what
    assert "TZ=UTC" in said
    assert "SLURM_CONF=/c" in said
    assert "SQUEUE" not in said
    assert "SLURM_CLUSTERS" not in said


def test_some_of_the_nodes(tmp_path: Path) -> None:
    found: Sequence[str] = list(Said(tmp_path, scontrol=line()).node_states(["gpu-e1", "gpu-e1"]))
    assert found == ["gpu-e1"]
    assert calls(tmp_path) == [["scontrol", "--oneliner", "show", "node", "gpu-e1"]]
