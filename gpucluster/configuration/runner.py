"""Runs playbooks through ansible-runner: events for tasks, and a result for every host."""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from gpucluster import cancellation, process
from gpucluster.configuration import ansible_playbook
from gpucluster.environment import Program
from gpucluster.errors import AnsibleError, EnvironmentFault, InputError
from gpucluster.events import Event, EventKind, LogLevel, Sink
from gpucluster.node_agent import bounded
from gpucluster.paths import ClusterPaths, ansible_dir, import_root, write_private
from gpucluster.process import signals
from gpucluster.spec.document import TEMPLATE
from gpucluster.ssh import CONNECT_SECONDS
from gpucluster.text import printable

FORKS = 20
# Messages of Ansible that only report that a program failed.
_GENERIC = (
    *("non-zero return code", "module failure", "module result deserialization failed"),
    *("all items completed", "one or more items failed"),
)
_SHOWN = 1600  # characters of a reason: a rollback has the end of a daemon's journal
# With ssh gone, what a task has started on a host may go on for a while.
_STOPPED = (
    "Ansible was stopped in the middle of a task: until it is repeated, hosts may be configured in part, and a "
    "program that the task has started may still work there. Nothing is lost"
)
# In the place of the program ansible-playbook. Not from the working directory, which has folders of many names.
_PLAYBOOK = (sys.executable, "-P", "-m", ansible_playbook.__name__)
_CANCEL_POLL = 1  # seconds between two looks whether the playbook shall be stopped
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
        tasks: how many tasks began.
    """

    hosts: Mapping[str, HostResult]
    facts: Mapping[str, Mapping[str, Any]]
    roles: Mapping[str, float]
    tasks: int = 0

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
    tasks: int = 0
    failures: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
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
            self.tasks += 1
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
            self.unreachable[host] = message
        elif data.get("ignore_errors"):
            return
        else:
            status, message = "failed", _reason(result)
            self.failures.append(f"{host}: {title}: {message}")
        about = {"host": host, "number": self.tasks}
        self.on_event(Event(EventKind.TASK, title, status, message, elapsed=data.get("duration"), data=about))

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
    """Why a task failed, in one line. A censored result (`no_log`) is not shown.

    The output of a program has more information than Ansible's message about it.
    """
    if "censored" in result:
        return "the details are hidden, because they may contain secrets"
    message = str(result.get("msg") or "").strip()
    generic = message.lower().startswith(_GENERIC)
    printed = [str(result.get(key) or "").strip() for key in ("stderr", "module_stderr", "stdout", "module_stdout")]
    for text in (printed[0], "" if generic else message, *printed[1:]):
        if text:
            return _one_line(_agent_error(text))
    for item in result.get("results") or ():
        if isinstance(item, Mapping) and item.get("failed"):
            return _reason(item)
    status = f" (status {result['rc']})" if result.get("rc") and generic else ""
    return f"{_one_line(message)}{status}" if message else "no reason given"


def _agent_error(text: str) -> str:
    """Message and hint of an agent's answer, which is JSON; any other text as it is."""
    try:
        error = bounded.loads(text)["error"]
        return f"{error['message']}. {error['hint']}"
    except (ValueError, TypeError, KeyError):
        return text


def _one_line(text: str) -> str:
    """On one line. Of a long text the end is shown, where the error is."""
    line = " ".join(process.without_colour(text).split())
    return line if len(line) <= _SHOWN else f"... {line[-_SHOWN:]}"


