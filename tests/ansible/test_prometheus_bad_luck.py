"""A real Prometheus whose disk is full, which was killed, and whose log is damaged: it answers, and goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.addresses import free_port
from tests.controller.monitor.real_prometheus import Running, prometheus
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MIB = 2**20


def configuration(port: int) -> str:
    """It scrapes itself."""
    targets = f"static_configs: [{{targets: ['127.0.0.1:{port}']}}]"
    return f"global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: itself, {targets}}}]\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of some MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("this user can't mount a tmpfs")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def newest(running: Running) -> float:
    """The time of the newest sample."""
    found: list[Any] = running.get("/api/v1/query?query=timestamp(up)")["result"]
    return max((float(each["value"][1]) for each in found), default=0.0)


def test_a_full_disk_ends_the_recording_and_space_lets_it_go_on(small_disk: Path) -> None:
    port = free_port()
    with prometheus(small_disk, configuration(port), port=port) as running:
        wait_for("a sample", lambda: newest(running))
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(9 * MIB))
        failed = "/api/v1/query?query=prometheus_tsdb_wal_writes_failed_total"
        log = small_disk / "log"
        wait_for("it sees that the disk is full", lambda: "no space left" in _said(running, log))
        # It is asked as before, and no other target lost anything.
        assert running.process.poll() is None
        assert running.get(failed)["resultType"] == "vector"
        filler.unlink()
        before = newest(running)
        wait_for("it goes on", lambda: newest(running) > before + 2)


def _said(running: Running, log: Path) -> str:
    """What it reports of the disk: in the log, or, where that has no space either, about its target."""
    return log.read_text(errors="replace") + "".join(each["lastError"] for each in running.targets())


def test_it_outlives_a_kill_and_a_damaged_log(tmp_path: Path) -> None:
    port = free_port()
    with prometheus(tmp_path, configuration(port), port=port) as running:
        wait_for("a sample", lambda: newest(running))
        last = newest(running)
    # The fixture has killed it with SIGKILL.
    segment = max((tmp_path / "data" / "wal").glob("0*"))
    with segment.open("r+b") as file:
        file.seek(segment.stat().st_size - 3000 if segment.stat().st_size > 6000 else 10)
        file.write(b"\xff" * 2000)
    with prometheus(tmp_path, configuration(port), port=port) as again:
        wait_for("a new sample", lambda: newest(again) > last)
