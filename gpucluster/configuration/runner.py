"""Runs playbooks through ansible-runner: events for tasks, and a result for every host."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpucluster import process
from gpucluster.errors import AnsibleError
from gpucluster.events import Event, EventKind, LogLevel, Sink
from gpucluster.paths import ClusterPaths, ansible_dir, write_private

FORKS = 20
SAVED_ARTIFACTS = 10
_log = logging.getLogger(__name__)  # `--debug` shows it


@dataclass(frozen=True)
class HostResult:
    """The numbers of tasks of a playbook on one host, by their result."""

    ok: int
    changed: int
    failed: int
    unreachable: int


@dataclass(frozen=True)
class PlaybookResult:
    """A playbook that succeeded.

    Args:
        facts: by host, the facts named gpucluster_* that tasks have set.
        roles: the wall clock seconds of each role; for tasks outside of roles, of their playbook.
    """

    hosts: Mapping[str, HostResult]
    facts: Mapping[str, Mapping[str, Any]]
    roles: Mapping[str, float]

    @property
    def changed(self) -> int:
        """The number of changed tasks on all hosts."""
        return sum(host.changed for host in self.hosts.values())


@dataclass
class _Listener:
    """Turns ansible-runner's events into ours."""

    on_event: Sink
    playbook: str
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    roles: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    stats: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    _announced: set[tuple[str, str]] = field(default_factory=set)
    _role: str = ""
    _since: float = field(default_factory=time.monotonic)

    def __call__(self, event: Mapping[str, Any]) -> bool:
        if event.get("stdout"):
            _log.debug("%s", process.without_colour(str(event["stdout"])).strip())
        data = event.get("event_data") or {}
        name = event.get("event", "")
        if name in ("playbook_on_task_start", "playbook_on_handler_task_start"):
            self._enter(str(data.get("role") or self._file_of(data)))
        elif name == "playbook_on_stats":
            self._enter("")
            self.stats = data
        elif name in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_async_failed"):
            self._task(name, data)
        return False  # ansible-runner need not write a file for the event

    def _enter(self, role: str) -> None:
        now = time.monotonic()
        if self._role:
            self.roles[self._role] = self.roles.get(self._role, 0.0) + now - self._since
        self._role, self._since = role, now

    def _file_of(self, data: Mapping[str, Any]) -> str:
        """The playbook that has the task: one may import others."""
        return Path(str(data.get("task_path") or self.playbook).partition(":")[0]).stem

    def _task(self, name: str, data: Mapping[str, Any]) -> None:
        host, task = str(data.get("host", "")), str(data.get("task", ""))
        role = data.get("role")
        title = f"{role} : {task}" if role else task
        result = data.get("res")
        result = result if isinstance(result, Mapping) else {}
        if name == "runner_on_ok":
            self._collect_facts(host, result.get("ansible_facts"))
            status, message = ("changed" if result.get("changed") else "ok"), ""
            self._announce_message(str(role or self.playbook), host, result, str(data.get("task_action", "")))
        elif name == "runner_on_unreachable":
            status, message = "unreachable", _reason(result)
            self.failures.append(f"{host}: unreachable: {message}")
        elif data.get("ignore_errors"):
            return
        else:
            status, message = "failed", _reason(result)
            self.failures.append(f"{host}: {title}: {message}")
        self.on_event(Event(EventKind.TASK, title, status, message, elapsed=data.get("duration"), data={"host": host}))

    def _announce_message(self, source: str, host: str, result: Mapping[str, Any], action: str) -> None:
        """Announce the message of a debug task. A message that many hosts have is announced once."""
        message = str(result.get("msg") or "") if action.endswith("debug") else ""
        if message and (source, message) not in self._announced:
            self._announced.add((source, message))
            self.on_event(Event(EventKind.LOG, source, LogLevel.INFO, f"{host}: {message}", data={"host": host}))

    def _collect_facts(self, host: str, facts: Any) -> None:
        if isinstance(facts, Mapping):
            ours = {key: value for key, value in facts.items() if str(key).startswith("gpucluster_")}
            self.facts.setdefault(host, {}).update(ours)


