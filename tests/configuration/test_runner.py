"""Running playbooks: real ansible-playbook on this machine, with playbooks of the tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.configuration import runner
from gpucluster.configuration.runner import Ansible
from gpucluster.errors import AnsibleError, EnvironmentFault, Interrupted
from gpucluster.events import Event
from gpucluster.paths import ClusterPaths, ansible_dir
from tests.cancelled_calls import calling
from tests.waiting import wait_for

HOST = {"all": {"hosts": {"here": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}}}}


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs tasks (YAML) on this machine, with our ansible.cfg."""
    folder = tmp_path / "ansible"
    folder.mkdir()
    shutil.copy(ansible_dir() / "ansible.cfg", folder)
    monkeypatch.setattr(runner, "ansible_dir", lambda: folder)
    paths = ClusterPaths(tmp_path / ".gpucluster")
    paths.create()

    def run(tasks: str, on_event: Callable[[Event], None] = lambda _: None) -> Any:
        indented = "\n".join(f"    {line}" for line in tasks.splitlines())
        (folder / "site.yml").write_text(f"- hosts: all\n  gather_facts: false\n  tasks:\n{indented}\n")
        ansible = Ansible(paths, tmp_path / "ssh-config", {"GPUCLUSTER_CLUSTER": str(paths.root)}, on_event)
        return ansible.run("site.yml", runner.write_inventory(paths, HOST), run_id="test")

    return run


HOSTILE = {
    "ANSIBLE_STDOUT_CALLBACK": "oneline",
    "ANSIBLE_CALLBACK_PLUGINS": "/nonexistent",
    "ANSIBLE_REMOTE_USER": "nobody-knows-me",
    "ANSIBLE_BECOME": "1",
    "ANSIBLE_BECOME_ASK_PASS": "1",
    "ANSIBLE_ASK_PASS": "1",
    "ANSIBLE_CONFIG": "/nonexistent",
    "AWX_LIB_DIRECTORY": "/nonexistent",
    "RUNNER_OMIT_EVENTS": "1",
    "LC_ALL": "C",
    "LANG": "de_XX.ISO-8859-1",
    "PYTHONSTARTUP": "/nonexistent",
    "PYTHONIOENCODING": "ascii",
    "VIRTUAL_ENV": "/nonexistent",
    "GIT_DIR": "/nonexistent",
    "SSH_ASKPASS": "/nonexistent",
    "SHELL": "/bin/false",
    "TERM": "dumb",
    "COLUMNS": "3",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-backend",
    "TF_HTTP_PASSWORD": "secret-of-the-backend",
}


@pytest.mark.slow
def test_the_caller_s_environment_does_not_reach_the_playbook(
    play: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "yaml.py").write_text("raise SystemExit('a module of the caller was loaded')")
    for name, value in {**HOSTILE, "PYTHONPATH": str(tmp_path / "python")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    tasks = (
        "- command: env\n  register: printed\n  changed_when: false\n"
        "- set_fact: {gpucluster_environment: '{{ printed.stdout_lines }}', gpucluster_word: 'Zoë'}"
    )
    done = play(tasks)
    facts = done.facts["here"]
    assert facts["gpucluster_word"] == "Zoë"
    seen = dict(line.split("=", 1) for line in facts["gpucluster_environment"] if "=" in line)
    kept = {"LANG", "TERM", "COLUMNS", "ANSIBLE_CONFIG", "LC_ALL", "SHELL", "ANSIBLE_CALLBACK_PLUGINS"}
    assert {name: value for name, value in HOSTILE.items() if seen.get(name) == value}.keys() <= kept
    assert seen["LC_ALL"] == "C.UTF-8"
    assert seen["SSH_AUTH_SOCK"] == "/run/agent"
    assert seen["HOME"].startswith("/")
    assert seen["ANSIBLE_STDOUT_CALLBACK"] == "awx_display"
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"secret-of-the" in file.read_bytes()]


@pytest.mark.slow
def test_a_killed_playbook_is_told_as_one(play: Callable[..., Any], tmp_path: Path) -> None:
    def kill(event: Event) -> None:
        if event.name != "ready":
            return
        for pid in process.pids_with_variable("GPUCLUSTER_CLUSTER", str(tmp_path / ".gpucluster")):
            with contextlib.suppress(OSError):  # what the first task has started may end meanwhile
                if b"ansible_playbook" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)

    with pytest.raises(AnsibleError, match="ended by") as caught:
        play("- name: ready\n  command: 'true'\n- name: long\n  command: sleep 600", kill)
    assert "signal" in str(caught.value)
    assert "gpucluster apply" in caught.value.hint
    assert "ok: [" not in str(caught.value)
    _nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.slow
def test_a_stop_signal_ends_the_playbook(play: Callable[..., Any], tmp_path: Path, number: signal.Signals) -> None:
    main = threading.main_thread().ident
    assert main is not None
    before = signal.getsignal(number)

    def stop(event: Event) -> None:
        if event.name == "ready":
            signal.pthread_kill(main, number)

    with pytest.raises(KeyboardInterrupt, match="hosts may be configured in part"):
        play("- name: ready\n  command: 'true'\n- name: long\n  command: sleep 600", stop)
    assert signal.getsignal(number) == before
    _nothing_left(tmp_path)


