"""Links to the GPUs that an instance of the local cloud was given: their order, and what Slurm's numbers mean then."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.node_agent import gpu_links
from gpucluster.node_agent.gpu_numbers import Gpu, Numbers
from gpucluster.node_agent.rules import mig
from tests.node_agent.checks.measured import GIVEN


def card(root: Path, address: str, minor: int) -> None:
    """What the driver reports of a GPU of the machine: an instance sees all of them."""
    file = root / f"proc/driver/nvidia/gpus/{address}/information"
    file.parent.mkdir(parents=True)
    file.write_text(f"Model: \t\t NVIDIA RTX\nGPU UUID: \t GPU-{minor:08d}\nDevice Minor: \t {minor}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with four GPUs, of which the instance has the device files 1 and 3."""
    for address, minor in (("0000:01:00.0", 0), ("0000:02:00.0", 3), ("0000:03:00.0", 1), ("0000:04:00.0", 2)):
        card(tmp_path, address, minor)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia1", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def links(root: Path) -> dict[str, str]:
    folder = root / mig.FOLDER.lstrip("/")
    return {name: os.readlink(folder / name) for name in sorted(os.listdir(folder))}


def run(root: Path, gpus: int) -> int:
    file = root / "checks.json"
    file.write_text(json.dumps(replace(GIVEN, gpus=gpus).to_dict()))
    return gpu_links.main(["--root", str(root), "--expected", str(file)])


def test_links_follow_the_order_in_which_cuda_counts(root: Path) -> None:
    assert run(root, 2) == 0
    assert links(root) == {"gpu00": "/dev/nvidia3", "gpu01": "/dev/nvidia1"}


def test_numbers_of_jobs_mean_what_nvidias_tools_call_them(root: Path) -> None:
    run(root, 2)
    numbers = Numbers(f"{root}/proc", f"{root}{mig.FOLDER}")
    assert [numbers.meaning(name) for name in ("0", "1")] == [Gpu("0", "GPU-00000003"), Gpu("1", "GPU-00000001")]
    assert numbers.meaning("GPU-00000001") == Gpu("1", "GPU-00000001")


def test_links_of_before_are_replaced(root: Path) -> None:
    run(root, 2)
    (root / "dev/nvidia3").unlink()
    folder = root / mig.FOLDER.lstrip("/")
    (folder / ".gpu00").symlink_to("/dev/nvidia9")  # of a run that was killed
    assert run(root, 1) == 0
    assert links(root) == {"gpu00": "/dev/nvidia1"}


def test_without_a_word_of_the_driver_the_numbers_decide(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidia10", "nvidia9"):
        (tmp_path / "dev" / name).touch()
    assert gpu_links.make(tmp_path) == ["/dev/nvidia9", "/dev/nvidia10"]


def test_another_number_of_gpus_is_an_error_that_reports_what_to_do(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(root, 3) == 1
    said = capsys.readouterr()
    assert "2 of 3 GPUs: /dev/nvidia3, /dev/nvidia1" in said.out
    assert "gpucluster replace" in said.err
    assert gpu_links.main(["--root", str(root), "--expected", str(root / "none")]) == 1
    assert "can't be made" in capsys.readouterr().err