def _reason(result: Mapping[str, Any]) -> str:
    """Why a task failed, in one line. A censored result (`no_log`) is not shown."""
    if "censored" in result:
        return "the details are hidden, because they may contain secrets"
    for key in ("stderr", "msg", "module_stderr", "stdout"):
        text = str(result.get(key) or "").strip()
        if text:
            return " ".join(text.split())[:600]
    for item in result.get("results") or ():
        if isinstance(item, Mapping) and item.get("failed"):
            return _reason(item)
    return "no reason given"


def write_inventory(paths: ClusterPaths, inventory: Mapping[str, Any], file: Path | None = None) -> Path:
    """Write the inventory into the cluster's folder (or into `file`) and return its path."""
    file = file or paths.ansible / "inventory.yml"
    write_private(file, yaml.safe_dump(dict(inventory), sort_keys=False))
    return file


class Ansible:
    """Runs our playbooks against the hosts of one cluster.

    Args:
        ssh_config: the file with the hosts and how to reach them.
        env: added to the environment of the playbooks.
    """

    def __init__(self, paths: ClusterPaths, ssh_config: Path, env: Mapping[str, str], on_event: Sink) -> None:
        self._paths = paths
        self._ssh_config = ssh_config
        self._env = dict(env)
        self._on_event = on_event

    def run(self, playbook: str, inventory: Path, *, run_id: str) -> PlaybookResult:
        """Run one playbook to its end.

        Args:
            playbook: the name of its file, such as "site.yml".
            run_id: the name of ansible-runner's folder for this run begins with it.

        Raises:
            AnsibleError: a task failed or a host can't be reached; the text names each host, role and task.
            KeyboardInterrupt: the user stopped it; ansible-playbook has ended.
        """
        import ansible_runner

        listener = _Listener(self._on_event, playbook)
        _log.debug("run: ansible-playbook --inventory %s --forks %d %s", inventory, FORKS, ansible_dir() / playbook)
        with _stoppable() as stopped:
            outcome = ansible_runner.run(
                private_data_dir=str(self._paths.ansible),
                project_dir=str(ansible_dir()),
                playbook=str(ansible_dir() / playbook),
                inventory=str(inventory),
                ident=f"{run_id}-{playbook.removesuffix('.yml')}",
                envvars=self._envvars(),
                forks=FORKS,
                quiet=True,
                event_handler=listener,
                cancel_callback=stopped,
                rotate_artifacts=SAVED_ARTIFACTS,
                settings={"suppress_ansible_output": True},
            )
            if stopped():
                raise KeyboardInterrupt
        if outcome.status != "successful":
            what = "\n".join(f"  {failure}" for failure in listener.failures) or f"  {_output_tail(outcome)}"
            raise AnsibleError(
                f"{playbook} failed:\n{what}",
                hint="Fix the cause, then run: gpucluster apply. What is done already stays done",
            )
        return PlaybookResult(_hosts(listener.stats), listener.facts, listener.roles)

    def _envvars(self) -> dict[str, str]:
        return {
            "ANSIBLE_CONFIG": str(ansible_dir() / "ansible.cfg"),
            "ANSIBLE_SSH_ARGS": f'-F "{self._ssh_config}"',
            "ANSIBLE_LOCAL_TEMP": str(self._paths.ansible / "tmp"),
            "ANSIBLE_HOME": str(self._paths.ansible / "home"),
            "ANSIBLE_PIPELINING": "1",
            # ansible-playbook is in the folder of our Python, which may not be on the caller's PATH.
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            **self._env,
        }


def _output_tail(outcome: Any) -> str:
    """The end of ansible-playbook's output, for a failure outside of a task (a syntax error, a missing role)."""
    try:
        return process.without_colour(" ".join(outcome.stdout.read().split()))[-800:] or f"status {outcome.status}"
    except (OSError, AttributeError):
        return f"status {outcome.status}"


def _hosts(stats: Mapping[str, Any]) -> dict[str, HostResult]:
    names = sorted(stats.get("processed") or ())

    def number(kind: str, host: str) -> int:
        return int((stats.get(kind) or {}).get(host, 0))

    return {
        host: HostResult(number("ok", host), number("changed", host), number("failures", host), number("dark", host))
        for host in names
    }


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """A function that returns true after SIGINT or SIGTERM; ansible-runner then ends the playbook's processes.

    Without it, ansible-runner would install its own handlers for both signals and leave them installed.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: stop.set())
    try:
        yield stop.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
