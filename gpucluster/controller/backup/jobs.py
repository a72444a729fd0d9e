"""What slurmctld must know of the jobs in a restored accounting: the last job id, and that running jobs have ended."""

from __future__ import annotations

import re
import time
from pathlib import Path

from gpucluster.controller.backup.accounting import START_SECONDS, AccountingDatabase
from gpucluster.node_agent.errors import AgentError, Failed
from gpucluster.node_agent.programs import call_with_data, daemon, last_words, run

# Slurm's default, which is also the highest value that it accepts.
LARGEST_MAX_JOB_ID = 67043328
# slurmctld is ended after this time, also where the restore that started it was killed. It needs one second.
_BRIEFLY = 90.0


def limit(config: Path) -> int:
    """MaxJobId: job ids stay below it, and start again at 1."""
    matches = re.findall(r"^\s*MaxJobId\s*=\s*(\d+)", config.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
    return int(matches[-1]) if matches else LARGEST_MAX_JOB_ID


def next_number() -> int:
    """The job id that slurmctld would give next.

    Raises:
        Failed: it does not answer.
    """
    match = re.search(r"^NEXT_JOB_ID\s*=\s*(\d+)", run("scontrol", "show", "config"), re.MULTILINE)
    if not match:
        raise Failed("scontrol show config prints no NEXT_JOB_ID")
    return int(match.group(1))


def last_id_to_continue_after(accounting: AccountingDatabase, database: str, cluster: str, *, running: bool) -> int:
    """The job id after which slurmctld has to continue before users submit jobs; 0 if its next id is higher already.

    Jobs write to `slurm-ID.out`, and homes outlive a controller: a repeated id would overwrite old output.

    Args:
        running: whether slurmctld runs.
    """
    most = limit(accounting.config)
    last = accounting.last_job(database, cluster, most)
    if last + 1 >= most:
        return 0
    try:
        return 0 if running and next_number() > last else last
    except AgentError:
        return last


def continue_after(accounting: AccountingDatabase, last: int) -> None:
    """Let slurmctld, which must not run, continue after a job id. slurmdbd must run.

    slurmctld is started with FirstJobId in a copy of its configuration and stopped again; it saves the id in its state.

    Args:
        last: as from `last_id_to_continue_after`; with 0 slurmctld is not started.

    Raises:
        Failed: it does not start, or does not stop.
    """
    # In the same folder, where slurmctld looks for its other files.
    copy = accounting.config.with_name("slurm-restore.conf")
    # An earlier restore may have set the id, and have been killed before it removed its file.
    copy.unlink(missing_ok=True)
    if not last:
        return
    # Without a saved state of jobs the first run creates one, and only a saved id is compared with FirstJobId.
    runs = 1 if (accounting.state / "job_state").exists() else 2
    # Of two equal settings the last one counts.
    copy.write_text(f"{accounting.config.read_text(encoding='utf-8')}\nFirstJobId={last + 1}\n", encoding="utf-8")
    try:
        copy.chmod(0o644)
        for _ in range(runs):
            _run_briefly(accounting, copy)
    finally:
        copy.unlink(missing_ok=True)


def _run_briefly(accounting: AccountingDatabase, config: Path) -> None:
    """Start slurmctld, and stop it when it answers."""
    words = ("slurmctld", "-D", "-f", str(config))
    with daemon(*words, user=accounting.setting("SlurmUser"), seconds=_BRIEFLY) as started:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                next_number()
                break
            except AgentError as error:
                if started.poll() is not None or time.monotonic() > until:
                    raise Failed(f"slurmctld does not start: {error.message}", "Run: journalctl -u slurmctld") from None
                time.sleep(0.05)


def id_warnings(last: int) -> list[str]:
    """A warning if slurmctld does not continue after this job id."""
    try:
        number = next_number()
    except AgentError as error:
        return [f"the next job id is not known: {error.message}"]
    if number > last:
        return []
    return [
        f"the next job has the id {number}, and the accounting knows {last}: output of old jobs may be overwritten."
        f" Put `FirstJobId: {last + 1}` into slurm.extra_config, and run `gpucluster apply`"
    ]


def end_lost(cluster: str) -> tuple[int, list[str]]:
    """End jobs that run according to the accounting and that slurmctld does not know; returns how many, and errors.

    Slurm finds them itself, and does not touch the jobs that slurmctld knows.
    """
    # Without --immediate it asks for confirmation, and waits for ever at the end of its input.
    words = ("--immediate", "--noheader", "--parsable2", "show", "runawayjobs", f"cluster={cluster}", "format=id")
    try:
        result = call_with_data("sacctmgr", *words)
    except AgentError as error:
        return 0, [f"jobs that run according to the accounting: {error.message}"]
    if result.returncode != 0:
        return 0, [f"jobs that run according to the accounting: {last_words(result)}"]
    return len(re.findall(rb"^\d+$", result.stdout, re.MULTILINE)), []
