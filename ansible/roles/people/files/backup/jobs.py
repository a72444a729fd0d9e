"""What slurmctld must know of the jobs in a restored accounting: which numbers they have, and that they have ended."""

from __future__ import annotations

import re
import time
from pathlib import Path

from backup.accounting import START_SECONDS, Accounting
from backup.programs import Failed, call, last_words, program, run

# Slurm's own default, and the highest that it takes.
LARGEST_MAX_JOB_ID = 67043328
# slurmctld ends by then, also where a restore was killed that had started it. It works for a second.
_BRIEFLY = 90.0


def limit(config: Path) -> int:
    """The number that no job has any more; the first one comes after the one below."""
    found = re.findall(r"^\s*MaxJobId\s*=\s*(\d+)", config.read_text(encoding="utf-8"), re.MULTILINE | re.IGNORECASE)
    return int(found[-1]) if found else LARGEST_MAX_JOB_ID


def next_number() -> int:
    """The number that slurmctld would give to a job.

    Raises:
        Failed: it does not answer.
    """
    found = re.search(r"^NEXT_JOB_ID\s*=\s*(\d+)", run("scontrol", "show", "config"), re.MULTILINE)
    if not found:
        raise Failed("slurmctld does not say NEXT_JOB_ID")
    return int(found.group(1))


def to_pass(books: Accounting, database: str, cluster: str, *, running: bool) -> int:
    """The number that slurmctld has to get past before somebody submits a job, or 0 where it has.

    Jobs write to `slurm-NUMBER.out`, and homes outlive a controller.

    Args:
        running: slurmctld can be asked.
    """
    most = limit(books.config)
    last = books.last_job(database, cluster, most)
    if last + 1 >= most:
        return 0
    try:
        return 0 if running and next_number() > last else last
    except Failed:
        return last


def get_past(books: Accounting, last: int) -> None:
    """Let slurmctld, which must not run, begin after a number. slurmdbd must run.

    It is started with the number in a copy of its configuration, and ended: with its state it keeps where it was.

    Raises:
        Failed: it does not start, or does not end.
    """
    # Without a state of jobs the first run makes one, and only what is in that is compared with the configuration.
    runs = 1 if (books.state / "job_state").exists() else 2
    # Beside the other files, which slurmctld looks for where this one is. It takes the last of two equal settings.
    copy = books.config.with_name("slurm-restore.conf")
    copy.write_text(f"{books.config.read_text(encoding='utf-8')}\nFirstJobId={last + 1}\n", encoding="utf-8")
    try:
        copy.chmod(0o644)
        for _ in range(runs):
            _run_briefly(books, copy)
    finally:
        copy.unlink(missing_ok=True)


def _run_briefly(books: Accounting, config: Path) -> None:
    """Start slurmctld, and end it when it answers."""
    words = ("slurmctld", "-D", "-f", str(config))
    with program(*words, user=books.setting("SlurmUser"), seconds=_BRIEFLY) as started:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                next_number()
                break
            except Failed as error:
                if started.poll() is not None or time.monotonic() > until:
                    raise Failed(f"slurmctld does not start: {error.message}", "Look at its log") from None
                time.sleep(0.05)


def told(last: int) -> list[str]:
    """What is to be said of numbers, if slurmctld has not got past one."""
    try:
        number = next_number()
    except Failed as error:
        return [f"numbers of jobs: {error.message}"]
    if number > last:
        return []
    return [
        f"the next job has the number {number}, and the accounting knows {last}: output of old jobs may be overwritten."
        f" Put `FirstJobId: {last + 1}` into slurm.extra_config, and run `gpucluster apply`"
    ]


def end_lost(cluster: str) -> tuple[int, list[str]]:
    """End, in the accounting, jobs that run there and that slurmctld does not know: how many, and what failed.

    Which they are, Slurm finds out by itself: those that slurmctld knows it leaves alone.
    """
    # Without --immediate it asks, and of an end of its input it never hears.
    words = ("--immediate", "--noheader", "--parsable2", "show", "runawayjobs", f"cluster={cluster}", "format=id")
    try:
        done = call("sacctmgr", *words)
    except Failed as error:
        return 0, [f"jobs that the accounting takes for running: {error.message}"]
    if done.returncode != 0:
        return 0, [f"jobs that the accounting takes for running: {last_words(done)}"]
    return len(re.findall(rb"^\d+$", done.stdout, re.MULTILINE)), []
