"""Data sets on a real share: in pieces, once, whole or not at all."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.jobs import datasets
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.jobs.data_place import Place, encoded, wanted


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o4777) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode, found.uid = kind, link, mode, 4321
    return found


def test_an_archive_is_laid_out_for_all_users_to_read_and_none_to_write(place: Place) -> None:
    content = tar((member("cifar/a"), b"one"), (member("cifar/deep/b"), b"two"))
    done = place.bring("cifar10", "cifar.tar.gz", content, unpack=True, source="https://somewhere")
    assert (done["files"], done["bytes"]) == (2, 6)
    path = place.folder / "cifar10"
    assert (path / "cifar/deep/b").read_text() == "two"
    for file in (path / "cifar", path / "cifar/a", path):
        found = file.stat()
        assert (found.st_uid, found.st_mode & 0o7777) == (0, 0o755 if file.is_dir() else 0o644)
    assert sorted(each.name for each in place.folder.iterdir()) == ["cifar10"]
    # Once more: nothing is sent.
    assert place.bring("cifar10", "cifar.tar.gz", content, unpack=True)["present"]
    assert place.states(("data", str(path)), ("data", str(path / "cifar"))) == [("met", "")] * 2
    (path / "cifar/a").write_text("longer than it was")
    ((state, message),) = place.states(("data", str(path / "cifar")))
    assert (state, message) == ("not met", "is damaged: cifar/a has 18 bytes instead of 3")
    # What is damaged is brought again.
    assert not place.store.begin(wanted("cifar10", "cifar.tar.gz", content, unpack=True))["present"]


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["tar", "gz", "bz2", "xz"]
)
def test_what_programs_with_many_threads_compress_is_whole(place: Place, compress: Callable[[bytes], bytes]) -> None:
    """pbzip2 and others write several compressed streams, one after the other."""
    plain = gzip.decompress(tar(*((member(f"deep/{number}"), os.urandom(2000)) for number in range(100))))
    middle = len(plain) // 2
    place.bring("many", "many.tar", compress(plain[:middle]) + compress(plain[middle:]), unpack=True)
    assert len(list((place.folder / "many" / "deep").iterdir())) == 100


def test_a_transfer_that_broke_off_goes_on_where_it_was(place: Place) -> None:
    content = os.urandom(100_000)
    of = wanted("mnist", "mnist.npz", content)
    assert place.store.begin(of)["have"] == 0
    place.store.add(of, 0, encoded(content[:60_000]))
    with pytest.raises(Failed, match="60000 of 100000 bytes"):
        place.store.publish(of)
    with pytest.raises(Refused, match="do not follow the 60000"):
        place.store.add(of, 0, encoded(content[:10]))
    for data in ("no base64!", None, 7):
        with pytest.raises(Refused):
            place.store.add(of, 60_000, data)
    place.bring("mnist", "mnist.npz", content)
    assert (place.folder / "mnist" / "mnist.npz").read_bytes() == content


def test_wrong_bytes_are_not_published_and_come_again(place: Place) -> None:
    content = b"the right bytes"
    of = wanted("mnist", "mnist.npz", content)
    place.store.begin(of)
    place.store.add(of, 0, encoded(b"the wrong bytes"))
    with pytest.raises(Failed, match="another checksum"):
        place.store.publish(of)
    assert not (place.folder / "mnist").exists()
    place.bring("mnist", "mnist.npz", content)


def test_another_data_set_of_this_name_is_replaced_only_by_force(place: Place) -> None:
    place.bring("mine", "mine.bin", b"one", source="a")
    with pytest.raises(Refused, match="another data set mine already from a"):
        place.bring("mine", "mine.bin", b"two")
    place.bring("mine", "mine.bin", b"two", force=True)
    assert (place.folder / "mine" / "mine.bin").read_bytes() == b"two"
    assert sorted(each.name for each in place.folder.iterdir()) == ["mine"]


def test_a_full_share_is_reported_and_the_part_stays(place: Place) -> None:
    with pytest.raises(Failed, match=r"the share is full: .* are needed"):
        place.store.begin(wanted("big", "big.bin", bytes(3 << 20)))
    of = wanted("big", "big.bin", bytes(1 << 20))
    place.store.begin(of)
    place.store.add(of, 0, encoded(bytes(1 << 19)))
    with pytest.raises(OSError, match="No space left"):
        (Path(place.owner.home) / "fill").write_bytes(bytes(2 << 20))
    with pytest.raises(Failed, match="524288 of 1048576 bytes are there, and stay") as caught:
        place.store.add(of, 1 << 19, encoded(bytes(1 << 19)))
    assert "df -h" in caught.value.hint
    (Path(place.owner.home) / "fill").unlink()
    place.bring("big", "big.bin", bytes(1 << 20))


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([(member("/etc/passwd"), b"x")], "leads elsewhere"),
        ([(member("a/../../x"), b"x")], "leads elsewhere"),
        ([(member("out", tarfile.SYMTYPE, "/etc"), b"")], "has no files"),
    ],
)
def test_an_archive_does_not_reach_out_of_its_folder(place: Place, members: Any, said: str) -> None:
    with pytest.raises(Failed, match=said):
        place.bring("bad", "bad.tar.gz", tar(*members), unpack=True)
    assert not (place.folder / "bad").exists()
    assert not list(place.folder.glob(".new-*"))


def test_links_and_devices_of_an_archive_are_left_out(place: Place) -> None:
    odd = [
        (member("out", tarfile.SYMTYPE, "/etc"), b""),
        (member("hard", tarfile.LNKTYPE, "/etc/shadow"), b""),
        (member("null", tarfile.CHRTYPE), b""),
    ]
    place.bring("odd", "odd.tar.gz", tar(*odd, (member("plain"), b"x")), unpack=True)
    assert sorted(each.name for each in (place.folder / "odd").iterdir()) == [datasets.MANIFEST, "plain"]
    for broken in (b"no archive", tar((member("x"), os.urandom(5000)))[:-2000]):
        with pytest.raises(Failed, match="can't be read"):
            place.bring("broken", "broken.tar.gz", broken, unpack=True)


@pytest.mark.parametrize(
    "change",
    [{"name": "../x"}, {"name": ".x"}, {"file": "a/b"}, {"sha256": "x"}, {"size": -1}, {"size": True}, {"name": "a'b"}],
)
def test_what_is_not_a_data_set_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        datasets.upload({"name": "a", "file": "a", "sha256": "0" * 64, "size": 1, **change})


def test_only_one_run_brings_a_data_set(place: Place) -> None:
    with place.store.locked("a"), pytest.raises(Failed, match="another run brings"), place.store.locked("a"):
        pass


def test_a_share_that_is_not_mounted_gets_nothing(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="is not mounted here"):
        datasets.DataSetStore(tmp_path, tmp_path / "locks").begin(wanted("a", "a", b""))
    assert list(tmp_path.iterdir()) == []
