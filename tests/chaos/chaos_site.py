"""A cluster whose controller is lost again and again, the jobs on it, and what is checked after each disturbance.

Real Slurm, MariaDB and OpenLDAP on containers of the local cloud; the volume with the state is a loop device. What this
does not prove: a container that is removed loses no page of the kernel's cache, as a host does that loses its power, so
what programs had written without a sync is always on the volume. The jobs share the processors of this machine.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gpucluster.localcloud.engine import containers as engine
from gpucluster.localcloud.engine.protocol import LABEL_HOME
from gpucluster.paths import ClusterPaths
from gpucluster.ssh import SshClient
from tests.chaos import invariants
from tests.chaos.disturbances import CHANGES, REPLACE, Disturbance, Round, exchanged
from tests.chaos.invariants import JOB_NAME, SACCT, SQUEUE, Job, Kind, Row
from tests.e2e.site_harness import ALONE, NETWORK, Site, kill, read_events, rest_of
from tests.localcloud.api_harness import Api
from tests.waiting import PATIENCE_S, wait_for

CONTROLLER = "chaos-controller"
_SYSTEM = 'operating_system: Canonical Ubuntu, version: "24.04"'
_IMAGE = CHANGES["image"][0]
#: The jobs of a run are on `compute`, in one processor each; images roll through `roll`.
CLUSTER_YML = f"""\
version: 1
name: chaos
cloud: {{provider: local}}
{NETWORK}\
controller: {{shape: VM.Standard.E5.Flex, ocpus: 4, memory_gb: 16, state_volume_gb: 50, image: {{{_SYSTEM}}}}}
pools:
  compute: {{shape: VM.Standard.E5.Flex, ocpus: 126, memory_gb: 126, count: 1, image: {{{_SYSTEM}}}}}
  roll: {{shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8, count: 1, image: {{{_SYSTEM}, name: {_IMAGE}}}}}
slurm: {{{CHANGES["job hours"][0]}}}
users:
  people:
    - {{name: alice, full_name: Alice Example, generate_key: true}}
    - {{name: bob, full_name: Bob Example, generate_key: true}}
