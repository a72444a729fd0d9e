"""The sample jobs: scripts that shells accept, who the workers of a training are, how the job of nccl-tests ends.

Without GPUs, containers and TensorFlow: srun, scontrol and sinfo are doubles here that say what Slurm would say. The
rows of nccl-tests are those of the seeds and of NVIDIA's own format.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.nccl.outputs import TUNED, output
from tests.agent.zipapp import install
from tests.ansible.loading import ANSIBLE

SAMPLES = ANSIBLE / "roles" / "samples" / "files"
SCRIPTS = sorted(SAMPLES.glob("*/*.sh"))
PROGRAMS = sorted(SAMPLES.glob("*/*.py"))
MNIST, NCCL = SAMPLES / "mnist", SAMPLES / "nccl_tests"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_shells_accept_the_scripts(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert os.access(script, os.X_OK)
    beside_python = Path(sys.executable).with_name("shellcheck")
    program = str(beside_python) if beside_python.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([program, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_python_accepts_the_programs(program: Path) -> None:
    compile(program.read_text(), str(program), "exec", dont_inherit=True)
    assert os.access(program, os.X_OK)


def test_no_setting_of_the_network_is_typed_by_hand() -> None:
    for file in (*SCRIPTS, *PROGRAMS):
        assert not re.search(r"NCCL_(IB|SOCKET|NET|CROSS)_\w+=", file.read_text()), file


# --- mnist -----


def workers(names: list[str]) -> list[str]:
    return [f"{name}=10.0.1.{number}" for number, name in enumerate(names, start=2)]


def start(folder: Path, names: list[str], me: str, *, port: int = 23456) -> subprocess.CompletedProcess[str]:
    """start.sh, with a double of Python that only prints its arguments."""
    shutil.copy(MNIST / "start.sh", folder)
    double(folder, "python3", 'printf "%s\\n" "$TF_CONFIG"\n')
    return subprocess.run(
        [str(folder / "start.sh"), *workers(names)],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "SLURMD_NODENAME": me, "WORKER_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "names",
    [
        ["node-1"],
        ["gpu-2", "gpu-1"],
        ["node-1", "node-10", "node-11", "node-100", "node"],
        [f"compute-e{number}" for number in range(1, 18)],
    ],
    ids=["one", "two", "prefixes", "seventeen"],
)
def test_every_worker_knows_the_others_and_its_place(tmp_path: Path, names: list[str]) -> None:
    told = []
    for name in names:
        done = start(tmp_path, names, name)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout.splitlines()[0]))
    expected = [f"10.0.1.{number}:23456" for number in range(2, 2 + len(names))]
    assert [one["cluster"] for one in told] == [{"worker": expected}] * len(names)
    assert [one["task"] for one in told] == [{"type": "worker", "index": index} for index in range(len(names))]


def test_who_is_no_worker_does_not_train(tmp_path: Path) -> None:
    done = start(tmp_path, ["node-10", "node-11"], "node-1")
    assert done.returncode == 1
    assert "node-1 is not among the workers" in done.stderr
    assert done.stdout == ""


def double(folder: Path, name: str, text: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/bash\n{text}")
    program.chmod(0o755)


def submit(folder: Path, sample: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A batch script as slurmd starts it, in a folder with the sample, with doubles of Slurm's commands."""
    shutil.copytree(sample, folder, dirs_exist_ok=True)
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    slurm = {
        "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_ID": "30007",
        "SLURM_JOB_NODELIST": "compute-[2,10],x-1", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "8",
    }  # fmt: skip
    double(
        programs,
        "scontrol",
        '[ "$*" = "show hostnames compute-[2,10],x-1" ] && printf "%s\\n" compute-2 compute-10 x-1\n',
    )
    # Once for each partition that a node is in; x-1 is known by its name alone.
    double(programs, "sinfo", 'printf "%s\\n" "compute-10 10.0.1.5" "compute-2 10.0.1.4" "compute-2 10.0.1.4"\n')
    if not (programs / "srun").exists():
        double(programs, "srun", f'printf "%s\\n" "port=$WORKER_PORT" "$@" > {folder}/srun.words\n')
    return subprocess.run(
        ["bash", str(folder / script), *words],
        env={**slurm, **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_training_has_one_container_on_each_node(tmp_path: Path) -> None:
    done = submit(tmp_path, MNIST, "submit.sh", "/images/tf.sqsh", MNIST_DATA="/data/mnist.npz")
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "srun.words").read_text().splitlines()
    assert words[0] == "port=20007"
    assert words[-3:] == ["compute-2=10.0.1.4", "compute-10=10.0.1.5", "x-1=x-1"]
    assert {f"--output={tmp_path}/%N.out", f"--error={tmp_path}/%N.err", "--container-image=/images/tf.sqsh"} <= set(
        words
    )
    assert f"--container-mounts={tmp_path}:{tmp_path},/data/mnist.npz:/data/mnist.npz:ro" in words


@pytest.mark.parametrize(("sample", "script"), [(MNIST, "submit.sh"), (NCCL, "all_reduce.sh")])
def test_a_job_without_an_image_says_so(tmp_path: Path, sample: Path, script: str) -> None:
    done = submit(tmp_path, sample, script)
    assert done.returncode == 1
    assert "name an image" in done.stderr


# --- nccl_tests -----


@pytest.mark.parametrize(("ranks", "status"), [(16, 0), (1, 2)])
def test_the_job_ends_as_its_result_was(tmp_path: Path, ranks: int, status: int) -> None:
    text = tmp_path / "printed"
    text.write_text("".join(output(TUNED, ranks=ranks)))
    (tmp_path / "bin").mkdir()
    install(tmp_path / "bin")
    double(
        tmp_path / "bin", "srun",
        f'printf "%s " "$@" >> {tmp_path}/srun.words; echo >> {tmp_path}/srun.words\n'
        f'case "$*" in *build.sh) echo /usr/bin/all_reduce_perf ;; *) cat {text} ;; esac\n',
    )  # fmt: skip
    done = submit(tmp_path, NCCL, "all_reduce.sh", "registry.example#org/image:1", SHAPE="BM.GPU4.8")
    assert done.returncode == status, done.stdout + done.stderr
    assert ("1 ranks name their GPU" in done.stdout) == bool(status)
    step = (tmp_path / "srun.words").read_text().splitlines()[1]
    assert "--ntasks=16 --ntasks-per-node=8" in step
    assert "--mpi=pmix --container-image=registry.example#org/image:1" in step
    assert step.rstrip().endswith("/usr/bin/all_reduce_perf -b 10G -e 10G -f 2 -g 1")


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(NCCL / "build.sh")], env={"PATH": f"{folder}/bin:{os.environ['PATH']}", **variables}, cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_program_of_the_image_is_taken_or_else_one_is_built_once(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    nothing = build(tmp_path)
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "NCCL_TESTS_URL" in nothing.stderr

    sources = tmp_path / "nccl-tests"
    sources.mkdir()
    (sources / "Makefile").write_text(
        "all:\n\tmkdir -p build\n\techo $(MPI) $(MPI_HOME) >> build/log\n\tcp /bin/true build/all_reduce_perf\n"
    )
    double(tmp_path / "bin", "mpicc", "exit 0\n")
    for _ in range(2):
        built = build(tmp_path)
        assert (built.returncode, built.stdout) == (0, f"{sources}/build/all_reduce_perf\n"), built.stderr
    assert (sources / "build" / "log").read_text() == f"1 {tmp_path}\n"

    shutil.rmtree(sources)
    double(tmp_path / "bin", "all_reduce_perf", "exit 0\n")
    assert build(tmp_path).stdout == f"{tmp_path}/bin/all_reduce_perf\n"
