"""Start and stop the server of a local cloud, and report its status.

All functions may be called at any time, twice, by several processes at once, or after a crash. They identify the server
by the pid and start time in `endpoint.json`, never by a pid alone.
"""

from __future__ import annotations

import configparser
import fcntl
import http.client
import json
import os
import shlex
import shutil
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpucluster import process
from gpucluster.environment import Program
from gpucluster.errors import DataGuardError, EnvironmentFault, LockedError
from gpucluster.events import Event, EventKind, Sink, ignore
from gpucluster.localcloud.state import source
from gpucluster.localcloud.state.names import HEALTH, LOOK
from gpucluster.paths import import_root, make_private, write_private
from gpucluster.waiting import wait_until

_START_DEADLINE = 180.0  # seconds; a recovery may remove many containers first, on a machine that is busy
_STOP_DEADLINE = 60.0  # seconds; the server first finishes the launches in progress
# Seconds for another start or stop, which may replace a server that does not end by itself.
_LOCK_DEADLINE = 2 * _STOP_DEADLINE + _START_DEADLINE
_LOG_LIMIT = 10 * 1024 * 1024  # bytes; a larger log is renamed at the next start
_LEAST_SPACE = 1024 * 1024  # bytes that a start needs at least
_LOG_TAIL = 15  # lines that go into the message of a failed start
_LOOK_TIMEOUT = 10.0  # seconds in which the server lists its containers
_ELSEWHERE_TIMEOUT = 10.0  # seconds in which a server answers that no process here shows to be alive
_POLL = 0.05
# The content of a home; `purge` removes these names and nothing else.
_CONTENTS = (
    "cloud.db", "cloud.db-wal", "cloud.db-shm", "credentials", "endpoint.json", "exports", "faults.json",
    "filesystems", "gpus.json", "images", "instances", "log", "null", "process-engine.json", "processes", "providers",
    "server.lock", "start.lock",
)  # fmt: skip


