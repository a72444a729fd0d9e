"""Lines of the hosts' journals: of one host, or of one job on all its hosts (`gpucluster logs HOST|JOB`). Reads only.

The journals are those of the hosts themselves, read by their journalctl. With `logs.keep_days` the controller has a
copy of all of them, which is read where a host is gone, does not answer, or was replaced since. A host may write what
it likes into its own journal, and nothing into another's: lines are taken from the host that was asked, whatever name
stands in them.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gpucluster import process
from gpucluster.errors import InputError, ToolError
from gpucluster.node_agent import bounded
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.inquiry import Inquiry
from gpucluster.operations.schedulers import require_slurm
from gpucluster.process import Completed
from gpucluster.slurm.hostlists import HostlistError, expand
from gpucluster.spec import ClusterSpec
from gpucluster.ssh import SSH_FAILED, unreachable
from gpucluster.text import printable

#: Lines of each host, and the most that may be asked for.
LINES, MOST_LINES = 1000, 100_000
#: Seconds for each host; the hosts of a job are asked at the same time.
_TIMEOUT = 60.0
#: For each of both answers of Slurm about a job, less than its programs wait for one (MessageTimeout is 30): the
#: queue is asked where the accounting hangs, too.
_SLURM_SECONDS = 25.0
#: Seconds after the end of a job in which its hosts still clean up.
_AFTER_S = 60
#: Hosts of one job that are asked. Lines of more hosts are too many to read.
MOST_HOSTS = 64
_AGENT = "/usr/local/bin/gpucluster-agent"
_JOB = re.compile(r"[1-9]\d{0,9}(?:_\d{1,9})?")
_RUN = re.compile(r"\d{8}(?:T[\w-]*)?")
_JOB_FIELDS = 6
#: journalctl ends with it where no line matches.
_NO_LINES = 1


def is_job(name: str) -> bool:
    """Whether a name is the number of a job, and not the beginning of a run's name, which has its whole day."""
    return _JOB.fullmatch(name) is not None and _RUN.fullmatch(name) is None


def is_run(name: str) -> bool:
    """Whether a name is that of a run, or its beginning."""
    return _RUN.fullmatch(name) is not None


@dataclass(frozen=True)
class LogFilter:
    """Which lines.

    Args:
        since, until: as journalctl reads them: "2026-11-29 01:00", "-2h", "yesterday"; empty for no limit. A job has
            its own times, so they only narrow it.
        grep: a regular expression of journalctl (PCRE), in small letters for both cases; empty for all.
        lines: of each host, the last ones.
    """

    since: str = ""
    until: str = ""
    grep: str = ""
    lines: int = LINES

    def check(self) -> None:
        """Refuse what journalctl could take for something else.

        Raises:
            InputError: such a value.
        """
        for name, value in (("--since", self.since), ("--until", self.until), ("--grep", self.grep)):
            if "\n" in value or "\0" in value:
                raise InputError("it has a line break", where=name, hint="Write it in one line")
        if not 1 <= self.lines <= MOST_LINES:
            raise InputError(f"it is not between 1 and {MOST_LINES}", where="--lines", hint="Use a smaller number")

    def argv(self, *more: str) -> list[str]:
        """The command line of journalctl on a host."""
        values = (("since", self.since), ("until", self.until), ("grep", self.grep))
        options = [f"--{name}={value}" for name, value in values if value]
        form = ("--no-pager", "--quiet", "--utc", "--output=short-iso-precise", f"--lines={self.lines}")
        return ["sudo", "-n", "journalctl", *form, *options, *more]


@dataclass(frozen=True)
class JobTimes:
    """Where and when a job ran.

    Args:
        job: its number in Slurm, also for a task of an array.
        state: such as COMPLETED.
        hosts: empty for a job that has not started.
        submitted, started, ended: seconds since 1970; None if that has not happened.
    """

    job: str
    state: str
    hosts: Sequence[str]
    submitted: float | None
    started: float | None
    ended: float | None


