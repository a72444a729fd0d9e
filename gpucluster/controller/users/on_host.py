"""Makes a change of the directory hold on its host, and checks it. It is sent to hosts as one file, so it imports the
standard library only.

The caller appends a call of `main` with a request, one JSON object:

    {"users": [{"name", "uid", "state", "gids", "keys"}], "removed_groups": [name],
     "end": {"name", "uid", "gone"} | null, "patience_s": seconds for which SSSD may still answer something else}

`state` is what the directory has of a user: enabled, disabled or removed. SSSD's cache is expired, then SSSD is asked
until it gives the directory's answer. `end`: all processes of a user are ended. They are stopped first, so that they
start nothing while the others are ended. With `gone` (the user was removed), what cron and at would start is deleted as
well.

It prints one JSON object: {"ended": how many processes there were, "wrong": [what does not hold]}.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

_SECONDS = 8.0
_POLL_SECONDS = 0.1
_LONGEST_POLL_SECONDS = 2.0
#: Never root or a system account.
_FIRST_UID = 1000
#: The spools of cron and at on Debian and on Oracle Linux.
SPOOLS = ("/var/spool/cron/crontabs", "/var/spool/cron", "/var/spool/cron/atjobs", "/var/spool/at")
#: The role ldap writes it: the decision of SSSD alone, without other modules that sshd asks (Slurm's admits by jobs).
PAM_SERVICE = "gpucluster-access"
_PAM_FOLDER = Path("/etc/pam.d")
_SSSD_SOCKET = "/var/lib/sss/pipes/nss"
#: What PAM answers: <security/_pam_types.h>.
_PAM_SUCCESS, _PAM_USER_UNKNOWN, _PAM_ACCT_EXPIRED, _PAM_CONV_ERR = 0, 10, 13, 19
_PAM_SILENT = 0x8000
#: A few of those that are wrong are enough.
_MOST_WRONG = 3


def processes(uid: int) -> set[int]:
    """Processes with this real, effective or saved uid, without those that have ended already."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "status").read_text(errors="replace").splitlines()
            except OSError:
                continue
            facts = dict(line.split(":", 1) for line in lines if ":" in line)
            if str(uid) in facts.get("Uid", "").split() and not facts.get("State", "").strip().startswith(("Z", "X")):
                pids.add(int(entry.name))
    return pids


def output(*argv: str) -> str:
    """What a program prints. Nothing if it is missing, fails or does not end."""
    # SSSD's cache in shared memory may be older than its own.
    environment = {**os.environ, "SSS_NSS_USE_MEMCACHE": "NO", "LC_ALL": "C"}
    try:
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=10, check=False, env=environment,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.decode(errors="replace") if result.returncode == 0 else ""


def send(numbers: set[int], what: signal.Signals) -> None:
    """Send a signal; a process that has ended meanwhile is not an error."""
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
    output("loginctl", "disable-linger", name)
    until = time.monotonic() + _SECONDS
    while now := processes(uid):
        seen |= now
        send(now, signal.SIGSTOP)
        # The slice also holds processes with other uids in the user's namespaces.
        output("systemctl", "kill", "--signal=KILL", f"user-{uid}.slice")
        send(processes(uid), signal.SIGKILL)
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    # A user manager that was killed is a failed unit, which the checks of the host would name.
    manager = f"user@{uid}.service"
    output("systemctl", "stop", manager)
    output("systemctl", "reset-failed", manager)
    return len(seen), len(processes(uid))


# --- what SSSD answers -----


