"""A double of Slurm: a test writes nodes and jobs into a JSON file, and the double logs the commands that it gets.

It does nothing by itself: no job is requeued, no node powers down. `slurm_harness.py` has the real Slurm. The double
has two forms: an object for loops in the test's own process, and the commands `scontrol` and `squeue` for the real
program.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster.autoscaler.decide.types import Action, Job, Node
from gpucluster.errors import ToolError

OFF = ("IDLE", "CLOUD", "POWERED_DOWN")
COMING = ("ALLOCATED", "CLOUD", "NOT_RESPONDING", "POWERING_UP")
PREWARM = ("IDLE", "CLOUD", "NOT_RESPONDING", "POWERING_UP")
UP = ("ALLOCATED", "CLOUD")
IDLE = ("IDLE", "CLOUD")
LEAVING = ("IDLE", "CLOUD", "POWERING_DOWN")


def job(number: str, nodes: Iterable[str], state: str = "CONFIGURING") -> dict[str, Any]:
    return {"id": number, "state": state, "nodes": list(nodes)}


@dataclass
class SlurmFile:
    """The file of the double, as the test writes it."""

    file: Path
    names: tuple[str, ...]

    def write(self, states: Mapping[str, Iterable[str]] | None = None, jobs: Iterable[dict[str, Any]] = ()) -> None:
        nodes = {name: list(OFF) for name in self.names} | {name: list(s) for name, s in (states or {}).items()}
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps({"nodes": nodes, "jobs": list(jobs)}))
        part.replace(self.file)

    def fail(self) -> None:
        """Slurm can't be asked from now on."""
        self.file.write_text("slurm_load_node error: Unable to contact slurm controller")

    @property
    def asked(self) -> list[str]:
        """The commands that would change something."""
        log = self.file.with_suffix(".log")
        return log.read_text().splitlines() if log.exists() else []


class SlurmDouble:
    """Has the methods of `daemon.slurm.SlurmClient`."""

    def __init__(self, file: Path, pool: str = "compute") -> None:
        self._file, self._pool = file, pool

    def _read(self) -> Any:
        try:
            return json.loads(self._file.read_text())
        except ValueError as error:
            raise ToolError("Slurm does not answer") from error

    def nodes(self) -> dict[str, Node]:
        return {name: Node(name, self._pool, frozenset(flags)) for name, flags in self._read()["nodes"].items()}

    def node_states(self, names: Iterable[str]) -> dict[str, Node]:
        found = self.nodes()
        return {name: found[name] for name in names if name in found}

    def jobs(self) -> dict[str, Job]:
        return {
            one["id"]: Job(
                one["id"], one["id"], one["state"], "None", (self._pool,), tuple(one["nodes"]), len(one["nodes"])
            )
            for one in self._read()["jobs"]
        }

    def apply(self, action: Action) -> None:
        with self._file.with_suffix(".log").open("a") as log:
            log.write(f"{action}\n")


def _nodes(content: Any, wanted: set[str]) -> str:
    return "\n".join(
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 State={'+'.join(flags)} ThreadsPerCore=1 Weight=1"
        for name, flags in content["nodes"].items()
        if not wanted or name in wanted
    )


def _jobs(content: Any) -> str:
    records = []
    for one in content["jobs"]:
        count = str(len(one["nodes"]))
        fields = (one["id"], "0", one["state"], "compute", ",".join(one["nodes"]), count, "1000", "0", "0", "1", "1",
                  "None", "ada")  # fmt: skip
        records.append("\x1f".join(fields) + "\x1e\n")
    return "".join(records)


def commands(folder: Path, file: Path) -> None:
    """Write the commands `scontrol` and `squeue` into a folder for PATH."""
    folder.mkdir()
    root = Path(__file__).resolve().parents[2]
    for name in ("scontrol", "squeue"):
        script = folder / name
        script.write_text(
            f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m tests.autoscaler.slurm_double {file} {name} "$@"\n'
        )
        script.chmod(0o755)


def _main(argv: list[str]) -> int:
    file, name, words = Path(argv[0]), argv[1], argv[2:]
    try:
        content = json.loads(file.read_text())
    except ValueError:
        print(file.read_text(), file=sys.stderr)
        return 1
    if name == "squeue":
        sys.stdout.write(_jobs(content))
    elif "show" in words:
        wanted = set(words[words.index("node") + 1].split(",")) if "node" in words else set()
        print(_nodes(content, wanted))
    else:
        with file.with_suffix(".log").open("a") as log:
            log.write(" ".join(words) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
