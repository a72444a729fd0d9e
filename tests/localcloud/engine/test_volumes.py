"""Block volumes as loop devices of this machine, without containers: their numbers, and who has the file.

In containers: tests/e2e/test_controller_state.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.errors import CloudError
from gpucluster.localcloud.engine import volumes

DEVICE = volumes.DEVICES[0]
LOOPS = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="needs root and loop devices"
)


@given(st.text(min_size=1, max_size=80))
def test_an_instance_has_four_numbers_of_its_own_above_those_that_losetup_takes(name: str) -> None:
    numbers = [volumes.minor(name, device) for device in volumes.DEVICES]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert 4096 <= numbers[0] < 1 << 20
    assert numbers[0] % 4 == 0, "two instances share all of them or none"
    assert volumes.rules(name) == [f"--device-cgroup-rule=b 7:{number} rwm" for number in numbers]


@pytest.fixture
def names(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Two instances that no other test has: a path is in their names."""
    both = (f"{tmp_path}-one", f"{tmp_path}-two")
    yield both
    for name in both:
        volumes.release(name)


@LOOPS
def test_a_volume_is_of_one_instance_at_a_time(
    tmp_path: Path, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "volume"
    with file.open("wb") as stream:
        stream.truncate(1 << 20)
    first, second = names
    volumes.attach(first, DEVICE, file, running=False)
    volumes.attach(first, DEVICE, file, running=False)  # again: nothing happens
    loop = Path(f"/dev/loop{volumes.minor(first, DEVICE)}")
    assert volumes.users_of(file) == {str(loop)}
    loop.write_bytes(b"written by the first")
    monkeypatch.setattr(volumes, "_FREE_SECONDS", 0.0)
    with pytest.raises(CloudError, match=f"still in use as {loop}"):
        volumes.attach(second, DEVICE, file, running=False)
    volumes.detach(first, DEVICE, running=False)
    assert (volumes.users_of(file), loop.exists()) == (set(), False)
    volumes.attach(second, DEVICE, file, running=False)
    other = Path(f"/dev/loop{volumes.minor(second, DEVICE)}")
    with other.open("rb") as stream:
        assert stream.read(20) == b"written by the first"
    volumes.release(second)
    assert volumes.users_of(file) == set()


def test_a_file_that_is_gone_has_no_user(tmp_path: Path) -> None:
    assert volumes.users_of(tmp_path / "volume") == set()
