"""A restore: all is checked and built before anything is stopped, and after a failure the old state is put back."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from gpucluster.controller.backup import jobs, user_program
from gpucluster.controller.backup.accounting import START_SECONDS
from gpucluster.controller.backup.archive import ACCOUNTING, AUTHORITIES, DIRECTORY, ETCD, read_backup, write_backup
from gpucluster.controller.backup.entries import IdMemory, adopt, count_entries, read_state, remember
from gpucluster.controller.backup.site import KEPT, Site, work_folder
from gpucluster.controller.backup.work import UNIT_SECONDS, note
from gpucluster.controller.users import lock
from gpucluster.controller.users.config import Config
from gpucluster.node_agent.errors import AgentError, Failed, Refused
from gpucluster.node_agent.programs import run
from gpucluster.node_agent.units import is_active

# How many of the backups that restores have made are kept.
KEPT_BACKUPS = 5


def check_fit(site: Site, manifest: dict[str, Any], *, force: bool) -> None:
    """Refuse the backup of another cluster, and a restore while jobs run."""
    if manifest["cluster"] != site.cluster and not force:
        message = f"the backup is of the cluster {manifest['cluster'][:60]}, and this cluster is {site.cluster}"
        raise Refused(message, "To restore it nevertheless, pass --force")
    if site.accounting and not force and is_active("slurmctld"):
        jobs = run("squeue", "--noheader", "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING", "--format=%A").split()
        if jobs:
            shown = ", ".join(jobs[:5])
            raise Refused(
                f"{len(jobs)} jobs run ({shown})", "Wait for them, or pass --force: their records may be lost"
            )


def build(site: Site, manifest: dict[str, Any], work: Path, entries: Path) -> dict[str, Any]:
    """Build the new directory and the new database beside the present ones.

    Args:
        entries: the backup's entries, as entries of this cluster.

    Returns:
        The counts of what they hold; the count of jobs is None where the backup or this cluster has no accounting.
    """
    counts: dict[str, Any] = {**count_entries(work / DIRECTORY, manifest["suffix"]), "accounting_jobs": None}
    site.directory.build(entries)
    accounting = site.accounting if (work / ACCOUNTING).exists() else None
    if accounting:
        accounting.build(work / ACCOUNTING)
        counts["accounting_jobs"] = accounting.jobs(f"{accounting.database}_restore", manifest["slurm_cluster"] or "")
    expected = manifest["counts"]
    wrong = [what for what, number in counts.items() if number is not None and not fits(what, number, expected)]
    if wrong:
        message = f"the backup is not complete: its number of {', '.join(wrong)} differs from its manifest"
        raise Refused(message, "Choose another file")
    return counts


def fits(what: str, number: int, counts: dict[str, int]) -> bool:
    """Whether a count is that of the manifest. Jobs that started while the backup was written may be added."""
    return number >= counts[what] if what == "accounting_jobs" else number == counts[what]


def unit(verb: str, name: str) -> None:
    """Start, stop or restart a unit."""
    run("systemctl", verb, name, seconds=UNIT_SECONDS)


def start(site: Site, last: int = 0) -> list[str]:
    """Start the daemons and check that they work.

    Args:
        last: the job id after which slurmctld continues, if it is not 0.

    Returns:
        Warnings about job ids. They are no reason to undo the restore.
    """
    left: list[str] = []
    unit("start", "slapd")
    user_program.make_base_tree()
    # SSSD of this host still has the old users in its cache; that of other hosts expires within seconds.
    run("sss_cache", "--everything")
    unit("restart", "sssd")
    if site.accounting:
        unit("start", "slurmdbd")
        site.accounting.register()
        try:
            jobs.continue_after(site.accounting, last)
        except (AgentError, OSError) as error:
            note(f"slurmctld could not be set to continue after job {last}: {error}")
        unit("start", "slurmctld")
        await_slurm()
        left = jobs.id_warnings(last) if last else []
    return left


def await_slurm() -> None:
    """Wait until slurmctld answers."""
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            run("squeue", "--noheader")
        except AgentError as error:
            if time.monotonic() > until:
                message = f"slurmctld does not answer: {error.message}"
                raise Failed(message, "Run: journalctl -u slurmctld") from None
            time.sleep(0.2)
        else:
            return


def check_served(site: Site, work: Path, manifest: dict[str, Any], built: dict[str, Any]) -> dict[str, Any]:
    """Check that the daemons serve what was built; returns its counts.

    Raises:
        Failed: they are not.
    """
    site.directory.dump(work / "served.ldif")
    counts: dict[str, Any] = {**count_entries(work / "served.ldif", site.directory.suffix), "accounting_jobs": None}
    if site.accounting and built["accounting_jobs"] is not None:
        counts["accounting_jobs"] = site.accounting.jobs(site.accounting.database, manifest["slurm_cluster"])
    for what, number in counts.items():
        # The cluster's own groups may have been added, and pending jobs may have started.
        if number is not None and (number < built[what] or (number > built[what] and what == "people")):
            raise Failed(f"after the restore there are {number} {what}, not {built[what]}")
    return counts


def save_present(site: Site, work: Path) -> Path:
    """Save the present content as a backup; if it can't be read, save slapd's files as they are.

    It gets its name only when it is complete, and older ones are deleted only then.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept, fresh = KEPT / f"before-{stamp}.tar.gz", work / "kept"
    try:
        with fresh.open("wb") as out:
            write_backup(site, work, out)
    except AgentError as error:
        note(f"the present content can't be backed up ({error.message}); the directory's files are saved instead")
        fresh.unlink()
        fresh.mkdir()
        kept = KEPT / f"before-{stamp}"
        if site.directory.data.exists():
            shutil.copytree(site.directory.data, fresh / "directory")
        if site.accounting:
            with contextlib.suppress(AgentError):
                site.accounting.dump(fresh / ACCOUNTING)
        if site.control_plane:
            site.control_plane.copy_files(fresh / "kubernetes")
    fresh.rename(kept)
    for old in sorted(KEPT.glob("before-*"))[:-KEPT_BACKUPS]:
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink()
    return kept


