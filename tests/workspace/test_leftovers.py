"""Programs that a killed run left: who is told to stop, who is not, and that all are waited for. Real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.errors import ToolError
from gpucluster.events import Event, ignore
from gpucluster.paths import ClusterPaths
from gpucluster.workspace import leftovers

# Writes down each SIGINT that it gets. "program": starts a plugin, and ends half a second after the first. "plugin" and
# "console": end after the program. "deaf": works on.
_PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
kind, parent = sys.argv[1], os.getppid()
told = pathlib.Path(f"{kind}.told")
signal.signal(signal.SIGINT, lambda *_: told.open("a").write("x"))
if kind == "program":
    subprocess.Popen([sys.executable, __file__, "plugin"], env={**os.environ, "TF_PLUGIN_MAGIC_COOKIE": "x"})
pathlib.Path(f"{kind}.ready").touch()
until = time.monotonic() + 60
while time.monotonic() < until:
    if kind == "program" and told.exists():
        time.sleep(0.5)
        break
    if kind == "plugin" and os.getppid() != parent:
        break
    if kind == "console" and pathlib.Path("program.ended").exists():
        break
    time.sleep(0.02)
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
    env = {**os.environ, leftovers.VARIABLE: str(paths.root)}
    child = subprocess.Popen([sys.executable, str(folder / "main.py"), *words], env=env, cwd=folder)
    kinds = [words[0], *(["plugin"] if words[0] == "program" else [])]
    while not all((folder / f"{kind}.ready").exists() for kind in kinds):
        assert child.poll() is None
    return child


def test_programs_are_told_once_their_plugins_never_and_all_are_waited_for(paths: ClusterPaths) -> None:
    folder = paths.root.parent
    program = _start(paths, "program")
    events: list[Event] = []
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
    assert (paths.root.parent / "deaf.told").read_text() == "x"
    deaf.kill()
    deaf.wait()


def test_the_console_that_holds_the_lock_is_not_told(paths: ClusterPaths) -> None:
    """It ends when its Terraform has; here that is when a file appears."""
    folder = paths.root.parent
    program = _start(paths, "program")
    # As `terraform console`: its first argument is that word.
    (folder / "console").write_text(_PROGRAM.replace("sys.argv[1]", "'console'"))
    env = {**os.environ, leftovers.VARIABLE: str(paths.root)}
    console = subprocess.Popen([sys.executable, "console"], env=env, cwd=folder)
    while not (folder / "console.ready").exists():
        assert console.poll() is None
    leftovers.end(paths, ignore)
    assert (folder / "program.told").exists()
    assert not (folder / "console.told").exists()
    assert (folder / "console.ended").exists()
    program.wait()
    console.wait()


def test_a_connection_that_ansible_shared_is_no_leftover(paths: ClusterPaths) -> None:
    # The name that ssh gives itself when it keeps a connection for others.
    shared = subprocess.Popen(
        ["ssh: /tmp/sockets/abc [mux]", "60"],
        executable="/usr/bin/sleep",
        env={**os.environ, leftovers.VARIABLE: str(paths.root)},
    )
    events: list[Event] = []
    leftovers.end(paths, events.append)
    assert events == []
    assert shared.poll() is None
    shared.kill()
    shared.wait()
