"""What the last complete apply recorded of a host, compared with what is there: files, packages, units, mounts.

`ansible/module_utils/gpucluster_applied.py` writes the record. That module decides whether the tasks of an apply have
to run, so it counts every difference. Here a difference counts only if nothing of the cluster makes it at run time:

- of files, those that tasks wrote, and what is new or gone in folders whose files change what a host does (`WATCHED`);
- of files that programs of the cluster write again (`OF_PROGRAMS`: keys and certificates that rotate), owner and mode;
- of packages, those that a role has installed: that they are there, and the version of those that are held or Slurm's;
- of units, those that tasks started or stopped.

No finding has the content of a file, or a digest of it: files may be secret.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpucluster.node_agent import programs

RECORD = Path("/var/lib/gpucluster/applied.json")
FORMAT = 2
DPKG = Path("/var/lib/dpkg/status")
FSTAB, MOUNTS = Path("/etc/fstab"), Path("/proc/self/mounts")
#: Of files that are larger, the record has size and time of change in place of a digest.
READ_WHOLE = 1 << 20
#: Files of the system, and folders in which a further file changes what a host does: those in which no program of a
#: host writes by itself.
WATCHED = (
    "/etc/crontab",
    "/etc/cron.d/*",
    "/etc/cron.daily/*",
    "/etc/cron.hourly/*",
    "/etc/gpucluster/*",
    "/etc/ld.so.preload",
    "/etc/modprobe.d/*",
    "/etc/modules-load.d/*",
    "/etc/pam.d/*",
    "/etc/passwd",
    "/etc/profile.d/*",
    "/etc/security/limits.d/*",
    "/etc/slurm*/*",
    "/etc/ssh/sshd_config",
    "/etc/ssh/sshd_config.d/*",
    "/etc/sudoers",
    "/etc/sudoers.d/*",
    "/etc/sysctl.d/*",
    "/etc/systemd/*.d/*",
    "/etc/systemd/system/*",
    "/etc/udev/rules.d/*",
    "/usr/local/bin/*",
    "/usr/local/sbin/*",
)
#: What programs of the cluster write at run time: rotations, certificates that are renewed, what elastic nodes need,
#: and notes of work that has begun.
OF_PROGRAMS = (
    "/etc/gpucluster/authority/*",
    "/etc/gpucluster/authority.pem",
    "/etc/gpucluster/host-certificate.json",
    "/etc/gpucluster/host-names.json",
    "/etc/gpucluster/jwt.key*",
    "/etc/gpucluster/mesh/*",
    "/etc/gpucluster/munge.key*",
    "/etc/munge/munge.key*",
    "/etc/ssh/ssh_host_*",
    "/etc/ssh/ssh_known_hosts",
    "/etc/sssd/sssd.conf",
)
#: Of these even the existence is their programs' affair.
_COME_AND_GO = (
    "*.begun",
    "*.document",
    "*.former.pub",
    "*.missing",
    "*.new",
    "*.next",
    "*.next.pub",
    "*.rotation",
    "*.switch",
    "*.lock",
    "/etc/gpucluster/drift.json",
    "/etc/gpucluster/authority/*",
    "/etc/ssh/ssh_host_*",
    # snapd writes them when it updates a snap.
    "*/snap-*.mount",
    "*/snap.*",
    "*/70-snap.*",
)
#: The kind of a finding about a file that no task wrote: an apply records it as it is.
UNMANAGED = "unmanaged file"
_UP = ("active", "reloading", "activating", "deactivating")
_SECONDS = 30.0
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFBLK: "a device"}

Finding = dict[str, str]


def finding(kind: str, name: str, expected: str, seen: str) -> Finding:
    """One difference, as JSON.

    Args:
        kind: file, unmanaged file, package, unit, mount.
        name: the path of the file, the name of the package.
    """
    return {"kind": kind, "name": name, "expected": expected, "seen": seen}


def compare() -> dict[str, Any]:
    """What differs here: `recorded` (when, in seconds since 1970), `findings`; or `error`, why it is not known."""
    try:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            return {"error": "another release of gpucluster has recorded what apply left. Run: gpucluster apply"}
        noted, snapshot = record["noted"], record["snapshot"]
        found = [*files(noted["files"], snapshot["file"], noted["units"]), *packages(record.get("packages") or {})]
        found += [*units(snapshot["unit"]), *mounts(snapshot["mount"])]
        return {"recorded": float(record["time"]), "findings": found}
    except FileNotFoundError:
        return {"error": "no complete apply is recorded on this host. Run: gpucluster apply"}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"error": f"{RECORD} can't be read. Run: gpucluster apply"}


# ---- files


def files(noted: Mapping[str, str], known: Mapping[str, str], of_tasks: Collection[str] = ()) -> Iterator[Finding]:
    """Files that differ from what the record has.

    Args:
        noted: the files of tasks, with their states. `known`: all files that the record has.
        of_tasks: units of tasks; whether they start at the next boot is compared by `units`.
    """
    for path in sorted(noted):
        before, now = noted[path], state_of(path)
        if before != now and not (_is_of(path, _COME_AND_GO) or (_is_of(path, OF_PROGRAMS) and _alike(before, now))):
            yield finding("file", path, *_described(before, now))
    watched = {path for path in known if _is_of(path, WATCHED)}
    for path in sorted(watched.union(_present()) - set(noted)):
        before, now = known.get(path, "absent"), state_of(path)
        own = _is_of(path, _COME_AND_GO) or _is_of(path, OF_PROGRAMS) or _starts(path, of_tasks)
        if before != now and not own and not of_package(path):
            yield finding(UNMANAGED, path, *_described(before, now))


def _present() -> set[str]:
    """What is in the watched folders now."""
    found = set()
    for pattern in WATCHED:
        if "*" not in pattern:
            found |= {pattern} if os.path.lexists(pattern) else set()
            continue
        folder = pattern.rpartition("/")[0]
        root = Path(folder.split("*")[0].rpartition("/")[0] if "*" in folder else folder)
        found |= {path for path in _below(str(root)) if _is_of(path, (pattern,))}
    return found


def _below(tree: str) -> Iterator[str]:
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if name != "__pycache__" and not os.path.ismount(f"{folder}/{name}")]
        yield from (f"{folder}/{name}" for name in [*folders, *names])


def _starts(path: str, names: Collection[str]) -> bool:
    """Whether it is the link by which one of these units starts at boot."""
    folder, _, name = path.rpartition("/")
    return folder.endswith((".wants", ".requires")) and name in names


def of_package(path: str) -> bool:
    """Whether a file is as its package has it: an update of the distribution has changed it."""
    if not DPKG.is_file():
        return programs.call(["rpm", "--verify", "--nomtime", "--file", path], seconds=_SECONDS).returncode == 0
    try:
        digest = hashlib.md5(Path(path).read_bytes()).hexdigest()  # noqa: S324 - what dpkg records
    except OSError:
        return False
    return f"\n {path} {digest}\n" in DPKG.read_text(encoding="utf-8", errors="replace")


def _is_of(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def state_of(path: str) -> str:
    """What is at a path, in one word, as `gpucluster_applied.state_of` records it: content, owner and mode."""
    try:
        state = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "absent"
    kind, owner = stat.S_IFMT(state.st_mode), _access(stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid)
    if kind == stat.S_IFLNK:
        return f"link {os.readlink(path)}"
    if kind != stat.S_IFREG:
        return f"{kind:o} {owner}"
    if state.st_size > READ_WHOLE:
        return f"{owner} {state.st_size} {state.st_mtime_ns}"
    with open(path, "rb") as file:
        return file_state(stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid, file.read())


def file_state(mode: int, user: int, group: int, content: bytes) -> str:
    """The state of a regular file of at most `READ_WHOLE` bytes."""
    return f"{_access(mode, user, group)} {hashlib.blake2b(content, digest_size=16).hexdigest()}"


def _access(mode: int, user: int, group: int) -> str:
    return f"{mode:o}:{user}:{group}"


def _owner(state: str) -> str:
    """Mode, owner and group of a regular file's state; empty for anything else."""
    first = state.split(" ")[0]
    return first if re.fullmatch(r"[0-7]+:\d+:\d+", first) else ""


