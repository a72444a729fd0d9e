"""A Python process per host that has Ansible's library loaded, and forks for each task.

Ansible starts a new interpreter for every task, and sends its library with every task as source in a zip archive. To
compile and import that takes five times as long as what a task of ours does. The first module of a run,
`gpucluster_host`, starts this server from its own process. Later tasks run in a fork of it, through `CLIENT`: a program
that Ansible takes for the interpreter (`ansible_python_interpreter`). Where the server does not answer, that program is
the plain interpreter.

Modules keep their meaning: a fork runs the same source with the task's own environment, standard streams, working
directory and umask. It takes a loaded module of Ansible only if that is the file in the task's archive, by checksum.
"""

from __future__ import annotations

import array
import ast
import atexit
import contextlib
import importlib.abc
import importlib.machinery
import os
import select
import signal
import socket
import subprocess
import sys
import time
import types
import zipfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils import basic

# The interpreter that runs this: the host's link, by which it stays the same after an upgrade of Python.
REAL = sys.executable
DIRECTORY = Path("/run/gpucluster-python")
SOCKET = DIRECTORY / "socket"
# Not below /run, which some systems mount with noexec.
CLIENT = Path("/usr/local/lib/gpucluster/ansible-python")
# Longer than nodes wait for the controller's tasks. It looks more often whether a later run has started another server.
IDLE_SECONDS = 600
LOOK_SECONDS = 10
# At most, until systemd has moved the server. The first task waits for it.
MOVE_SECONDS = 20
STARTED = b"s"
PACKAGE = "ansible"

# It runs once for each task, so it imports nothing that takes long. Only root may connect; for others it is the plain
# interpreter.
CLIENT_SOURCE = """\
#!{real} -IS
# Managed by gpucluster: runs Ansible's modules in a fork of a process that has Ansible's library loaded.
import _socket, os, sys
def plain():
    os.execv("{real}", ["{real}", *sys.argv[1:]])
if len(sys.argv) > 1:
    plain()
try:
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect("{socket}")
    request = repr((dict(os.environ), os.getcwd(), os.umask(0))).encode()
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    server.sendmsg([len(request).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    while request:
        request = request[server.send(request):]
    started = server.recv(1)
except OSError:
    started = b""
if not started:
    plain()
try:
    status = server.recv(1)
except OSError:
    status = b""
if not status:
    os.write(2, b"the process that ran this task was ended\\n")
os._exit(status[0] if status else 1)
"""


def start() -> str:
    """Start a server with the modules of this process, and return the path of the interpreter that uses it.

    It is the plain interpreter for a user who is not root, and where files can't be written.

    It must be called before the process has read the user database: older C libraries do not read a changed
    nsswitch.conf again.
    """
    if os.getppid() == Loaded.server:
        return str(CLIENT)  # facts are gathered again in the same run
    archive = str(getattr(basic.__loader__, "archive", ""))
    # A debugger has unpacked the archive.
    if os.geteuid() != 0 or not archive:
        return REAL
    try:
        DIRECTORY.mkdir(mode=0o700, exist_ok=True)
        _write_client()
        listener = _listen()
    except OSError:
        return REAL
    loaded = Loaded(archive)
    if os.fork() == 0:
        _detach(keep=listener.fileno())
        loaded.take(sys.modules)
        _serve(listener, loaded)
    listener.close()
    return str(CLIENT)