def memory_of(here: Config, present: Path, backup: Path, suffix: str) -> IdMemory:
    """What a restore has to carry over.

    Args:
        present: the LDIF of the present directory; it may be damaged or missing.
        backup: the LDIF of the backup, with its suffix.
    """
    then = read_state(backup, here, suffix)
    try:
        return remember(here, read_state(present, here, here.suffix), then)
    except (OSError, Refused):
        note("the present directory can't be read: only the backup shows which uids are taken")
        return IdMemory()


def restore(site: Site, stream: IO[bytes], *, force: bool) -> dict[str, Any]:
    """Replace the directory and the accounting by those of a backup; returns the command's answer."""
    here = Config.load()
    if not is_active("slapd"):
        recover(site)
    with work_folder() as work:
        manifest = read_backup(work, stream)
        check_fit(site, manifest, force=force)
        # No change may be made meanwhile: it would be neither in the kept backup nor in the restored one.
        with lock.held():
            counts, memory = replace(site, here, manifest, work)
        names = list(read_state(work / "served.ldif", here, here.suffix).users)
    # The rest can be done at any time, and is not a reason to undo the restore.
    ended, unfinished = 0, list(counts["unfinished"])
    try:
        if site.accounting and counts["accounting_jobs"] is not None:
            ended, left = jobs.end_lost(site.accounting.cluster)
            unfinished += left
        unfinished += user_program.complete(names)
    except KeyboardInterrupt:
        unfinished.append("homes and keys: interrupted")
    users = {"returned": list(memory.returned), "dropped": list(memory.dropped)}
    return {**counts, **users, "ended_jobs": ended, "unfinished": unfinished}


@contextlib.contextmanager
def control_plane_replaced(site: Site, work: Path) -> Iterator[int | None]:
    """Replace the control plane of Kubernetes; it is as before if that, or the block, fails. Yields how many objects it
    has now; None where the backup or this cluster has no control plane.
    """
    plane = site.control_plane
    if plane is None or not (work / ETCD).exists():
        yield None
        return
    try:
        plane.build(work / ETCD, work / AUTHORITIES)
        plane.stop()
        plane.exchange()
        yield plane.start()
    except BaseException:
        with signals_ignored():
            note("the restore failed, and the previous control plane is put back")
            if plane.interrupted():
                plane.stop()
                plane.put_back()
            plane.discard()
            unit("start", "kubelet")
        raise
    with signals_ignored():
        plane.discard()
        try:
            plane.renew_health_access()
        except AgentError as error:
            note(f"the health service has no access until the next apply: {error.message}")


