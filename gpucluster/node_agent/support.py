"""What a support bundle takes from one host: journals, Slurm's configuration and state, file systems, versions.

`gpucluster support-bundle` sends this module with what it imports to each host (`artifacts.agent_archive.of_support`)
and runs it as root: it needs no agent, so it also works on a host that was never configured. It changes nothing.

Everything is bounded: seconds for all of it, bytes for each file and for all. What hangs is left behind. Secrets are
removed here, before anything leaves the host, also those that this host knows and that no form gives away.

It prints one line: base64 of the compressed JSON {"files": {name: text}, "cut": [name], "missing": {name: reason}}.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fnmatch
import glob
import json
import os
import queue
import re
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.rules import scrubbing

#: Units whose journals are taken, as far as a host has them.
UNITS = (
    *("gpucluster*", "slurm*", "sackd*", "munge*", "sssd*", "slapd*", "mariadb*", "mysql*", "ssh.service"),
    *("sshd.service", "cloud-*", "nfs-*", "rpc-*", "rpcbind*", "chrony*", "systemd-timesyncd*", "prometheus*"),
    *("grafana*", "containerd*", "docker*", "kubelet*", "etcd*", "nvidia-*", "systemd-journal*"),
    *("systemd-networkd*", "rsyslog*"),
)
#: The most lines of a journal, bytes of a file, and seconds for one program.
_LINES, _LAST_LINES, LARGEST_FILE, _PROGRAM_SECONDS = 20_000, 5_000, 1_000_000, 20.0
_WORKERS = 4
#: Files with secrets, from which the secrets themselves are read so that they are found wherever they stand.
_WITH_SECRETS = (
    "/etc/munge/munge.key*", "/etc/gpucluster/munge.key*", "/etc/gpucluster/*.password", "/etc/sssd/sssd.conf",
    "/etc/slurm/slurmdbd.conf", "/etc/slurm/*.key", "/var/spool/slurm*/*.key",
    "/var/lib/gpucluster-directory/hosts*.json",
    "/var/lib/gpucluster/grafana/*password*", "/etc/shadow", "/etc/kubernetes/*.conf", "/root/.my.cnf",
    "/etc/mysql/debian.cnf", "/root/.oci/config", "/etc/gpucluster/*secret*", "/etc/gpucluster/*token*",
    "/etc/gpucluster/jwt.key*", "/etc/gpucluster/rest/*.key",
)  # fmt: skip
_MOST_SECRETS, _LARGEST_SECRET_FILE, _LONGEST_SECRET = 200, 65_536, 1_024
#: Files of Slurm that hold a key or a password and nothing else.
_KEYS = ("*.key", "*.pem", "*_key", "*jwks*")


class Source(NamedTuple):
    """One file of the bundle: what a program prints, or the end of a file.

    Args:
        name: of the file in the bundle.
        argv: the program; empty for files.
        path: a pattern of files; each becomes one below `name`.
    """

    name: str
    argv: Sequence[str] = ()
    path: str = ""


def _program(name: str, line: str) -> Source:
    return Source(name, tuple(line.split()))


#: What is always taken; a program or file that a host does not have is named in the manifest.
SOURCES = (
    _program("system/failed-units.txt", "systemctl --failed --no-pager --full"),
    _program("system/units.txt", "systemctl list-units --all --no-pager --plain"),
    _program("system/timers.txt", "systemctl list-timers --all --no-pager"),
    _program("system/df.txt", "df -hTl"),
    _program("system/inodes.txt", "df -il"),
    Source("system/mounts.txt", path="/proc/self/mountinfo"),
    _program("system/kernel.txt", "uname -a"),
    Source("system/os-release.txt", path="/usr/lib/os-release"),
    _program("system/uptime.txt", "uptime"),
    _program("system/memory.txt", "free -m"),
    _program("system/processes.txt", "ps -eo pid,ppid,user,stat,etime,rss,wchan:24,comm"),
    _program("system/addresses.txt", "ip -brief address"),
    _program("system/routes.txt", "ip route"),
    _program("system/disks.txt", "lsblk --output NAME,SIZE,TYPE,FSTYPE,MOUNTPOINT"),
    _program("system/time.txt", "timedatectl"),
    _program("system/cloud-init.txt", "cloud-init status --long"),
    Source("system/cloud-init-output.log", path="/var/log/cloud-init-output.log"),
    _program("gpus/nvidia-smi.txt", "nvidia-smi -q"),
    _program("checks/versions.json", "/usr/local/bin/gpucluster-agent versions"),
    Source("checks/state", path="/var/lib/gpucluster/checks/*.json"),
    Source("slurm/configuration", path="/etc/slurm/*.conf"),
    Source("slurm/logs", path="/var/log/slurm/*.log"),
)
#: What only the controller has.
ON_CONTROLLER = (
    _program("slurm/sinfo.txt", "sinfo --all --long --Node"),
    _program("slurm/sinfo-reasons.txt", "sinfo --all --list-reasons --long"),
    _program("slurm/squeue.txt", "squeue --all --long"),
    _program("slurm/sdiag.txt", "sdiag"),
    _program("slurm/ping.txt", "scontrol ping"),
    _program("slurm/nodes.txt", "scontrol show nodes"),
    _program("slurm/jobs.txt", "scontrol show jobs"),
    _program("slurm/settings.txt", "scontrol show config"),
    _program("slurm/sacct.txt", "sacct --allusers --allocations --starttime now-1days --parsable2"),
    _program("checks/health.json", "/usr/local/bin/gpucluster-agent health status --output json"),
    Source("checks/configuration.json", path="/var/lib/gpucluster/configuration.json"),
    _program("kubernetes/nodes.txt", "kubectl --kubeconfig=/etc/kubernetes/admin.conf get nodes -o wide"),
    _program("kubernetes/pods.txt", "kubectl --kubeconfig=/etc/kubernetes/admin.conf get pods -A -o wide"),
    _program("kubernetes/events.txt", "kubectl --kubeconfig=/etc/kubernetes/admin.conf get events -A"),
)


class Collected:
    """What has been taken so far; several threads add to it.

    Args:
        room: bytes for all files together.
    """

    def __init__(self, room: int) -> None:
        self.files: dict[str, str] = {}
        self.cut: list[str] = []
        self.missing: dict[str, str] = {}
        self._room = room
        self._lock = threading.Lock()

    def add(self, name: str, text: str, *, cut: bool) -> None:
        """Add a file, unless there is no room any more."""
        with self._lock:
            size = len(text.encode(errors="replace"))
            if size > self._room:
                self.missing[name] = f"no room: it has {size} bytes, and {self._room} are left for this host"
                return
            self._room -= size
            self.files[name] = text
            if cut:
                self.cut.append(name)

    def lack(self, name: str, reason: str) -> None:
        """State why there is no such file."""
        with self._lock:
            self.missing[name] = scrubbing.scrubbed_text(reason)[:300]

    def snapshot(self, names: Sequence[str]) -> bytes:
        """All of it as JSON; what of `names` is neither there nor missing had no time."""
        with self._lock:
            known = {name.partition("/*")[0] for name in (*self.files, *self.missing)}
            late = {name: "no time: it did not end" for name in names if not any(_below(each, name) for each in known)}
            whole = {"files": self.files, "cut": self.cut, "missing": {**late, **self.missing}}
            return json.dumps(whole).encode()


def _below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}/")


def known_secrets(patterns: Sequence[str] = _WITH_SECRETS) -> list[str | bytes]:
    """The secrets of this host: values under names of secrets, files that are nothing but a secret, hashes.

    Args:
        patterns: of files.
    """
    secrets: dict[str | bytes, None] = {}
    for pattern in patterns:
        for name in sorted(glob.glob(pattern)):
            try:
                data = _end_of(Path(name), _LARGEST_SECRET_FILE)[0]
            except OSError:
                continue
            for secret in _secrets_of(data):
                if len(secret) <= _LONGEST_SECRET and not (isinstance(secret, str) and _ORDINARY.fullmatch(secret)):
                    secrets.setdefault(secret)
    return list(secrets)[:_MOST_SECRETS]


#: Words and paths: `ldap_default_authtok_type = password` would take a word out of every line.
_ORDINARY = re.compile(r"[a-z]{1,16}|[A-Z]{1,16}|/\S*|\d{1,8}")
_ASSIGNMENT = re.compile(r"^\s*\"?([\w.-]{1,64})\"?\s*[=:]\s*(.+?)\s*$")


def _secrets_of(data: bytes) -> Iterator[str | bytes]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        yield data
        return
    if not text.isprintable() and "\n" not in text:
        yield data
        return
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, (dict, list)):
        yield from _strings(value)
        return
    lines = text.splitlines()
    if len(lines) == 1:
        yield lines[0].strip()
    for line in lines:
        match = _ASSIGNMENT.match(line)
        if match and scrubbing.is_secret_name(match[1]):
            yield match[2].strip("\"'")


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _end_of(path: Path, largest: int) -> tuple[bytes, bool]:
    """The last bytes of a regular file, and whether there were more.

    Raises:
        OSError: it can't be read, or is a link, a device or a pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        size = os.fstat(descriptor).st_size
        if size > largest:
            stream.seek(size - largest)
        return stream.read(largest), size > largest


