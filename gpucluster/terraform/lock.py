"""The lock of a state in a remote backend, held for a whole run and not only while Terraform works.

`terraform console` takes the state's lock, whatever the backend is, and releases it when its standard input ends. We
keep that input open. A copy of it goes to every Terraform of the run: if we are killed, the lock stays held until the
last of them has ended. Measured with Terraform 1.11.4: held after 0.1 to 0.3 s, released 5 ms after its input
ended.

All other commands of the run work with -lock=false. Servers of the http backend accept a write of a locked state only
with the lock's ID, so it is added to the address.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import socket
import struct
import termios
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from gpucluster import cancellation, process
from gpucluster.errors import GpuClusterError, ToolError
from gpucluster.node_agent import bounded
from gpucluster.process import signals
from gpucluster.terraform import messages
from gpucluster.terraform.backends import ADDRESS_VARIABLE, BackendConfig
from gpucluster.terraform.diagnosis import Lock, lock_of
from gpucluster.terraform.program import START_TIMEOUT
from gpucluster.waiting import wait_until

#: Seconds to wait for a lock that another program holds: a plan of another operator may end soon.
WAIT = 10.0
_POLL = 0.01
_RETRY = 1.0
# Seconds for the end of a console. One that is killed leaves the lock in the backend.
_END = 120.0
_HOLDER_TIMEOUT = 10.0
_INT = struct.calcsize("i")

T = TypeVar("T")
# What to raise for the text of Terraform's errors.
Failure = Callable[[str], GpuClusterError]


class StateLock:
    """The lock of one cluster's state, shared by everything in this process that runs Terraform for it."""

    def __init__(self) -> None:
        self._console: process.InputProgram | None = None
        self._id = ""
        self._known: tuple[BackendConfig, Any] | None = None

    @property
    def held(self) -> bool:
        """Whether this run holds it. If the program that holds it was killed, Terraform locks by itself again."""
        return self._console is not None and self._console.ended() is None

    def known(self, backend: BackendConfig) -> Any:
        """What `remember` has stored of the state in this backend; None if nothing, or if it may have changed."""
        return self._known[1] if self.held and self._known and self._known[0] == backend else None

    def remember(self, backend: BackendConfig, contents: T) -> T:
        """Remember what is in the state, for as long as no other run may change it. Returns it."""
        self._known = (backend, contents) if self.held else None
        return contents

    def forget(self) -> None:
        """Forget what is in the state: this run has written it."""
        self._known = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What a program inherits that changes the state: the lock is held as long as it runs."""
        return (self._console.input_descriptor,) if self._console is not None and self.held else ()

    def options(self, timeout: str) -> dict[str, Any]:
        """The options about the lock for a command of Terraform, as python-terraform has them.

        Args:
            timeout: how long Terraform waits for the lock if this run does not hold it.
        """
        return {"lock": False} if self.held else {"lock_timeout": timeout}

    @property
    def arguments(self) -> tuple[str, ...]:
        """The same as arguments, without a timeout."""
        return ("-lock=false",) if self.held else ()

    def writable(self, backend: BackendConfig) -> BackendConfig:
        """The backend as a command needs it that writes the state which this run has locked."""
        address = backend.config.get("address") or os.environ.get(ADDRESS_VARIABLE)
        if backend.kind != "http" or not (self._id and self.held and address):
            return backend
        parts = urlsplit(str(address))
        query = urlencode([*parse_qsl(parts.query, keep_blank_values=True), ("ID", self._id)])
        return replace(backend, config={**backend.config, "address": parts._replace(query=query).geturl()})

    @contextmanager
    def hold(
        self,
        program: Path,
        folder: Path,
        env: Mapping[str, str],
        backend: BackendConfig,
        failure: Failure,
        wait: float = WAIT,
    ) -> Iterator[None]:
        """Hold the lock until the block ends, or until this process and its Terraform have ended.

        Args:
            folder: initialized for the backend.
            failure: makes the error from what Terraform printed.
            wait: seconds to wait for another run that holds it.

        Raises:
            LockedError: another run holds it.
            TerraformError: the backend refused.
        """
        if self.held or not backend.locks:
            yield
            return
        try:
            self._take(program, folder, env, time.monotonic() + wait, failure)
            if backend.kind == "http":
                self._id = _held_id(program, folder, env)
            yield
        finally:
            signals.surely(self._release)

    def _take(self, program: Path, folder: Path, env: Mapping[str, str], deadline: float, failure: Failure) -> None:
        """Start consoles, one after the other, until one has the lock. `_release` ends it, whatever interrupts this."""
        while True:
            result = self._start_console(program, folder, env)
            if result is None:
                return
            self._release()
            if _lock_in(result.stderr) is None or time.monotonic() > deadline:
                raise failure(result.stderr)
            cancellation.sleep(_RETRY)

    def _start_console(self, program: Path, folder: Path, env: Mapping[str, str]) -> process.Completed | None:
        """Start a console whose first line reads from a pipe of ours, and by then it has the lock. If we are killed
        meanwhile, the pipe ends, and the console after it: who opened a FIFO would wait for us for ever.

        Returns:
            How it ended if it did not get the lock; None if it holds it.
        """
        reads, writes = os.pipe()
        try:
            os.write(writes, b".")
            with signals.deferred():
                argv = [str(program), "console"]
                console = self._console = process.InputProgram(argv, env=env, cwd=folder, inherited=(reads,))
            console.send(f'file("/dev/fd/{reads}")\n')
            return _refusal(console, reads)
        finally:
            # Both, or the console would wait for the end of the pipe.
            with signals.deferred():
                os.close(reads)
                os.close(writes)

    def _release(self) -> None:
        console, self._console, self._id, self._known = self._console, None, "", None
        if console is not None:
            console.close(_END)


def _refusal(console: process.InputProgram, pipe: int) -> process.Completed | None:
    """How a console ended that did not get the lock; None if it holds it.

    Args:
        pipe: our copy of the end that it reads.
    """
    if not wait_until(lambda: _is_read(pipe) or console.ended() is not None, START_TIMEOUT, _POLL):
        raise ToolError(
            f"terraform console did not get the state's lock within {START_TIMEOUT:.0f} s, and gave no reason",
            hint="Run the same command again",
        )
    return console.ended()


def _is_read(pipe: int) -> bool:
    """Whether a program has read what was in the pipe."""
    unread = bytearray(_INT)
    fcntl.ioctl(pipe, termios.FIONREAD, unread)
    return not any(unread)


def _held_id(program: Path, folder: Path, env: Mapping[str, str]) -> str:
    """The ID of the lock that is held now: a second console is refused with it."""
    refused = process.run([str(program), "console"], env=env, cwd=folder, check=False, timeout=START_TIMEOUT)
    lock = _lock_in(refused.stderr)
    return lock.id if lock else ""


def _lock_in(printed: str) -> Lock | None:
    """The lock that a refused command names."""
    diagnostics = messages.plain_diagnostics(process.without_colour(printed))
    locks = (lock_of(str(each.get("detail", ""))) for each in diagnostics)
    return next((lock for lock in locks if lock), None)


def holder(backend: BackendConfig, lock: Lock) -> Lock:
    """The same lock with its holder, which Terraform does not print for the http backend: its server is asked.

    A server answers a request for a lock with the lock that is held. If it is free by now, it is released again.
    """
    address = backend.config.get("lock_address") or os.environ.get("TF_HTTP_LOCK_ADDRESS")
    if backend.kind != "http" or lock.who or not address:
        return lock
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    request = {"ID": str(uuid.uuid4()), "Operation": "who holds it", "Who": socket.gethostname(), "Created": now}
    body = json.dumps({**request, "Info": "", "Path": "", "Version": ""}).encode()
    try:
        if not _request(str(backend.config.get("lock_method") or "LOCK"), str(address), body):
            unlock = backend.config.get("unlock_address") or os.environ.get("TF_HTTP_UNLOCK_ADDRESS") or address
            _request(str(backend.config.get("unlock_method") or "UNLOCK"), str(unlock), body)
    except urllib.error.HTTPError as error:
        with suppress(OSError, ValueError, AttributeError):
            held = bounded.loads(error.read())
            if held.get("ID") == lock.id:
                return Lock(lock.id, str(held.get("Who") or ""), str(held.get("Created") or ""), lock.operation)
    except (OSError, ValueError):
        pass  # the lock is reported without its holder
    return lock


def _request(method: str, address: str, body: bytes) -> bytes:
    if urlsplit(address).scheme not in ("http", "https"):
        raise ValueError(address)
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data=body, method=method, headers=headers)  # noqa: S310 - checked above
    user, password = os.environ.get("TF_HTTP_USERNAME"), os.environ.get("TF_HTTP_PASSWORD")
    if user and password:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())
    with urllib.request.urlopen(request, timeout=_HOLDER_TIMEOUT) as answer:  # noqa: S310 - checked above
        content: bytes = answer.read()
    return content
