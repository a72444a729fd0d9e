"""What Slurm is asked for maintenance, and what is read from its answers.

scontrol and squeue are doubles, whose texts have the form of Slurm's pages (scontrol.1, squeue.1, reservations.html).
That Slurm prints such texts and accepts the requests is proved by tests/autoscaler/daemon/test_real_slurm.py.
"""

from __future__ import annotations

import math
import shlex
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable

import pytest

from gpucluster.controller.health.policy import SchedulerNode
from gpucluster.controller.maintenance.policy import Move, NodeUse, Reserve, RunningJob, SlurmReservation
from gpucluster.controller.maintenance.slurm import SlurmMaintenance, uses
from gpucluster.node_agent.errors import Failed
from tests.doubles.commands import Commands

#: 2027-01-15T08:00:00Z
NOW = 1_800_000_000.0
HELD = (
    "ReservationName=gpucluster-maintenance-1 StartTime=2027-01-15T08:00:00 EndTime=2027-01-15T10:00:00 "
    "Duration=02:00:00 Nodes=gpu-1 NodeCnt=1 CoreCnt=8 Features=(null) PartitionName=gpu "
    "Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=8 Users=root Groups=(null) Accounts=(null) Licenses=(null) "
    "State=INACTIVE BurstBuffer=(null) MaxStartDelay=(null)"
)
COURSE = (
    HELD.replace("gpucluster-maintenance-1", "course").replace("Nodes=gpu-1", "Nodes=gpu-[2-3],login-1")
    .replace("Flags=MAINT,IGNORE_JOBS,SPEC_NODES", "Flags=").replace("Users=root", "Users=(null)")
)  # fmt: skip
LICENSES = HELD.replace("Nodes=gpu-1", "Nodes=(null)").replace("Users=root ", "")


