"""Slurm's commands: what the autoscaler reads of nodes and jobs, and what it changes.

Two commands read everything, however many nodes and jobs there are. A value that can hold any text (a reason, a user's
name) comes last, or between control characters that can't be typed. Times are requested as seconds of the epoch, so
that no time zone is involved. Output that can't be read completely is an error, because decisions on half a cluster are
wrong.

Explanations are written where Slurm has a field for them (Slurm 22.05 to 24.11):

    node   Reason, shown by `sinfo -R`: only while the node is down or drained
    job    AdminComment, shown by `scontrol show job` and kept by the accounting; never the user's own Comment.
           `scontrol notify` prints the same text on the terminal of a user who waits in salloc or srun
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpucluster import process
from gpucluster.autoscaler.decide.types import (
    Action,
    Annotate,
    Delay,
    DrainNodes,
    Hold,
    Job,
    MarkDown,
    Node,
    PowerDown,
)
from gpucluster.controller.rules import slurm_nodes
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.node_agent.rules.reasons import storable
from gpucluster.slurm.hostlists import HostlistError, expand
from gpucluster.slurm.states import NodeState

# slurmctld holds its lock while it works through one command: 10,000 nodes at once take 3 s, 500 take 0.1 s.
BATCH = 500
_TIMEOUT = 20.0
_SEPARATOR, _END = "\x1f", "\x1e"
# Fields of `squeue -O`. A width of 0 is as wide as it needs to be; the default would cut at 20 characters.
_JOB_FIELDS = (
    "JobID",
    "HetJobID",
    "State",
    "Partition",
    "NodeList",
    "NumNodes",
    "PriorityLong",
    "RestartCnt",
    "EligibleTime",
    "Requeue",
    "BatchFlag",
    "Account",
    "Reason",
    "UserName",
)
_JOB_FORMAT = ",".join(f"{name}:0{_END if name == _JOB_FIELDS[-1] else _SEPARATOR}" for name in _JOB_FIELDS)
# What Slurm answers for a job that is gone or is in another state by now: the change is no longer needed.
_TOO_LATE = ("Invalid job id", "already finished", "already completing or completed", "no longer pending")
_UNKNOWN_NODE = "Invalid node name"
_HELD_ALREADY = "requeued in held state", "requeued held"
_HELD = "JobHeldAdmin"


class SlurmUnavailable(ToolError):
    """Slurm does not answer, prints something unknown, or refuses."""


class SlurmClient:
    """One Slurm controller. Every call raises SlurmUnavailable when Slurm does not do what is asked.

    Args:
        prefix: words before each command (to enter a container).
        pool_of: the elastic pool that a node's name belongs to; empty if it belongs to none.
        timeout: seconds for one command.
        clock: the clock of the times in Delay.
    """

    def __init__(
        self,
        prefix: Sequence[str] = (),
        *,
        pool_of: Callable[[str], str],
        timeout: float = _TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._prefix = tuple(prefix)
        self._pool_of = pool_of
        self._timeout = timeout
        self._clock = clock
        self._interactive: frozenset[str] = frozenset()

    # --- reading -----

    def version(self) -> tuple[int, ...]:
        """The version of the commands, such as (24, 11, 5)."""
        output = self._ask("scontrol", "--version")
        numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", output)
        if numbers is None:
            raise _unreadable("scontrol --version", output)
        return tuple(int(number) for number in numbers.groups())

    def alive(self) -> bool:
        """Whether the primary controller answers."""
        try:
            return bool(re.search(r"^Slurmctld\(primary\).* is UP$", self._ask("scontrol", "ping"), re.MULTILINE))
        except GpuClusterError:
            return False

    def nodes(self) -> dict[str, Node]:
        """The elastic nodes: those with a name of a pool, and any other that has the flag CLOUD."""
        return self._nodes(self._ask("scontrol", "--oneliner", "show", "nodes"))

    def node_states(self, names: Iterable[str]) -> dict[str, Node]:
        """Some of the nodes, by name. Names that Slurm does not know are left out."""
        unique_names = sorted(set(names))
        if len(unique_names) > BATCH:
            nodes = self.nodes()
            return {name: nodes[name] for name in unique_names if name in nodes}
        if not unique_names:
            return {}
        result = self._run("scontrol", "--oneliner", "show", "node", ",".join(unique_names))
        missing = re.compile(r"Node \S+ not found\s*")
        if result.returncode != 0 and not missing.search(result.stdout + result.stderr):
            raise _refused(result)
        return self._nodes(missing.sub("", result.stdout))

    def jobs(self) -> dict[str, Job]:
        """The jobs that are not finished, by id."""
        output = self._ask("squeue", "--noheader", "--all", "-O", _JOB_FORMAT)
        records = output.split(_END + "\n")
        if records.pop().strip():
            raise _unreadable("squeue", output[-200:])
        jobs: dict[str, Job] = {}
        interactive = set()
        for record in records:
            values = record.split(_SEPARATOR)
            if len(values) != len(_JOB_FIELDS) or not values[0].isdigit():
                raise _unreadable("squeue", record)
            fields = dict(zip(_JOB_FIELDS, values, strict=True))
            jobs[values[0]] = _job(fields)
            if fields["BatchFlag"] == "0":
                interactive.add(values[0])
        self._interactive = frozenset(interactive)
        return jobs

    # --- writing -----

    def apply(self, action: Action) -> None:
        """Carry out an action. Each can be carried out twice."""
        match action:
            case PowerDown():
                self.power_down(action.nodes, force=action.force)
            case MarkDown():
                self.mark_down(action.nodes, action.why)
            case DrainNodes():
                self.drain(action.nodes, action.why)
            case Delay():
                self.delay(action.job, action.until - self._clock(), action.why)
            case Hold():
                self.hold(action.job, action.why)
            case Annotate():
                self.annotate(action.job, action.why)
            case _:
                raise TypeError(f"not an action of Slurm's: {type(action).__name__}")

    def power_down(self, nodes: Sequence[str], *, force: bool = True) -> None:
        """Give nodes up, whatever state they are in. Slurm requeues the jobs on them, or ends those it can't requeue.

        Without `force` a node that has a job is powered down when the job has ended.

        The nodes are POWERING_DOWN within a power_save_interval, SuspendProgram is called, and after SuspendTimeout
        they are IDLE+POWERED_DOWN. This also heals DOWN+POWERED_DOWN. A node that is powered down already passes
        through the same states, and takes no job for SuspendTimeout.
        """
        self._update_nodes(nodes, "state=power_down_force" if force else "state=power_down")

    def mark_down(self, nodes: Sequence[str], why: str) -> None:
        """Take nodes out of service at once. Slurm requeues or ends the jobs on them."""
        self._update_nodes(nodes, "state=down", f"reason={storable(why)}")

    def drain(self, nodes: Sequence[str], why: str) -> None:
        """Let nodes take no new jobs."""
        self._update_nodes(nodes, "state=drain", f"reason={storable(why)}")

    def delay(self, job: str, seconds: float, why: str) -> None:
        """Give a pending job, with all its components, a start time so many seconds from now.

        Slurm refuses the start time of a job that has nodes, and takes the annotation only. Give up the nodes first:
        the job is pending at once.
        """
        start = f"now+{max(0, round(seconds))}"
        self._update_job(job, f"starttime={start}", f"admincomment={storable(why)}")
        self._notify(job, why)

    def hold(self, job: str, why: str) -> None:
        """Hold a job until its user or an operator releases it. A job that has nodes is held once it is requeued."""
        self._update_job(job, f"admincomment={storable(why)}")
        self._tolerant("scontrol", "uhold", job)
        self._notify(job, why)

    def annotate(self, job: str, why: str) -> None:
        """Write an explanation on a job."""
        self._update_job(job, f"admincomment={storable(why)}")
        self._notify(job, why)

    # --- commands -----

    def _nodes(self, text: str) -> dict[str, Node]:
        nodes = {}
        try:
            for line in slurm_nodes.parse(text):
                pool = self._pool_of(line.name)
                if pool or NodeState.CLOUD in line.flags:
                    nodes[line.name] = Node(
                        line.name, pool, line.flags, line.reason, line.reason_user, line.instance_id
                    )
        except ValueError as error:
            raise _unreadable("scontrol show nodes", str(error)) from error
        return nodes

    def _update_nodes(self, nodes: Sequence[str], *words: str) -> None:
        for first in range(0, len(nodes), BATCH):
            self._update_some_nodes(nodes[first : first + BATCH], words)

    def _update_some_nodes(self, nodes: Sequence[str], words: Sequence[str]) -> None:
        """Update nodes. Slurm refuses a whole list for one unknown name: then each half is updated separately."""
        result = self._run("scontrol", "update", f"nodename={','.join(nodes)}", *words)
        if result.returncode == 0:
            return
        if _UNKNOWN_NODE not in result.stderr + result.stdout:
            raise _refused(result)
        if len(nodes) > 1:
            half = len(nodes) // 2
            self._update_some_nodes(nodes[:half], words)
            self._update_some_nodes(nodes[half:], words)

    def _update_job(self, job: str, *words: str) -> None:
        self._tolerant("scontrol", "update", f"jobid={job}", *words)

    def _tolerant(self, *argv: str) -> None:
        result = self._run(*argv)
        if result.returncode != 0 and not any(words in result.stderr + result.stdout for words in _TOO_LATE):
            raise _refused(result)

    def _notify(self, job: str, why: str) -> None:
        """Print the explanation on the terminal of an interactive job. A user who has logged out does not need it."""
        if job in self._interactive:
            self._run("scontrol", "notify", job, storable(why))

    def _ask(self, *argv: str) -> str:
        result = self._run(*argv)
        if result.returncode != 0:
            raise _refused(result)
        return result.stdout

    def _run(self, *argv: str) -> process.Completed:
        try:
            return process.run([*self._prefix, *argv], env=_environment(os.environ), timeout=self._timeout, check=False)
        except (GpuClusterError, OSError) as error:
            what = error.what if isinstance(error, GpuClusterError) else str(error)
            raise SlurmUnavailable(what, where=" ".join(argv[:3]), hint=_HINT) from error


_HINT = "On the controller, run: systemctl status slurmctld"


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """The environment of Slurm's commands, without variables that change what they print."""
    kept = {name: ours[name] for name in ("PATH", "SLURM_CONF") if name in ours}
    return {**kept, "TZ": "UTC", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}