def without_templates(value: Any, place: str = "") -> Any:
    """The value itself: each variable of an inventory is a template of Jinja for Ansible, which runs what is in it on
    the operator's machine.

    Raises:
        InputError: a text in it would be one.
    """
    if isinstance(value, str) and TEMPLATE.search(value):
        raise InputError(
            f"Ansible would run {printable(value)[:200]} as a template",
            where=place,
            hint="Delete {{, {% and {# from cluster.yml, and from the names of folders above it",
        )
    if isinstance(value, Mapping):
        for key, inner in value.items():
            without_templates(key, place)
            without_templates(inner, f"{place}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for inner in value:
            without_templates(inner, place)
    return value


def write_inventory(paths: ClusterPaths, inventory: Mapping[str, Any], file: Path | None = None) -> Path:
    """Write the inventory into the cluster's folder (or into `file`) and return its path.

    Raises:
        InputError: a text in it would be a template of Jinja.
    """
    file = file or paths.ansible / "inventory.yml"
    write_private(file, yaml.safe_dump(without_templates(dict(inventory)), sort_keys=False))
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

    def run(
        self,
        playbook: str,
        inventory: Path,
        *,
        run_id: str,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> PlaybookResult:
        """Run one playbook to its end.

        Args:
            playbook: the name of its file, such as "site.yml".
            run_id: the name of ansible-runner's folder for this run begins with it.
            variables: of this run only; they are stronger than all others.

        Raises:
            AnsibleError: a task failed or a host can't be reached; the text names each host, role and task.
            KeyboardInterrupt: the user stopped it; ansible-playbook has ended.
        """
        import ansible_runner

        cancellation.check()
        listener = _Listener(self._on_event, playbook)
        _log.debug("run: ansible-playbook --inventory %s --forks %d %s", inventory, FORKS, ansible_dir() / playbook)
        inherited, ours = process.environment_for(Program.ANSIBLE), self._environment()
        # ansible-playbook is in the folder of our Python, which may not be on the caller's PATH.
        inherited["PATH"] = f"{Path(sys.executable).parent}:{inherited.get('PATH', os.defpath)}"
        if shutil.which("ansible-playbook", path=inherited["PATH"]) is None:
            raise EnvironmentFault(
                "the program ansible-playbook was not found",
                where=str(Path(sys.executable).parent),
                hint="Install gpucluster again: it brings Ansible",
            )
        # ansible-runner kills the playbook's processes when this is true. They are never in the middle of a task whose
        # half would be lost: every task can be repeated. Without a callback it would leave its own handlers installed.
        with signals.counted() as stops, process.in_memory("environment") as passed:
            passed.write(json.dumps(inherited).encode())
            ours[ansible_playbook.ENVIRONMENT] = f"/proc/{os.getpid()}/fd/{passed.fileno()}"
            runner = ansible_runner.interface.init_runner(
                private_data_dir=str(self._paths.ansible),
                project_dir=str(ansible_dir()),
                playbook=str(ansible_dir() / playbook),
                inventory=str(inventory),
                extravars=self._variables_file(variables) if variables else None,
                ident=f"{run_id}-{playbook.removesuffix('.yml')}",
                # It starts from os.environ. What the playbook must not see is empty at first, and then removed.
                envvars={**dict.fromkeys(os.environ, ""), **ours},
                suppress_env_files=True,
                forks=FORKS,
                quiet=True,
                event_handler=listener,
                cancel_callback=lambda: stops() > 0,
                rotate_artifacts=SAVED_ARTIFACTS,
            )
            runner.config.pexpect_timeout = _CANCEL_POLL
            # It writes these into a file. What comes from the caller is not among them.
            runner.config.env = {name: value for name, value in runner.config.env.items() if value or name in ours}
            runner.config.command = [*_PLAYBOOK, *runner.config.command[1:]]
            runner.run()
        if stops():
            raise KeyboardInterrupt(_STOPPED)
        if runner.status != "successful":
            raise self._failed(playbook, runner, listener)
        return PlaybookResult(_hosts(listener.stats), listener.facts, listener.roles, listener.tasks)

    def _failed(self, playbook: str, runner: Any, listener: _Listener) -> AnsibleError:
        ended = _killed_by(runner.rc)
        silent = [f"{host}: unreachable: {reason}" for host, reason in listener.unreachable.items()]
        reasons = [*silent, *listener.failures, *([ended] if ended else [])] or [_output_tail(runner)]
        error = AnsibleError(
            f"{playbook} failed:\n" + "\n".join(f"  {reason}" for reason in reasons),
            hint="Run it again: gpucluster apply. What is done already stays done"
            if ended and not listener.failures and not silent
            else "Fix the cause, then run: gpucluster apply. What is done already stays done",
        )
        error.reasons = dict(reason.split(": ", 1) for reason in [*listener.failures, *silent])
        return error

    def _variables_file(self, variables: Mapping[str, Any]) -> str:
        """The variables in a file: any user can read a command line."""
        file = self._paths.ansible / "variables.json"
        write_private(file, json.dumps(without_templates(dict(variables))))
        return str(file)

    def _environment(self) -> dict[str, str]:
        """What we add to the caller's environment. It is stored with the output of the playbook."""
        return {
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_CONFIG": str(ansible_dir() / "ansible.cfg"),
            # For our lookup plugin.
            "PYTHONPATH": str(import_root()),
            # The first time that ssh gets counts: Ansible adds another one, which is that of sudo.
            "ANSIBLE_SSH_ARGS": f"-F {shlex.quote(str(self._ssh_config))} -o ConnectTimeout={CONNECT_SECONDS}",
            "ANSIBLE_LOCAL_TEMP": str(self._paths.ansible / "tmp"),
            "ANSIBLE_HOME": str(self._paths.ansible / "home"),
            "ANSIBLE_PIPELINING": "1",
            # False, as ansible-runner sets it if it is not set, would let Ansible accept any host key.
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            **self._env,
        }


def _killed_by(status: int | None) -> str:
    """The message about an ansible-playbook that a signal ended; empty if none did. pexpect has no status for it
    then."""
    if status is None:
        return "ansible-playbook was ended by a signal: it was killed, or the memory was full"
    return f"ansible-playbook was ended by {signal.Signals(-status).name}" if status < 0 else ""


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
