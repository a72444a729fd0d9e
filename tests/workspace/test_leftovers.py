"""Programs that a killed run left: who is told to stop, who is not, and that all are waited for. Real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.errors import ToolError
from gpucluster.events import Event, ignore
from gpucluster.paths import ClusterPaths
from gpucluster.workspace import leftovers
from tests.waiting import wait_for

# Writes down each SIGINT that it gets. "program": starts a plugin, and ends when a test lets it. "plugin", "console":
# end after the program, which holds the other ends of their pipes. "deaf": works on.
_PROGRAM = """
import os, pathlib, signal, subprocess, sys
kind = sys.argv[1]
told = pathlib.Path(f"{kind}.told")
signal.signal(signal.SIGINT, lambda *_: told.open("a").write("x"))
if kind == "program":
    env = {**os.environ, "TF_PLUGIN_MAGIC_COOKIE": "x"}
    plugin = subprocess.Popen([sys.executable, __file__, "plugin"], env=env, stdin=subprocess.PIPE)
    lock = open("lock", "w") if pathlib.Path("lock").exists() else None
if kind == "console":
    sys.stdin = open("lock")
pathlib.Path(f"{kind}.ready").touch()
while kind == "deaf":
    signal.pause()
(open("go") if kind == "program" else sys.stdin).read()
pathlib.Path(f"{kind}.ended").touch()
"""


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[ClusterPaths]:
    made = ClusterPaths(tmp_path / ".gpucluster")
    made.create()
    yield made
    for pid in process.pids_with_variable(leftovers.VARIABLE, str(made.root)):
        os.kill(pid, signal.SIGKILL)


def _start(paths: ClusterPaths, *words: str) -> subprocess.Popen[bytes]:
    """Start one, and wait until it and what it starts can get signals."""
    folder = paths.root.parent
    (folder / "main.py").write_text(_PROGRAM)
    os.mkfifo(folder / "go")
    env = {**os.environ, leftovers.VARIABLE: str(paths.root)}
    child = subprocess.Popen([sys.executable, str(folder / "main.py"), *words], env=env, cwd=folder)
    for kind in [words[0], *(["plugin"] if words[0] == "program" else [])]:
        _until_ready(child, folder, kind)
    return child


def _until_ready(child: subprocess.Popen[bytes], folder: Path, kind: str) -> None:
    ready = folder / f"{kind}.ready"
    wait_for(f"the {kind} can get signals", lambda: ready.exists() or child.poll() is not None)
    assert child.poll() is None


@contextlib.contextmanager
def _let_go_when_told(folder: Path) -> Iterator[None]:
    """The program works on until it is told to stop, and ends then."""

    def let_go() -> None:
        wait_for("the program is told to stop", (folder / "program.told").exists)
        (folder / "go").write_text("")

    with ThreadPoolExecutor(1) as aside:
        done = aside.submit(let_go)
        yield
        done.result()


def test_programs_are_told_once_their_plugins_never_and_all_are_waited_for(paths: ClusterPaths) -> None:
    folder = paths.root.parent
    program = _start(paths, "program")
    events: list[Event] = []
    with _let_go_when_told(folder):
        leftovers.end(paths, events.append)
    assert (folder / "program.told").read_text() == "x"
    assert not (folder / "plugin.told").exists()
    assert (folder / "program.ended").exists()
    assert (folder / "plugin.ended").exists()
    assert [event.name for event in events] == ["leftovers"]
    program.wait()
    leftovers.end(paths, events.append)
    assert len(events) == 1, "there is nothing left"


def test_a_program_that_does_not_end_is_named(paths: ClusterPaths) -> None:
    deaf = _start(paths, "deaf")
    with pytest.raises(ToolError, match=rf"\(pid {deaf.pid}\)"):
        leftovers.end(paths, ignore, timeout=0.5)
    with pytest.raises(ToolError):
        leftovers.end(paths, ignore, timeout=0.5)
    told = paths.root.parent / "deaf.told"
    assert wait_for("it has written that it was told", told.read_text, ignore=FileNotFoundError) == "x"
    deaf.kill()
    deaf.wait()


def test_the_console_that_holds_the_lock_is_not_told(paths: ClusterPaths) -> None:
    """It ends when its Terraform has; here that closes a pipe."""
    folder = paths.root.parent
    os.mkfifo(folder / "lock")
    # As `terraform console`: its first argument is that word.
    (folder / "console").write_text(_PROGRAM.replace("sys.argv[1]", "'console'"))
    env = {**os.environ, leftovers.VARIABLE: str(paths.root)}
    console = subprocess.Popen([sys.executable, "console"], env=env, cwd=folder)
    program = _start(paths, "program")
    _until_ready(console, folder, "console")
    with _let_go_when_told(folder):
        leftovers.end(paths, ignore)
    assert (folder / "program.told").exists()
    assert not (folder / "console.told").exists()
    assert (folder / "console.ended").exists()
    program.wait()
    console.wait()


def test_a_connection_that_ansible_shared_is_not_a_leftover(paths: ClusterPaths) -> None:
    # The name that ssh gives itself when it keeps a connection for others.
    shared = subprocess.Popen(
        ["ssh: /tmp/sockets/abc [mux]", "600"],
        executable="/usr/bin/sleep",
        env={**os.environ, leftovers.VARIABLE: str(paths.root)},
    )
    events: list[Event] = []
    leftovers.end(paths, events.append)
    assert events == []
    assert shared.poll() is None
    shared.kill()
    shared.wait()
