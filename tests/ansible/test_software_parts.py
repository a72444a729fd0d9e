"""What gpucluster_software is made of, without a host: archives that mean harm, a busy server, dnf's words."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import release_server as server_program
from tests.ansible.loading import FakeModule, ModuleFailed, load
from tests.mirror import Mirror
from tests.waiting import PATIENCE_S

archives = load("module_utils/gpucluster_archives.py")
releases = load("module_utils/gpucluster_releases.py")
package_files = load("module_utils/gpucluster_package_files.py")
software = load("library/gpucluster_software.py")


def entry(name: str, **facts: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    for key, value in facts.items():
        setattr(made, key, value)
    return made


def packed(folder: Path, *entries: tarfile.TarInfo) -> Path:
    file = folder / "archive.tar"
    with tarfile.open(file, "w") as tar:
        for one in entries:
            tar.addfile(one, io.BytesIO(b"x" * one.size))
    return file


SYM, HARD = tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "entries",
    [
        [entry("/etc/evil")],
        [entry("../evil")],
        [entry("a/../../evil")],
        [entry("link", type=SYM, linkname="/etc")],
        [entry("link", type=SYM, linkname="../outside")],
        [entry("a/link", type=SYM, linkname="../../outside")],
        [entry("link", type=HARD, linkname="/etc/shadow")],
        [entry("link", type=HARD, linkname="../outside")],
        [entry("here", type=SYM, linkname="."), entry("here/up", type=SYM, linkname="..")],
        [entry("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
        [entry("device", type=tarfile.BLKTYPE)],
        [entry("pipe", type=tarfile.FIFOTYPE)],
    ],
    ids=lambda entries: "+".join(one.name + (f"={one.linkname}" if one.linkname else "") for one in entries),
)
def test_nothing_leaves_the_directory(tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    inside = tmp_path / "root" / "inside"
    inside.mkdir(parents=True)
    (tmp_path / "root" / "outside").write_text("untouched")
    with pytest.raises(archives.UnsafeArchive):
        archives.unpack(packed(tmp_path, *entries), inside)
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["inside", "outside"]
    assert (tmp_path / "root" / "outside").read_text() == "untouched"


def test_a_file_does_not_go_through_a_link(tmp_path: Path) -> None:
    """Not even through one that was there before."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(archives.UnsafeArchive):
        archives.unpack(packed(tmp_path, entry("link/evil", size=1)), tmp_path / "inside")
    assert list((tmp_path / "outside").iterdir()) == []


def test_what_is_harmless_is_unpacked_without_its_rights(tmp_path: Path) -> None:
    file = packed(
        tmp_path,
        entry("bin", type=tarfile.DIRTYPE, mode=0o777),
        entry("bin/run", size=3, mode=0o6777, uid=1000),
        entry("bin/other", type=SYM, linkname="run"),
        entry("lib/up", type=SYM, linkname="../bin/run"),
        entry("lib/same", type=HARD, linkname="bin/run"),
    )
    (tmp_path / "inside").mkdir()
    archives.unpack(file, tmp_path / "inside")
    run = tmp_path / "inside" / "bin" / "run"
    assert (run.stat().st_mode & 0o7777, run.read_bytes()) == (0o755, b"xxx")
    assert (tmp_path / "inside" / "lib" / "up").resolve() == (tmp_path / "inside" / "bin" / "other").resolve() == run
    assert (tmp_path / "inside" / "lib" / "same").stat().st_ino == run.stat().st_ino


@contextlib.contextmanager
def serving(folder: Path, **limits: Any) -> Iterator[Any]:
    listener = server_program.ReleaseServer("127.0.0.1", 0, folder, server_program.LIMITS._replace(**limits))
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


def connected(listener: Any, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.server_port), timeout=PATIENCE_S, source_address=(source, 0))


