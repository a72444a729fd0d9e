"""A restore: everything is checked and built before anything is stopped, and a failure brings back what was there."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from directory import lock
from directory.config import Config

from backup import jobs, people
from backup.accounting import START_SECONDS
from backup.archive import ACCOUNTING, DIRECTORY, read_backup, write_backup
from backup.entries import Memory, adopt, count_entries, read_state, remember
from backup.programs import UNIT_SECONDS, Failed, Refused, call, note, run
from backup.site import KEPT, Site, work_folder

# Of what restores took aside, so many stay.
KEPT_BACKUPS = 5


def check_fit(site: Site, manifest: dict[str, Any], *, force: bool) -> None:
    """Refuse what would surprise: the backup of another cluster, or jobs that run."""
    if manifest["cluster"] != site.cluster and not force:
        message = f"the backup is of the cluster {manifest['cluster'][:60]}, and this is {site.cluster}"
        raise Refused(message, "Say --force to restore it all the same")
    if site.accounting and not force and active("slurmctld"):
        jobs = run("squeue", "--noheader", "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING", "--format=%A").split()
        if jobs:
            shown = ", ".join(jobs[:5])
            raise Refused(f"{len(jobs)} jobs run ({shown})", "Wait for them, or say --force: their records may be lost")


def active(unit: str) -> bool:
    """Whether a unit runs."""
    return call("systemctl", "is-active", "--quiet", unit).returncode == 0


def build(site: Site, manifest: dict[str, Any], work: Path, entries: Path) -> dict[str, Any]:
    """Build the new directory and the new database beside the present ones.

    Args:
        entries: those of the backup, as this cluster's own.

    Returns:
        How much is in them; no number of jobs where the backup has no accounting, or this cluster.
    """
    found: dict[str, Any] = {**count_entries(work / DIRECTORY, manifest["suffix"]), "accounting_jobs": None}
    site.directory.build(entries)
    books = site.accounting if (work / ACCOUNTING).exists() else None
    if books:
        books.build(work / ACCOUNTING)
        found["accounting_jobs"] = books.jobs(f"{books.database}_restore", manifest["slurm_cluster"] or "")
    said = manifest["counts"]
    wrong = [what for what, number in found.items() if number is not None and not fits(what, number, said)]
    if wrong:
        message = f"the backup is not whole: its number of {', '.join(wrong)} is not what it says"
        raise Refused(message, "Choose another file")
    return found


def fits(what: str, number: int, counts: dict[str, int]) -> bool:
    """Whether a number is what was written. Of jobs, the ones that began meanwhile may have come to those."""
    return number >= counts[what] if what == "accounting_jobs" else number == counts[what]


def unit(verb: str, name: str) -> None:
    """Start, stop or restart a unit."""
    run("systemctl", verb, name, seconds=UNIT_SECONDS)


def start(site: Site, last: int = 0) -> list[str]:
    """Start the daemons and see that they serve.

    Args:
        last: slurmctld begins after this number of a job, if it is not 0.

    Returns:
        What is to be said of that. Everything else works all the same, and is no reason to go back.
    """
    left: list[str] = []
    unit("start", "slapd")
    people.frame()
    # It has missed the directory for a moment, and remembers people as they were; other hosts forget within seconds.
    run("sss_cache", "--everything")
    unit("restart", "sssd")
    if site.accounting:
        unit("start", "slurmdbd")
        site.accounting.register()
        if last:
            try:
                jobs.get_past(site.accounting, last)
            except (Failed, OSError) as error:
                note(f"slurmctld could not be told of job {last}: {error}")
        unit("start", "slurmctld")
        await_slurm()
        left = jobs.told(last) if last else []
    return left


def await_slurm() -> None:
    """Wait until slurmctld answers."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            run("squeue", "--noheader")
        except Failed as error:
            if time.monotonic() > until:
                message = f"slurmctld does not answer: {error.message}"
                raise Failed(message, "Look at: journalctl -u slurmctld") from None
            time.sleep(0.2)
        else:
            return


def serving(site: Site, work: Path, manifest: dict[str, Any], built: dict[str, Any]) -> dict[str, Any]:
    """What the daemons have now: it must be what was built."""
    site.directory.dump(work / "served.ldif")
    found: dict[str, Any] = {**count_entries(work / "served.ldif", site.directory.suffix), "accounting_jobs": None}
    if site.accounting and built["accounting_jobs"] is not None:
        found["accounting_jobs"] = site.accounting.jobs(site.accounting.database, manifest["slurm_cluster"])
    for what, number in found.items():
        # The cluster's own groups may have come to those of the backup, and jobs that waited have begun.
        if number is not None and (number < built[what] or (number > built[what] and what == "people")):
            raise Failed(f"after the restore there are {number} {what}, not {built[what]}")
    return found


