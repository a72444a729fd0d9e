"""Stop signals at every kind of moment of a command: what it holds is released, and no program of it stays.

The moments are those at which Python itself looks for signals: a function begins, or one of C has returned. A profiler
counts them, so that a moment is the same in each run, and from the first signal on more arrive every millisecond.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster import process
from gpucluster.oci import tags
from gpucluster.paths import import_root
from tests.localcloud.api_harness import Api, running
from tests.spec.spec_texts import LOCAL
from tests.terraform.state_doubles import serving
from tests.waiting import PATIENCE_S, wait_for

ID = "0123456789abcdef"
#: Moments of one run, each with the next of the signals. There are some thousands.
MOMENTS = int(os.environ.get("GPUCLUSTER_TEST_TRIES") or 6)
NUMBERS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
#: The status of a command that a stop has ended.
STOPPED = 130

# A command with a run that holds the lock of its folder and that of the cloud, and starts a program in each way. It
# reads lines: a moment, the number of a signal and a folder; a fork does each, so that everything is imported once.
# With `lines` after the folder a line of our code is one moment, however often it runs, because waits vary in rounds.
_COMMAND = f"""
import os, signal, sys, threading
_OURS = ("/gpucluster/", "/contextlib.py", "/subprocess.py", "<string>")
_seen = 0
_lines = set()

def hail():
    # Not a daemon, and to the end of the main thread alone: a thread that runs while Python ends can crash it.
    pause = threading.Event()
    while threading.main_thread().is_alive():
        pause.wait(0.001)
        os.kill(os.getpid(), _number)

def profile(frame, event, _argument):
    global _seen
    if event not in ("call", "c_return") or not any(part in frame.f_code.co_filename for part in _OURS):
        return
    if words[3:]:
        line = frame.f_code, frame.f_lineno, event
        if line in _lines:
            return
        _lines.add(line)
    _seen += 1
    if _seen == _moment:
        sys.setprofile(None)
        threading.Thread(target=hail).start()
        os.kill(os.getpid(), _number)

from gpucluster import process
from gpucluster.process import signals
_arrived = signals._Stops.arrived

def arrived(self, number, frame):
    # Where Python itself would be interrupted, not in the profiler.
    return _arrived(self, number, frame.f_back if frame.f_code is profile.__code__ else frame)

signals._Stops.arrived = arrived
# However long the end takes on a busy machine, the user does not insist.
signals.PATIENCE = 1e9

from gpucluster.cli.base import command, reporting
from gpucluster.cluster import Cluster
from gpucluster.spec import load
import gpucluster.__main__, oci.core, oci.identity

@command("work")
def work(context):
    with reporting(context) as reporter:
        cluster = Cluster(load(os.path.join(FOLDER, "cluster.yml")), cluster_id="{ID}")
        sys.setprofile(profile)
        with cluster._parts.identity.runs.run("restore") as run, run.phase("work"):
            waits = ["sh", "-c", "while read word; do echo $word; done", FOLDER]
            process.run(waits, input="one")
            process.stream(waits, on_line=lambda line: None, input="one")
            with process.ProcessConversation(waits, end_s=20.0) as talk:
                talk.ask("one", lambda line: True)
            process.call(["sh", "-c", ":", FOLDER])
            process.transfer(["sh", "-c", ":", FOLDER])

