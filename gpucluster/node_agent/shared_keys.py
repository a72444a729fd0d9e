"""Keys that hosts of the cluster have from its controller: by which it logs in, and with which containers reach others.

The controller brings the whole of it by ssh during a rotation (`take`; `controller/shared_keys`). A host that was off,
or boots from a baked image, asks for it at its boot, as it does for the munge key: over TLS, from a port that only root
has (`await`, which `gpucluster-shared-keys.service` runs). So it accepts no key that was rotated before slurmd starts.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import stat
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpucluster.node_agent import applied_record, bounded, durable_file, munge_key
from gpucluster.node_agent.drift import recorded
from gpucluster.node_agent.errors import AgentError, Failed, Refused, report
from gpucluster.node_agent.foreign_folder import Folder
from gpucluster.node_agent.host_identity import BEGIN, END
from gpucluster.node_agent.notify import notify

#: Whose keys the controller's are, on this host: {"user"}.
SETTINGS = Path("/etc/gpucluster/shared-keys.json")
#: What containers mount as /root/.ssh: the role `docker` makes it.
MESH = Path("/etc/gpucluster/mesh")
#: The pair with which containers log in to each other, and that of their ssh servers.
LOGIN, SERVER = "id_ed25519", "ssh_host_ed25519_key"
#: In the block of authorized_keys, the line before the controller's keys; keys of operators are above it.
MARKER = "# Of the controller:\n"

_AUTHORIZED, _KNOWN = "authorized_keys", "known_hosts"
_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/]+=*( [^\n]*)?")
_LONGEST = 1 << 20
# Since the controller may not know a host that boots, and keys may change meanwhile: as for the munge key.
_AGAIN = (90.0, 600.0)
_PAUSE, _LONGEST_PAUSE, _PATIENCE = 1.0, 10.0, 20.0


def take(document: Mapping[str, Any], user: str, mesh: Path = MESH) -> dict[str, Any]:
    """Have these keys, and no others in their places.

    Args:
        document: `controller`: the public keys that log in as the user; `removed`: public keys that do not any more;
            `containers`: what the folder of containers has: `login` and `server` (private keys), `authorized` and
            `known` (public ones). What is missing stays as it is.
        user: who logs in to this host for the controller.

    Returns:
        `servers`: ssh servers of containers that have begun before this host got their present key.

    Raises:
        Refused: it is something else.
    """
    own, removed, containers = (document.get(name) for name in ("controller", "removed", "containers"))
    _require([*(own or []), *(removed or [])])
    if own or removed:
        account = pwd.getpwnam(user)
        homes = {Path(account.pw_dir): (account.pw_uid, account.pw_gid)}
        if removed:
            # cloud-init gives the keys of the launch to root, too, with a command that refuses.
            homes[Path("/root")] = (0, 0)
        for home, owner in homes.items():
            keys = list(own or []) if home == Path(account.pw_dir) else []
            _let_in(home, owner, keys, frozenset(" ".join(key.split()[:2]) for key in removed or []))
    # The controller has the keys alone, for the nodes.
    if containers and (mesh / "config").is_file():
        _take_for_containers(containers, mesh)
    return {"servers": old_servers(mesh)}


def _require(keys: Sequence[Any]) -> None:
    if not all(isinstance(key, str) and _KEY.fullmatch(key) for key in keys):
        raise Refused("the request has something else than public keys", "Run: gpucluster apply")


def _let_in(home: Path, owner: tuple[int, int], keys: Sequence[str], removed: Collection[str]) -> None:
    """Change authorized_keys of a home, which its user may change meanwhile."""
    with Folder.open(home) as folder:
        if folder.look(".ssh") is None:
            if not keys:
                return
            with folder.make(".ssh", 0o700) as made:
                made.give(*owner)
        with folder.folder(".ssh") as inner:
            there = inner.look(_AUTHORIZED)
            content = inner.read(_AUTHORIZED, _LONGEST) if there else b""
            before = content.decode(errors="replace")
            after = without(with_own(before, keys) if keys else before, removed)
            if after != before:
                inner.write(_AUTHORIZED, after.encode(), 0o600, owner)
                if there:
                    # A rotation is not drift, and what an administrator has changed in the file stays one.
                    was = recorded.file_state(stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid, content)
                    now = recorded.file_state(0o600, *owner, after.encode())
                    applied_record.follow(str(home / ".ssh" / _AUTHORIZED), was, now)


def with_own(text: str, keys: Sequence[str]) -> str:
    """The text of authorized_keys with these keys of the controller; what operators and administrators have stays."""
    lines = "".join(f"{key}\n" for key in keys)
    match = re.search(rf"^{BEGIN}(.*?)^{END.rstrip()}$\n?", text, re.MULTILINE | re.DOTALL)
    if match is None:
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{BEGIN}{lines}{END}"
    operators, marker, _own = match.group(1).rpartition(MARKER)
    return f"{text[: match.start()]}{BEGIN}{operators}{marker}{lines}{END}{text[match.end() :]}"


def without(text: str, removed: Collection[str]) -> str:
    """The text of authorized_keys without the lines that have one of these keys, as `type key`."""
    if not removed:
        return text
    return "".join(
        line for line in text.splitlines(keepends=True) if not any(f" {key} " in f" {line.strip()} " for key in removed)
    )


def _take_for_containers(containers: Mapping[str, Any], mesh: Path) -> None:
    authorized, known = list(containers["authorized"]), list(containers["known"])
    _require([*authorized, *known])
    port = re.search(r"^\s*Port\s+(\d+)$", (mesh / "config").read_text(), re.MULTILINE)
    # What is accepted comes first: a server with the next key is believed from its first connection on.
    files = {
        _AUTHORIZED: "".join(f"{key}\n" for key in authorized),
        _KNOWN: "".join(f"[*]:{port.group(1) if port else 22} {key}\n" for key in known),
        SERVER: str(containers["server"]),
        LOGIN: str(containers["login"]),
    }
    for name, content in files.items():
        file = mesh / name
        if not file.exists() or file.read_text() != content:
            durable_file.replace(file, content, mode=0o600)


def old_servers(mesh: Path = MESH, processes: Path = Path("/proc")) -> int:
    """How many ssh servers run in containers that have this folder, and have begun before its host key was written.

    sshd may keep the key with which it has begun (from OpenSSH 9.8 on); hosts have to believe that one until it ends.
    """
    try:
        folder, written = mesh.stat(), (mesh / SERVER).stat().st_mtime
        booted = time.time() - float((processes / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    number = 0
    for process in processes.iterdir():
        try:
            if not process.name.isdigit() or (process / "comm").read_text().strip() != "sshd":
                continue
            inside = (process / "root/root/.ssh").stat()
            # The fields behind the name, which may have blanks: proc_pid_stat(5), `starttime` is the 22nd of all.
            ticks = int((process / "stat").read_text().rpartition(")")[2].split()[19])
        except (OSError, ValueError, IndexError):
            continue  # it has ended meanwhile
        began = booted + ticks / os.sysconf("SC_CLK_TCK")
        number += (inside.st_dev, inside.st_ino) == (folder.st_dev, folder.st_ino) and began < written
    return number


# ---- at the boot


def ask(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the controller has for this host; empty where nothing was rotated yet.

    Raises:
        Failed: there is no answer, or none that can be used. Refused: the controller gives none.
    """
    text = munge_key.conversation(settings, {"which": "shared", "has": ""}, "the shared keys", _LONGEST)
    try:
        answer = bounded.loads(text.decode())
        if "refused" in answer:
            raise Refused(f"the controller does not give the shared keys: {str(answer['refused'])[:300]}")
        found = answer["shared"] or {}
    except (ValueError, KeyError, TypeError):
        raise Failed("the controller's answer about the shared keys can't be read", "Run: gpucluster apply") from None
    if not isinstance(found, dict):
        raise Failed("the controller's answer about the shared keys can't be read", "Run: gpucluster apply")
    return found