@dataclass(frozen=True)
class JobLines:
    """The lines of a job.

    Args:
        lines: of all hosts together, by time (UTC).
        silent: why a host did not answer, by its name.
        kept: hosts whose lines are from the controller's copy, and when it was made, in seconds since 1970.
    """

    times: JobTimes
    lines: Sequence[str]
    silent: dict[str, str]
    kept: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class KeptLines:
    """Lines of a host that the controller has kept.

    Args:
        lines: the oldest first, with times in UTC.
        collected: when the controller asked the host the last time, in seconds since 1970.
    """

    host: str
    lines: Sequence[str]
    collected: float

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class HostLogs:
    """Reads the journals of one cluster's hosts."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection) -> None:
        self._spec = spec
        self._controller = controller

    def of_host(self, host: str, chosen: LogFilter) -> tuple[str, ...]:
        """The last lines of a host's journal, the oldest first, with times in UTC.

        Args:
            host: its name; "controller" for the controller.

        Raises:
            InputError: there is no such host.
            ToolError: it does not answer, or its journalctl refuses the filter.
        """
        chosen.check()
        return _in_order(self._lines(host, chosen.argv()))

    def kept(self, host: str, chosen: LogFilter) -> KeptLines:
        """Lines of a host, also of one that is gone, that the controller has kept.

        Raises:
            InputError: cluster.yml keeps none, or a value of the filter is none.
            ToolError: the controller does not answer, has nothing of this host, or refuses the filter.
        """
        chosen.check()
        answer = self._of_copy("show", {"host": host, **asdict(chosen)})
        return KeptLines(host, tuple(map(str, answer["lines"])), float(answer["collected"]))

    def kept_hosts(self) -> dict[str, float]:
        """Of which hosts the controller has lines, and when it asked each the last time, in seconds since 1970.

        Raises:
            InputError: cluster.yml keeps none.
            ToolError: the controller does not answer.
        """
        return {str(host): float(time_) for host, time_ in self._of_copy("hosts", {})["hosts"].items()}

    def _of_copy(self, part: str, request: dict[str, Any]) -> dict[str, Any]:
        if not self._spec.logs.keep_days:
            raise InputError(
                "the controller keeps no journals of hosts",
                where="logs.keep_days",
                hint="Set logs.keep_days in cluster.yml, such as 30, and run: gpucluster apply",
            )
        done = self._controller.ask(f"sudo -n {_AGENT} logs {part}", text=json.dumps(request), timeout=_TIMEOUT)
        if done.returncode != 0:
            what, hint = (printable(line)[:300] for line in [*done.stderr.strip().splitlines(), "", ""][:2])
            raise ToolError(what or "the controller gives no answer", hint=hint or "Run: gpucluster apply")
        try:
            answer = bounded.loads(done.stdout)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ToolError("the controller's answer can't be read", hint="Run: gpucluster apply")
        return answer

    def follow(self, host: str, chosen: LogFilter, on_line: Callable[[str], None]) -> None:
        """Pass on each line of a host's journal as it is written, until a signal stops it.

        Raises:
            InputError: there is no such host.
            ToolError: the connection has ended.
        """
        chosen.check()
        command = shlex.join(chosen.argv("--follow"))
        done = process.stream(self._controller.ssh_argv(host, [command]), on_line=on_line)
        if done.returncode == SSH_FAILED:
            raise unreachable(host, done.stderr)
        _require_lines(host, done)

    def of_job(self, job: str, chosen: LogFilter) -> JobLines:
        """The lines of a job: of its hosts in its time, and what slurmctld has logged about it.

        Args:
            job: its number, or that of an array and of a task in it: 12_3.

        Raises:
            InputError: the cluster has no Slurm.
            ToolError: the controller does not answer, or Slurm does not know the job.
        """
        require_slurm(self._spec, "logs JOB", kubernetes="Run: gpucluster kubectl -- logs POD")
        chosen.check()
        times = self._times(job)
        ask = {"controller": Inquiry(lambda: KeptLines("", self._lines("controller", _about(times, chosen)), 0))}
        if times.started is not None:
            for host in times.hosts[:MOST_HOSTS]:
                ask[host] = Inquiry(lambda host=host: self._in_job(host, times, chosen))  # type: ignore[misc]
        until = time.monotonic() + 2 * _TIMEOUT
        lines: list[str] = []
        silent = dict.fromkeys(times.hosts[MOST_HOSTS:], "not asked: the job has more hosts than are asked")
        kept: dict[str, float] = {}
        for host, inquiry in ask.items():
            answer = inquiry.answer(until)
            if answer.value is None:
                silent[host] = answer.error
                continue
            lines += answer.value.lines
            if answer.value.collected:
                kept[host] = answer.value.collected
        return JobLines(times, _in_order(lines), silent, kept)

    def _in_job(self, host: str, times: JobTimes, chosen: LogFilter) -> KeptLines:
        """A host's lines in the time of a job; `collected` is 0 where the host itself has them."""
        own: tuple[str, ...] = ()
        error: ToolError | InputError | None = None
        try:
            own = self._lines(host, _in_its_time(times, chosen))
        except (ToolError, InputError) as caught:
            error = caught
        # A node that was replaced since has none of that time.
        if not own and self._spec.logs.keep_days:
            begin, end = _times_of(times.started, times.ended, chosen)
            with suppress(ToolError):
                copy = self.kept(host, replace(chosen, since=begin, until=end))
                if copy.lines:
                    return copy
        if error is not None:
            raise error
        return KeptLines(host, own, 0)

    def _lines(self, host: str, argv: Sequence[str]) -> tuple[str, ...]:
        place = None if host == "controller" else host
        done = self._controller.ask(shlex.join(argv), host=place, timeout=_TIMEOUT)
        _require_lines(host, done)
        return tuple(line for line in done.stdout.splitlines() if line and not line.startswith("-- "))

    def _times(self, job: str) -> JobTimes:
        """What Slurm knows of a job: the accounting, and slurmctld for one that is not there."""
        fields = "JobIDRaw,State,NodeList,Submit,Start,End"
        sacct = ["sacct", "-X", "-n", "-P", "-j", job, f"--format={fields}"]
        squeue = ["squeue", "-h", "-j", job, "-o", "%A|%T|%N|%V|%S|"]
        limit = f"timeout {_SLURM_SECONDS:g}"
        script = (
            f"export SLURM_TIME_FORMAT=%s TZ=UTC; {limit} {shlex.join(sacct)}; {limit} {shlex.join(squeue)} || true"
        )
        done = self._controller.ask(f"sudo -n sh -c {shlex.quote(script)}", timeout=_TIMEOUT)
        for line in done.stdout.splitlines():
            row = line.split("|")
            if len(row) >= _JOB_FIELDS and row[0].isdigit():
                return _job_times(row)
        said = printable(done.stderr.strip().rpartition("\n")[2])[:200]
        raise ToolError(
            f"Slurm does not know job {job}{f': {said}' if said else ''}",
            hint="See the jobs of a day: gpucluster ssh -- sudo sacct -a -X",
        )


