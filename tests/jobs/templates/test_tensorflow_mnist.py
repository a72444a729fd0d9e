"""A training with TensorFlow: its output, its workers and its data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpucluster.jobs.render import render
from gpucluster.node_agent.checks.model import Status
from tests.jobs import seed_outputs
from tests.jobs.templates.test_rdma_perftest import GPU4, files, job, judge, programs, statuses

# --- TensorFlow -----


def epochs(worker: int, losses: tuple[float, ...], *, workers: int = 2) -> str:
    return "".join(
        json.dumps({"worker": worker, "workers": workers, "replicas": 16, "epoch": number, "loss": loss,
                    "accuracy": 0.3, "seconds": 4.5}) + "\n"
        for number, loss in enumerate(losses, start=1)
    )  # fmt: skip


FALLING = (2.2653, 2.1829, 2.0823)


NO_NUMBER = (2.3, float("nan"), float("nan"))


def test_the_output_of_the_seed_falls_and_is_equal_on_both_workers() -> None:
    result = judge(seed_outputs.MNIST, job("tensorflow_mnist", shape=GPU4))
    assert (result.status, len(result.steps)) == (Status.PASS, 3)
    assert result.values == {"loss": 2.0823, "accuracy": 0.4592, "seconds_per_epoch": 4.5}
    ours = judge(epochs(1, FALLING) + "a line between\n" + epochs(0, FALLING), job("tensorflow_mnist", shape=GPU4))
    assert (ours.status, ours.values["loss"]) == (Status.PASS, 2.0823)


@pytest.mark.parametrize(
    ("text", "check", "status"),
    [
        ("", "workers", Status.UNKNOWN),
        (epochs(0, FALLING), "workers", Status.UNKNOWN),
        (epochs(0, FALLING) + epochs(1, FALLING[:2]), "workers", Status.UNKNOWN),
        (epochs(0, FALLING) + epochs(1, FALLING)[:-20], "workers", Status.UNKNOWN),
        (epochs(0, FALLING) + epochs(1, FALLING) + epochs(2, FALLING), "workers", Status.FAIL),
        (epochs(0, FALLING[::-1]) + epochs(1, FALLING[::-1]), "loss", Status.FAIL),
        (epochs(0, FALLING) + epochs(1, (2.2653, 2.1829, 2.5)), "together", Status.FAIL),
        (epochs(0, NO_NUMBER) + epochs(1, NO_NUMBER), "loss", Status.FAIL),
    ],
    ids=["empty", "one worker", "fewer epochs", "cut off", "too many", "rises", "apart", "no number"],
)  # fmt: skip
def test_a_training_that_went_wrong_reports_it(text: str, check: str, status: Status) -> None:
    result = judge(text, job("tensorflow_mnist", shape=GPU4))
    assert statuses(result)[check] is status, result
    assert result.status is status
    json.dumps(result.to_dict(), allow_nan=False)


def test_the_progress_that_keras_prints_is_not_an_epoch() -> None:
    progress = "".join(f"{step}/70 [=>...] - ETA: 5s - loss: 9.9 - accuracy: 0.1\n" for step in range(1, 70))
    text = seed_outputs.MNIST.replace("Epoch 2/3\n", f"Epoch 2/3\n{progress}")
    assert judge(text, job("tensorflow_mnist")).values["loss"] == 2.0823
    other = "70/70 - 10s - loss: 2.3 - accuracy: 0.1 - 10s/epoch - 143ms/step\n"
    one = judge(f"Epoch 1/2\n{other}{other.replace('2.3', '2.2')}", job("tensorflow_mnist", nodes=1, epochs="2"))
    assert (one.values["loss"], one.values["seconds_per_epoch"]) == (2.2, 10.0)


def workers(folder: Path, launcher: str, names: list[str]) -> list[dict[str, object]]:
    """TF_CONFIG of each worker of a rendered job. The launcher is a double: it starts the ranks one after the other."""
    data = folder / "mnist.npz"
    data.write_bytes(b"")
    of = job("tensorflow_mnist", launcher, nodes=len(names), data=str(data))
    rendered = files(of, folder / "job")
    train = folder / "job" / "train.py"
    # Up to the import of TensorFlow, which is not here.
    tell = 'os.environ["TF_CONFIG"] = tf_config(number, workers)\n'
    train.write_text(train.read_text().replace(tell, tell + '    print(os.environ["TF_CONFIG"])\n    return 0\n'))
    start = (
        "for rank in $(seq 0 $((COUNT - 1))); do\n"
        "  export SLURM_PROCID=$rank SLURM_NTASKS=$COUNT OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$COUNT\n"
        '  case "$*" in *train.py*) ( while [ "$1" != bash ]; do shift; done; "$@" ) || exit ;; esac\n'
        "done"
    )
    (folder / "hosts").write_text("".join(f"{name} 24 all.q@{name} <NULL>\n" for name in names))
    environment = programs(
        folder, scontrol="printf '%s\\n' " + " ".join(names), srun=start, mpirun=start, find="seq 8",
        sinfo=f"printf '%s\\n' '{names[0]} 10.0.1.2' '{names[0]} 10.0.1.2'",
        python3=f'case "$*" in *find_spec*) exit 0 ;; esac; exec {sys.executable} "$@"',
    )  # fmt: skip
    done = subprocess.run(
        ["bash", str(folder / "job" / rendered.script)],
        env={
            **environment, "COUNT": str(len(names)), "SLURM_JOB_ID": "30007", "SLURM_JOB_NODELIST": "x",
            "SLURM_SUBMIT_DIR": str(folder / "job"), "JOB_ID": "30007", "SGE_O_WORKDIR": str(folder / "job"),
            "PE_HOSTFILE": str(folder / "hosts"),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"cluster"')]


@pytest.mark.parametrize(
    "names", [["gpu-2", "gpu-1"], ["node-1", "node-10", "node-100"], [f"compute-e{number}" for number in range(1, 8)]]
)
@pytest.mark.parametrize("launcher", ["srun", "mpirun", "sge"])
def test_every_worker_knows_the_others_and_its_place(tmp_path: Path, launcher: str, names: list[str]) -> None:
    told = workers(tmp_path, launcher, names)
    # By address, where Slurm reports it.
    first = names[0] if launcher == "sge" else "10.0.1.2"
    expected = [f"{name}:20007" for name in [first, *names[1:]]]
    assert [each["cluster"] for each in told] == [{"worker": expected}] * len(names)
    assert [each["task"] for each in told] == [{"type": "worker", "index": number} for number in range(len(names))]


def test_a_training_never_downloads_its_data() -> None:
    for name in ("tensorflow_mnist", "horovod_resnet50", "rdma_perftest"):
        for file in render(job(name, data="/x") if name == "tensorflow_mnist" else job(name)).files.values():
            assert not re.search(r"https?://|load_data\(|git clone|curl|wget", file.text)