_HOSTNAMES = """case "$*" in
"show hostnames gpu-[2-3],login-1") printf 'gpu-2\\ngpu-3\\nlogin-1\\n'; exit ;;
"show hostnames gpu-1,gpu-4") printf 'gpu-1\\ngpu-4\\n'; exit ;;
esac
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """scontrol and squeue, which print nothing at first."""
    commands = Commands(tmp_path, monkeypatch)
    for name in ("scontrol", "squeue"):
        commands.add(name)
    return commands


def _scontrol(commands: Commands, text: str) -> None:
    """It prints this, and knows the hosts of the lists above."""
    commands.add("scontrol", f"{_HOSTNAMES}printf %s {shlex.quote(text)}")


def _jobs(commands: Commands, *lines: str) -> list[RunningJob]:
    _scontrol(commands, "")
    commands.prints("squeue", "".join(f"{line}\n" for line in lines))
    return list(SlurmMaintenance().jobs())


def _text(when: float) -> str:
    return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


# --- what is read -----


def test_reservations_are_read_with_their_nodes_times_flags_and_users(commands: Commands) -> None:
    _scontrol(commands, f"{HELD}\n{COURSE}\n{LICENSES}\n")
    mine, course, licenses = SlurmMaintenance().reservations()
    assert mine == SlurmReservation(
        "gpucluster-maintenance-1", NOW, NOW + 7200, frozenset({"gpu-1"}),
        frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"}), "root",
    )  # fmt: skip
    assert course.nodes == {"gpu-2", "gpu-3", "login-1"}
    assert course.users == ""
    # A reservation of licenses has no node, and one that has no user may be without the word.
    assert (licenses.nodes, licenses.users) == (frozenset(), "")
    assert commands.calls("scontrol")[0] == "--oneliner show reservations"


@pytest.mark.parametrize("text", ["", "No reservations in the system\n", "\n\n"])
def test_no_reservation_is_an_answer(commands: Commands, text: str) -> None:
    _scontrol(commands, text)
    assert SlurmMaintenance().reservations() == []


def test_jobs_are_read_with_their_nodes_and_their_latest_end(commands: Commands) -> None:
    three = frozenset({"gpu-2", "gpu-3", "login-1"})
    assert _jobs(
        commands, "7|2027-01-15T08:00:00|gpu-[2-3],login-1|ada", "8|NONE|gpu-[2-3],login-1|bob", "9|N/A|gpu-1|a|b",
    ) == [
        RunningJob("7", "ada", three, NOW),
        RunningJob("8", "bob", three, math.inf),
        # The user is the last value, so one with a separator is no other value.
        RunningJob("9", "a|b", frozenset({"gpu-1"}), math.inf),
    ]  # fmt: skip
    # Nodes that two jobs share are asked for once; one host needs no question.
    assert commands.calls("scontrol") == ["show hostnames gpu-[2-3],login-1"]
    (request,) = commands.calls("squeue")
    assert "--states=RUNNING,SUSPENDED,CONFIGURING --format=%A|%e|%N|%u" in request


def test_no_job_is_an_answer(commands: Commands) -> None:
    assert _jobs(commands) == []


@pytest.mark.parametrize("nodes", ["(null)", "None assigned", ""])
def test_no_node_is_not_a_node_of_that_name(commands: Commands, nodes: str) -> None:
    assert _jobs(commands, f"7|2027-01-15T08:00:00|{nodes}|ada") == [RunningJob("7", "ada", frozenset(), NOW)]


def test_a_list_without_brackets_is_more_than_one_host(commands: Commands) -> None:
    (job,) = _jobs(commands, "7|N/A|gpu-1,gpu-4|ada")
    assert job.nodes == {"gpu-1", "gpu-4"}


# --- what is asked for -----


def test_a_reservation_is_asked_for_in_utc_and_over_running_jobs(commands: Commands) -> None:
    start = float(int(time.time()) + 3600)
    SlurmMaintenance().reserve(Reserve("m-1", "gpu-1", start, start + 7200.9))
    assert commands.calls("scontrol") == [
        f"create reservation ReservationName=m-1 StartTime={_text(start)} EndTime={_text(start + 7200)} "
        "Nodes=gpu-1 Users=root Flags=MAINT,IGNORE_JOBS"
    ]


@pytest.mark.parametrize("past", [-0.5, 0.0, 3600.0])
def test_a_beginning_that_has_passed_is_now(commands: Commands, past: float) -> None:
    """Slurm refuses a time that has passed, also while the request is on its way."""
    start = time.time() - past
    SlurmMaintenance().reserve(Reserve("m-1", "gpu-1", start, NOW))
    SlurmMaintenance().move(Move("m-1", start, NOW))
    assert [" StartTime=now EndTime=2027-01-15T08:00:00" in call for call in commands.calls("scontrol")] == [True] * 2


def test_one_that_has_begun_gets_another_end_alone(commands: Commands) -> None:
    SlurmMaintenance().move(Move("m-1", None, NOW))
    assert commands.calls("scontrol") == ["update reservation ReservationName=m-1 EndTime=2027-01-15T08:00:00"]


def test_a_line_for_a_job_is_one_argument_whatever_is_in_it(tmp_path: Path, commands: Commands) -> None:
    commands.add("scontrol", f'printf "%s\\n" "$@" > {tmp_path}/words')
    SlurmMaintenance().notify("7", "gpucluster: maintenance; $(reboot) of 'gpu-1'")
    words = (tmp_path / "words").read_text().splitlines()
    assert words == ["notify", "7", "gpucluster: maintenance; $(reboot) of 'gpu-1'"]


# --- what Slurm refuses -----


@pytest.mark.parametrize(
    "message", ["slurm_delete_reservation: Requested reservation is invalid", "Reservation m-1 does not exist"]
)
def test_a_reservation_that_is_gone_is_deleted(commands: Commands, message: str) -> None:
    commands.prints("scontrol", "", 1, f"{message}\n")
    SlurmMaintenance().delete("m-1")
    assert commands.calls("scontrol") == ["delete ReservationName=m-1"]


def test_every_other_refusal_is_passed_on_with_its_message(commands: Commands) -> None:
    for name in ("scontrol", "squeue"):
        commands.prints(name, "", 1, f"{name}: Requested nodes are busy\n")
    maintenance = SlurmMaintenance()
    calls: list[Callable[[], object]] = [
        lambda: maintenance.delete("m-1"),
        lambda: maintenance.reserve(Reserve("m-1", "gpu-1", NOW, NOW + 1)),
        lambda: maintenance.move(Move("m-1", NOW, NOW + 1)),
        lambda: maintenance.notify("7", "words"),
        maintenance.reservations,
    ]
    for call in calls:
        with pytest.raises(Failed, match="Slurm refused: scontrol: Requested nodes are busy"):
            call()
    with pytest.raises(Failed, match="Slurm refused: squeue: Requested nodes are busy"):
        maintenance.jobs()


def test_times_are_those_of_utc_wherever_the_service_runs(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    commands.add("squeue", 'echo "7|$(date -d @1800000000 +%Y-%m-%dT%H:%M:%S)|gpu-1|ada"')
    (job,) = SlurmMaintenance().jobs()
    assert job.end == NOW


# --- nodes -----


@pytest.mark.parametrize(
    ("flags", "reason", "in_service"),
    [
        ("IDLE", "", True),
        ("ALLOCATED", "", False),
        ("MIXED", "", False),
        ("IDLE DRAIN", "broken", False),
        ("IDLE POWERED_DOWN", "", False),
        ("DOWN", "", False),
        ("", "", False),
    ],
)
def test_a_node_is_in_service_where_slurm_calls_it_idle_and_nobody_took_it_away(
    flags: str, reason: str, in_service: bool
) -> None:
    node = SchedulerNode("gpu-1", "gpu", frozenset(flags.split()), reason)
    assert uses({"gpu-1": node}) == {"gpu-1": NodeUse("gpu", in_service)}
