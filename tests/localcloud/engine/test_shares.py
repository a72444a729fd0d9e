"""Mounts of a share in other mount namespaces become read-only and writable. Real namespaces, no containers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from gpucluster import process
from gpucluster.localcloud.engine import shares
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="it needs root and unshare (util-linux)"
)

# Mounts $0 at $1, and starts a second process of the namespace; both end with their standard input.
_MEMBERS = 'exec 3<&0; mount --bind "$0" "$1" && { cat <&3 >&2 & } && echo $! && exec cat >&2'


class Namespace:
    """A mount namespace with two processes, in which a share is mounted."""

    def __init__(self, ends: ExitStack, share: Path, place: Path) -> None:
        self.place = place
        argv = ["unshare", "--mount", "sh", "-c", _MEMBERS, str(share), str(place)]
        first = ends.enter_context(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        ends.callback(first.kill)
        assert first.stdout is not None
        self.processes = {first.pid, int(first.stdout.readline())}
        self._first = first

    def options(self) -> str:
        """Those of the mount: "ro,relatime" and such."""
        lines = (Path("/proc") / str(min(self.alive())) / "mountinfo").read_text().splitlines()
        return next(fields[5] for line in lines if (fields := line.split(" "))[4] == str(self.place))

    def alive(self) -> set[int]:
        return {pid for pid in self.processes if Path("/proc", str(pid), "ns", "mnt").exists()}

    def kill_seen_first(self) -> None:
        """End the process that a look at /proc finds first."""
        pid = next(int(path.name) for path in Path("/proc").glob("[0-9]*") if int(path.name) in self.processes)
        os.kill(pid, 9)
        if pid == self._first.pid:
            self._first.wait()
        wait_for(f"process {pid} has ended", lambda: pid not in self.alive())


@pytest.fixture
def share(tmp_path: Path) -> Path:
    (tmp_path / "exports" / "share").mkdir(parents=True)
    return tmp_path / "exports" / "share"


@pytest.fixture
def namespace(share: Path, tmp_path: Path) -> Iterator[Namespace]:
    (tmp_path / "mounted").mkdir()
    with ExitStack() as ends:
        yield Namespace(ends, share, tmp_path / "mounted")


def test_a_mount_becomes_read_only_and_writable(share: Path, namespace: Namespace) -> None:
    for writable, option in ((False, "ro"), (False, "ro"), (True, "rw")):
        shares.set_writable(share, writable=writable)
        assert namespace.options().split(",")[0] == option


def test_the_process_that_was_found_may_end(share: Path, namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    # Numbers of processes start again at pid_max: the first one of an instance may be one that lives for a moment.
    run = process.run

    def run_later(argv: list[str], **options: Any) -> object:
        namespace.kill_seen_first()
        return run(argv, **options)

    monkeypatch.setattr(process, "run", run_later)
    shares.set_writable(share, writable=False)
    assert len(namespace.alive()) == 1
    assert namespace.options().split(",")[0] == "ro"


def test_a_mount_that_is_written_to_stays_writable_and_is_in_the_log(
    share: Path, namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    place = namespace.place
    writer = Path("/proc", str(min(namespace.alive())), "root", str(place)[1:], "file")
    with writer.open("w"):
        shares.set_writable(share, writable=False)
        assert namespace.options().split(",")[0] == "rw"
    assert [record.getMessage() for record in caplog.records] == [
        f"{share}: not made read-only: {place}: Device or resource busy"
    ]


def _open_files() -> Counter[str]:
    """What this process has open."""
    found: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this listing itself
            found[os.readlink(descriptor)] += 1
    return found


def test_no_file_stays_open(share: Path, namespace: Namespace) -> None:
    before = _open_files()
    shares.set_writable(share, writable=False)
    assert namespace.options().split(",")[0] == "ro"
    # Meanwhile Python may close what an earlier test has left.
    assert not _open_files() - before
