"""Jobs for Grid Engine: what its qsub reads, and what a job finds on its hosts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.jobs.model import Job
from tests.jobs.templates.test_rdma_perftest import files, job, job_with, programs

# --- Grid Engine -----


def seed_004() -> Job:
    return job(
        "horovod_resnet50", "sge", nodes=4, gpus=2, queue="pascal_short.q", slots="96", debug="INFO", compare="false",
        modules="compiler/gcc/7 mpi/openmpi/3.0.0",
    )  # fmt: skip


def test_the_job_of_seed_004_is_rendered_word_by_word(tmp_path: Path) -> None:
    rendered = files(seed_004(), tmp_path / "job")
    assert (rendered.submit, rendered.script) == ("qsub", "horovod_resnet50.sge")
    script = rendered.files[rendered.script].text.splitlines()
    assert {"#$ -S /bin/bash", "#$ -q pascal_short.q", "#$ -pe mpi 96"} <= set(script)
    # What module load and mpirun are told, on the four hosts of 24 processors that the seed got.
    (tmp_path / "hosts").write_text(
        "".join(f"pascal{n}.local 24 pascal_short.q@pascal{n} UNDEFINED\n" for n in (3, 1, 4, 7))
    )
    said = f'printf "%s\\n" "${{0##*/}} $*" >> {tmp_path}/log'
    export = f'export -f module; module() {{ echo "module $*" >> {tmp_path}/log; }}; export -f module; exec bash "$@"'
    environment = programs(
        tmp_path, mpirun=f'{said}\nenv | grep -E "^(NCCL|HOROVOD|OMPI_MCA)" | sort > {tmp_path}/given'
    )
    subprocess.run(
        ["bash", "-c", export.removeprefix("export -f module; "), "x", str(tmp_path / "job" / rendered.script)],
        env={
            **environment, "JOB_ID": "11", "SGE_O_WORKDIR": str(tmp_path / "job"),
            "PE_HOSTFILE": str(tmp_path / "hosts"),
        },
        check=True, capture_output=True,
    )  # fmt: skip
    log = (tmp_path / "log").read_text().splitlines()
    assert log[:2] == ["module load compiler/gcc/7", "module load mpi/openmpi/3.0.0"]
    train = log[-1]
    assert train.startswith(
        "mpirun -np 8 -npernode 2 --host pascal3.local:2,pascal1.local:2,pascal4.local:2,pascal7.local:2 "
    )
    assert "-x NCCL_DEBUG" in train and "-x HOROVOD_MPI_THREADS_DISABLE" in train  # noqa: PT018
    assert re.search(r" python3 \S+/resnet50.py ", train)
    given = (tmp_path / "given").read_text().splitlines()
    # `-mca pml ob1` is a variable of Open MPI.
    assert {"NCCL_DEBUG=INFO", "HOROVOD_MPI_THREADS_DISABLE=1", "OMPI_MCA_pml=ob1"} <= set(given)


def test_fewer_hosts_than_asked_for_end_the_job_before_it_begins(tmp_path: Path) -> None:
    rendered = files(seed_004(), tmp_path / "job")
    (tmp_path / "hosts").write_text("pascal3.local 96 pascal_short.q@pascal3 UNDEFINED\n")
    done = subprocess.run(
        ["bash", str(tmp_path / "job" / rendered.script)],
        env={"PATH": os.environ["PATH"], "JOB_ID": "11", "SGE_O_WORKDIR": "/", "PE_HOSTFILE": str(tmp_path / "hosts")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 66
    assert "Grid Engine gave 1 of 4 hosts: ask for all slots" in done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {"queue": "x\n#$ -o /etc/passwd"},
        {"pe": "a b"},
        {"resources": "gpu=1 -b y"},
        {"job_name": "7nodes"},
        {"time": "1-0"},
    ],
)
def test_what_grid_engine_reads_has_no_special_characters(settings: dict[str, str]) -> None:
    with pytest.raises(InputError):
        job_with(settings, "horovod_resnet50", "sge")


def test_one_environment_module_alone_is_loaded_like_several(tmp_path: Path) -> None:
    rendered = files(job("mpi_allreduce", "sge", modules="mpi/openmpi/4"), tmp_path)
    beside_python = Path(sys.executable).with_name("shellcheck")
    program = str(beside_python) if beside_python.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    script = str(tmp_path / rendered.script)
    done = subprocess.run([program, "--shell=bash", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