def _in_order(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines by time. journalctl may give the newest first; further lines of a message are indented, and stay below
    its first."""
    entries: list[list[str]] = []
    for line in lines:
        if entries and line[:1].isspace():
            entries[-1].append(line)
        else:
            entries.append([line])
    return tuple(line for entry in sorted(entries, key=lambda entry: entry[0].partition(" ")[0]) for line in entry)


def _job_times(row: Sequence[str]) -> JobTimes:
    number, state, hosts, submitted, started, ended = row[:_JOB_FIELDS]
    try:
        names = expand(hosts) if hosts and "None" not in hosts else []
    except HostlistError:
        names = []
    begin = _seconds(started)
    # Slurm writes the expected start of a job that waits.
    running = begin if names else None
    ended_at = _seconds(ended)
    return JobTimes(number, (state.split() or [""])[0], tuple(names), _seconds(submitted), running, ended_at)


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and int(text) else None


def _in_its_time(times: JobTimes, chosen: LogFilter) -> list[str]:
    """All lines of a host while the job ran there."""
    return [*LogFilter("", "", chosen.grep, chosen.lines).argv(), *_window(times.started, times.ended, chosen)]


def _about(times: JobTimes, chosen: LogFilter) -> list[str]:
    """What the controller's daemons have logged about the job since it was submitted."""
    number = rf"(?:JobId=|job[ _]?(?:id)?[ =:]{{0,2}}|StepId=){times.job}(?!\d)"
    # journalctl takes one expression: that of the job, in which the operator's must be, too.
    both = f"(?i)(?=.*{number})(?=.*(?:{chosen.grep}))" if chosen.grep else f"(?i){number}"
    units = ["--unit=slurmctld", "--unit=slurmdbd", "--unit=gpucluster-autoscaler", "--unit=gpucluster-health"]
    submitted = None if times.submitted is None else times.submitted - 1
    return [*LogFilter("", "", both, chosen.lines).argv(*units), *_window(submitted, times.ended, chosen)]


def _times_of(begin: float | None, end: float | None, chosen: LogFilter) -> tuple[str, str]:
    """From when and until when, as systemd reads times; what the operator wants comes first."""
    since = chosen.since or ("" if begin is None else f"@{begin:.0f}")
    return since, chosen.until or ("" if end is None else f"@{end + _AFTER_S:.0f}")


def _window(begin: float | None, end: float | None, chosen: LogFilter) -> list[str]:
    """The times of a job as options of journalctl."""
    since, until = _times_of(begin, end, chosen)
    return [f"--{name}={value}" for name, value in (("since", since), ("until", until)) if value]


def _require_lines(host: str, done: Completed) -> None:
    """Raises ToolError if journalctl has failed; no line is not a failure."""
    said = printable(done.stderr.strip().rpartition("\n")[2])[:300]
    if done.returncode == 0 or (done.returncode == _NO_LINES and not said):
        return
    raise ToolError(
        f"the journal of {host} can't be read: {said or f'journalctl ended with {done.returncode}'}",
        hint="Times are as journalctl reads them, such as '2026-11-29 01:00' or -2h; --grep is an expression of PCRE",
    )
