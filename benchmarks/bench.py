"""The cluster that benchmarks build, in a folder of its own, on a local cloud of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from description import cluster_yml  # type: ignore[import-not-found]  # beside this file


class Bench:
    """A cluster of its own on a local cloud of its own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpucluster-bench-"))
        self.env = {**os.environ, "GPUCLUSTER_HOME": str(self.folder / "cloud")}
        # `destroy` asks on a terminal.
        options = ("--file", str(self.folder / "cluster.yml"), "--non-interactive")
        self.program = (sys.executable, "-m", "gpucluster", *options)

    def run(self, count: int, *words: str) -> dict[str, Any]:
        return self.command(cluster_yml(f"compute: {{shape: BM.GPU4.8, count: {count}, max_count: {count}}}"), *words)

    def command(self, description: str, *words: str) -> dict[str, Any]:
        """Run the command on this description; the result, and how long it took."""
        (self.folder / "cluster.yml").write_text(description)
        argv = [*self.program, "-o", "json", *words]
        begin = time.perf_counter()
        done = subprocess.run(argv, env=self.env, stdout=subprocess.PIPE, text=True, check=False)
        took = time.perf_counter() - begin
        last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)} failed: {last.get('message')}")
        return {**last["data"], "wall": took}

    def close(self) -> None:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "gpucluster",
                "-f",
                str(self.folder / "cluster.yml"),
                "destroy",
                "--delete-data",
                "--yes",
            ],
            env=self.env,
            check=False,
            stdout=subprocess.DEVNULL,
        )
        shutil.rmtree(self.folder, ignore_errors=True)
