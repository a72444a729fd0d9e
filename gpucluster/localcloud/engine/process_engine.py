"""Instances as plain processes of this machine, for clusters of thousands of nodes: no container, no boot.

`<home>/process-engine.json` configures the processes; it is written before the server starts:

    {"argv": ["slurmd", "-D", "-N", "{hostname}"], "boot_seconds": 2.5, "stop_argv": ["./stop", "{hostname}"]}

`{hostname}`, `{ocid}` and `{ip}` are replaced. A launch waits `boot_seconds` (default 0) and starts `argv` in its own
session with a log file; nothing listens at the address of the instance. A termination runs `stop_argv`, if there is
one, and kills the process group at once, as if the host were switched off. Processes that left the group are found by
a marker in their environment and killed within a second. The file is read at each launch and each termination.

`<home>/processes/machines/<name>` has the pid and start time, by which a restarted server finds its processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster import process
from gpucluster.environment import Program
from gpucluster.errors import CloudError, GpuClusterError, InputError
from gpucluster.localcloud.engine.null_engine import NullEngine
from gpucluster.localcloud.engine.protocol import LABEL_OCID, EngineInstance, LaunchRequest, NetworkListeners, RunState
from gpucluster.waiting import wait_until

CONFIG = "process-engine.json"
_HOME_MARKER, _NAME_MARKER = "GPUCLUSTER_PROCESS_HOME", "GPUCLUSTER_PROCESS_NAME"
_KILL_DEADLINE = 60.0  # seconds until a killed process is gone; it may wait for a disk, or a processor
_STOP_TIMEOUT = 30.0
_SWEEP_AFTER = 0.5
_POLL = 0.005


class ProcessEngine(NullEngine):
    """Runs one process for each instance; networks and images are only recorded."""

    workers = 4
    networked = False

    def __init__(self, home: Path) -> None:
        super().__init__(home / "processes", image="process/none:1")
        self._home = home
        self._sweeping = threading.Lock()
        self._sweep_is_due = False

    def boot_seconds(self) -> float:
        """The time from the launch to the start of the process."""
        return float(self._config().get("boot_seconds", 0))

    def serve_networks(self, listeners: Mapping[str, NetworkListeners]) -> None:
        """Not asked for: the processes use the network of this machine."""

    def launch(self, request: LaunchRequest) -> None:
        """Start the process. A leftover process of the same name is killed first.

        Raises:
            CloudError: the instance should have devices: every process sees all of this host.
        """
        if request.devices:
            raise CloudError(
                f"{request.name} can't get GPUs of this machine: the engine makes processes, not containers"
            )
        if self.state(request.name) == RunState.RUNNING:
            self._kill(request.name)
        record = {
            "state": RunState.RUNNING,
            "ocid": request.labels[LABEL_OCID],
            "ip": request.ip,
            "hostname": request.hostname,
        }
        # Recorded before it runs: a process that has the marker and no record is killed.
        self._write(request.name, record)
        self._spawn(request.name, record)

    def start(self, name: str) -> None:
        """Start the process again, unless it runs."""
        if self.state(name) != RunState.RUNNING:
            record = {key: value for key, value in self._record(name).items() if key not in ("pid", "identity")}
            self._write(name, record)
            self._spawn(name, record)

    def event_command(self) -> list[str]:
        """Nothing: no instance of it reboots itself."""
        return []

    def rebooted(self, event: str) -> str:
        """No instance."""
        return ""

    def stop(self, name: str) -> None:
        """Kill the process; the instance stays."""
        self._kill(name)

    def terminate(self, name: str) -> None:
        """Kill the process and remove the record; does nothing for an unknown name."""
        if not self._path(name).exists():
            return
        self._kill(name)
        self._path(name).unlink(missing_ok=True)
        self._log(name).unlink(missing_ok=True)
        self._sweep_soon()

    def state(self, name: str) -> RunState:
        """Decided by pid and start time."""
        if not self._path(name).exists():
            return RunState.ABSENT
        return RunState.RUNNING if self._pid(self._record(name)) else RunState.STOPPED

    def instances(self) -> list[EngineInstance]:
        """The recorded instances. Processes with the marker of this home and without a record are killed.

        For the start of a server, while nothing is being launched: it also kills a process whose pid is in no record
        because the earlier server was killed after the start of the process and before it wrote the pid.
        """
        self._sweep(unrecorded=True)
        names = sorted(path.name for path in (self.root / "machines").iterdir() if not path.name.startswith("."))
        return [EngineInstance(name, self.state(name), self._record(name)["ocid"]) for name in names]

    def devices_in_use(self) -> list[str]:
        """None: see `launch`."""
        return []

    def states(self) -> None:
        """Thousands of processes: looking at each of them is not cheap."""
        return

    def console(self, name: str) -> bytes:
        """The output of the process."""
        with contextlib.suppress(FileNotFoundError):
            return self._log(name).read_bytes()
        return b""

    def end_all(self) -> None:
        """Kill every process of this home; for tests, which must leave nothing behind."""
        for name in [instance.name for instance in self.instances()]:
            self.terminate(name)
        self._sweep()

    # one process

    def _spawn(self, name: str, record: Mapping[str, Any]) -> None:
        config = self._config()
        # The server has its own PYTHONPATH, which finds a checkout that is not installed.
        search = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        markers = {_HOME_MARKER: str(self._home), _NAME_MARKER: name}
        env = {**process.environment_for(Program.TOOLS), **search, **markers}
        pid = process.spawn_daemon(_fill_in(config["argv"], record), log=self._log(name), env=env)
        self._write(name, {**record, "pid": pid, "identity": process.identity(pid)})

    def _kill(self, name: str) -> None:
        record = self._record(name)
        self._ask_to_stop(record)
        pid = self._pid(record)
        if pid is not None:
            # The pid is also the id of the process group, so the kernel does not reuse it while the group exists.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if not wait_until(lambda: self._pid(record) is None, _KILL_DEADLINE, _POLL):
                raise CloudError(f"the process {pid} of {name} does not end", where=str(self._path(name)))
        if record.get("pid"):
            _reap(int(record["pid"]))

    def _ask_to_stop(self, record: Mapping[str, Any]) -> None:
        # Errors do not matter: the process is killed afterwards.
        with contextlib.suppress(GpuClusterError):
            argv = self._config().get("stop_argv")
            if argv and record.get("pid"):
                process.run(_fill_in(argv, record), check=False, timeout=_STOP_TIMEOUT)

    def _pid(self, record: Mapping[str, Any]) -> int | None:
        """The pid of an instance's process, if it is still the same process; else None."""
        pid, identity = record.get("pid"), record.get("identity")
        # Without an identity it had ended before that was looked at.
        return int(pid) if pid and identity and process.identity(int(pid)) == identity else None

    # processes that left their group

    def _sweep_soon(self) -> None:
        """Schedule a sweep: one search through all processes serves many terminations."""
        with self._sweeping:
            if self._sweep_is_due:
                return
            self._sweep_is_due = True
        timer = threading.Timer(_SWEEP_AFTER, self._sweep)
        timer.daemon = True
        timer.start()

    def _sweep(self, *, unrecorded: bool = False) -> None:
        with self._sweeping:
            self._sweep_is_due = False
        for pid in process.pids_with_variable(_HOME_MARKER, str(self._home)):
            name = _marker_name(pid)
            if name and self._is_stray(name, unrecorded):
                for member in (pid, *_descendants(pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)
                _reap(pid)

    def _is_stray(self, name: str, unrecorded: bool) -> bool:
        try:
            recorded = self._record(name).get("pid")
            return unrecorded and not recorded
        except FileNotFoundError:
            return True

    # files

    def _config(self) -> dict[str, Any]:
        file = self._home / CONFIG
        hint = 'Write it before the server starts, such as {"argv": ["sleep", "infinity"], "boot_seconds": 1}'
        try:
            config = json.loads(file.read_text())
            if not (isinstance(config["argv"], list) and config["argv"]):
                raise TypeError("argv is not a list of words")
            float(config.get("boot_seconds", 0))
        except OSError as error:
            raise InputError(f"can't be read: {error.strerror}", where=str(file), hint=hint) from error
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"is not a valid configuration of the process engine: {error!r}", where=str(file), hint=hint
            ) from error
        return dict(config)

    def _path(self, name: str) -> Path:
        return self.root / "machines" / name

    def _log(self, name: str) -> Path:
        return self.root / "log" / f"{name}.log"

    def _record(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self._path(name).read_text()))

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        part = self.root / "machines" / f".{name}.part"
        part.write_text(json.dumps(dict(record)))
        os.replace(part, self._path(name))


def _fill_in(argv: list[str], record: Mapping[str, Any]) -> list[str]:
    def fill(word: str) -> str:
        for name in ("hostname", "ocid", "ip"):
            word = word.replace(f"{{{name}}}", str(record[name]))
        return word

    return [fill(str(word)) for word in argv]


def _marker_name(pid: int) -> str:
    prefix = f"{_NAME_MARKER}=".encode()
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((entry[len(prefix) :].decode() for entry in environment if entry.startswith(prefix)), "")


def _descendants(pid: int) -> list[int]:
    """All descendants: those of a node's daemons may not have the marker."""
    pids = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                pids += [int(child), *_descendants(int(child))]
    return pids


def _reap(pid: int) -> None:
    """Reap an ended child. A process that an earlier server started is not a child of this one."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
