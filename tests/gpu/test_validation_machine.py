"""NVIDIA's suite for Slurm with real GPUs, containers and NCCL, as an ordinary user (machine.py: what is real).

    GPUCLUSTER_TEST_ACV=~/ai-cloud-validation make test-gpu

It needs, beside what test_container_machine.py needs: a clone of github.com/NVIDIA/ai-cloud-validation, its packages
and PyTorch for this Python, jq, nvcc, and an `all_reduce_perf_mpi` of nccl-tests in /usr/local/bin. The image stands
for those of nvcr.io: it has the programs of this machine. One node has all GPUs. No internet is needed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster import process
from tests.ansible.render import evaluate
from tests.gpu.machine import SHARED, USER, Machine, gpus, node_of
from tests.gpu.test_container_machine import configure, known, need_containers
from tests.programs import validation
from tests.waiting import PATIENCE_S

CPU, GPU = "cpu", "gpu"
IMAGE = f"{SHARED}/programs.sqsh"
SUITE, PACKAGES = f"{SHARED}/suite", ("reframe", "typer", "kubernetes", "paramiko", "boto3", "torch")
HOME = f"/home/{USER}"
#: As `setup.sh` of the suite sees a host for logins: with an nvidia-smi there it prints what is not JSON.
NO_DRIVER = f"{SHARED}/no-driver"
# An image that has nothing but folders for what is mounted.
MAKE_IMAGE = r"""
set -e
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p root/usr root/opt root/tmp root/var/tmp root/etc root/dev root/proc root/sys root/run
for name in bin sbin lib lib64; do ln -s "usr/$name" "root/$name"; done
printf 'PATH=%s\n' "$1" > root/etc/environment
mksquashfs root "$0" -noappend -quiet -no-progress > /dev/null
chmod 644 "$0"
"""
MOUNTS = """\
/usr /usr none rbind,ro
/opt /opt none rbind,ro
/etc/alternatives /etc/alternatives none x-create=dir,bind,ro
/etc/ld.so.cache /etc/ld.so.cache none x-create=file,bind,ro
"""
PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/local/cuda/bin:/usr/bin:/bin:/usr/sbin"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    validation.clone()
    need_containers()
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    absent += [name for name in ("jq", "nvcc", "all_reduce_perf_mpi") if shutil.which(name, path=PATH) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    with Machine({CPU: [], GPU: gpus()}, {}, _prepare) as made:
        identity = [f"SLURM_JOB_{kind}={made.run('id', flag, USER).stdout.strip()}" for kind, flag in _IDENTITY]
        made.run("env", *identity, str(evaluate("{{ container_prolog }}", known())))
        yield made


_IDENTITY = (("UID", "-u"), ("GID", "-g"))


def _prepare(machine: Machine) -> None:
    configure(machine)
    machine.write("/etc/enroot/mounts.d/91-programs.fstab", MOUNTS)
    machine.run("sh", "-c", MAKE_IMAGE, IMAGE, PATH)
    machine.run("cp", "-r", str(validation.clone()), SUITE)
    machine.run("chown", "-R", USER, SUITE)
    machine.run("sh", "-c", f"mkdir {NO_DRIVER} && ln -s /usr/bin/* {NO_DRIVER} && rm -f {NO_DRIVER}/nvidia-smi")


def _settings() -> dict[str, object]:
    """What the suite needs to know here; the rest is as its files have it."""
    setup = {"name": "setup", "phase": "setup", "command": "../providers/my-isv/scripts/slurm/setup.sh"}
    checks = {
        "SlurmGpuStressWorkload": {"image": IMAGE},
        "SlurmNcclMultiNodeWorkload": {"image": IMAGE},
        "SlurmSbatchWorkload-gpu": {"variables": {"GPUS_PER_NODE": len(gpus())}},
    }
    return {
        "commands": {"slurm": {"phases": ["setup", "test"], "steps": [{**setup, "env": {"PATH": NO_DRIVER}}]}},
        "tests": {"validations": {"slurm_workloads": {"checks": checks}}},
    }


@pytest.mark.timeout(4 * PATIENCE_S)
def test_the_suite_for_slurm(machine: Machine) -> None:
    machine.write(f"{HOME}/settings.yaml", json.dumps(_settings()))
    sources = [f"{SUITE}/{name}/src" for name in ("isvctl", "isvtest", "isvreporter")]
    environment = {
        "HOME": HOME, "USER": USER, "LANG": "C.UTF-8", "PATH": PATH,
        "PYTHONPATH": ":".join([*sources, *filter(None, sys.path[1:])]),
    }  # fmt: skip
    files = ("-f", f"{SUITE}/isvctl/configs/suites/slurm.yaml", "-f", f"{HOME}/settings.yaml")
    words = ("test", "run", *files, "--no-upload", "--junitxml", f"{HOME}/report.xml")
    done = process.run(
        [
            *machine.command_prefix, "runuser", "-u", USER, "--", "env", "--ignore-environment", f"--chdir={HOME}",
            *(f"{name}={value}" for name, value in environment.items()),
            sys.executable, "-c", "from isvctl.main import app; app()", *words,
        ],
        check=False, timeout=3 * PATIENCE_S, env=os.environ | {"PATH": f"/usr/sbin:{os.environ['PATH']}"},
    )  # fmt: skip
    report = machine.read(f"{HOME}/report.xml")
    found = validation.outcomes(report)
    print(done.stdout[done.stdout.find("ORCHESTRATION RESULTS") :])
    # One GPU has no bandwidth to others.
    few = {"SlurmGpuAllocation-2gpu", "SlurmNcclMultiNodeWorkload"} if len(gpus()) < 2 else set()
    assert {name for name, outcome in found.items() if outcome.startswith("failed")} == few, report
    # `uv`, which is not on the nodes, would fetch PyTorch.
    assert {name for name, outcome in found.items() if outcome.startswith("skipped")} == {"SlurmSbatchWorkload-gpu"}
    assert len(found) == 13, sorted(found)
    assert machine.states() == {node_of(CPU): "idle", node_of(GPU): "idle"}