def _listen() -> socket.socket:
    """Take the place of the server of an earlier run, which ends then."""
    new = SOCKET.with_name(f"socket.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(new))
    new.chmod(0o600)
    listener.listen(16)
    new.replace(SOCKET)
    return listener


def _write_client() -> None:
    source = CLIENT_SOURCE.format(real=REAL, socket=SOCKET)
    if CLIENT.is_file() and CLIENT.read_text(encoding="utf-8") == source and os.access(CLIENT, os.X_OK):
        return
    CLIENT.parent.mkdir(parents=True, exist_ok=True)
    new = CLIENT.with_name(f".{CLIENT.name}.{os.getpid()}")
    new.write_text(source, encoding="utf-8")
    new.chmod(0o755)
    new.replace(CLIENT)


class Loaded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Ansible's modules that this process has loaded, for tasks whose archive has the same files.

    Args:
        archive: the zip archive from which they were loaded.
    """

    # In a server and in its forks, the server's process id.
    server = 0

    def __init__(self, archive: str) -> None:
        self._archive = archive
        self._checksums = _checksums(archive)
        self._modules: dict[str, types.ModuleType] = {}
        self._packages: dict[str, str] = {}

    def take(self, modules: dict[str, types.ModuleType]) -> None:
        """Take Ansible's modules out of `modules`, so that a task's import of them asks this finder."""
        loaded = set()
        for name in [name for name in modules if name.partition(".")[0] == PACKAGE]:
            module = modules.pop(name)
            file = str(getattr(module, "__file__", "") or "")
            if file.startswith(f"{self._archive}/"):
                self._modules[name] = module
                loaded.add(file[len(self._archive) + 1 :])
                if hasattr(module, "__path__"):
                    self._packages[name] = os.path.dirname(file)[len(self._archive) :]
        self._checksums = {name: checksum for name, checksum in self._checksums.items() if name in loaded}
        if self._archive in sys.path:
            sys.path.remove(self._archive)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Answer the first import of Ansible's package in a task."""
        del path, target
        if fullname != PACKAGE or not sys.path or not self._is_same(sys.path[0]):
            return None
        for name, module in self._modules.items():
            if name in self._packages:
                # What is not loaded comes from the task's own archive.
                module.__path__ = [sys.path[0] + self._packages[name]]
            if name != PACKAGE:  # the import system puts it there
                sys.modules[name] = module
        return importlib.machinery.ModuleSpec(PACKAGE, self, origin=self._modules[PACKAGE].__file__, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The package as it was loaded."""
        spec.submodule_search_locations = list(self._modules[PACKAGE].__path__)
        return self._modules[PACKAGE]

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: it was executed when the server's process loaded it."""

    def _is_same(self, archive: str) -> bool:
        """Whether each file that is loaded, and that the other archive has too, is the same."""
        try:
            there = _checksums(archive)
        except (OSError, zipfile.BadZipFile):
            return False
        shared = there.keys() & self._checksums.keys()
        return bool(shared) and all(there[name] == self._checksums[name] for name in shared)


def _checksums(archive: str) -> dict[str, int]:
    """By file, the checksum of Ansible's library in an archive; not of the modules of tasks."""
    with zipfile.ZipFile(archive) as opened:
        return {
            entry.filename: entry.CRC
            for entry in opened.infolist()
            if entry.filename.startswith(f"{PACKAGE}/") and not entry.filename.startswith(f"{PACKAGE}/modules/")
        }


def _detach(keep: int) -> None:
    """Become a process without a session, a terminal, and the streams of the task that started it."""
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, keep}:
        with contextlib.suppress(OSError):  # the listing's own
            os.close(number)


def _serve(listener: socket.socket, loaded: Loaded) -> NoReturn:
    """Fork for each connection, until none came for a while, or a later run has started another server."""
    Loaded.server = os.getpid()
    _name("gpucluster-fork")
    _leave_session()
    # The kernel collects the children that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own = SOCKET.stat().st_ino
    end = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < end and SOCKET.exists() and SOCKET.stat().st_ino == own:
        if not select.select([listener], [], [], min(LOOK_SECONDS, IDLE_SECONDS))[0]:
            continue
        connection, _address = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(connection, loaded)
        connection.close()
        end = time.monotonic() + IDLE_SECONDS
    os._exit(0)


def _answer(connection: socket.socket, loaded: Loaded) -> NoReturn:
    """Run one task in this process, and send its exit status."""
    status = 1
    try:
        os.setsid()
        _name("gpucluster-task")
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        environment, directory, mask = _receive(connection)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        os.umask(mask)
        connection.sendall(STARTED)
        status = _run(loaded)
        connection.sendall(bytes([status & 0xFF]))
    finally:
        os._exit(status)


def _leave_session() -> None:
    """Move this process out of the login that has begun the run, if one has, into a scope of its own.

    Where the kernel has no numbers of sessions, as in a container, systemd-logind counts from 1 again after a restart,
    and base restarts it. A later login then gets the name of this one, logind can't start its scope, and stops what it
    finds under the name: this server, with the task that it runs.
    """
    if "/session-" not in _group():
        return  # in a service, with which it is to end
    scope = f"gpucluster-fork-{os.getpid()}.scope"
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
    words = ("ssa(sv)a(sa(sv))", scope, "fail", "1", "PIDs", "au", "1", str(os.getpid()), "0")
    until = time.monotonic() + MOVE_SECONDS
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["busctl", "call", *manager, "StartTransientUnit", *words], check=True, timeout=MOVE_SECONDS)
        # The answer is that of the request. A task that comes earlier would still be in the login's scope.
        while scope not in _group() and time.monotonic() < until:
            time.sleep(0.02)


def _group() -> str:
    """The control groups of this process, among them the path of its unit of systemd."""
    return Path("/proc/self/cgroup").read_text(encoding="utf-8")


def _name(name: str) -> None:
    """Set the name that `ps` shows."""
    Path("/proc/self/comm").write_text(name, encoding="utf-8")


def _receive(connection: socket.socket) -> tuple[dict[str, str], str, int]:
    """Take over the client's streams; its environment, working directory and umask."""
    numbers = array.array("i")
    size, ancillary, _flags, _address = connection.recvmsg(4, socket.CMSG_SPACE(3 * numbers.itemsize))
    for _level, _kind, content in ancillary:
        numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    for stream, number in enumerate(numbers):
        os.dup2(number, stream)
        os.close(number)
    left, parts = int.from_bytes(size, "big"), []
    while left:
        part = connection.recv(left)
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    environment, directory, mask = ast.literal_eval(b"".join(parts).decode())
    return environment, directory, mask


def _run(loaded: Loaded) -> int:
    """Run the program on standard input, as `python3` without arguments does."""
    with open(0, "rb", closefd=False) as stream:
        source = stream.read()
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv = [""]
    sys.meta_path.insert(0, loaded)
    status = 0
    try:
        exec(compile(source, "<stdin>", "exec"), main.__dict__)  # noqa: S102 - Ansible's own wrapper of the module
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    atexit._run_exitfuncs()  # the module's temporary files; this process does not end as an interpreter does
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status
