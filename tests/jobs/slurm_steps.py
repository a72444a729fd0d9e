"""A double of what a batch script asks Slurm for: `srun` starts the processes of all nodes here.

It does not prove that Slurm accepts the options, that ranks find each other, or anything about containers: the
end-to-end tests of whole clusters do.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from gpucluster.jobs.model import Rendered
from tests.waiting import PATIENCE_S

NODES = ("gpu-2", "gpu-10")
_SRUN = r"""#!/bin/bash
printf '%s\0' "$@" >> "$DOUBLE/srun.calls"
printf 'end of call\0' >> "$DOUBLE/srun.calls"
nodes=1 ranks=1
while [[ $1 == --* ]]; do
    case $1 in
        --nodes=*) nodes=${1#*=} ;;
        --ntasks-per-node=*) ranks=${1#*=} ;;
    esac
    shift
done
status=0
for ((number = 0; number < nodes * ranks; number++)); do
    SLURM_PROCID=$number SLURM_LOCALID=$((number % ranks)) SLURM_NODEID=$((number / ranks)) \
        SLURM_NTASKS=$((nodes * ranks)) "$@" </dev/null || status=$?
done
exit "$status"
"""
_MPIRUN = r"""#!/bin/bash
printf '%s\0' "$@" >> "$DOUBLE/mpirun.calls"
printf 'end of call\0' >> "$DOUBLE/mpirun.calls"
while [[ $1 == -* ]]; do
    case $1 in -x | -np | --*) [ "$1" = -np ] && ranks=$2; shift ;; esac
    shift
done
for ((number = 0; number < ranks; number++)); do
    OMPI_COMM_WORLD_RANK=$number OMPI_COMM_WORLD_LOCAL_RANK=$number OMPI_COMM_WORLD_SIZE=$ranks "$@" || exit $?
done
"""


@dataclass
class Ran:
    """How a script ended, and with which words each program of Slurm or MPI was called."""

    status: int
    out: str
    err: str
    folder: Path
    calls: dict[str, list[list[str]]] = field(default_factory=dict)


def program(folder: Path, name: str, text: str) -> None:
    """A program on the search path of the script."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


def write(rendered: Rendered, folder: Path) -> None:
    """The files of a job, in its folder."""
    for name, file in rendered.files.items():
        (folder / name).write_text(file.text)
        (folder / name).chmod(0o755 if file.executable else 0o644)


def run(rendered: Rendered, folder: Path, *, job: int = 30007, nodes: tuple[str, ...] = NODES) -> Ran:
    """The script, as slurmd starts it: a copy of it, in another place than its folder."""
    write(rendered, folder)
    program(folder, "scontrol", "#!/bin/bash\n" + "".join(f"echo {node}\n" for node in nodes))
    program(folder, "srun", _SRUN)
    if not (folder / "bin" / "mpirun").exists():
        program(folder, "mpirun", _MPIRUN)
    spooled = folder / "bin" / "slurm_script"
    spooled.write_text(rendered.files[rendered.script].text)
    environment = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}", "DOUBLE": str(folder / "bin"), "SLURM_JOB_ID": str(job),
        "SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_NODELIST": "gpu-[2,10]", "HOME": str(folder),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(spooled)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    calls = {name: _words(folder / "bin" / f"{name}.calls") for name in ("srun", "mpirun")}
    return Ran(done.returncode, done.stdout, done.stderr, folder, calls)


def _words(log: Path) -> list[list[str]]:
    if not log.exists():
        return []
    return [call.split("\0")[:-1] for call in log.read_bytes().decode().split("end of call\0")[:-1]]
