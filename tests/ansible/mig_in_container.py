"""Runs inside a container of the base image: Slurm with divided GPUs (MIG), and what jobs get of them.

The node's files are planted: an NVIDIA GPU and its capabilities are character devices without a driver, and the links
that `gpucluster-agent mig apply` makes lead to them. Slurm is real. It does not constrain devices here: that needs the
control groups of a host.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.ansible import slurm_in_container as slurm
from tests.waiting import wait_for

#: Lines of the prolog, which reports what it has of a job's GPUs.
PROLOG = slurm.RUN / "prolog.out"
#: What a task has of its GPUs.
SAYS = 'echo "$SLURM_GPUS_ON_NODE|$SLURM_JOB_GPUS|$SLURM_STEP_GPUS|$CUDA_VISIBLE_DEVICES"'


#: The numbers of the jobs by their names.
JOBS: dict[str, str] = {}


def plant(plan: dict[str, Any]) -> None:
    for minor, name in enumerate(plan["files"]):
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(file, stat.S_IFCHR | 0o666, os.makedev(195, minor))
    for name, target in plan["links"].items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).symlink_to(target)
    for name, text in plan["texts"].items():
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)


def said(name: str, *argv: str) -> list[str]:
    """A batch job with these options whose script runs `argv`; the lines of its output."""
    output = slurm.RUN / f"{name}.out"
    # On a busy machine srun reports there that it has to try again.
    files = (f"--output={output}", f"--error={slurm.RUN / name}-errors.log")
    job = slurm.call(*slurm.AS_USER, "sbatch", "--parsable", *files, *argv).strip()

    def ended() -> bool:
        return not slurm.call("squeue", "--noheader", f"--jobs={job}").strip()

    JOBS[name] = job
    wait_for(f"the job {name} has ended", ended, interval=0.1, state=lambda: f"{output.read_text()}\n{slurm.logs()}")
    return output.read_text().splitlines()


def submitted(*options: str) -> str:
    return slurm.call(
        *slurm.AS_USER, "sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 600", *options
    ).strip()


def reason(job: str) -> str:
    """Why a job waits, once the scheduler has looked at it."""
    slurm.await_output(
        "the scheduler has tried the job", *slurm.REASON, f"--jobs={job}", accept=lambda text: text.strip() != "None"
    )
    return slurm.call(*slurm.REASON, f"--jobs={job}").strip()


def main() -> None:
    plan = json.load(sys.stdin)
    slurm.prepare({**plan, "devices": [], "emulated_files": []})
    plant(plan)
    result: dict[str, Any] = {"version": slurm.call("slurmctld", "-V").split()[-1]}
    slurm.controller(plan["config"])
    node = plan["nodes"][0]
    found = subprocess.run(["slurmd", "-G", "-N", node], capture_output=True, text=True, check=False)
    result["gres"] = found.stderr
    slurm.start(node, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec slurmd -D', node)
    result["node"] = slurm.idle_nodes()[node]
    for name, (options, script) in plan["jobs"].items():
        result[name] = said(name, *options, f"--wrap={script}")
    first = submitted(*plan["fills"])
    slurm.await_output(
        "the job runs", "squeue", "--noheader", f"--jobs={first}", "--format=%T", accept=lambda t: "RUN" in t
    )
    second = submitted(*plan["waits"])
    result["waits"] = reason(second)
    result["used"] = slurm.call("scontrol", "show", "node", node, "--details")
    refused = slurm.submit(*plan["refused"], "--wrap=true")
    result["refused"] = [refused.returncode, refused.stderr]
    slurm.call("scancel", first, second)
    told = dict(line.split("|", 1) for line in PROLOG.read_text().splitlines())
    result["prolog"] = {name: told[job] for name, job in JOBS.items()}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
