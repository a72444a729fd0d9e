"""The sample jobs: scripts that shells accept, the programs of the templates beside them, how the jobs start and end.

Without GPUs, containers and TensorFlow: srun, scontrol and sinfo are doubles here with the output of Slurm. The
rows of nccl-tests are those of the seeds and of NVIDIA's own format.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.plugins.loader import lookup_loader

from gpucluster.jobs import templates
from tests.agent_program import install
from tests.ansible.loading import ANSIBLE
from tests.node_agent.nccl.outputs import TUNED, output

SAMPLES = ANSIBLE / "roles" / "samples" / "files"
SCRIPTS = sorted(SAMPLES.glob("*/*.sh"))
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


def beside(sample: str) -> tuple[str, str]:
    """The program that the role puts beside the sample's own files, and its text."""
    of = yaml.safe_load((SAMPLES.parent / "vars" / "main.yml").read_text())["samples_all"][sample]
    (text,) = lookup_loader.get("gpucluster_job_file").run([of["template"], of["program"]])
    return of["program"], base64.b64decode(text).decode()


def test_the_programs_are_those_of_the_templates() -> None:
    folder = Path(templates.__file__).parent
    assert beside("nccl_tests") == ("build.sh", (folder / "nccl_tests" / "files" / "build.sh").read_text())
    assert beside("mnist") == ("train.py", (folder / "tensorflow_mnist" / "files" / "train.py").read_text())
    assert not list(SAMPLES.glob("*/build.sh"))
    assert not list(SAMPLES.glob("*/*.py"))


@pytest.mark.parametrize("wrong", [("nccl_tests", "nothing.sh"), ("nothing", "build.sh")])
def test_a_program_that_no_template_has_is_named(wrong: tuple[str, str]) -> None:
    with pytest.raises(AnsibleError, match="nothing"):
        lookup_loader.get("gpucluster_job_file").run(list(wrong))


def test_no_setting_of_the_network_is_typed_by_hand() -> None:
    for file in SCRIPTS:
        assert not re.search(r"NCCL_(IB|SOCKET|NET|CROSS)_\w+=", file.read_text()), file


# --- mnist -----


def double(folder: Path, name: str, text: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/bash\n{text}")
    program.chmod(0o755)


def put(sample: Path, folder: Path) -> None:
    """The folder of a sample, as the role makes it."""
    shutil.copytree(sample, folder, dirs_exist_ok=True)
    name, text = beside(sample.name)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def submit(folder: Path, sample: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A batch script as slurmd starts it, in a folder with the sample, with doubles of Slurm's commands."""
    put(sample, folder)
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
        double(programs, "srun", f'printf "%s\\n" "$WORKERS" "$@" > {folder}/srun.words\n')
    return subprocess.run(
        ["bash", str(folder / script), *words],
        env={**slurm, **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_training_has_one_container_on_each_node(tmp_path: Path) -> None:
    data = tmp_path / "mnist.npz"
    data.touch()
    done = submit(tmp_path, MNIST, "submit.sh", "/images/tf.sqsh", MNIST_DATA=str(data))
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "srun.words").read_text().splitlines()
    assert words[0] == "10.0.1.4:20007,10.0.1.5:20007,x-1:20007"
    assert {f"--output={tmp_path}/%N.out", f"--error={tmp_path}/%N.err", "--container-image=/images/tf.sqsh"} <= set(
        words
    )
    assert f"--container-mounts={tmp_path}:{tmp_path},{data}:{data}:ro" in words


def test_each_worker_of_a_training_knows_its_number(tmp_path: Path) -> None:
    data = tmp_path / "mnist.npz"
    data.touch()
    (tmp_path / "bin").mkdir()
    double(tmp_path / "bin", "python3", 'echo "$RANK/$WORLD_SIZE $*"\n')
    double(
        tmp_path / "bin", "srun",
        f'cd {tmp_path}; while [ "$1" != bash ]; do shift; done; SLURM_PROCID=1 SLURM_NTASKS=2 "$@"\n',
    )  # fmt: skip
    done = submit(tmp_path, MNIST, "submit.sh", "/images/tf.sqsh", MNIST_DATA=str(data))
    assert done.stdout.splitlines()[0] == f"1/2 train.py --data={data}", done.stderr


@pytest.mark.parametrize(("data", "said"), [("", "name the data set"), ("/no/such", "/no/such can't be read")])
def test_a_training_without_its_data_set_reports_it(tmp_path: Path, data: str, said: str) -> None:
    done = submit(tmp_path, MNIST, "submit.sh", "/images/tf.sqsh", MNIST_DATA=data)
    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(("sample", "script"), [(MNIST, "submit.sh"), (NCCL, "all_reduce.sh")])
def test_a_job_without_an_image_reports_it(tmp_path: Path, sample: Path, script: str) -> None:
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
        f'case "$*" in *build.sh*) echo /usr/bin/all_reduce_perf ;; *) cat {text} ;; esac\n',
    )  # fmt: skip
    done = submit(tmp_path, NCCL, "all_reduce.sh", "registry.example#org/image:1", SHAPE="BM.GPU4.8")
    assert done.returncode == status, done.stdout + done.stderr
    assert ("1 ranks name their GPU" in done.stdout) == bool(status)
    found, step = (tmp_path / "srun.words").read_text().splitlines()
    assert found.rstrip().endswith(f"{tmp_path}/build.sh all_reduce {tmp_path}/nccl-tests")
    assert "--ntasks=16 --ntasks-per-node=8" in step
    assert "--mpi=pmix --container-image=registry.example#org/image:1" in step
    assert step.rstrip().endswith("/usr/bin/all_reduce_perf -b 10G -e 10G -f 2 -g 1")


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    put(NCCL, folder)
    return subprocess.run(
        [str(folder / "build.sh"), "all_reduce", str(folder / "nccl-tests")],
        env={"PATH": f"{folder}/bin:{os.environ['PATH']}", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


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