def keep_present(site: Site, work: Path) -> Path:
    """What is there now, as a backup of its own; where it can't be read any more, slapd's files as they are.

    Nothing has the name of something kept before it is whole, and older ones go only then.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept, fresh = KEPT / f"before-{stamp}.tar.gz", work / "kept"
    try:
        with fresh.open("wb") as out:
            write_backup(site, work, out)
    except Failed as error:
        note(f"there is no backup of what is there now ({error.message}); the directory's files are kept instead")
        fresh.unlink()
        fresh.mkdir()
        kept = KEPT / f"before-{stamp}"
        if site.directory.data.exists():
            shutil.copytree(site.directory.data, fresh / "directory")
        if site.accounting:
            with contextlib.suppress(Failed):
                site.accounting.dump(fresh / ACCOUNTING)
    fresh.rename(kept)
    for old in sorted(KEPT.glob("before-*"))[:-KEPT_BACKUPS]:
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()
    return kept


def memory_of(here: Config, present: Path, backup: Path, suffix: str) -> Memory:
    """What must be carried over.

    Args:
        present: the LDIF of what is there now; it may be damaged, or missing.
        backup: that of the backup, with its suffix.
    """
    then = read_state(backup, here, suffix)
    try:
        return remember(here, read_state(present, here, here.suffix), then)
    except (OSError, Refused):
        note("what is there now can't be read: only the backup knows which uids are taken")
        return Memory()


def restore(site: Site, stream: IO[bytes], *, force: bool) -> dict[str, Any]:
    """Replace the directory and the accounting by those of a backup."""
    here = Config.load()
    if not active("slapd"):
        recover(site)
    with work_folder() as work:
        manifest = read_backup(work, stream)
        check_fit(site, manifest, force=force)
        # Nobody changes what is being replaced: their change would be neither kept nor restored.
        with lock.held():
            found, memory = replace(site, here, manifest, work)
        names = list(read_state(work / "served.ldif", here, here.suffix).people)
    # What is left can be done at any time, and is no reason to go back.
    ended, unfinished = 0, list(found["unfinished"])
    try:
        if site.accounting and found["accounting_jobs"] is not None:
            ended, left = jobs.end_lost(site.accounting.cluster)
            unfinished += left
        unfinished += people.settle(names)
    except KeyboardInterrupt:
        unfinished.append("homes and keys: interrupted")
    who = {"returned": list(memory.returned), "dropped": list(memory.dropped)}
    return {**found, **who, "ended_jobs": ended, "unfinished": unfinished}


def replace(site: Site, here: Config, manifest: dict[str, Any], work: Path) -> tuple[dict[str, Any], Memory]:
    """Build beside, exchange, and look; says what there is then, and what was carried over."""
    if site.accounting:
        unit("start", site.accounting.unit)
    entries = work / "entries.ldif"
    with work_folder() as other:
        kept = keep_present(site, other)
        note(f"what was there before is kept in {kept} of the controller")
        memory = memory_of(here, other / DIRECTORY, work / DIRECTORY, manifest["suffix"])
    adopt(work / DIRECTORY, entries, manifest["suffix"], here, memory)
    # What a restore that was killed left beside: it is in the file that was just kept, or worth nothing.
    forget(site)
    try:
        built = build(site, manifest, work, entries)
        last = last_job(site, manifest, built)
    except BaseException:
        forget(site)
        raise
    try:
        stop(site)
        site.directory.exchange()
        if site.accounting and built["accounting_jobs"] is not None:
            site.accounting.exchange()
        left = start(site, last)
        found = serving(site, work, manifest, built)
    except BaseException as error:
        give_up(site, kept, error)
    with undisturbed(), contextlib.suppress(Failed):
        forget(site)
    return {**found, "kept_aside": str(kept), "unfinished": left}, memory


def last_job(site: Site, manifest: dict[str, Any], built: dict[str, Any]) -> int:
    """The number of a job that slurmctld has to get past; 0 where it has, or has no accounting of them."""
    books = site.accounting
    if not books or built["accounting_jobs"] is None:
        return 0
    fresh, cluster = f"{books.database}_restore", manifest["slurm_cluster"] or ""
    return jobs.to_pass(books, fresh, cluster, running=active("slurmctld"))


def give_up(site: Site, kept: Path, error: BaseException) -> NoReturn:
    """Put back what was there before.

    Raises:
        Failed: always; with what went wrong, and what there is now.
    """
    said = error.message if isinstance(error, Failed) else str(error) or type(error).__name__
    hint = getattr(error, "hint", "")
    with undisturbed():
        note(f"it failed, and what was there before is put back: {said}")
        try:
            put_back(site)
        except Exception as second:
            message = f"{said}; and what was there before could not be put back: {second}. It is kept in {kept}"
            raise Failed(message, "Run `gpucluster apply`, and restore that file") from error
    raise Failed(f"{said}; everything is as it was before, and kept in {kept} of the controller", hint) from error


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Whoever asks for our end now has to wait: half of it would be worse."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def recover(site: Site) -> None:
    """Put back what a restore that was killed had taken aside. slapd must not run.

    Both are exchanged one after the other, the accounting last and in one statement: it says which state counts.

    Raises:
        Failed: the accounting can't be asked.
    """
    if not site.directory.aside.exists():
        return
    back = site.directory.recover()
    if not back and site.accounting:
        unit("start", site.accounting.unit)
        back = site.accounting.pending()
        if back:
            site.directory.put_back()
    if back:
        note(f"a restore was broken off; the directory of before is back in {site.directory.data}")


def forget(site: Site) -> None:
    """Forget what was built beside."""
    site.directory.forget()
    if site.accounting:
        site.accounting.forget()


def stop(site: Site) -> None:
    """Stop the daemons, one after the other."""
    for name in site.units:
        unit("stop", name)


def put_back(site: Site) -> None:
    """As it was before the exchange; the accounting first, see `recover`."""
    stop(site)
    if site.accounting:
        site.accounting.put_back()
    site.directory.put_back()
    start(site)
    forget(site)
