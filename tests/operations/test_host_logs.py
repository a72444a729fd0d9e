"""Lines of hosts' journals: what journalctl is asked, and what becomes of its answers. The hosts are a double, which
proves nothing of journalctl or Slurm; tests/e2e/test_main_path.py has the real ones."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpucluster.errors import InputError, ToolError
from gpucluster.operations import host_logs
from gpucluster.operations.host_logs import HostLogs, JobLines, LogFilter, is_job, is_run
from gpucluster.process import Completed
from gpucluster.spec import loads
from tests.doubles.controller import Asked, ControllerDouble, said
from tests.spec.spec_texts import LOCAL, MINIMAL
from tests.waiting import PATIENCE_S

ROW = "12|COMPLETED|compute-[1-2]|1000|1010|1100\n"
FIRST, SECOND = "2026-11-29T01:00:00.000001+00:00 compute-1 a[1]: one", "2026-11-29T01:00:00.000002+00:00 x b[1]: two"


def logs(double: ControllerDouble, text: str = LOCAL) -> HostLogs:
    return HostLogs(loads(text), double)  # type: ignore[arg-type]


def of_job(asked: list[Asked], *, silent: str = "", row: str = ROW, chosen: LogFilter | None = None) -> JobLines:
    def answer(question: Asked) -> Completed:
        asked.append(question)
        if "sacct" in question.command:
            return said(row)
        if question.host == silent:
            raise ToolError("compute-2 does not answer within 60 s")
        return said(f"{SECOND}\n" if question.host is None else f"{FIRST} of {question.host}\n  more\n")

    return logs(ControllerDouble(answer)).of_job("12", chosen or LogFilter())


@pytest.mark.parametrize(
    ("name", "run", "job"),
    [
        ("20260102T030405-a1b2c3", True, False), ("20260102", True, False), ("20260102T0304", True, False),
        ("12", False, True), ("12_3", False, True), ("compute-1", False, False), ("controller", False, False),
        ("0", False, False), ("2026010", False, True),
    ],
)  # fmt: skip
def test_what_a_name_is(name: str, run: bool, job: bool) -> None:
    assert (is_run(name), is_job(name)) == (run, job)


def test_the_filter_reaches_journalctl_as_it_is() -> None:
    double = ControllerDouble(said(f"-- Boot 1 --\n{SECOND}\n  its second line\n{FIRST}\n"))
    chosen = LogFilter(since="-2h", until="now; rm -rf /", grep="a'b", lines=7)
    assert logs(double).of_host("compute-1", chosen) == (FIRST, SECOND, "  its second line")
    (command,) = double.commands
    assert shlex.split(command)[-4:] == ["--lines=7", "--since=-2h", "--until=now; rm -rf /", "--grep=a'b"]
    assert double.asked[0].host == "compute-1"


@pytest.mark.parametrize("chosen", [LogFilter(grep="a\nb"), LogFilter(lines=0), LogFilter(lines=10**7)])
def test_a_filter_that_is_none(chosen: LogFilter) -> None:
    with pytest.raises(InputError):
        logs(ControllerDouble(said(""))).of_host("compute-1", chosen)


def test_no_line_is_an_answer_and_a_refusal_is_not() -> None:
    assert logs(ControllerDouble(said("", 1))).of_host("compute-1", LogFilter(grep="x")) == ()
    with pytest.raises(ToolError, match="Failed to parse timestamp"):
        logs(ControllerDouble(said("", 1, "Failed to parse timestamp: soon\n"))).of_host("compute-1", LogFilter())


def test_a_job_has_the_lines_of_its_hosts_in_its_time_and_those_about_it() -> None:
    asked: list[Asked] = []
    answer = of_job(asked)
    assert answer.lines == (f"{FIRST} of compute-1", "  more", f"{FIRST} of compute-2", "  more", SECOND)
    assert answer.silent == {}
    by_host = {question.host: shlex.split(question.command) for question in asked[1:]}
    assert set(by_host) == {None, "compute-1", "compute-2"}
    assert by_host["compute-1"][-2:] == ["--since=@1010", "--until=@1160"]
    assert by_host[None][-2:] == ["--since=@999", "--until=@1160"]
    assert "--unit=slurmctld" in by_host[None]


def test_a_host_that_is_gone_is_named_and_the_others_have_their_lines() -> None:
    answer = of_job([], silent="compute-2")
    assert answer.silent == {"compute-2": "compute-2 does not answer within 60 s"}
    assert answer.lines[0] == f"{FIRST} of compute-1"


def test_a_job_that_waits_has_no_hosts_yet() -> None:
    asked: list[Asked] = []
    of_job(asked, row="12|PENDING||1000|Unknown|\n")
    assert [question.host for question in asked] == [None, None]


#: Slurm's programs, and what stands before them: `timeout` ends sacct at once, which would never end.
PROGRAMS = {
    "sudo": 'shift; exec "$@"',
    "timeout": 'shift; [ "$1" != sacct ] || exit 124; exec "$@"',
    "sacct": "exec tail -f /dev/null",
    "squeue": "echo '12|RUNNING|compute-1|1000|1010|'",
}


def test_the_queue_knows_a_job_where_the_accounting_hangs(tmp_path: Path) -> None:
    """The command for the controller runs in a shell here."""
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def answer(question: Asked) -> Completed:
        if "sacct" not in question.command:
            return said("")
        argv = ["sh", "-c", question.command]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return said(done.stdout, done.returncode)

    times = logs(ControllerDouble(answer)).of_job("12", LogFilter()).times
    assert (times.state, times.hosts) == ("RUNNING", ("compute-1",))
    assert host_logs._SLURM_SECONDS < 30, "MessageTimeout of slurm.conf"
    assert 2 * host_logs._SLURM_SECONDS < host_logs._TIMEOUT


def test_an_expression_of_the_operator_and_that_of_the_job_must_both_match() -> None:
    asked: list[Asked] = []
    of_job(asked, chosen=LogFilter(grep="error", since="-1h"))
    about = next(question for question in asked if "--unit=slurmctld" in question.command)
    words = shlex.split(about.command)
    assert words[-2:] == ["--since=-1h", "--until=@1160"]
    assert [word for word in words if word.startswith("--grep=") and word.endswith("(?=.*(?:error))")]


def test_an_unknown_job_and_a_cluster_without_slurm() -> None:
    with pytest.raises(ToolError, match="Slurm does not know job 12"):
        of_job([], row="")
    kubernetes = MINIMAL + "scheduler: kubernetes\n"
    with pytest.raises(InputError, match="needs Slurm"):
        logs(ControllerDouble(said("")), kubernetes).of_job("12", LogFilter())


# --- lines that the controller has kept -----

KEEPS = f"{LOCAL}logs: {{keep_days: 30}}\n"
GONE = "2026-11-29T01:00:00.000000+00:00 gpu-e1 kernel: gone"


def copy(asked: list[Asked], lines: Sequence[str] = (GONE,)) -> Callable[[Asked], Completed]:
    """A controller that has lines of the hosts of a job, which do not answer themselves."""

    def answer(question: Asked) -> Completed:
        asked.append(question)
        if "logs show" in question.command:
            return said(json.dumps({"lines": list(lines), "collected": 7.0}))
        if "sacct" in question.command:
            return said(ROW)
        if question.host == "compute-1":
            raise ToolError("there is no host compute-1")
        return said("")

    return answer


def test_kept_lines_are_asked_for_without_a_shell_reading_them() -> None:
    asked: list[Asked] = []
    chosen = LogFilter(since="-2h", grep="a'b; rm -rf /", lines=7)
    found = logs(ControllerDouble(copy(asked)), KEEPS).kept("gpu-e1", chosen)
    assert (found.host, found.lines, found.collected) == ("gpu-e1", (GONE,), 7.0)
    (question,) = asked
    assert (question.command, question.host) == ("sudo -n /usr/local/bin/gpucluster-agent logs show", None)
    assert json.loads(question.text) == {
        "host": "gpu-e1", "since": "-2h", "until": "", "grep": "a'b; rm -rf /", "lines": 7,
    }  # fmt: skip


def test_a_job_has_kept_lines_of_the_hosts_that_are_gone_and_of_those_replaced() -> None:
    asked: list[Asked] = []
    answer = logs(ControllerDouble(copy(asked)), KEEPS).of_job("12", LogFilter(grep="x"))
    assert answer.lines == (GONE, GONE)
    assert (answer.silent, answer.kept) == ({}, {"compute-1": 7.0, "compute-2": 7.0})
    request = next(json.loads(each.text) for each in asked if "logs show" in each.command)
    assert (request["since"], request["until"], request["grep"]) == ("@1010", "@1160", "x")


def test_a_job_whose_hosts_have_no_kept_lines_names_the_silent_ones() -> None:
    answer = logs(ControllerDouble(copy([], lines=())), KEEPS).of_job("12", LogFilter())
    assert (answer.lines, answer.kept) == ((), {})
    assert answer.silent == {"compute-1": "there is no host compute-1"}


def test_a_cluster_that_keeps_none_asks_no_host() -> None:
    asked: list[Asked] = []
    with pytest.raises(InputError, match="keeps no journals"):
        logs(ControllerDouble(copy(asked))).kept("gpu-e1", LogFilter())
    assert asked == []
    assert "logs show" not in str([each.command for each in asked])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (said("", 2, "no lines of gpu-e1 are kept\nSee which hosts have some\n"), "no lines of gpu-e1 are kept"),
        (said("", 1, ""), "the controller gives no answer"),
        (said("{"), "can't be read"),
        (said("[]"), "can't be read"),
    ],
)
def test_an_answer_without_lines_is_an_error(given: Completed, message: str) -> None:
    with pytest.raises(ToolError, match=message) as error:
        logs(ControllerDouble(given), KEEPS).kept("gpu-e1", LogFilter())
    assert error.value.hint


def test_the_hosts_that_have_kept_lines() -> None:
    double = ControllerDouble(said('{"hosts": {"gpu-e1": 7}}'))
    assert logs(double, KEEPS).kept_hosts() == {"gpu-e1": 7.0}