"""
_GATES = "/mnt/home/alice/gates"
_STARTS = "/mnt/home/alice/starts"
_STARTED = f"echo $SLURM_JOB_ID $(date +%s) >> {_STARTS}"
_SCRIPTS = {
    Kind.SHORT: f"{_STARTED}; exit $1",
    Kind.RUNNING: f"{_STARTED}; mkfifo {_GATES}/$SLURM_JOB_ID; exit $(cat {_GATES}/$SLURM_JOB_ID)",
    Kind.WAITING: f"{_STARTED}; exit $1",
}
_SHORT_JOBS = 4
#: Of the jobs that wait: the machine may be slow.
_RUN_AT_LAST = 50
#: Events of a command that was not seen to its end yet.
_USUAL_EVENTS = 80


@dataclass
class Outcome:
    """What a round has shown, for the table at the end.

    Args:
        repair_s: seconds from the start of the first repair to the end of the last one.
        last_seconds: how jobs fared that slurmctld may not have saved.
    """

    round: Round
    event: int = 0
    repair_s: float = 0.0
    last_seconds: dict[str, list[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        last = ", ".join(f"{len(jobs)} {what}" for what, jobs in self.last_seconds.items() if jobs)
        return (
            f"{self.round} (event {self.event}): repaired in {self.repair_s:.0f} s"
            + (f"; jobs of the last seconds: {last}" if last else "")
            + "".join(f"\n    {each}" for each in self.wrong)
        )


class ChaosSite(Site):
    """The cluster, and the jobs that were submitted to it.

    Args:
        running: how many jobs run at any time.
        waiting: how many jobs wait for the whole time.
    """

    def __init__(self, *, running: int, waiting: int) -> None:
        super().__init__(CLUSTER_YML)
        self.jobs: dict[str, Job] = {}
        self.ended: set[str] = set()
        self.users = ["alice", "bob"]
        self.outcomes: list[Outcome] = []
        self._running, self._waiting = running, waiting
        self._events: dict[tuple[str, ...], int] = {}
        self._keeper = ""

    @cached_property
    def api(self) -> Api:
        return Api(self.home, engine="podman")

    # ---- jobs

    def begin(self) -> None:
        """Build the cluster, and submit the jobs that are there for the whole run."""
        self.good("apply")
        self.root("compute-1", f"install -d -o alice {_GATES}; install -o alice /dev/null {_STARTS}")
        (keeper,) = self._submit(Kind.RUNNING, [0])  # this one ends at last
        self._keeper = keeper.id
        self._submit(Kind.WAITING, [number % 100 for number in range(self._waiting)])

    def settle(self) -> None:
        """Fill up the running jobs, let some short ones end, and wait until slurmctld has saved all of it."""
        alive = [job for job in self.jobs.values() if job.kind is Kind.RUNNING and job.id not in self.ended]
        missing = self._running - len(alive)
        self._submit(Kind.RUNNING, [1 + number % 100 for number in range(missing)])
        self._submit(Kind.SHORT, range(_SHORT_JOBS))
        self.users.append(name := f"user{len(self.users)}")
        self.good("user", "add", name)
        self.holds(patience=PATIENCE_S + 3 * missing)
        # Saved after this one is saved all that came before it.
        (last,) = self._submit(Kind.WAITING, [0])
        state = "/var/lib/slurm/slurmctld"
        saved = f"find {state}/job_state -newer {state}/hash.{int(last.id) % 10}/job.{last.id}"
        self.until("slurmctld has saved its queue", lambda: self.root(CONTROLLER, saved))

    def _submit(self, kind: Kind, exit_codes: Sequence[int]) -> list[Job]:
        if not exit_codes:
            return []
        script = f"for code in {' '.join(map(str, exit_codes))}; do {self._sbatch(kind)}; done"
        done = self.ssh(CONTROLLER, "sh -s", who="alice", stdin=script)
        jobs = invariants.parse_jobs(done.stdout, kind)
        assert len(jobs) == len(exit_codes), done.stdout + done.stderr
        self.jobs |= {job.id: job for job in jobs}
        return jobs

    def _sbatch(self, kind: Kind, *options: str) -> str:
        """A line of a shell script that submits a job which ends with `$code`, and prints what `parse_jobs` reads."""
        words = ["--parsable", "-p", "compute", "-n1", "--mem=1M", "-o", "/dev/null", "-J", JOB_NAME, *options]
        words += [f"--dependency=afterany:{self._keeper}"] if kind is Kind.WAITING else []
        text = f"#!/bin/sh\\n{_SCRIPTS[kind]}\\n".replace("%", "%%").replace("$1", "'$code'")
        return f"printf '{text}' | sbatch {' '.join(words)} | sed -u \"s/$/|$code|$(date +%s)/\""

    @contextmanager
    def _submitting(self) -> Iterator[list[str]]:
        """Submit short jobs, one after the end of the other, until the block ends or the controller is gone.

        The list gets a line for each of them.
        """
        lines: list[str] = []
        script = f"while :; do code=$((n++ % 100)); {self._sbatch(Kind.SHORT, '--wait')}; done"
        config = self.folder / ".gpucluster" / "ssh" / "config"
        argv = ["ssh", "-F", str(config), *ALONE, "-i", str(self.key("alice")), "-l", "alice", CONTROLLER]
        with subprocess.Popen(
            [*argv, f"n=0; {script}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as run:
            assert run.stdout is not None
            reader = threading.Thread(target=lambda: lines.extend(iter(run.stdout.readline, "")))  # type: ignore[union-attr]
            reader.start()
            try:
                yield lines
            finally:
                run.kill()
                reader.join()

    def end(self, count: int) -> None:
        """Let so many of the running jobs end with their own exit codes. It needs no controller."""
        running = [job for job in self.jobs.values() if job.kind is Kind.RUNNING]
        self._open([job for job in running[1:] if job.id not in self.ended][:count])

    def end_all(self) -> None:
        """Let every job end: those that run, and then the first ones of those that wait. The others are cancelled."""
        waiting = [job for job in self.jobs.values() if job.kind is Kind.WAITING]
        kept, cancelled = waiting[:_RUN_AT_LAST], waiting[_RUN_AT_LAST:]
        numbers = " ".join(job.id for job in cancelled)
        self.root(CONTROLLER, f"for job in {numbers}; do echo $job; done | xargs -r -n 100 scancel")
        self._open([job for job in self.jobs.values() if job.kind is Kind.RUNNING and job.id not in self.ended])
        self.jobs |= {job.id: replace(job, kind=Kind.SHORT) for job in kept}
        self.jobs |= {job.id: replace(job, kind=Kind.CANCELLED) for job in cancelled}
        self.holds(patience=3 * PATIENCE_S)

    def _open(self, jobs: Sequence[Job]) -> None:
        """End jobs. One whose script does not read any more is seen as a wrong end afterwards."""
        lines = [f"echo {job.exit_code} | dd of={_GATES}/{job.id} oflag=nonblock 2> /dev/null" for job in jobs]
        # Not through the controller, which may be gone.
        named = [each.name for each in engine.listing(f"{LABEL_HOME}={self.home}")]
        (node,) = [name for name in named if "-compute-1-" in name]
        subprocess.run(
            ["podman", "exec", "--interactive", node, "sh", "-s"], input="\n".join(lines), text=True, check=False
        )
        self.ended |= {job.id for job in jobs}

    # ---- what must hold

    def queue(self) -> dict[str, str]:
        return invariants.parse_queue(self.root(CONTROLLER, SQUEUE))

    def rows(self) -> list[Row]:
        return self._rows_of(self.jobs)

    def _rows_of(self, jobs: Collection[str]) -> list[Row]:
        return invariants.parse_rows(self.root(CONTROLLER, f"{SACCT} {','.join(jobs)}")) if jobs else []

    def _starts(self) -> list[tuple[str, float]]:
        return invariants.parse_starts(self.root("compute-1", f"cat {_STARTS}"))

    def holds(self, before: Sequence[Row] = (), *, patience: float = PATIENCE_S) -> None:
        """Wait until everything holds. What does not is forgotten, so that the next rounds find what is new.

        Raises:
            AssertionError: with what is wrong.
        """
        wrong: list[str] = []

        def found() -> bool:
            wrong[:] = self._wrong(before)
            return not wrong

        try:
            wait_for(
                "everything holds",
                found,
                patience=patience,
                interval=1.0,
                state=lambda: [*wrong, self._state()],
                ignore=AssertionError,
            )
        except AssertionError:
            for job in [job for job in self.jobs if any(f"job {job} " in each for each in wrong)]:
                del self.jobs[job]
            raise AssertionError("\n".join([*wrong, self._state()[-3000:]])) from None

    def _wrong(self, before: Sequence[Row]) -> list[str]:
        rows = self.rows()
        wrong = invariants.violations(self.jobs.values(), self.queue(), rows, ended=self.ended)
        wrong += invariants.lost_rows([row for row in before if row.job in self.jobs], rows)
        doubled = invariants.doubled(self._starts())
        wrong += [f"job {job} (script): it has run more than once" for job in doubled if job in self.jobs]
        for host in (CONTROLLER, "compute-1"):
            known = self.root(host, f"getent passwd {' '.join(self.users)} | cut -d: -f1; true").split()
            wrong += [f"user {name} is not known on {host}" for name in self.users if name not in known]
        for name in ("alice", "bob"):
            login = self.ssh(CONTROLLER, "id -un", *ALONE, who=name)
            wrong += [] if login.stdout.strip() == name else [f"user {name} can't log in: {login.stderr.strip()}"]
        states = self.root(CONTROLLER, "sinfo -h -N -o '%N %T'").splitlines()
        good = ("idle", "mixed", "allocated", "completing", "planned")
        # A minus: the scheduler has planned to start a job there.
        return wrong + [f"node {line}" for line in states if line.split()[1].rstrip("-") not in good]

    # ---- a round

    def play(self, each: Round) -> Outcome:
        """Disturb the cluster, repair it, and check it."""
        outcome = Outcome(each)
        self.outcomes.append(outcome)
        try:
            self._play(each, outcome)
        except AssertionError as error:
            outcome.wrong += str(error).splitlines()[:20]
            raise
        return outcome

    def _play(self, each: Round, outcome: Outcome) -> None:
        if "UP" not in self.ssh(CONTROLLER, "sudo scontrol ping").stdout:
            self.good(*REPLACE)  # an earlier round has failed before its repair
        self.settle()
        before = self.rows()
        with self._submitting() as lines:
            gone, outcome.event = self._disturb(each, lines)
        self.end(each.outage_ends)
        if each.disturbance.elsewhere:
            self._forget()
        began = time.time()
        said: list[str] = []
        for command in each.disturbance.repair:
            code, events = self.run(*command)
            assert code == 0, f"{' '.join(command)} ended with {code}: {events[-6:]}"
            said += [str(event.get("message") or "") for event in events]
        outcome.repair_s = time.time() - began
        self._judge_fresh(lines, gone, outcome)
        named = invariants.named_as_lost(said)
        # Another command may have attached the volume first, and was killed, or has named them.
        gone_jobs = {*outcome.last_seconds["lost"], *outcome.last_seconds["left in the accounting"]}
        silent = gone_jobs - named if not each.disturbance.command else set()
        assert not silent, f"jobs are lost, and no command has named them: {sorted(silent)} (named: {sorted(named)})"
        self.holds(before)

    def _forget(self) -> None:
        """Remove what this machine knows of the hosts beside Terraform's state."""
        state = self.folder / ".gpucluster"
        for file in (state / "hosts.json", state / "ssh" / "config", state / "ssh" / "known_hosts"):
            file.unlink(missing_ok=True)
        # A shared connection needs no key.
        SshClient(ClusterPaths(state), None).close()

    def _judge_fresh(self, lines: Sequence[str], gone: float | None, outcome: Outcome) -> None:
        """Take over the jobs that were submitted meanwhile: those that slurmctld had saved, as any others."""
        fresh = invariants.parse_jobs("".join(lines), Kind.SHORT)
        sure = invariants.settled(fresh, gone, dict(self._starts()))
        self.jobs |= {job.id: job for job in sure}
        unsure = [job for job in fresh if job not in sure]
        rows = self._rows_of([job.id for job in unsure])
        outcome.last_seconds = invariants.of_last_seconds(unsure, self.queue(), rows)

    def _disturb(self, each: Round, lines: list[str]) -> tuple[float | None, int]:
        """Returns when the controller's host vanished (None: it did not), and after how many events that was."""
        disturbance = each.disturbance
        if disturbance.change:
            self.write(exchanged(self.file.read_text(), disturbance.change))
        if not disturbance.command:
            count = each.event(10)
            self.until("jobs are submitted", lambda: len(lines) >= count)
            # Several at once: slurmctld saves the first one, and the others five seconds later.
            burst = f"for code in 1 2 3 4 5; do {self._sbatch(Kind.SHORT)}; done"
            lines += self.ssh(CONTROLLER, "sh -s", who="alice", stdin=burst).stdout.splitlines(keepends=True)
            return self._vanish(each), count
        command = [f"late{each.number}" if word == "USER" else word for word in disturbance.command]
        process = self.start(*command)
        usual = self._events.get(disturbance.command, _USUAL_EVENTS)
        number = each.event(usual)
        read = read_events(process, number)
        gone = self._vanish(each) if disturbance.vanishes else None
        if disturbance.killed:
            kill(process)
            return gone, read
        rest = rest_of(process)
        self._note(disturbance, process.returncode, read, rest, command)
        return gone, read

    def _note(self, disturbance: Disturbance, code: int, read: int, rest: str, command: Sequence[str]) -> None:
        assert "Traceback" not in rest, rest
        kinds = [json.loads(line)["kind"] for line in rest.splitlines() if line.startswith("{")]
        print(f"  {' '.join(command)} ended with {code}: {rest.splitlines()[-1][:600] if rest else ''}")
        if code == 0:
            self._events[disturbance.command] = read + len([kind for kind in kinds if kind != "check"])
            if "USER" in disturbance.command:
                self.users.append(command[-1])

    def _vanish(self, each: Round) -> float:
        """Terminate the controller's instance with its boot disk, and return when that was."""
        for ocid in self._controllers():
            self.api.compute.terminate_instance(ocid)
        gone = time.time()
        if not each.at_once:
            wait_for("the controller is gone", lambda: not self._controllers(), interval=0.5)
        return gone

    def _controllers(self) -> list[Any]:
        listed = self.api.compute.list_instances(self.api.tenancy, display_name=CONTROLLER).data
        return [each.id for each in listed if each.lifecycle_state not in ("TERMINATING", "TERMINATED")]