def sources(*, controller: bool, since: int, units: Sequence[str]) -> list[Source]:
    """Everything that is taken from a host.

    Args:
        since: hours of the journals.
        units: the host's units.
    """
    journal = ("journalctl", "--no-pager", "--quiet", "--output=short-iso-precise", f"--lines={_LINES}")
    ago = f"--since=-{since}h"
    return [
        *SOURCES,
        *(ON_CONTROLLER if controller else ()),
        Source("journal/kernel.log", (*journal, "--dmesg", ago)),
        # Also of units that are gone, such as a user's.
        Source("journal/last.log", (*journal, f"--lines={_LAST_LINES}", ago)),
        Source("journal/errors.log", (*journal, "--priority=err", ago)),
        *(Source(f"journal/units/{unit}.log", (*journal, f"--unit={unit}", ago)) for unit in units),
    ]


def units_of(listed: str) -> list[str]:
    """The units among those that systemd lists whose journals are taken."""
    names = [line.split()[0] for line in listed.splitlines() if line.strip()]
    return sorted(
        {name for name in names if name.endswith(".service") and any(fnmatch.fnmatch(name, each) for each in UNITS)}
    )


def collect(source: Source, into: Collected, clean: Callable[[str], str], largest: int, seconds: float) -> None:
    """Take one source.

    Args:
        largest: bytes of a file; the end stays.
        seconds: for a program.
    """
    if source.argv:
        try:
            done = programs.call(source.argv, seconds=seconds)
        except (Failed, OSError) as error:
            into.lack(source.name, str(error))
            return
        if done.returncode == programs.MISSING and not done.stdout:
            into.lack(source.name, f"{source.argv[0]} is not installed here")
            return
        text = done.stdout
        if done.returncode:
            text += f"\n[{source.argv[0]} ended with {done.returncode}: {done.stderr.strip()[-2000:]}]\n"
        _add(source.name, text, into, clean, largest)
        return
    paths = [Path(name) for name in sorted(glob.glob(source.path))]
    if not paths:
        into.lack(source.name, f"there is no {source.path}")
    for path in paths:
        name = f"{source.name}/{path.name}" if "*" in source.path else source.name
        if any(fnmatch.fnmatch(path.name, each) for each in _KEYS):
            into.lack(name, "it is a key")
            continue
        try:
            data, cut = _end_of(path, largest)
        except OSError as error:
            into.lack(name, f"{path}: {error.strerror}")
            continue
        _add(name, data.decode(errors="replace"), into, clean, largest, cut=cut)