@dataclass(frozen=True)
class LocalCloudStatus:
    """The status of a local cloud.

    Attributes:
        instances: number of instances by lifecycle state, without the terminated ones.
        resources: number of all other existing resources, by kind.
        orphans: leftover containers and networks without a row, which the last start removed.
    """

    home: Path
    running: bool
    pid: int | None = None
    endpoint: str = ""
    instances: Mapping[str, int] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    orphans: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether nothing is left that a user or Terraform created."""
        return not self.instances and not any(self.resources.get(kind) for kind in _OWNED)

    def to_dict(self) -> dict[str, object]:
        """The same values as JSON."""
        return {
            "home": str(self.home),
            "running": self.running,
            "pid": self.pid,
            "endpoint": self.endpoint,
            "instances": dict(self.instances),
            "resources": dict(self.resources),
            "orphans": list(self.orphans),
        }


# Kinds that a client creates; all others are created and deleted with these. A compartment outlives its cluster and
# keeps nothing running.
_OWNED = ("vcn", "subnet", "filesystem", "mounttarget", "instanceconfiguration", "computecluster", "instancepool",
          "clusternetwork", "computegpumemorycluster", "policy", "dynamicgroup")  # fmt: skip


def start(home: Path, on_event: Sink | None = None, *, engine: str = "podman") -> LocalCloudStatus:
    """Start the server of a home unless it runs, and wait until it answers.

    Args:
        engine: what runs the instances: "podman"; "process" for processes instead of containers (thousands of nodes);
            "null" launches nothing and is for tests.

    Raises:
        EnvironmentFault: the server did not start; the hint has the last lines of its log.
        LockedError: another start or stop has been in progress for five minutes.
    """
    report = on_event or ignore
    if elsewhere(home):
        return status(home)
    make_private(home)
    with _start_lock(home):
        record = _record(home)
        if record is not None:
            # It may be slow to answer: only its answer has its version.
            record, health = _await_answer(home, record.pid)
            if health.get("code") != source.digest():
                # Its instances continue to run meanwhile. It may lack what this version asks for.
                report(Event(EventKind.RESOURCE, "local cloud", "replacing", "its API server is of another version"))
                _end(home, record)
                record = None
        if record is not None:
            # endpoint.json, which other programs read, may be missing or damaged.
            write_private(home / "endpoint.json", json.dumps(asdict(record)) + "\n")
        else:
            report(Event(EventKind.RESOURCE, "local cloud", "creating", f"starting the API server in {home}"))
            began = time.monotonic()
            _spawn(home, engine)
            report(Event(EventKind.RESOURCE, "local cloud", "created", elapsed=time.monotonic() - began))
    return status(home)


def elsewhere(home: Path) -> bool:
    """Whether the server that endpoint.json names belongs to another machine, container or user, and answers.

    Then a home needs nothing but that file and `credentials/`: a user who has these works in a local cloud that is
    started and stopped elsewhere.
    """
    record = _record(home)
    if record is not None:
        return os.stat(f"/proc/{record.pid}").st_uid != os.geteuid()
    try:
        endpoint = str(json.loads((home / "endpoint.json").read_text())["endpoint"])
        credentials = configparser.ConfigParser(interpolation=None)
        credentials.read_string((home / "credentials" / "config").read_text())
        return _health(endpoint, timeout=_ELSEWHERE_TIMEOUT).get("tenancy") == credentials["DEFAULT"]["tenancy"]
    except (OSError, ValueError, KeyError, TypeError, configparser.Error):
        return False


def stop(home: Path) -> None:
    """Stop the server of a home. Its instances continue to run. Does nothing if the server does not run."""
    with _start_lock(home) if home.is_dir() else _no_lock():
        record = _record(home)
        if record is None:
            return
        _end(home, record)


def _end(home: Path, record: _ServerRecord) -> None:
    os.kill(record.pid, signal.SIGTERM)
    if not _ended_within(record, _STOP_DEADLINE):
        # The server records every step before it does it, so it may be killed at any point.
        os.kill(record.pid, signal.SIGKILL)
        _ended_within(record, _STOP_DEADLINE)
    (home / "endpoint.json").unlink(missing_ok=True)


def stop_if_empty(home: Path) -> bool:
    """Stop the server if no resources are left. True if the server does not run afterwards."""
    now = status(home)
    if now.running and now.empty:
        stop(home)
        return True
    return not now.running


def status(home: Path) -> LocalCloudStatus:
    """The status of the local cloud. Reads its files only, so it also works while the server is stopped.

    A server that runs is asked for a sign of life first: then it also looks at its containers.
    """
    record = _record(home)
    if record is not None:
        _health(record.endpoint, LOOK, _LOOK_TIMEOUT)
    instances, resources, orphans = _contents(home / "cloud.db")
    return LocalCloudStatus(
        home=home,
        running=record is not None,
        pid=record.pid if record else None,
        endpoint=record.endpoint if record else "",
        instances=instances,
        resources=resources,
        orphans=orphans,
    )


def purge(home: Path) -> None:
    """Stop the server and remove the content of a home.

    Raises:
        DataGuardError: resources still exist in it.
    """
    now = status(home)
    if not now.empty:
        left = {**{f"instance {state}": count for state, count in now.instances.items()}, **now.resources}
        raise DataGuardError(
            "the local cloud still has " + ", ".join(f"{count} {name}" for name, count in sorted(left.items())),
            where=str(home),
            hint="Destroy the clusters in it first",
        )
    stop(home)
    for name in _CONTENTS:
        path = home / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if home.is_dir() and not any(home.iterdir()):
        home.rmdir()


@dataclass(frozen=True)
class _ServerRecord:
    """The running server of a home."""

    endpoint: str
    pid: int
    identity: str

    @property
    def alive(self) -> bool:
        return process.identity(self.pid) == self.identity


def _record(home: Path) -> _ServerRecord | None:
    """The server that endpoint.json names, if that process still runs. A stale or damaged file counts as missing.

    If the file is missing or not written yet, the server's lock file names the process.
    """
    for name in ("endpoint.json", "server.lock"):
        try:
            raw = json.loads((home / name).read_text())
            record = _ServerRecord(str(raw["endpoint"]), int(raw["pid"]), str(raw["identity"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if record.alive:
            return record
    return None


def _ended_within(record: _ServerRecord, seconds: float) -> bool:
    return wait_until(lambda: not record.alive, seconds, _POLL)


@contextmanager
def _start_lock(home: Path) -> Iterator[None]:
    descriptor = os.open(home / "start.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not wait_until(lambda: _try_lock(descriptor), _LOCK_DEADLINE, _POLL):
            raise LockedError(
                "another start or stop of the local cloud is in progress",
                where=str(home),
                hint="Wait until it ends, then run the same command again",
            )
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Whether this process has got the lock now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _no_lock() -> Iterator[None]:
    yield


def _spawn(home: Path, engine: str) -> None:
    log = home / "log" / "server.log"
    if log.exists() and log.stat().st_size > _LOG_LIMIT:
        log.replace(log.with_suffix(".log.1"))
    # The daemon's working directory is /, so PYTHONPATH must have a checkout that is not installed.
    search = os.pathsep.join(part for part in (str(import_root()), os.environ.get("PYTHONPATH", "")) if part)
    environment = {**process.environment_for(Program.TOOLS), "PYTHONPATH": search}
    pid = process.spawn_daemon(_server_argv(home, engine), log=log, env=environment)
    _await_answer(home, pid)


def _await_answer(home: Path, pid: int) -> tuple[_ServerRecord, Mapping[str, str]]:
    """Wait until the server with this pid has written its endpoint and answers there. Returns its answer, too."""

    def answering() -> tuple[_ServerRecord, Mapping[str, str]] | None:
        record = _record(home)
        if record is not None and record.pid == pid and (health := _health(record.endpoint)).get("status") == "ok":
            return record, health
        if process.identity(pid) is None:
            raise _start_failure(home, "the server of the local cloud ended at once")
        return None

    found = wait_until(answering, _START_DEADLINE, _POLL)
    if found is None:
        raise _start_failure(home, f"the server of the local cloud did not answer within {_START_DEADLINE:.0f} s")
    return found


def _health(endpoint: str, query: str = "", timeout: float = 2) -> Mapping[str, str]:
    """What a server reports of itself; empty if none answers."""
    if not endpoint:
        return {}
    host, _, port = endpoint.removeprefix("http://").partition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=timeout)) as connection:
        try:
            connection.request("GET", f"{HEALTH}?{query}" if query else HEALTH)
            answer = json.loads(connection.getresponse().read())
        except (OSError, ValueError, http.client.HTTPException):
            return {}
    return answer if isinstance(answer, dict) else {}


def _start_failure(home: Path, what: str) -> EnvironmentFault:
    log = home / "log" / "server.log"
    lines = log.read_text(errors="replace").splitlines()[-_LOG_TAIL:] if log.exists() else []
    if shutil.disk_usage(home).free < _LEAST_SPACE:
        return EnvironmentFault(
            f"{what}: the disk is full", where=str(home), hint="Free some space and run the same command again"
        )
    by_hand = f"Start it by hand to see why: {shlex.join(_server_argv(home, 'podman'))}"
    text = "The last lines of its log:\n" + "\n".join(f"  {line}" for line in lines)
    return EnvironmentFault(what, where=str(log), hint=text if lines else f"Its log is empty. {by_hand}")


def _server_argv(home: Path, engine: str) -> list[str]:
    return [sys.executable, "-m", "gpucluster.localcloud.server", "--home", str(home.resolve()), "--engine", engine]


def _contents(database: Path) -> tuple[dict[str, int], dict[str, int], tuple[str, ...]]:
    if not database.exists():
        return {}, {}, ()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'setting'").fetchone():
            return {}, {}, ()  # the first start makes the file at this moment
        rows = connection.execute(
            "SELECT kind, json_extract(body, '$.lifecycleState'), json_extract(hidden, '$.platform')"
            " FROM resource WHERE gone_at IS NULL"
        ).fetchall()
        orphans = connection.execute("SELECT value FROM setting WHERE key = 'orphans'").fetchone()
    instances = Counter(str(state) for kind, state, _ in rows if kind == "instance")
    hidden = ("instance", "coreservicesworkrequest")
    resources = Counter(str(kind) for kind, _, platform in rows if kind not in hidden and not platform)
    return dict(instances), dict(resources), tuple(json.loads(orphans[0])) if orphans else ()