def _job(fields: Mapping[str, str]) -> Job:
    number, leader = fields["JobID"], fields["HetJobID"]
    try:
        nodes = tuple(expand(fields["NodeList"].replace("(null)", "")))
    except HostlistError as error:
        raise _unreadable("squeue", fields["NodeList"]) from error
    return Job(
        id=number,
        gang=leader if leader.isdigit() and leader != "0" else number,
        state=fields["State"],
        reason=_reason(fields["Reason"]),
        partitions=tuple(fields["Partition"].split(",")),
        nodes=nodes,
        node_count=_number(fields["NumNodes"]),
        priority=_number(fields["PriorityLong"]),
        restarts=_number(fields["RestartCnt"]),
        eligible_at=float(_number(fields["EligibleTime"])),
        # Slurm can run only a batch job again: it does not have the script of an interactive one.
        requeue=fields["Requeue"] == "1" and fields["BatchFlag"] == "1",
        user=fields["UserName"],
        account=fields["Account"].replace("(null)", ""),
    )


def _reason(words: str) -> str:
    """The reason of a waiting job, with one word for each way of being held."""
    return _HELD if any(held in words for held in _HELD_ALREADY) else words


def _number(text: str) -> int:
    """The number that a field begins with; 0 if it has none ("N/A")."""
    digits = re.match(r"\d+", text)
    return int(digits.group()) if digits else 0


def _unreadable(command: str, output: str) -> SlurmUnavailable:
    return SlurmUnavailable(f"the output of {command} can't be read: {output[:200]!r}", where=command, hint=_HINT)


def _refused(result: process.Completed) -> SlurmUnavailable:
    message = (result.stderr.strip() or result.stdout.strip() or "without a message")[-500:]
    return SlurmUnavailable(f"Slurm refused: {message}", where=" ".join(result.argv[-4:])[:200], hint=_HINT)
