"""A real Prometheus of this machine's package, on a free port, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.addresses import free_port
from tests.waiting import PATIENCE_S, wait_for


@dataclass(frozen=True)
class Running:
    """A Prometheus that answers."""

    port: int
    process: subprocess.Popen[bytes]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("/api/v1/targets")["activeTargets"]
        return found


@contextlib.contextmanager
def prometheus(folder: Path, configuration: str, *more: str, port: int | None = None) -> Iterator[Running]:
    """Start it with a configuration; its records are in `folder`."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("this machine has no prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prometheus.yml"
    file.write_text(configuration)
    port = port or free_port()
    words = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
    words += [f"--web.listen-address=127.0.0.1:{port}", *more]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        running = Running(port, process)

        def ready() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=PATIENCE_S).close()
                return True
            return False

        wait_for("Prometheus answers", ready, state=(folder / "log").read_text)
        yield running
    finally:
        process.kill()
        process.wait()
