"""Ends all processes of a uid on its host. It is sent to hosts as one file, so it imports the standard library only.

Usage: end_processes.py UID NAME [gone]. Prints how many processes there were and how many are left. All processes are
stopped first, so that they start nothing while the others are ended. The name may be unknown on this host; SSSD's cache
of it is expired. With `gone` (the user was removed), what cron and at would start is deleted as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_SECONDS = 8.0
#: The spools of cron and at on Debian and on Oracle Linux.
SPOOLS = ("/var/spool/cron/crontabs", "/var/spool/cron", "/var/spool/cron/atjobs", "/var/spool/at")


def processes(uid: int) -> set[int]:
    """Processes with this real, effective or saved uid, without those that have ended already."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "status").read_text(errors="replace").splitlines()
            except OSError:
                continue
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
            if str(uid) in facts.get("Uid", "").split() and not facts.get("State", "").strip().startswith(("Z", "X")):
                found.add(int(entry.name))
    return found


def quietly(*argv: str) -> None:
    """Run a program that may be missing or fail; neither is an error."""
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return


def send(numbers: set[int], what: signal.Signals) -> None:
    """Send a signal; a process that has ended meanwhile is no error."""
    for number in numbers:
        try:
            os.kill(number, what)
        except ProcessLookupError:
            continue


def delete_scheduled(uid: int, spools: tuple[str, ...] = SPOOLS) -> None:
    """Delete the jobs of cron and at of this uid. Files are found by their owner: the name may be unknown."""
    for folder in map(Path, spools):
        try:
            for file in folder.iterdir():
                if not file.is_dir() and file.lstat().st_uid == uid:
                    file.unlink()
        except OSError:
            continue


def end(uid: int, name: str) -> tuple[int, int]:
    """End all processes of a uid; returns how many there were, and how many are left."""
    seen: set[int] = set()
    quietly("loginctl", "disable-linger", name)
    until = time.monotonic() + _SECONDS
    while now := processes(uid):
        seen |= now
        send(now, signal.SIGSTOP)
        # The slice also holds processes with other uids in the user's namespaces.
        quietly("systemctl", "kill", "--signal=KILL", f"user-{uid}.slice")
        send(processes(uid), signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    # A user manager that was killed is a failed unit, which the checks of the host would name.
    manager = f"user@{uid}.service"
    quietly("systemctl", "stop", manager)
    quietly("systemctl", "reset-failed", manager)
    quietly("sss_cache", "--user", name)
    return len(seen), len(processes(uid))


if __name__ == "__main__":
    # Never root or a system account.
    if int(sys.argv[1]) < 1000:  # noqa: PLR2004
        sys.exit("not the uid of a user")
    gone = sys.argv[3:] == ["gone"]
    if gone:
        delete_scheduled(int(sys.argv[1]))
    ended, left = end(int(sys.argv[1]), sys.argv[2])
    if gone:
        # Again: what the last processes have scheduled meanwhile.
        delete_scheduled(int(sys.argv[1]))
    sys.stdout.write(f"{ended} {left}\n")
