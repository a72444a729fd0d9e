"""The standby gets what it lacks: the real tar, between two trees of one machine. ssh between hosts is in tests/e2e."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.standby import manifest, mirror


def tree(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def differences(source: Path, target: Path) -> manifest.Differences:
    return manifest.compare(manifest.listing(source), manifest.listing(target))


def send(source: Path, target: Path) -> None:
    with tempfile.TemporaryFile() as stream:
        mirror._pack(stream, differences(source, target), source)
        stream.seek(0)
        mirror.take(stream.fileno(), target)


@pytest.fixture
def hosts(tmp_path: Path) -> tuple[Path, Path]:
    one = tree(tmp_path / "one", etc__slurm__slurm="new", etc__same="same", usr__bin__tool="tool", etc__fstab="")
    two = tree(tmp_path / "two", etc__slurm__slurm="old", etc__same="same", etc__gone__file="x", etc__hostname="two")
    (one / "usr/bin/link").symlink_to("tool")
    (one / "usr/bin/tool").chmod(0o4755)
    os.utime(one / "etc/slurm/slurm", (1000, 1000))
    (two / "usr/bin").mkdir(parents=True)
    (two / "usr/bin/link").mkdir()
    return one, two


def test_the_standby_is_like_the_host_in_service_and_keeps_its_own(hosts: tuple[Path, Path]) -> None:
    one, two = hosts
    (one / "etc/hostname").write_text("one")
    send(one, two)
    assert differences(one, two).paths == ()
    assert (two / "etc/slurm/slurm").read_text() == "new"
    assert stat.S_IMODE((two / "usr/bin/tool").stat().st_mode) == 0o4755
    assert os.readlink(two / "usr/bin/link") == "tool"
    assert not (two / "etc/gone").exists()
    assert (two / "etc/hostname").read_text() == "two"


def test_it_keeps_its_disks_and_gets_the_shares(hosts: tuple[Path, Path]) -> None:
    one, two = hosts
    share = "10.0.0.5:/home /mnt/home nfs4 hard 0 0"
    (one / "etc/fstab").write_text(f"UUID=one / ext4 defaults 0 1\n{share}\n")
    (two / "etc/fstab").write_text("UUID=two / ext4 defaults 0 1\n")
    send(one, two)
    assert (two / "etc/fstab").read_text() == f"UUID=two / ext4 defaults 0 1\n{share}\n"


def test_data_that_end_too_early_change_nothing(hosts: tuple[Path, Path]) -> None:
    one, two = hosts
    (one / "etc/large").write_bytes(os.urandom(1 << 20))
    with tempfile.TemporaryFile() as stream:
        mirror._pack(stream, differences(one, two), one)
        stream.truncate(os.fstat(stream.fileno()).st_size // 4)
        stream.seek(0)
        with pytest.raises(Failed):
            mirror.take(stream.fileno(), two)
    assert (two / "etc/slurm/slurm").read_text() == "old"
    send(one, two)  # the next call goes on
    assert differences(one, two).paths == ()


def test_a_host_in_service_is_never_overwritten(hosts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = hosts
    monkeypatch.setattr(os.path, "ismount", lambda _path: True)
    with pytest.raises(Refused, match="in service"):
        send(one, two)
    with pytest.raises(Refused):
        mirror.prepare(one / "etc/same", two)
    assert (two / "etc/slurm/slurm").read_text() == "old"