def _alike(before: str, now: str) -> bool:
    """Whether both are regular files of the same owner and mode."""
    return bool(_owner(before)) and _owner(before) == _owner(now)


def _described(before: str, now: str) -> tuple[str, str]:
    """Both states for a message: what of them differs, and nothing of the content."""
    if _alike(before, now):
        return "as apply left it", "other content"
    if _owner(before) and _owner(now):
        other = "" if before.split(" ")[1:] == now.split(" ")[1:] else ", other content"
        return _mode(before), f"{_mode(now)}{other}"
    return _named(before), _named(now)


def _mode(state: str) -> str:
    mode, user, group = _owner(state).split(":")
    return f"mode {mode.rjust(4, '0')}, owner {user}:{group}"


def _named(state: str) -> str:
    if state == "absent":
        return "no file"
    if state.startswith("link "):
        return f"a link to {state[5:]}"
    if _owner(state):
        return "a file"
    word, _, owner = state.partition(" ")
    return f"{_KINDS.get(int(word, 8), 'something else')}, {_mode(owner)}"


# ---- packages


def packages(recorded: Mapping[str, str]) -> Iterator[Finding]:
    """Packages of roles that are gone, or have another version although they are held or Slurm's.

    Args:
        recorded: by package its version, with ` held` behind it if the package manager keeps it.
    """
    if not recorded:
        return
    present = installed(recorded)
    for name in sorted(recorded):
        before, now = recorded[name], present.get(name, "")
        if not now:
            yield finding("package", name, before, "not installed")
        elif before != now and (before.endswith(" held") or name.startswith("slurm")):
            yield finding("package", name, before, now)