def recover_control_plane(site: Site) -> None:
    """Put the control plane back that a killed restore had set aside."""
    if site.control_plane and site.control_plane.interrupted():
        site.control_plane.stop()
        site.control_plane.put_back()
        site.control_plane.discard()
        unit("start", "kubelet")
        note("a restore was interrupted; the previous control plane of Kubernetes is back")


def replace(site: Site, here: Config, manifest: dict[str, Any], work: Path) -> tuple[dict[str, Any], IdMemory]:
    """Build the new databases, exchange and check; returns the counts that are served, and what was carried over."""
    if site.accounting:
        unit("start", site.accounting.unit)
    entries = work / "entries.ldif"
    with work_folder() as other:
        kept = save_present(site, other)
        note(f"the previous content is saved in {kept} of the controller")
        memory = memory_of(here, other / DIRECTORY, work / DIRECTORY, manifest["suffix"])
    adopt(work / DIRECTORY, entries, manifest["suffix"], here, memory)
    # Leftovers of a killed restore: they are in the backup that was just kept, or useless.
    discard(site)
    try:
        built = build(site, manifest, work, entries)
        last = last_job(site, manifest, built)
    except BaseException:
        discard(site)
        raise
    with control_plane_replaced(site, work) as objects:
        try:
            stop(site)
            site.directory.exchange()
            if site.accounting and built["accounting_jobs"] is not None:
                site.accounting.exchange()
            left = start(site, last)
            counts = check_served(site, work, manifest, built)
        except BaseException as error:
            roll_back(site, kept, error)
    counts["kubernetes_objects"] = objects
    with signals_ignored(), contextlib.suppress(AgentError):
        discard(site)
    return {**counts, "kept_aside": str(kept), "unfinished": left}, memory


def last_job(site: Site, manifest: dict[str, Any], built: dict[str, Any]) -> int:
    """The job id after which slurmctld has to continue; 0 if it is past it, or there is no accounting."""
    accounting = site.accounting
    if not accounting or built["accounting_jobs"] is None:
        return 0
    fresh, cluster = f"{accounting.database}_restore", manifest["slurm_cluster"] or ""
    return jobs.last_id_to_continue_after(accounting, fresh, cluster, running=is_active("slurmctld"))


def roll_back(site: Site, kept: Path, error: BaseException) -> NoReturn:
    """Put the old state back after an error.

    Raises:
        Failed: always, with the error and the resulting state.
    """
    cause = error.message if isinstance(error, AgentError) else str(error) or type(error).__name__
    hint = getattr(error, "hint", "")
    with signals_ignored():
        note(f"the restore failed, and the previous content is put back: {cause}")
        try:
            put_back(site)
        except Exception as second:
            message = f"{cause}; and the previous content could not be put back: {second}. It is saved in {kept}"
            raise Failed(message, "Run `gpucluster apply`, and restore that file") from error
    raise Failed(
        f"{cause}; the previous content is in use again, and saved in {kept} of the controller", hint
    ) from error


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM: an incomplete change would be worse."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def recover(site: Site) -> None:
    """Put back what a killed restore had set aside. slapd must not run.

    The directory is exchanged first, the accounting last and in one statement, which decides which state counts.

    Raises:
        Failed: the accounting does not answer.
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
        note(f"a restore was interrupted; the previous directory is back in {site.directory.data}")


def discard(site: Site) -> None:
    """Delete the databases beside those in use."""
    site.directory.discard()
    if site.accounting:
        site.accounting.discard()


def stop(site: Site) -> None:
    """Stop the daemons, one after the other."""
    for name in site.units:
        unit("stop", name)


def put_back(site: Site) -> None:
    """Undo the exchange; the accounting comes first, see `recover`."""
    stop(site)
    if site.accounting:
        site.accounting.put_back()
    site.directory.put_back()
    start(site)
    discard(site)