for line in sys.stdin:
    words = line.split()
    _moment, _number, FOLDER = int(words[0]), int(words[1]), words[2]
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
said = os.open(os.path.join(FOLDER, "said"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.dup2(said, 1)
os.dup2(said, 2)
sys.argv[1:] = ["--output", "json", "work"]
try:
    gpucluster.__main__.main()
finally:
    if not _moment:
        sys.setprofile(None)
        print("moments", _seen, flush=True)
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("home") / "cloud") as api:
        yield api


@pytest.fixture(scope="module")
def vcn(cloud: Api) -> str:
    """What a cluster has in the cloud: a network."""
    made = oci.core.models.CreateVcnDetails(
        cidr_blocks=["10.161.0.0/16"],
        compartment_id=cloud.tenancy,
        freeform_tags={"gpucluster": "demo", "gpucluster-id": ID},
    )
    return str(cloud.network.create_vcn(made).data.id)


@pytest.fixture
def commands(cloud: Api, vcn: str) -> Iterator[subprocess.Popen[str]]:
    """The program above; `vcn` is in the cloud."""
    with subprocess.Popen(
        [sys.executable, "-c", _COMMAND], cwd=import_root(), env={**os.environ, "GPUCLUSTER_HOME": str(cloud.home)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        yield program


def _work(commands: subprocess.Popen[str], folder: Path, moment: int, number: int, state: str = "") -> tuple[int, str]:
    """The status of one command, and what it has printed.

    Args:
        state: the section of cluster.yml, if the state is in a remote backend.
    """
    assert commands.stdin is not None
    assert commands.stdout is not None
    folder.mkdir()
    (folder / "cluster.yml").write_text(LOCAL + state)
    commands.stdin.write(f"{moment} {number} {folder}{' lines' if state else ''}\n")
    commands.stdin.flush()
    return int(commands.stdout.readline()), (folder / "said").read_text()


def _left(cloud: Api, vcn: str, folder: Path) -> dict[str, Any]:
    """What must not be there after the end of a command."""
    programs = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.fsencode(folder) in (entry / "cmdline").read_bytes().split(b"\0"):
                programs.append(entry.name)
        except OSError:
            continue  # it has ended
    states = [json.loads(file.read_text())["status"] for file in (folder / ".gpucluster" / "runs").glob("*.json")]
    held = cloud.network.get_vcn(vcn).data.freeform_tags.get(tags.LOCK)
    found = {"programs": programs, "lock": held, "runs": [each for each in states if each == "running"]}
    return {name: value for name, value in found.items() if value}


@pytest.mark.slow
def test_a_stop_at_any_moment_leaves_no_lock_and_no_program(
    commands: subprocess.Popen[str], cloud: Api, vcn: str, tmp_path: Path
) -> None:
    status, said = _work(commands, tmp_path / "whole", 0, 0)
    assert status == 0, said
    last = int(said.rpartition("moments ")[2])
    faults = []
    for number in range(MOMENTS):
        moment = 1 + number * (last - 1) // max(MOMENTS - 1, 1)
        kind, folder = NUMBERS[number % len(NUMBERS)], tmp_path / str(number)
        status, said = _work(commands, folder, moment, kind)
        left = _left(cloud, vcn, folder)
        # At its very end the command has succeeded.
        expected = (0, STOPPED) if moment > last * 0.98 else (STOPPED,)
        if left or status not in expected or "Traceback" in said or "bug" in said:
            faults.append((moment, kind.name, status, left, said[-1500:]))
    assert not faults, f"of {last} moments:\n" + "\n".join(map(str, faults))


@pytest.mark.slow
def test_a_stop_at_any_moment_leaves_no_lock_of_a_remote_state(
    commands: subprocess.Popen[str], cloud: Api, vcn: str, tmp_path: Path
) -> None:
    """The real Terraform, which holds it, and a double of the backend."""
    with serving() as double:
        address = f"{double.url}/demo"
        state = f"state: {{backend: http, config: {{address: '{address}', lock_address: '{address}'}}}}\n"
        status, said = _work(commands, tmp_path / "whole", 0, 0, state)
        assert status == 0, said
        assert double.changes == ["LOCK", "UNLOCK"]
        last = int(said.rpartition("moments ")[2])
        faults = []
        for number in range(MOMENTS):
            moment = 1 + number * (last - 1) // max(MOMENTS - 1, 1)
            kind, folder = NUMBERS[number % len(NUMBERS)], tmp_path / str(number)
            status, said = _work(commands, folder, moment, kind, state)
            left = _left(cloud, vcn, folder) | double.locks
            double.locks.clear()
            expected = (0, STOPPED) if moment > last * 0.95 else (STOPPED,)
            if left or status not in expected or "Traceback" in said or "bug" in said:
                faults.append((moment, kind.name, status, left, said[-1500:]))
    assert not faults, f"of {last} moments:\n" + "\n".join(map(str, faults))


def _program(code: str, *, begin: bool = True) -> tuple[int, str]:
    """The status and the output of a program that stops itself; it has `signals`, and `stop(number)`."""
    head = (
        "import atexit, os, signal, sys\nfrom gpucluster.process import signals\n"
        "signals.PATIENCE = 1e9\ndef stop(number): os.kill(os.getpid(), number)\n"
        + ("signals.begin()\n" if begin else "")
    )
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)], cwd=import_root(), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("number", NUMBERS)
def test_before_a_command_a_stop_ends_the_program_with_our_status(number: signal.Signals) -> None:
    assert _program(f"stop({int(number)})\nprint('on')") == (STOPPED, "")


@pytest.mark.parametrize("number", NUMBERS)
def test_while_python_ends_a_stop_changes_no_status_and_interrupts_nothing(number: signal.Signals) -> None:
    """In the end of a thread, in what is registered for the end, and after it, where Python has no handlers."""
    code = f"""
        import threading
        with signals.as_ctrl_c():
            signals.end()
        class Last:
            def __del__(self, stop=os.kill, pid=os.getpid()): stop(pid, {int(number)}); os.write(1, b"last ")
        sys.modules["last"] = Last()
        atexit.register(lambda: (stop({int(number)}), os.write(1, b"exit ")))
        def late():
            threading.main_thread().join()
            stop({int(number)})
            os.write(1, b"thread ")
        threading.Thread(target=late).start()
        sys.exit(7)
    """
    assert _program(code) == (7, "thread exit last ")


def test_of_a_burst_one_stop_is_raised() -> None:
    code = """
        with signals.as_ctrl_c():
            try:
                stop(signal.SIGHUP)
            finally:
                for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT): stop(number)
                print("released")
    """
    status, said = _program(code, begin=False)
    assert said.startswith("released\nTraceback")
    assert status == -signal.SIGINT, "KeyboardInterrupt ends Python so"


def test_the_next_block_is_stopped_again_and_so_is_who_insists() -> None:
    code = """
        signals.PATIENCE = 0.0
        def stopped():
            try: stop(signal.SIGTERM)
            except KeyboardInterrupt: return True
        with signals.as_ctrl_c():
            print(stopped(), stopped())
        signals.PATIENCE = 1000.0
        for _ in range(2):
            with signals.as_ctrl_c():
                print(stopped(), stopped())
    """
    assert _program(code, begin=False) == (0, "True True\nTrue None\nTrue None\n")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("removed", ["Last()", "next(ends())", "any(True for _ in [Last()])"])
def test_a_stop_that_python_drops_arrives_again(number: signal.Signals, removed: str) -> None:
    """Nothing catches what is raised while an object is removed: Python prints it and goes on."""
    code = f"""
        import threading
        class Last:
            def __del__(self): stop({int(number)})
        def ends():
            try: yield
            finally: stop({int(number)})
        with signals.as_ctrl_c():
            try:
                {removed}
                threading.Event().wait({PATIENCE_S})
                print("lost")
            except KeyboardInterrupt:
                print("stopped")
    """
    assert _program(code) == (0, "stopped\n")


def test_what_else_python_drops_is_printed_as_before() -> None:
    code = """
        class Last:
            def __del__(self): raise ValueError("a fault")
        with signals.as_ctrl_c(), signals.as_ctrl_c():
            Last()
        assert sys.unraisablehook is sys.__unraisablehook__
    """
    status, said = _program(code)
    assert (status, said.count("ValueError: a fault")) == (0, 1)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_deferred_stop_is_raised_where_its_block_ends(number: signal.Signals) -> None:
    code = f"""
        import contextlib
        with signals.as_ctrl_c(), contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as undone:
            with signals.deferred():
                stop({int(number)})
                undone.callback(print, "undone")
            print("on")
    """
    assert _program(code) == (0, "undone\n")


def test_python_s_own_ctrl_c_is_deferred_too() -> None:
    code = """
        import contextlib
        with contextlib.suppress(KeyboardInterrupt):
            with signals.deferred():
                stop(signal.SIGINT)
                print("known")
            print("on")
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
    assert _program(code, begin=False) == (0, "known\nTrue\n")


def test_a_step_that_releases_is_run_to_its_end() -> None:
    code = """
        with signals.as_ctrl_c():
            try:
                pass
            finally:
                signals.surely(lambda: (stop(signal.SIGHUP), print("released")))
            print("on")
    """
    assert _program(code) == (0, "released\non\n")


def test_a_lost_terminal_is_left_also_while_signals_are_counted() -> None:
    code = """
        with signals.as_ctrl_c(on_hangup=lambda: print("left")), signals.counted() as stops:
            stop(signal.SIGHUP)
            print(stops())
    """
    assert _program(code) == (0, "left\n1\n")


def test_no_stop_comes_between_the_start_of_a_program_and_its_guard(tmp_path: Path) -> None:
    """The first one arrives in the start itself."""
    code = f"""
        from gpucluster import process
        from gpucluster.process import completed
        popen = completed.subprocess.Popen
        def start(*given, **options):
            child = popen(*given, **options)
            stop(signal.SIGTERM)
            print(child.pid)
            return child
        completed.subprocess.Popen = start
        waits = ["sh", "-c", "read word", {str(tmp_path)!r}]
        ways = [lambda: process.run(waits, input="x"), lambda: process.stream(waits, on_line=print, input="x"),
                lambda: process.call(waits), lambda: process.transfer(waits),
                lambda: process.ProcessConversation(waits, end_s=600).__enter__()]
        for way in ways:
            with signals.as_ctrl_c():
                try: way()
                except KeyboardInterrupt: print("stopped")
    """
    status, said = _program(code)
    words = said.split()
    assert (status, words[1::2]) == (0, ["stopped"] * 5), said
    wait_for("no program is left", lambda: [pid for pid in words[::2] if process.identity(int(pid))] == [])