@pytest.mark.slow
def test_of_two_playbooks_in_threads_one_is_cancelled(play: Callable[..., Any], tmp_path: Path) -> None:
    started = {name: threading.Event() for name in ("one", "other")}
    for name in started:
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "other" / "go")
    (tmp_path / "ansible" / "site.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - {name: ready, command: 'true'}\n    - {name: long, command: \"{{ wait_command }}\"}\n"
    )

    def begin(name: str, waiting: str) -> Any:
        paths = ClusterPaths(tmp_path / name / ".gpucluster")
        paths.create()
        inventory = {"all": {**HOST["all"], "vars": {"wait_command": waiting}}}
        mark = {"GPUCLUSTER_CLUSTER": str(paths.root)}
        on_event = lambda event: started[name].set() if event.name == "ready" else None  # noqa: E731
        ansible = Ansible(paths, tmp_path / "ssh-config", mark, on_event)
        return ansible.run("site.yml", runner.write_inventory(paths, inventory), run_id="test")

    go = tmp_path / "other" / "go"
    with calling(lambda: begin("one", "sleep 600")) as one, calling(lambda: begin("other", f"cat {go}")) as other:
        for name, event in started.items():
            wait_for(f"the playbook {name} works", event.is_set)
        error = one.cancel("enough")
        assert isinstance(error, Interrupted)
        assert "hosts may be configured in part" in str(error)
        assert other.running
        go.write_text("")
        assert other.result().hosts["here"].changed == 2
    for name in started:
        _nothing_left(tmp_path / name)


#: So many times in a row nothing is found.
_LOOKS = 5


def _nothing_left(folder: Path) -> None:
    """The worker of a task that is killed with its playbook ends when the task does; a test need not wait for that."""
    mark = ("GPUCLUSTER_CLUSTER", str(folder / ".gpucluster"))
    empty = 0

    def ended() -> bool:
        nonlocal empty
        left = process.pids_with_variable(*mark)
        empty = 0 if left else empty + 1
        for pid in left:  # again each time: a worker may have started its program meanwhile
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # A program that is just being started shows no variables for a moment.
        return empty >= _LOOKS

    wait_for("no process of the playbook is left", ended)


def test_a_missing_ansible_is_told_as_one(
    play: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EnvironmentFault, match="ansible-playbook was not found"):
        play("- command: 'true'")


REASONS: dict[str, tuple[Mapping[str, Any], str]] = {
    "what a program has printed": (
        {"msg": "non-zero return code", "stdout": "no such shell: /bin/zsh", "rc": 1},
        "no such shell: /bin/zsh",
    ),
    "errors first": ({"msg": "non-zero return code", "stdout": "said", "stderr": "failed", "rc": 1}, "failed"),
    "a module's own message": ({"msg": "the group does not exist", "stdout": "said"}, "the group does not exist"),
    "a module that has crashed": (
        {"msg": "MODULE FAILURE\nSee stdout/stderr for the exact error", "module_stdout": "Traceback: KeyError: 'x'"},
        "Traceback: KeyError: 'x'",
    ),
    "an answer of the agent": (
        {
            "msg": "non-zero return code",
            "stdout": '{"error": {"message": "bob: no such shell", "hint": "One of: /bin/sh"}}',
        },
        "bob: no such shell. One of: /bin/sh",
    ),
    "nothing printed": ({"msg": "non-zero return code", "rc": 127}, "non-zero return code (status 127)"),
    "hidden": ({"censored": "yes", "msg": "secret"}, "the details are hidden, because they may contain secrets"),
    "one of a loop": (
        {"msg": "One or more items failed", "results": [{"msg": "fine"}, {"failed": True, "stderr": "no space"}]},
        "no space",
    ),
    "nothing at all": ({}, "no reason given"),
    "the end of a long text": ({"stderr": "x" * 2000 + " the error"}, "... " + "x" * 1590 + " the error"),
}


@pytest.mark.parametrize("case", REASONS)
def test_the_reason_of_a_failed_task(case: str) -> None:
    result, words = REASONS[case]
    assert runner._reason(result) == words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "words"), [("echo sudo is away > /proc/$PPID/fd/2; ", "sudo is away"), ("", "Killed")]
)
def test_what_a_module_has_printed_that_gave_no_answer(play: Callable[..., Any], said: str, words: str) -> None:
    """Ansible itself reports that it found no JSON."""
    with pytest.raises(AnsibleError, match=words):
        play(f"- ansible.builtin.shell: '{said}kill -KILL $PPID'")


@pytest.mark.usefixtures("play")
@pytest.mark.slow
def test_a_host_that_can_not_be_reached_and_one_whose_task_failed_are_both_named(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / ".gpucluster")
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 9, "ansible_ssh_retries": 0, "ansible_connection": "ssh"}
    hosts = runner.write_inventory(paths, {"all": {"hosts": {**HOST["all"]["hosts"], "gone": gone}}})
    events: list[Event] = []
    (tmp_path / "ssh-config").write_text("")
    ansible = Ansible(paths, tmp_path / "ssh-config", {"GPUCLUSTER_CLUSTER": str(paths.root)}, events.append)
    (tmp_path / "ansible" / "site.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks: [{ping: }, {fail: {msg: broken}}]\n"
    )
    with pytest.raises(AnsibleError, match=r"gone: unreachable: .*\n.*broken"):
        ansible.run("site.yml", hosts, run_id="test")
