"""`make stress`: the suite on a machine that is busy, slow at writing, short of memory, and whose clock jumps once.

    python -m tools.stress make test

Four busy loops run beside it, fsync takes 20 ms longer in every program of this machine and of containers that uses the
C library, memory is taken until 8 GB less what the system uses are left, and after some minutes the clock goes forward
by more than a credential of MUNGE lives (300 s). At the end, however it comes, all of this is taken back.

The clock is that of the whole machine: do not run it where other work depends on the time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpucluster.process import bound

BUSY_LOOPS = 4
JUMP_S, JUMP_AFTER_S = 400.0, 240.0
_GIB = 1024**3
#: Where the library of the slow fsync is: jobs of Slurm have a /tmp of their own.
_LIBRARIES = "/usr/local/lib"
#: What a machine with 8 GB has for programs.
LEFT_GIB = 7
_SOURCE = Path(__file__).with_name("slow_fsync.c")
_CONTAINERS_CONF = (Path("/etc/containers/containers.conf"), Path("/usr/share/containers/containers.conf"))


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Processes that never pause."""
    with _children([[sys.executable, "-c", "while True: pass"]] * loops):
        yield


@contextlib.contextmanager
def little_memory(left_gib: float) -> Iterator[None]:
    """Memory is taken. Where the kernel allows it, it ends others before the process that holds it."""
    taken = _available_gib() - left_gib
    if taken <= 0:
        yield
        return
    argv = [sys.executable, "-m", "tools.stress", "--take", str(int(taken * _GIB))]
    with _children([argv], stdout=subprocess.PIPE) as (holder,):
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise SystemExit(f"make stress: {taken:.0f} GiB of memory can't be taken")
        yield


def take(size: int) -> None:
    """Hold memory until the process is ended; reports it when it has it."""
    with contextlib.suppress(PermissionError):  # it needs CAP_SYS_RESOURCE, which root of a sandbox may lack
        Path("/proc/self/oom_score_adj").write_text("-1000")
    memory = mmap.mmap(-1, size)
    for place in range(0, size, mmap.PAGESIZE):
        memory[place] = 1
    print("taken", flush=True)
    signal.pause()


@contextlib.contextmanager
def slow_fsync(folder: Path) -> Iterator[dict[str, str]]:
    """Variables with which programs have a slow fsync, in containers as well."""
    library = folder / f"slow_fsync-{platform.machine()}.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, _SOURCE], check=True)
    library.chmod(0o755)
    preload = folder / "ld.so.preload"
    preload.write_text(f"{library}\n")
    conf = folder / "containers.conf"
    found = next((file.read_text() for file in _CONTAINERS_CONF if file.is_file()), "")
    volumes = f'volumes = ["{library}:{library}:ro", "{preload}:/etc/ld.so.preload:ro"]\n'
    head, table, rest = found.partition("[containers]\n")
    conf.write_text(f"{head}[containers]\n{volumes}{rest if table else ''}")
    yield {"LD_PRELOAD": str(library), "CONTAINERS_CONF": str(conf)}


@contextlib.contextmanager
def clock_jump(seconds: float, after: float) -> Iterator[None]:
    """The machine's clock goes forward once, and back by as much at the end."""
    jumped, over = threading.Event(), threading.Event()

    def jump() -> None:
        if not over.wait(after):
            _move_clock(seconds)
            jumped.set()
            print(f"make stress: the clock went forward by {seconds:.0f} s", flush=True)

    thread = threading.Thread(target=jump)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if jumped.is_set():
            _move_clock(-seconds)


def _move_clock(seconds: float) -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.time() + seconds)


def _available_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 / _GIB
    raise SystemExit("make stress: /proc/meminfo has no MemAvailable")


@contextlib.contextmanager
def _children(commands: list[list[str]], **options: Any) -> Iterator[list[subprocess.Popen[bytes]]]:
    # A group of their own: Ctrl-C is for the suite, and they are ended here, or with this process however it ends.
    running = [subprocess.Popen(bound.to_this_process(argv), process_group=0, **options) for argv in commands]
    try:
        yield running
    finally:
        for child in running:
            child.kill()
            child.wait()


def main(words: list[str]) -> int:
    """Run a command under stress. Returns its exit status."""
    if words[:1] == ["--take"]:
        take(int(words[1]))
    with contextlib.ExitStack() as stack:
        made = tempfile.TemporaryDirectory(prefix="gpucluster-stress-", dir=_LIBRARIES)
        folder = Path(stack.enter_context(made))
        folder.chmod(0o755)  # programs of other users load the library
        variables = stack.enter_context(slow_fsync(folder))
        stack.enter_context(little_memory(LEFT_GIB))
        stack.enter_context(busy(BUSY_LOOPS))
        stack.enter_context(clock_jump(JUMP_S, JUMP_AFTER_S))
        child = subprocess.Popen(words, env={**os.environ, **variables})
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
