"""A container step on every free node. Only a marker that was read in the container is proof: a node without the plugin
may run the step on the host and report success.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gpucluster.controller import share
from gpucluster.controller.rules.slurm_nodes import SINFO_IN_USE, is_busy, sinfo_use
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.programs import ProgramGroup

#: The folder of the temporary image on the share.
FOLDER = ".gpucluster-verify-containers"
_MARKER = "gpucluster-marker"
# The shell reads the file itself: the image has no other program.
STEP_SCRIPT = f'read -r word </{_MARKER} && echo "$word $SLURMD_NODENAME"'
_TEXTS = {
    _MARKER: "{marker}\n",
    "etc/os-release": "ID=gpucluster-verify\nNAME=gpucluster\n",
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/hostname": "container\n",
    "etc/resolv.conf": "",
    "etc/environment": "",
    "etc/fstab": "",
}
# Mount points of a container engine.
_DIRECTORIES = ("dev", "home", "mnt", "opt", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp")
# Nodes of a pool that are tried separately at the same time.
_MAX_SEPARATE = 16
#: Seconds that a step waits and runs at most.
STEP_SECONDS = 60
_SECONDS = 60.0
# States in sinfo of an elastic node that is powered down, or powering down.
_GONE = re.compile(r"[~%!]$|POWER", re.IGNORECASE)
# Of a line of sinfo: the node, its state, the reason.
_COLUMNS = 3
# Maximum characters of the errors of one node.
_MAX_REASON = 300


def build_root(root: Path, marker: str, programs: ProgramGroup) -> None:
    """Create a root directory with a shell and the marker; no devices, because users can't create them."""
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    shell = os.path.realpath("/bin/sh")
    shutil.copy(shell, root / "usr/bin/sh")
    # Its shared libraries, the loader included.
    listed = programs.run(["ldd", shell], _SECONDS).stdout
    for library in sorted(set(re.findall(r"(/\S+)(?= \(0x)", listed))):
        target = root / library.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    for name, text in _TEXTS.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text.format(marker=marker), encoding="utf-8")


class StepImage:
    """A tiny image of this host's shell and a marker, on the share. It is made when it is first asked for.

    Args:
        place: where the share is mounted.
    """

    def __init__(self, place: Path, marker: str, programs: ProgramGroup) -> None:
        self._place = place
        self.marker = marker
        self._programs = programs
        self._lock = threading.Lock()
        self._file: Path | None = None
        self._removed = False

    def file(self) -> Path:
        """The image.

        Raises:
            Failed: it can't be made, or is not wanted any more, or the share is not mounted.
            OSError: a file can't be written.
        """
        with self._lock:
            if self._removed:
                raise Failed("the image for container steps is not wanted any more")
            if self._file is None:
                name = f"{self.marker}.sqsh"
                with tempfile.TemporaryDirectory(prefix="gpucluster-verify-") as scratch:
                    root, image = Path(scratch, "root"), Path(scratch, "image")
                    build_root(root, self.marker, self._programs)
                    root.chmod(0o755)
                    argv = ["mksquashfs", str(root), str(image), "-all-root", "-no-progress", "-noappend", "-no-xattrs"]
                    done = self._programs.run(argv, _SECONDS)
                    if done.returncode != 0:
                        raise Failed(f"the image for container steps can't be made: {done.stderr.strip()}")
                    share.put(self._place, FOLDER, name, image.read_bytes())
                self._file = self._place / FOLDER / name
            return self._file

    def remove(self) -> None:
        """Remove it, if it is there, and make none any more.

        Raises:
            OSError: it can't be removed.
        """
        with self._lock:
            self._removed = True
            share.remove(self._place, FOLDER)


def answers(marker: str, output: str) -> set[str]:
    """The nodes that read the marker."""
    pairs = (line.partition(" ") for line in output.splitlines())
    return {node for word, _space, node in pairs if word == marker and node}


def reason(output: str, seconds: int) -> str:
    """The output of a failed step, in one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    useful = [
        line for line in lines if not re.search(r"^srun: (job \d+ (queued|has been)|Force|Job step aborted)", line)
    ]
    return " | ".join(useful or lines)[:_MAX_REASON] or f"no response within {seconds} seconds"


def states(nodes: Iterable[str], programs: ProgramGroup) -> dict[str, dict[str, str]]:
    """State and reason of these nodes. Slurm has a reason only for nodes that are drained or down."""
    names = ",".join(nodes)
    if not names:
        return {}
    output = programs.run(["sinfo", "--noheader", "--Node", f"--nodes={names}", "--format=%N %T %E"], _SECONDS).stdout
    rows = (line.split(None, 2) for line in output.splitlines() if len(line.split(None, 2)) == _COLUMNS)
    return {node: {"node": node, "state": state, "reason": words.strip()} for node, state, words in rows}


def gone(rows: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Those of these nodes that Slurm has powered down, or is powering down."""
    return {node for node, row in rows.items() if _GONE.search(row["state"])}


def in_use(rows: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Those of these nodes that jobs of users have, or wait for: a step may have to wait there."""
    return {node for node, row in rows.items() if sinfo_use(row["state"]) in SINFO_IN_USE}


def closed(rows: Mapping[str, Mapping[str, str]]) -> list[dict[str, str]]:
    """Those of these nodes that Slurm gives a reason for. `none` is its word for no reason."""
    return [dict(row) for _node, row in sorted(rows.items()) if row["reason"] != "none"]


class ContainerSteps:
    """The container steps of one pool.

    Args:
        user: who runs them. `job`: the name of their jobs.
    """

    def __init__(self, image: StepImage, programs: ProgramGroup, user: str, job: str) -> None:
        self._image = image
        self._programs = programs
        self._user = user
        self._job = job

    def run(self, pool: Mapping[str, Any], nodes: list[str]) -> tuple[set[str], str]:
        """Run one step on these nodes; returns those that read the marker, and the other output."""
        argv = ["timeout", str(STEP_SECONDS), "runuser", f"--user={self._user}", "--", "srun"]
        argv += [f"--immediate={STEP_SECONDS // 2}", "--time=2", f"--job-name={self._job}", "--chdir=/", "--mem=64"]
        argv += [f"--partition={pool['partition']}", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}"]
        argv += [f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--container-image={self._image.file()}"]
        argv += ["--no-container-mount-home", "/bin/sh", "-c", STEP_SCRIPT]
        done = self._programs.run(argv, STEP_SECONDS + 10.0)
        seen = answers(self._image.marker, done.stdout) & set(nodes)
        return seen, reason(done.stderr, STEP_SECONDS)

    def pool(self, pool: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step on all nodes of a pool; retry the nodes that failed, each separately. An elastic node that is
        powered down meanwhile does not count, nor a node that jobs of users have."""
        seen, words = self.run(pool, pool["nodes"])
        missed = {node: words for node in pool["nodes"] if node not in seen}
        if missed and len(pool["nodes"]) > 1:
            with ThreadPoolExecutor(_MAX_SEPARATE) as threads:
                separate = dict(zip(missed, threads.map(lambda node: self.run(pool, [node]), missed)))
            seen |= {node for node, (found, _words) in separate.items() if found}
            # A node whose plugin is missing is drained by the first step: the second one only finds it busy.
            missed = {
                node: words if is_busy(again) else again for node, (found, again) in separate.items() if not found
            }
        rows = states(missed, self._programs)
        for node in gone(rows) | {node for node in in_use(rows) if is_busy(missed[node])}:
            del missed[node], rows[node]
        return {"pool": pool["name"], "seen": sorted(seen), "missed": missed, "closed": closed(rows)}
