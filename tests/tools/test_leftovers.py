"""What a run leaves is found and named, and what others do is not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.addresses import free_range
from tests.containers import base_image, of_this_run
from tests.waiting import PATIENCE_S
from tools import leftovers

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_ENDING_S", 0)


def test_nothing_is_left_by_a_run_that_tidies_up(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "file").touch()
    assert leftovers.left(tmp_path) == []


def test_a_process_is_found_by_its_variable(tmp_path: Path) -> None:
    for folder, found in ((tmp_path, 1), (tmp_path / "other", 0)):
        with subprocess.Popen(["sleep", "600"], env={**os.environ, "TMPDIR": str(folder)}) as child:
            try:
                said = leftovers.left(tmp_path)
            finally:
                child.kill()
        name = "tests/tools/test_leftovers.py::test_a_process_is_found_by_its_variable"
        assert said == [f"process {child.pid}: sleep 600 , started by {name}"] * found


def test_a_mount_is_found(tmp_path: Path) -> None:
    place = tmp_path / "t" / "mounted"
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    try:
        said = leftovers.left(tmp_path)
    finally:
        subprocess.run(["umount", place], check=True)
    assert said == [f"mount {place}"]


def test_a_loop_device_is_found(tmp_path: Path) -> None:
    disk = tmp_path / "t" / "disk"
    disk.parent.mkdir()
    disk.write_bytes(bytes(1 << 20))
    device = subprocess.run(["losetup", "--find", "--show", disk], capture_output=True, text=True, check=True).stdout
    try:
        said = leftovers.left(tmp_path)
    finally:
        subprocess.run(["losetup", "--detach", device.strip()], check=True)
    assert said == [f"loop device {Path(device.strip()).name} of {disk}"]


@pytest.mark.containers
def test_a_container_of_this_run_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    name = f"gpucluster-left-{os.getpid()}"
    create = ["podman", "create", f"--name={name}", of_this_run(), "--network=none", base_image()]
    subprocess.run(create, check=True, capture_output=True)
    try:
        said = leftovers.left(tmp_path)
    finally:
        subprocess.run(["podman", "rm", "--force", name], check=True, capture_output=True)
    assert said == [f"container ['{name}']"]


def test_a_network_is_found_by_its_label(tmp_path: Path) -> None:
    with free_range() as addresses:
        name = f"gpucluster-left-{os.getpid()}"
        label = f"--label=gpucluster.home={tmp_path}/cloud"
        create = ["podman", "network", "create", f"--subnet={addresses}.0.0/24", label, name]
        subprocess.run(create, check=True, capture_output=True)
        try:
            said = leftovers.left(tmp_path)
        finally:
            subprocess.run(["podman", "network", "rm", name], check=True, capture_output=True)
    assert said == [f"network {name}"]


@pytest.mark.containers
def test_what_is_left_is_removed_and_what_others_have_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    name = f"gpucluster-left-{os.getpid()}"
    disk, place = run / "disk", run / "mounted"
    place.mkdir(parents=True)
    disk.write_bytes(bytes(1 << 20))
    with free_range() as addresses, contextlib.ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(subprocess.Popen(["sleep", "600"], env={**os.environ, "TMPDIR": str(folder)}))
            for folder in (run, other)
        )
        for each in (ours, theirs):
            stack.callback(each.kill)
        stack.callback(leftovers.remove, run)
        monkeypatch.setattr(tempfile, "tempdir", str(run))
        for command in (
            ["podman", "network", "create", f"--subnet={addresses}.0.0/24", f"--label=gpucluster.home={run}/c", name],
            ["podman", "create", f"--name={name}", of_this_run(), f"--network={name}", base_image()],
            ["mount", "-t", "tmpfs", "none", str(place)],
            ["mkdir", str(place / "in")],
            ["mount", "-t", "tmpfs", "none", str(place / "in")],
            ["losetup", "--find", str(disk)],
        ):
            subprocess.run(command, check=True, capture_output=True)
        assert len(leftovers.left(run)) == 6
        leftovers.remove(run)
        # What was killed or detached ends when the kernel comes to it.
        monkeypatch.setattr(leftovers, "_ENDING_S", PATIENCE_S)
        assert leftovers.left(run) == []
        assert (ours.poll() is not None or ours.wait(PATIENCE_S) < 0, theirs.poll()) == (True, None)