def await_keys(settings: Mapping[str, Any], user: str, mesh: Path = MESH) -> None:
    """At the boot: have the cluster's keys before slurmd starts, then watch for a while whether they change.

    Without an answer a host starts with the keys that it has: then slurmctld gives none either.
    """
    began, pause, last = time.monotonic(), _PAUSE, ""
    while True:
        last, has_answered = _refresh(settings, user, mesh, last)
        if not last or has_answered or time.monotonic() - began > _PATIENCE:
            break
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    notify("READY=1")
    for seconds in _AGAIN:
        time.sleep(max(began + seconds - time.monotonic(), 0.0))
        last, _ = _refresh(settings, user, mesh, last)
    if last:
        # systemd starts the service again: the host has to learn it before the controller can log in.
        raise Failed(last)


def _refresh(settings: Mapping[str, Any], user: str, mesh: Path, last: str) -> tuple[str, bool]:
    """Why this host does not have the keys of now, empty if it does; and whether the controller has answered."""
    try:
        if document := ask(settings):
            take(document, user, mesh)
    except AgentError as error:
        if error.message != last:
            sys.stderr.write(f"no news of the shared keys: {error.message}\n")
            sys.stderr.flush()
        return error.message, isinstance(error, Refused)
    return "", True


# ---- the program


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent shared-keys", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("await", "take"), help="take: {user, document} on standard input, as JSON")
    options = parser.parse_args(argv)
    os.umask(0o077)
    try:
        if options.part == "await":
            user = str(json.loads(SETTINGS.read_text())["user"])
            await_keys(json.loads(munge_key.SETTINGS.read_text()), user)
            return 0
        request = bounded.loads(sys.stdin.read(_LONGEST))
        sys.stdout.write(json.dumps(take(request["document"], str(request["user"]))) + "\n")
    except AgentError as error:
        return report(error, "shared-keys")
    except (ValueError, KeyError, TypeError, AttributeError):
        sys.stderr.write("gpucluster-agent shared-keys: the request can't be read\n")
        return Refused.status
    except OSError as error:
        return report(error, "shared-keys")
    return 0