def answers() -> bool:
    """Whether SSSD runs."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        try:
            connection.connect(_SSSD_SOCKET)
        except OSError:
            return False
    return True


def access(name: str) -> int:
    """What PAM answers when it is asked whether a user may use an account here.

    Raises:
        OSError, ImportError: it can't be asked.
    """
    import ctypes

    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

    class PamConversation(ctypes.Structure):
        _fields_ = (("call", call), ("data", ctypes.c_void_p))

    pam = ctypes.CDLL("libpam.so.0")
    handle = ctypes.c_void_p()
    conversation = PamConversation(call(lambda *_: _PAM_CONV_ERR), None)
    status: int = pam.pam_start(PAM_SERVICE.encode(), name.encode(), ctypes.byref(conversation), ctypes.byref(handle))
    if status == _PAM_SUCCESS:
        status = pam.pam_acct_mgmt(handle, _PAM_SILENT)
        pam.pam_end(handle, status)
    return status


def unless_refused(name: str, expected: int, otherwise: str) -> str:
    """Nothing, if PAM refuses a user with the expected answer."""
    try:
        return "" if access(name) == expected else otherwise
    except (OSError, ImportError) as error:
        return f"PAM can't be asked about {name}: {error}"


def key_words(lines: list[str]) -> set[str]:
    """Kind and key of each line of authorized_keys. Comments, such as the keys of a disabled user, are left out."""
    return {" ".join(line.split()[:2]) for line in lines if line.strip() and not line.startswith("#")}


def wrong_user(user: dict[str, object]) -> str:
    """How SSSD's answer for a user differs from the directory; empty if it does not."""
    name, state = str(user["name"]), user["state"]
    entry = output("getent", "--service=sss", "passwd", name).strip().split(":")
    if state == "removed":
        if len(entry) > 1:
            return f"SSSD still knows {name}"
        return unless_refused(name, _PAM_USER_UNKNOWN, f"SSSD does not answer that {name} is unknown")
    if entry[2:3] != [str(user["uid"])]:
        return f"SSSD does not know {name} with uid {user['uid']}"
    keys = key_words(output("sss_ssh_authorizedkeys", name).splitlines())
    groups = {*output("getent", "--service=sss", "initgroups", name).split()[1:], *entry[3:4]}
    let_in = unless_refused(name, _PAM_ACCT_EXPIRED, f"SSSD still lets {name} in") if state == "disabled" else ""
    if let_in:
        return let_in
    if keys != key_words(user["keys"]):  # type: ignore[arg-type]
        return f"SSSD has other ssh keys of {name}"
    return "" if groups == set(map(str, user["gids"])) else f"SSSD has other groups of {name}"  # type: ignore[call-overload]


def wrong(users: list[object], groups: list[object], patience_s: float) -> list[str]:
    """What of a change does not hold on this host, after SSSD had the time to ask the directory."""
    if not answers():
        return ["SSSD does not run"]
    if users and not (_PAM_FOLDER / PAM_SERVICE).exists():
        return [f"it was configured by an earlier version, and has no {_PAM_FOLDER / PAM_SERVICE}"]
    until, pause = time.monotonic() + patience_s, _POLL_SECONDS
    while True:
        output("sss_cache", "--everything")
        texts = {index: wrong_user(user) for index, user in enumerate(users)}  # type: ignore[arg-type]
        users = [user for index, user in enumerate(users) if texts[index]]
        groups = [group for group in groups if output("getent", "--service=sss", "group", str(group))]
        problems = [*filter(None, texts.values()), *(f"SSSD still knows the group {group}" for group in groups)]
        if not problems or time.monotonic() > until:
            return problems
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL_SECONDS)


def main(text: str) -> None:
    """Do what a request asks, and print the answer."""
    request = json.loads(text)
    ending = request["end"]
    if ending and int(ending["uid"]) < _FIRST_UID:
        sys.exit("not the uid of a user")
    # First: no login may begin after the processes are ended.
    problems, ended = wrong(request["users"], request["removed_groups"], request["patience_s"]), 0
    if ending:
        uid, name = int(ending["uid"]), ending["name"]
        if ending["gone"]:
            delete_scheduled(uid)
        ended, left = end(uid, name)
        if ending["gone"]:
            # Again: what the last processes have scheduled meanwhile.
            delete_scheduled(uid)
        problems += [f"{left} processes of {name} are left"] if left else []
    more = [f"{len(problems) - _MOST_WRONG} more"] if len(problems) > _MOST_WRONG else []
    sys.stdout.write(json.dumps({"ended": ended, "wrong": problems[:_MOST_WRONG] + more}) + "\n")
