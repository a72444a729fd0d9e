"""A double of Slurm: a test writes nodes and jobs into a JSON file, and the double logs the commands that it gets.

It does nothing by itself: no job is requeued, no node powers down. `slurm_harness.py` has the real Slurm. The double
has two forms: an object for loops in the test's own process, and the commands `scontrol` and `squeue` for the real
program. These are shell scripts that print files: a daemon starts them several times a second.
"""

from __future__ import annotations

import json
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


# Prints what SlurmFile wrote, or logs a command that would change something.
_COMMAND = r"""#!/bin/sh
files={files} name={name} show= wanted= last=
if [ -e "$files.failure" ]; then cat "$files.failure" >&2; exit 1; fi
if [ $name = squeue ]; then exec cat "$files.jobs"; fi
for word; do
    if [ "$word" = show ]; then show=yes; fi
    if [ "$last" = node ]; then wanted=$word; fi
    last=$word
done
if [ -z "$show" ]; then echo "$*" >> "$files.log"; exit 0; fi
if [ -z "$wanted" ]; then exec cat "$files.nodes"; fi
grep -E "^NodeName=($(echo "$wanted" | tr , '|')) " "$files.nodes" || true
"""


@dataclass
class SlurmFile:
    """The file of the double, as the test writes it."""

    file: Path
    names: tuple[str, ...]

    def write(self, states: Mapping[str, Iterable[str]] | None = None, jobs: Iterable[dict[str, Any]] = ()) -> None:
        nodes = {name: list(OFF) for name in self.names} | {name: list(s) for name, s in (states or {}).items()}
        content = {"nodes": nodes, "jobs": list(jobs)}
        # Who asks for nodes and then for jobs never has new nodes with old jobs.
        self._replace(self.file.with_suffix(".jobs"), _jobs(content))
        self._replace(self.file.with_suffix(".nodes"), _nodes(content))
        self._replace(self.file, json.dumps(content))
        self.file.with_suffix(".failure").unlink(missing_ok=True)

    def fail(self) -> None:
        """Slurm can't be asked from now on."""
        words = "slurm_load_node error: Unable to contact slurm controller"
        self._replace(self.file.with_suffix(".failure"), words)
        self._replace(self.file, words)

    @staticmethod
    def _replace(file: Path, text: str) -> None:
        part = file.with_suffix(".part")
        part.write_text(text)
        part.replace(file)

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


def _nodes(content: Any) -> str:
    return "".join(
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 State={'+'.join(flags)} ThreadsPerCore=1 Weight=1\n"
        for name, flags in content["nodes"].items()
    )


def _jobs(content: Any) -> str:
    records = []
    for one in content["jobs"]:
        count = str(len(one["nodes"]))
        fields = (one["id"], "0", one["state"], "compute", ",".join(one["nodes"]), count, "1000", "0", "0", "1", "1",
                  "default", "None", "ada")  # fmt: skip
        records.append("\x1f".join(fields) + "\x1e\n")
    return "".join(records)


def commands(folder: Path, file: Path) -> None:
    """Write the commands `scontrol` and `squeue` into a folder for PATH."""
    folder.mkdir()
    for name in ("scontrol", "squeue"):
        script = folder / name
        script.write_text(_COMMAND.format(files=file.with_suffix(""), name=name))
        script.chmod(0o755)
