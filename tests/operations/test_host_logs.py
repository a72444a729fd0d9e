"""Lines of hosts' journals: what journalctl is asked, and what becomes of its answers. The hosts are a double, which
proves nothing of journalctl or Slurm; tests/e2e/test_main_path.py has the real ones."""

from __future__ import annotations

import shlex

import pytest

from gpucluster.errors import InputError, ToolError
from gpucluster.operations.host_logs import HostLogs, JobLines, LogFilter, is_job, is_run
from gpucluster.process import Completed
from gpucluster.spec import loads
from tests.doubles.controller import Asked, ControllerDouble, said
from tests.spec.spec_texts import LOCAL, MINIMAL

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