def installed(names: Iterable[str]) -> dict[str, str]:
    """The versions of those of the packages that are installed, as `gpucluster_applied.package_versions` records
    them."""
    if DPKG.is_file():
        return of_dpkg(DPKG.read_text(encoding="utf-8", errors="replace"), set(names))
    query = ["rpm", "--query", "--queryformat", r"%{NAME} %{VERSION}-%{RELEASE}\n", *sorted(names)]
    rows = (line.partition(" ") for line in programs.call(query, seconds=_SECONDS).stdout.splitlines())
    # Of one that is missing, rpm prints a sentence.
    return {name: version for name, _, version in rows if version and " " not in version}


def of_dpkg(text: str, names: set[str]) -> dict[str, str]:
    """The same from dpkg's database."""
    found, name, status = {}, "", ""
    for line in text.splitlines():
        if line.startswith("Package: "):
            name, status = line[9:], ""
        elif name in names and line.startswith("Status: "):
            status = line[8:]
        elif name in names and line.startswith("Version: ") and status.endswith(" installed"):
            found[name] = line[9:] + (" held" if status.startswith("hold ") else "")
    return found


# ---- units and mounts


def units(recorded: Mapping[str, str]) -> Iterator[Finding]:
    """Units that ran and do not, or start at the next boot in another way.

    Args:
        recorded: by unit `up`, or another ActiveState, and how it starts at the next boot.
    """
    if not recorded:
        return
    names = sorted(recorded)
    shown = programs.call(
        ["systemctl", "show", "--property=ActiveState,UnitFileState", "--", *names], seconds=_SECONDS
    ).stdout
    blocks = [block for block in shown.strip().split("\n\n") if block]
    if len(blocks) != len(names):
        raise ValueError("systemd does not answer")
    for name, block in zip(names, blocks):
        now = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        before_state, _, before_start = recorded[name].partition(" ")
        state, start = now.get("ActiveState", "unknown"), now.get("UnitFileState", "")
        if before_state == "up" and state not in _UP:
            yield finding("unit", name, "running", state)
        if before_start != start:
            yield finding("unit", name, before_start or "no unit file", start or "no unit file")


def mounts(recorded: Mapping[str, str]) -> Iterator[Finding]:
    """File systems of fstab that are not mounted, or others.

    Args:
        recorded: by mount point the source and the type.
    """
    points = {fields[1] for fields in _table(FSTAB) if len(fields) > 1 and not fields[0].startswith("#")}
    now = {fields[1]: f"{fields[0]} {fields[2]}" for fields in _table(MOUNTS) if fields[1] in points}
    for point in sorted({*recorded, *now}):
        before, after = recorded.get(point, "not mounted"), now.get(point, "not mounted")
        if before != after:
            yield finding("mount", point, before, after)


def _table(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError:
        return []