def _add(
    name: str, text: str, into: Collected, clean: Callable[[str], str], largest: int, *, cut: bool = False
) -> None:
    if len(text) > largest:
        text, cut = text[-largest:], True
    if cut:
        text = text.partition("\n")[2]  # a secret of which only the end is there is not recognized
    into.add(name, clean(text), cut=cut)


def run(*, controller: bool, since: int, room: int, seconds: float) -> bytes:
    """Take everything within a time, and return it as JSON.

    Args:
        since: hours of the journals.
        room: bytes for all files together.
        seconds: for all of it.
    """
    until = time.monotonic() + seconds
    into = Collected(room)
    try:
        listed = programs.call(
            ("systemctl", "list-units", "--all", "--plain", "--no-legend", "--no-pager", "--type=service"),
            seconds=min(_PROGRAM_SECONDS, seconds / 2),
        ).stdout
    except Failed as error:
        listed = ""
        into.lack("journal/units", str(error))
    everything = sources(controller=controller, since=since, units=units_of(listed))
    clean = scrubbing.Scrubber(known_secrets()).text
    waiting: queue.SimpleQueue[Source] = queue.SimpleQueue()
    for source in everything:
        waiting.put(source)
    done = threading.Semaphore(0)
    for _ in range(_WORKERS):
        threading.Thread(target=_work, args=(waiting, done, into, clean, until), daemon=True).start()
    for _ in everything:
        if not done.acquire(timeout=max(until - time.monotonic(), 0)):
            break
    return into.snapshot([source.name for source in everything])


def _work(
    waiting: queue.SimpleQueue[Source],
    done: threading.Semaphore,
    into: Collected,
    clean: Callable[[str], str],
    until: float,
) -> None:
    """Take one source after the other until there is none, or no time."""
    with contextlib.suppress(queue.Empty):
        while True:
            source = waiting.get_nowait()
            try:
                remaining = until - time.monotonic()
                if remaining > 0:
                    collect(source, into, clean, LARGEST_FILE, min(_PROGRAM_SECONDS, remaining))
            except Exception as error:  # one source must not hide the others
                into.lack(source.name, f"{type(error).__name__}: {error}")
            finally:
                done.release()


def main(argv: Sequence[str] | None = None) -> int:
    """Print what this host has. Ends although a program hangs."""
    parser = argparse.ArgumentParser(prog="support", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--controller", action="store_true")
    parser.add_argument("--since", type=int, default=24, help="hours")
    parser.add_argument("--room", type=int, default=16_000_000, help="bytes")
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args(argv)
    whole = run(controller=chosen.controller, since=chosen.since, room=chosen.room, seconds=chosen.seconds)
    sys.stdout.write(base64.b64encode(zlib.compress(whole, 6)).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)  # a thread may wait for a program that nothing ends