def test_a_busy_controller_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("content")
    waited: list[float] = []
    limits = {"clients_per_address": 2, "request_s": PATIENCE_S}
    with serving(tmp_path, **limits) as listener, contextlib.ExitStack() as idle:
        for _ in range(listener.limits.clients_per_address):
            idle.enter_context(connected(listener))

        def pause(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 2:
                idle.close()

        monkeypatch.setattr(releases.time, "sleep", pause)
        url = f"http://127.0.0.1:{listener.server_port}"
        releases.fetch(url, "file", releases.sha256(tmp_path / "file"), tmp_path / "got", 600)
        assert (tmp_path / "got").read_text() == "content"
        assert len(waited) >= 2
        assert waited[0] < waited[1], "it does not wait longer each time"
        listener.limits = listener.limits._replace(clients_per_address=0)
        with pytest.raises(releases.Refused, match=r"returned 503|reset"):
            releases.fetch(url, "file", "0" * 64, tmp_path / "other", 0)
    assert not [path for path in tmp_path.iterdir() if "part" in path.name]


def test_what_breaks_off_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = Mirror(tmp_path / "mirror")
    mirror.file("file", "content" * 1000)
    with mirror.serve() as server:
        server.faults["file"] = "truncated"
        monkeypatch.setattr(releases.time, "sleep", lambda _seconds: server.faults.clear())
        releases.fetch(server.url, "file", mirror.sha256("file"), tmp_path / "got", 600)
        assert server.asked["file"] == 2
        server.faults["file"] = "wrong"
        with pytest.raises(releases.Refused, match="has the checksum"):
            releases.fetch(server.url, "file", mirror.sha256("file"), tmp_path / "got", 600)


TOOLKIT = {
    "component": "kit", "version": "2", "file": "kit.tar.gz", "format": "deb", "architecture": os.uname().machine,
}  # fmt: skip


class Debs(package_files.Debian):  # type: ignore[misc, name-defined]
    """A host that has `there`; the name of a package file describes its content."""

    there: dict[str, str]

    def machine(self) -> str:
        return "amd64"

    def of_file(self, file: Path) -> Any:
        return package_files.Package(*file.name.removesuffix(".deb").split("_"))

    def installed(self, names: list[str]) -> dict[str, str]:
        return {name: self.there[name] for name in names if name in self.there}

    def left(self, names: list[str]) -> list[str]:
        return sorted(self.installed(names))


class Called:
    """The module on a host that has two releases in its cache: a package, and an archive of packages."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mirror = Mirror(folder)
        debs = {f"in/{name}_2_amd64.deb": name for name in ("kit", "kit-base", "kit-dev")}
        mirror.tar("kit.tar.gz", debs)
        mirror.file("box_1_amd64.deb", "box")
        mirror.file("tree.tar.gz", "not unpacked")
        (folder / "SHA256SUMS").unlink()
        self.folder, self.read = folder, list[Path]()
        box = {**TOOLKIT, "component": "box", "version": "1", "file": "box_1_amd64.deb"}
        tree = {**TOOLKIT, "component": "tree", "file": "tree.tar.gz"}
        self.files = [{**file, "sha256": mirror.sha256(file["file"])} for file in (TOOLKIT, box, tree)]
        self.there = {"kit": "2", "kit-base": "2", "box": "1"}

        def taken(archive: Path, *arguments: Any) -> Iterator[Path]:
            self.read.append(archive)
            return archives.take(archive, *arguments)  # type: ignore[no-any-return]

        monkeypatch.setattr(software, "take", taken)

    def call(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        module = FakeModule(check_mode=check)
        empty: dict[str, Any] = {
            "server": None,
            "files": [],
            "packages": [],
            "unpack": None,
            "absent": [],
            "forget": [],
            "timeout": 0,
        }
        module.params = {**empty, "cache": str(self.folder), **options}
        manage = Debs(module)
        manage.there = self.there
        manage.remove = lambda names: [self.there.pop(name) for name in names]
        done: dict[str, Any] = software.Task(module, manage).run()
        return done

    def content(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()
        }


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    return Called(tmp_path / "cache", monkeypatch)


def test_an_archive_of_packages_is_read_once(called: Called) -> None:
    """Also when the call has packages of other files, as Enroot's on nodes with GPUs."""
    options: dict[str, Any] = {"files": called.files[:2], "packages": ["box", "kit", "kit-base"]}
    assert not called.call(**options)["changed"]
    assert (len(called.read), (called.folder / "kit.tar.gz.d/kit-base_2_amd64.deb").exists()) == (1, True)
    assert not called.call(**options)["changed"]
    assert not called.call(files=called.files[:1], packages=["kit", "kit-base"])["changed"]
    assert len(called.read) == 1, "it was read again"
    with pytest.raises(ModuleFailed, match="resulted in other versions than requested: kit-dev"):
        called.call(files=called.files[:1], packages=["kit-dev"])
    assert len(called.read) == 2, "a package that was not looked for is not known"
    (called.folder / "kit.tar.gz.d/kit_2_amd64.deb").unlink()
    called.call(**options)
    assert len(called.read) == 3, "what was taken out is gone, and nobody takes it out again"


def test_to_look_writes_nothing(called: Called) -> None:
    before = called.content()
    options: dict[str, Any] = {"files": called.files[:2], "packages": ["box", "kit", "kit-base"]}
    assert not called.call(check=True, **options)["changed"]
    del called.there["kit"]
    assert called.call(check=True, **options)["installed"] == ["kit=2"]
    assert called.content() == before
    assert len(called.read) == 2


def test_components_are_forgotten_with_what_was_taken_out(called: Called) -> None:
    called.call(files=called.files[:2], packages=["box", "kit", "kit-base"])
    called.call(files=called.files[2:])
    (called.folder / "killed.tar.gz").write_text("nobody noted it")
    options: dict[str, Any] = {"absent": ["kit-base", "kit"], "forget": ["kit", "tree"]}
    names = ["kit.tar.gz", "tree.tar.gz", "killed.tar.gz"]

    before = called.content()
    seen = called.call(check=True, **options)
    assert (seen["changed"], seen["removed"], seen["forgotten"]) == (True, ["kit", "kit-base"], names)
    assert called.content() == before
    assert "kit" in called.there

    done = called.call(**options)
    assert (done["changed"], done["forgotten"], called.there) == (True, names, {"box": "1"})
    assert sorted(path.name for path in called.folder.iterdir()) == [".known.json", "box_1_amd64.deb"]
    assert not called.call(**options)["changed"]
    assert called.call(forget=["box"])["forgotten"] == ["box_1_amd64.deb"]
    assert called.there == {"box": "1"}, "a package goes only if it is named"


def test_dnf_is_told_whether_it_goes_up_or_down(tmp_path: Path) -> None:
    module = FakeModule(answers={"--package": (0, "enroot\t0:4.1.2-1.el8\tx86_64\n", ""), "vercmp": (0, "-1\n", "")})
    red_hat = package_files.RedHat(module)
    assert red_hat.of_file(tmp_path / "x.rpm") == ("enroot", "0:4.1.2-1.el8", "x86_64")
    assert red_hat.is_older("0:1-1", "0:2-1")
    red_hat.install(["/x/a.rpm"], older=True)
    red_hat.install(["/x/a.rpm"], older=False)
    red_hat.remove(["enroot"])
    assert module.calls[-3:] == [
        "dnf --assumeyes --quiet downgrade /x/a.rpm",
        "dnf --assumeyes --quiet install /x/a.rpm",
        "dnf --assumeyes --quiet --setopt=clean_requirements_on_remove=False remove enroot",
    ]
    module = FakeModule(answers={"--query": (1, "package a is not installed\nenroot\t0:4.1.2-1\tx86_64\n", "")})
    assert package_files.RedHat(module).installed(["a", "enroot"]) == {"enroot": "0:4.1.2-1"}
    module = FakeModule(answers={"dnf": (1, "", "Error: nothing provides jq")})
    with pytest.raises(ModuleFailed, match=r"can't install a\.rpm: Error: nothing provides jq"):
        package_files.RedHat(module).install(["/x/a.rpm"], older=False)


def test_it_runs_on_the_oldest_python_of_a_host() -> None:
    """Checks the grammar only: nothing here needs more than 3.9."""
    import ast

    assert sys.version_info >= (3, 9)
    for loaded in (archives, releases, package_files, software, server_program):
        assert loaded.__file__ is not None
        ast.parse(Path(loaded.__file__).read_text(), feature_version=(3, 9))
