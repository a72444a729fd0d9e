"""Slurm's running configuration against its file, from what Slurm 24.11.5 has printed. tests/e2e/test_drift.py changes
a real one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.controller.drift import slurm
from gpucluster.node_agent.errors import Failed
from tests.doubles.commands import Commands

CONF = """\
# Managed by gpucluster.
ClusterName=drift
SlurmctldParameters=cloud_dns,enable_configless
NodeName=compute-1 Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 RealMemory=2034238 Gres=gpu:a100:8 Feature=compute
NodeName=burst-e[1-2] Sockets=1 CoresPerSocket=2 RealMemory=14336 Feature=burst Weight=100 State=CLOUD
PartitionName=compute Nodes=compute-1 Default=YES DefMemPerCPU=15892 DefaultTime=1440 MaxTime=10080
PartitionName=burst Nodes=burst-e[1-2] Default=NO DefMemPerCPU=3584 DefaultTime=1440 MaxTime=10080 MaxNodes=1
"""
CONFIG = """\
Configuration data as of 2026-11-29T18:56:12
DebugFlags              = (null)
HASH_VAL                = Match
SlurmctldDebug          = info
SlurmctldSyslogDebug    = (null)
SLURM_CONF              = /etc/slurm/slurm.conf
"""
NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=32  CPUAlloc=0 CPUEfctv=128 CPUTot=128 CPULoad=28.41 "
    "AvailableFeatures={feature} ActiveFeatures={feature} Gres={gres} NodeAddr={name} NodeHostName={name} "
    "Version=24.11.5 OS=Linux 6.18 RealMemory=2034238 AllocMem=0 FreeMem=7304 Sockets=2 Boards=1 State={state} "
    "ThreadsPerCore=2 TmpDisk=0 Weight={weight} Owner=N/A MCS_label=N/A Partitions=compute "
    "BootTime=2026-11-29T18:54:22{reason}\n"
)
OFF = "IDLE+CLOUD+POWERED_DOWN"


def node(
    name: str = "compute-1",
    *,
    feature: str = "compute",
    gres: str = "gpu:a100:8",
    state: str = "IDLE",
    weight: str = "1",
    reason: str = "",
) -> str:
    said = f" Reason={reason}@2026-11-29T18:00:00]" if reason else ""
    return NODE.format(name=name, feature=feature, gres=gres, state=state, weight=weight, reason=said)


def elastic(name: str, state: str = OFF) -> str:
    return node(name, feature="burst", gres="(null)", weight="100", state=state)


NODES = node() + elastic("burst-e1") + elastic("burst-e2")
PARTITION = (
    "PartitionName={name} AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default={default} QoS=N/A "
    "DefaultTime=1-00:00:00 DisableRootJobs=YES ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes={nodes} "
    "MaxTime=7-00:00:00 MinNodes=0 LLN=NO PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO "
    "OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=128\n"
)
PARTITIONS = PARTITION.format(name="compute", default="YES", nodes="UNLIMITED") + PARTITION.format(
    name="burst", default="NO", nodes="1"
)
NO_RESERVATIONS = "No reservations in the system\n"
OURS = "ReservationName=gpucluster-maintenance-1 StartTime=x EndTime=y Users=root Groups=(null) Accounts=(null)\n"
THEIRS = "ReservationName=mine StartTime=x EndTime=y Users=alice Groups=(null) Accounts=(null)\n"


class Slurm:
    """scontrol that prints what a test wrote."""

    def __init__(self, commands: Commands, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._commands, self._folder = commands, folder
        self._conf = folder / "slurm.conf"
        patch.setattr(slurm, "CONF", self._conf)
        self.conf = CONF
        self.said = {
            "config": CONFIG, "node": NODES, "partition": PARTITIONS, "reservation": NO_RESERVATIONS,
        }  # fmt: skip

    def found(self) -> list[str]:
        self._conf.write_text(self.conf)
        for name, text in self.said.items():
            (self._folder / name).write_text(text)
        expand = 'case "$3" in *"["*) echo burst-e1; echo burst-e2;; *) echo "$3";; esac'
        show = f'case "$3" in hostnames) ;; *) cat {self._folder}/"$3";; esac'
        self._commands.add("scontrol", f'if [ "$2" = hostnames ]; then {expand}; else {show}; fi')
        return [f"{each['kind']} {each['name']}: {each['expected']} -> {each['seen']}" for each in slurm.findings()]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(Commands(tmp_path / "commands", monkeypatch), monkeypatch, tmp_path)


def test_what_runs_as_its_file_describes_it_is_no_drift(running: Slurm) -> None:
    assert running.found() == []
    running.conf += "DebugFlags=Power,Gres\nSlurmctldDebug=5\n"
    running.said["config"] = CONFIG.replace("(null)", "Gres,Power", 1).replace("= info", "= debug")
    assert running.found() == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "= Match",
            "= Different Ours=0x1 Slurmctld=0x2",
            "config /etc/slurm/slurm.conf: slurmctld runs with this file -> it has read another one",
        ),
        ("SlurmctldDebug          = info", "SlurmctldDebug          = debug2", "config SlurmctldDebug: info -> debug2"),
        ("DebugFlags              = (null)", "DebugFlags = Power", "config DebugFlags: none -> power"),
    ],
)
def test_what_scontrol_has_set(running: Slurm, old: str, new: str, expected: str) -> None:
    running.said["config"] = CONFIG.replace(old, new)
    assert running.found() == [expected]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (node(feature="compute,big"), ["node compute-1 AvailableFeatures: compute -> compute,big"]),
        (node(weight="7"), ["node compute-1 Weight: 1 -> 7"]),
        (node(gres="gpu:a100:7"), ["node compute-1 Gres: gpu:a100:8 -> gpu:a100:7"]),
        (node(gres="gpu:a100:8(S:0-1)"), []),
        (node() + node("by-hand"), ["node by-hand: not in slurm.conf -> a node of Slurm"]),
        (node(state="IDLE+DRAIN", reason="a loud fan [root"), ["node compute-1: in service -> drained by root"]),
        (node(state="MIXED+DRAIN"), ["node compute-1: in service -> drained by hand"]),
        (node(state="IDLE+DRAIN", reason="gpucluster: check failed: gpu_ecc [root"), []),
        (node(state="IDLE+DRAIN", reason="gpucluster: check failed again, a person decides: gpu_ecc [root"), []),
        (node(state="IDLE+DRAIN", reason="gpucluster: rollout of an image [gpucluster"), []),
        (node(state="DOWN+DRAIN", reason="Kill task failed [root"), []),
        (node(state="DOWN", reason="Not responding [slurm"), []),
    ],
)
def test_nodes(running: Slurm, changed: str, expected: list[str]) -> None:
    running.said["node"] = changed + elastic("burst-e1", "IDLE+CLOUD") + elastic("burst-e2")
    assert running.found() == expected


@pytest.mark.parametrize("state", ["IDLE+CLOUD", "MIXED+CLOUD+POWERING_UP", "IDLE+CLOUD+POWERING_DOWN", OFF])
def test_elastic_nodes_come_and_go(running: Slurm, state: str) -> None:
    running.said["node"] = node() + elastic("burst-e1", state) + elastic("burst-e2")
    assert running.found() == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("State=UP", "State=DOWN", "partition compute state: UP -> DOWN"),
        ("MaxTime=7-00:00:00", "MaxTime=UNLIMITED", "partition compute maxtime: 10080 -> UNLIMITED"),
        ("DefaultTime=1-00:00:00", "DefaultTime=02:00:00", "partition compute defaulttime: 1440 -> 02:00:00"),
        ("MaxNodes=UNLIMITED", "MaxNodes=1", "partition compute maxnodes: UNLIMITED -> 1"),
        ("AllowAccounts=ALL", "AllowAccounts=b,a", "partition compute allowaccounts: ALL -> b,a"),
        ("Default=YES", "Default=NO", "partition compute default: YES -> NO"),
        ("PartitionName=compute", "PartitionName=mine", "partition compute: in slurm.conf -> no partition"),
    ],
)
def test_partitions(running: Slurm, old: str, new: str, expected: str) -> None:
    running.said["partition"] = PARTITIONS.replace(old, new, 1)
    found = running.found()
    assert found[0] == expected
    assert found[1:] in ([], ["partition mine: not in slurm.conf -> a partition of Slurm"])


def test_lists_have_no_order(running: Slurm) -> None:
    running.conf = CONF.replace("Default=YES", "Default=YES AllowAccounts=a,b")
    running.said["partition"] = PARTITIONS.replace("AllowAccounts=ALL", "AllowAccounts=b,a", 1)
    assert running.found() == []


def test_reservations_by_hand_and_those_for_maintenance(running: Slurm) -> None:
    running.said["reservation"] = OURS
    assert running.found() == []
    running.said["reservation"] = OURS + THEIRS
    assert running.found() == ["reservation mine: no reservation -> one by hand, for alice"]


def test_a_slurm_that_does_not_answer_is_not_known(
    running: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.found()
    Commands(tmp_path / "broken", monkeypatch).prints("scontrol", "", status=1, errors="Unable to contact slurmctld")
    with pytest.raises(Failed, match="Unable to contact"):
        slurm.findings()


def test_the_lines_of_a_file() -> None:
    (first, second) = slurm.parsed('# A=1\nNodeName=a \\\n# no\nComment="two words" X = y # z\n'.replace("\\\n", ""))
    assert first == {"nodename": "a"}
    assert second == {"comment": "two words", "x": "y"}
