"""The training of pytorch_ddp: its data set is checked, and with PyTorch it learns, and continues after it was killed.

Where the system's Python has no PyTorch, only what needs none is tested here; the end-to-end test of a cluster has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpucluster.jobs import registry
from tests.addresses import free_port
from tests.waiting import PATIENCE_S, wait_for

TRAIN = Path(registry.__file__).parent / "templates" / "pytorch_ddp" / "files" / "train.py"
PYTHON = "/usr/bin/python3"


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("train", TRAIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import hashlib

    sums = {name: hashlib.md5(name.encode()).hexdigest() for name in module.CHECKSUMS}
    monkeypatch.setattr(module, "CHECKSUMS", sums)
    return module


def data_set(folder: Path, train: ModuleType) -> Path:
    """A folder as the archive has it; the content of each file is its name."""
    inner = folder / "cifar-10-batches-py"
    inner.mkdir(parents=True)
    for name in train.CHECKSUMS:
        (inner / name).write_text(name)
    return inner


def test_the_data_set_is_read_from_its_archive_or_a_folder(tmp_path: Path, train: ModuleType) -> None:
    inner = data_set(tmp_path / "a", train)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(inner, "cifar-10-batches-py")
    for place in (inner, tmp_path / "a", tmp_path / "a.tar.gz"):
        assert train.read_batches(str(place)) == {name: name.encode() for name in train.CHECKSUMS}


@pytest.mark.parametrize("fault", ["damaged", "missing", "absent", "no archive", "cut off"])
def test_a_data_set_that_is_not_whole_is_refused(tmp_path: Path, train: ModuleType, fault: str) -> None:
    inner = data_set(tmp_path / "a", train)
    place = inner
    if fault == "damaged":
        (inner / "data_batch_3").write_text("data_batch_4")
    elif fault == "missing":
        (inner / "test_batch").unlink()
    elif fault == "absent":
        place = tmp_path / "nowhere"
    else:
        place = tmp_path / "a.tar.gz"
        with tarfile.open(place, "w:gz") as archive:
            archive.add(inner, "cifar-10-batches-py")
        place.write_bytes(place.read_bytes()[:100] if fault == "cut off" else b"no archive")
    with pytest.raises(train.TrainingError, match=r"Copy cifar-10-python\.tar\.gz to the share again"):
        train.read_batches(str(place))


def test_the_data_set_runs_nothing(tmp_path: Path, train: ModuleType) -> None:
    import io
    import pickle

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    with pytest.raises(train.TrainingError, match="mkdir"):
        train._Arrays(io.BytesIO(pickle.dumps(Harm())), encoding="bytes").load()
    assert not (tmp_path / "harm").exists()


def test_the_learning_rate_rises_in_the_first_epoch_and_falls_to_nothing(train: ModuleType) -> None:
    class Options:
        learning_rate, epochs = 0.1, 4

    rates = [train.rate(Options, step, 10, 512) for step in range(40)]
    assert rates[:10] == sorted(rates[:10])
    assert max(rates) == pytest.approx(0.2)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.01


# --- with PyTorch -----

HAS_TORCH = (
    Path(PYTHON).exists()
    and not subprocess.run(
        [PYTHON, "-c", "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"], check=False
    ).returncode
)
with_torch = pytest.mark.skipif(not HAS_TORCH, reason="the system's Python has no PyTorch")
IMAGES, EPOCHS = 300, 3


@contextmanager
def started(folder: Path, *more: str, ranks: int = 2) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks of a training, with what a launcher gives them."""
    port = free_port()
    words = [
        PYTHON, str(TRAIN), "--synthetic", str(IMAGES), "--epochs", str(EPOCHS), "--width", "8", "--batch", "32",
        "--backend", "gloo", "--ranks-per-node", str(ranks), "--checkpoint", str(folder / "checkpoint"), *more,
    ]  # fmt: skip
    processes = []
    for rank in range(ranks):
        of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        processes.append(
            subprocess.Popen(
                words, env={"PATH": os.environ["PATH"], **of_rank, **place}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
        )  # fmt: skip
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def told(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@with_torch
@pytest.mark.slow
def test_a_training_that_was_killed_goes_on_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    with started(whole) as processes:
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
    lines = told(outputs[0])
    assert [line["epoch"] for line in lines[1:]] == [1, 2, 3]
    assert lines[-1]["loss"] < lines[1]["loss"]
    assert {line["ranks"] for line in lines} == {2}

    def continued() -> list[dict[str, Any]]:
        """What a training reports that goes on; nothing if the one before had ended before it was killed."""
        (killed / "checkpoint").unlink(missing_ok=True)
        with started(killed) as processes:
            wait_for("the first checkpoint is there", (killed / "checkpoint").exists, interval=0.01)
            for process in processes:
                process.send_signal(signal.SIGKILL)
        # It died while it wrote the next one.
        shutil.copy(killed / "checkpoint", killed / "checkpoint.new")
        os.truncate(killed / "checkpoint.new", 1000)
        with started(killed) as processes:
            outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
            assert [process.returncode for process in processes] == [0, 0], outputs
        again = told(outputs[0])
        return again if again[0]["finished_epochs"] < EPOCHS else []

    again = wait_for("a training is killed before its end", continued)
    assert again[0]["finished_epochs"] >= 1
    assert again[-1]["epoch"] == 3
    # Order of images, their changes and the learning rate are those of the epoch, also in a run that begins there.
    assert again[-1]["loss"] == pytest.approx(lines[-1]["loss"], rel=1e-3)

    with started(killed, "--seed", "5") as processes:
        outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [66, 66]
    assert "is of a training with other options" in outputs[0]
