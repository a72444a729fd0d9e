"""Waits for hosts that boot, and reports why one is not ready."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpucluster import cancellation, process
from gpucluster.errors import ToolError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.ssh.hosts import Host, host_key_error, host_key_refused
from gpucluster.waiting import wait_until

_POLL = 0.5
_WORKERS = 16
_QUIET = 10.0  # seconds before the first event about hosts that do not answer
_ANNOUNCED = 15.0  # seconds between two such events
_NAMED = 3  # the number of hosts that one event names
# What ssh prints when the connection through a jump host has ended, whatever the reason.
_CLOSED = ("kex_exchange_identification:", "Connection closed by", "Connection to UNKNOWN", "stdio forwarding failed")
# cloud-init writes this file when its last stage has ended. `cloud-init status --wait` reports the same, but takes
# a second of processor time on each host, which matters with sixteen hosts on one machine. Our own user data writes its
# readable errors into the second file (see `handover.user_data`).
_CLOUD_INIT = (
    "until [ -s /run/cloud-init/result.json ]; do sleep 0.2; done; cat /run/cloud-init/result.json; "
    "cat /run/gpucluster/boot-errors 2>/dev/null || :"
)
# The number of characters, from the end, that are shown of the errors of a failed boot.
_SHOWN = 600


class Waiting:
    """Waits for hosts at the same time.

    Args:
        argv: makes the command line of ssh for a host and a command.
        until: by the monotonic clock.
    """

    def __init__(
        self, argv: Callable[[str, Sequence[str]], Sequence[str]], hosts: Sequence[Host], until: float, on_event: Sink
    ) -> None:
        self._argv = argv
        self._hosts = hosts
        self._until = until
        self._on_event = on_event
        self._stop = threading.Event()
        # By name of a host that has not answered yet: the last reason.
        self._reasons: dict[str, str] = {}

    def failures(self) -> list[str]:
        """Wait, and return why hosts are not ready."""
        began = time.monotonic()
        with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
            waiting = {pool.submit(self._wait_for, host) for host in self._hosts}
            try:
                pause = _QUIET
                while not cancellation.completed(waiting, pause):
                    self._announce(time.monotonic() - began)
                    pause = _ANNOUNCED
                return sorted(text for one in waiting if (text := one.result()))
            finally:
                self._stop.set()  # after Ctrl-C, no thread waits for its host any more

    def _announce(self, elapsed: float) -> None:
        named = [f"{name}: {reason}" for name, reason in sorted(self._reasons.items())]
        if named:
            more = f", and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            text = f"waiting for {'; '.join(named[:_NAMED])}{more} ({elapsed:.0f} s)"
            self._on_event(Event(EventKind.LOG, "ssh", "waiting", text, elapsed=elapsed))

    def _wait_for(self, host: Host) -> str:
        """Wait for one host. Returns why it is not ready; empty if it is."""
        self._reasons[host.name] = "no answer yet"

        def booted() -> process.Completed | None:
            left = max(self._until - time.monotonic(), 1)
            try:
                argv = self._argv(host.name, [_CLOUD_INIT])
                result = process.run(argv, check=False, timeout=left, stop=self._stop)
            except ToolError as error:
                if not self._stop.is_set():
                    self._reasons[host.name] = error.what
                return None
            if result.returncode != 0:
                if host_key_refused(result.stderr):
                    raise host_key_error(host.name)  # to wait does not help
                self._reasons[host.name] = _reason(result.stderr, host)
            return result if result.returncode == 0 else None

        def booted_or_stopped() -> process.Completed | bool | None:
            return self._stop.is_set() or booted()

        result = wait_until(booted_or_stopped, self._until - time.monotonic(), _POLL, sleep=self._stop.wait)
        if not isinstance(result, process.Completed):
            return f"{host.name}: {self._reasons[host.name]}"
        del self._reasons[host.name]
        errors = _cloud_init_errors(result.stdout)
        return f"{host.name}: cloud-init failed: {'; '.join(errors)[-_SHOWN:]}" if errors else ""


def _reason(stderr: str, host: Host) -> str:
    """Why ssh has no connection, in one line. What ssh prints last is often only that its way through a jump host has
    ended."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_CLOSED)]
    if telling:
        return telling[-1]
    if lines and host.jump:
        return f"{host.jump} has no connection to it at {host.address}"
    return lines[-1] if lines else "no answer"


def _cloud_init_errors(result: str) -> list[str]:
    """The errors in cloud-init's result.json, as `{"v1": {"errors": [...]}}`, and in the text that follows it: that of
    our user data."""
    try:
        parsed, end = json.JSONDecoder().raw_decode(result.lstrip())
        errors = [str(error) for error in parsed["v1"]["errors"]]
    except (ValueError, KeyError, TypeError):
        return [f"its result can't be read: {result[:100]}"]
    ours = result.lstrip()[end:].strip()
    return [*errors, ours] if errors and ours else errors
