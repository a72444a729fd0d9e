"""The host itself: services, file systems, memory, drives, clock, and processes that a job has left behind."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from gpucluster.node_agent.checks.collect import samples
from gpucluster.node_agent.checks.collect.place import MeasuredHost, Unmeasured, entries, read, read_or_none
from gpucluster.node_agent.checks.model import Missing

_CLOCK_FILE = "clock.json"
# Ids of users begin here on all systems that we support; `nobody` has a larger one.
_FIRST_UID = 1000
_NOBODY = 65534
_MOUNT_POINT, _OPTIONS = 4, 5
# Columns of `chronyc -c tracking`.
_OFFSET, _LEAP = 4, 13
_TICKS = os.sysconf("SC_CLK_TCK")
# Of /proc/PID/status, whose lines are in this order: proc(5). The name is escaped, so it has no line break.
_STATUS = re.compile(
    r"^Name:\s+(?P<name>[^\n]*)$.*?^PPid:\s+(?P<parent>\d+)$.*?^Uid:\s+(?P<uid>\d+)", re.MULTILINE | re.DOTALL
)
# Root's processes from which those of jobs and of logins descend; OpenSSH 9.8 and later have sshd-session.
_HOLDERS = frozenset({"slurmstepd", "sshd", "sshd-session"})
# Of a chain of parents, which may change while it is read.
_MOST_GENERATIONS = 100
# Seconds until systemd is asked again.
_PAUSES_S = (0.2, 0.5)


def services(host: MeasuredHost, seconds: float) -> dict[str, str]:
    """The state of each service that should run. While systemd reads its units again it reports nothing of them: it is
    asked again.
    """
    units = list(host.expected.services)
    argv = ["systemctl", "show", "--property=Id,LoadState,ActiveState", "--", *[f"{unit}.service" for unit in units]]
    states: dict[str, str] = {}
    for pause in (*_PAUSES_S, 0.0):
        states = _states(host.output(argv, seconds))
        if states.keys() >= set(units):
            break
        time.sleep(pause)
    return states


def _states(text: str) -> dict[str, str]:
    states = {}
    for block in text.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        name = values.get("Id", "").rpartition(".service")[0]
        if name and "ActiveState" in values:
            installed = values.get("LoadState") != "not-found"
            states[name] = values["ActiveState"] if installed else "not installed"
    return states


def failed_units(host: MeasuredHost, seconds: float) -> list[str]:
    """Names of units that have failed."""
    text = host.output(["systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--no-pager"], seconds)
    return [line.split()[0] for line in text.splitlines() if line.split()]


def root(host: MeasuredHost, _seconds: float) -> dict[str, Any]:
    """Space of the root file system."""
    return _space(host, "/")


def local_disk(host: MeasuredHost, _seconds: float) -> dict[str, Any]:
    """Space of the local drives."""
    if host.expected.local_disk not in _mounted(host):
        raise Unmeasured(f"nothing is mounted at {host.expected.local_disk}")
    return _space(host, host.expected.local_disk)


def _space(host: MeasuredHost, path: str) -> dict[str, Any]:
    usage = os.statvfs(host.path(path))
    return {
        "bytes": usage.f_blocks * usage.f_frsize,
        "free_bytes": usage.f_bavail * usage.f_frsize,
        "inodes": usage.f_files,
        "free_inodes": usage.f_ffree,
        "read_only": "ro" in _mounted(host).get(path, ()),
    }


def _mounted(host: MeasuredHost) -> dict[str, list[str]]:
    """By mount point its options; the last one counts where several lie on each other."""
    rows = [line.split() for line in read(host.path("/proc/self/mountinfo")).splitlines()]
    return {_unescaped(row[_MOUNT_POINT]): row[_OPTIONS].split(",") for row in rows if len(row) > _OPTIONS}


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def mounts(host: MeasuredHost, seconds: float) -> dict[str, dict[str, Any]]:
    """Whether something is mounted at each path, and whether it answers in time: `stat` asks the file server."""
    mounted = _mounted(host)
    limit = seconds / max(1, len(host.expected.mounts))
    states = {}
    for path in host.expected.mounts:
        there = path in mounted
        states[path] = {"mounted": there, "fault": _silent(host, path, limit) if there else ""}
    return states


def _silent(host: MeasuredHost, path: str, seconds: float) -> str:
    """Why a file system does not answer, or ""."""
    result = host.ask(["stat", "--file-system", "--format=%b", str(host.path(path))], seconds, 1024)
    return result.fault or (result.errors.decode(errors="replace").strip() or "no answer" if result.status else "")


def kernel_settings(host: MeasuredHost, _seconds: float) -> dict[str, Any]:
    """What the kernel does with memory: how many NUMA nodes it has, whether it moves memory between them by itself (the
    number in kernel.numa_balancing, "" for a kernel that can't), and the words of its command line.
    """
    nodes = [name for name in entries(host.path("/sys/devices/system/node")) if re.fullmatch(r"node[0-9]+", name)]
    return {
        "numa_nodes": len(nodes),
        "numa_balancing": read_or_none(host.path("/proc/sys/kernel/numa_balancing")) or "",
        "command_line": read(host.path("/proc/cmdline")).split(),
    }


def memory_mib(host: MeasuredHost, _seconds: float) -> int:
    """Memory that the kernel sees, in MiB."""
    match = re.search(r"^MemTotal:\s+(\d+) kB$", read(host.path("/proc/meminfo")), re.MULTILINE)
    if match is None:
        raise Unmeasured("/proc/meminfo has no MemTotal")
    return int(match[1]) // 1024


def drives(host: MeasuredHost, _seconds: float) -> dict[str, str]:
    """Local NVMe drives and their states; "" where one can't be read."""
    folder = host.path("/sys/class/nvme")
    if not host.path("/sys/class").is_dir():
        raise Unmeasured("there is no /sys/class")
    states = {}
    for name in entries(folder):
        if (read_or_none(folder / name / "transport") or "pcie") == "pcie":
            states[name] = read_or_none(folder / name / "state") or ""
    return states


def clock(host: MeasuredHost, seconds: float) -> dict[str, Any]:
    """Whether the clock follows a time server, and by how many seconds it is off where chrony reports that."""
    try:
        row = host.output(["chronyc", "-n", "-c", "tracking"], seconds / 2).strip().split(",")
        return {"synchronised": row[_LEAP] != "Not synchronised", "offset_s": float(row[_OFFSET])}
    except (Unmeasured, IndexError, ValueError):
        answer = host.output(["timedatectl", "show", "--property=NTPSynchronized", "--value"], seconds / 2).strip()
    if answer not in ("yes", "no"):
        raise Unmeasured(f"timedatectl answers {answer[:40]!r}")
    return {"synchronised": answer == "yes", "offset_s": None}


def clock_jump(host: MeasuredHost, _seconds: float) -> dict[str, Any]:
    """By how many seconds the clock has moved against the time since the boot, since the last check of this boot."""
    boot, now = host.boot_id(), host.wall() - host.monotonic()
    file = host.state / _CLOCK_FILE
    before = samples.load(file)
    samples.keep(file, {"boot": boot, "offset": now})
    known = isinstance(before, dict) and before.get("boot") == boot
    offset = before.get("offset") if known else None
    return {"seconds": round(now - offset, 3) if isinstance(offset, (int, float)) else None}


def leftovers(host: MeasuredHost, _seconds: float) -> dict[str, Any] | Missing:
    """Processes of users outside jobs: their number, users, and seconds of CPU that they have used.

    Slurm puts each process of a job into a control group named after it. Where it has no control groups, in a
    container, those that slurmstepd or its children have started belong to a job that runs. Neither a login by ssh,
    such as the operator's, nor the user's own systemd is a leftover.
    """
    folder = host.path("/proc")
    processes: dict[str, re.Match[str]] = {}
    for name in filter(str.isdigit, entries(folder)):
        found = _STATUS.search(read_or_none(folder / name / "status") or "")
        if found is not None:  # else it has ended
            processes[name] = found
    if not processes:
        return Missing("/proc shows no process")
    users: set[int] = set()
    count, cpu = 0, 0.0
    for name, status in processes.items():
        uid = int(status["uid"])
        if uid < _FIRST_UID or uid == _NOBODY or _is_held(name, processes):
            continue
        groups = read_or_none(folder / name / "cgroup") or ""
        if "/job_" in groups or groups.endswith("/init.scope"):
            continue
        users.add(uid)
        count += 1
        cpu += _cpu_seconds(read_or_none(folder / name / "stat") or "")
    return {"processes": count, "users": sorted(users)[:64], "cpu_s": round(cpu, 1)}


def _is_held(pid: str, processes: Mapping[str, re.Match[str]]) -> bool:
    """Whether the process, or one that it descends from, is that of a running job or of a login."""
    for _generation in range(_MOST_GENERATIONS):
        status = processes.get(pid)
        if status is None:
            return False
        # A user may give a process any name.
        if status["name"] in _HOLDERS and status["uid"] == "0":
            return True
        pid = status["parent"]
    return False


def _cpu_seconds(stat: str) -> float:
    """Of the line of /proc/PID/stat, the time in user and system mode."""
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS if len(fields) > 12 else 0.0  # noqa: PLR2004 - proc(5): fields 14, 15
