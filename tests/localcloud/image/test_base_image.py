"""The base image: its recipe, its mirror, and the messages when it can't be built."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault
from gpucluster.events import Event
from gpucluster.localcloud.image import base_image, package_mirror, traps
from gpucluster.localcloud.image.contents import DEBIAN_13, Contents, all_contents
from gpucluster.localcloud.image.suites import SUITES, Suite
from gpucluster.localcloud.podman.command import probe
from tests.waiting import PATIENCE_S

TRIXIE, NOBLE = SUITES["trixie"], SUITES["noble"]


def test_every_trap_is_used_and_names_its_sources(tmp_path: Path) -> None:
    catalogue = traps.catalogue()
    assert {name for contents in all_contents(tmp_path) for name in contents.traps} == set(catalogue)
    for trap in catalogue.values():
        assert trap.what
        assert trap.sources
        assert all(source.startswith("https://") for source in trap.sources)


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.label)
def test_packages_are_plain_names_without_doubles(suite: Suite) -> None:
    names = base_image.packages(suite)
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name) for name in names)
    assert {"systemd", "cloud-init", "openssh-server", "slurmd", "nfs-common", "python3-apt"} <= set(names)


def test_docker_has_one_package_in_older_suites() -> None:
    with_cli = [suite.name for suite in SUITES.values() if "docker-cli" in base_image.packages(suite)]
    assert with_cli == ["trixie", "forky"]


def test_reference_changes_with_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "localcloud"
    shutil.copytree(Path(base_image.__file__).parent, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for name, path in {"_HERE": copy, "_PACKAGES": copy / "packages.txt", "_FILES": copy / "image_files"}.items():
        monkeypatch.setattr(base_image, name, path)
    with_traps = Contents(TRIXIE, ("hostinfo",))

    def compute() -> tuple[str, str]:
        base_image._digest.cache_clear()
        return base_image.reference(), base_image.reference(with_traps)

    before = compute()
    (copy / "image_files/rootfs/etc/cloud/cloud.cfg").open("a").write("#\n")
    after = compute()
    (copy / "packages.txt").open("a").write("hello\n")
    later = compute()
    assert len({*before, *after, *later}) == 6
    monkeypatch.setattr(traps, "FOLDER", copy / "trap_files")
    (copy / "trap_files/hostinfo/setup.sh").open("a").write("#\n")
    assert compute()[0] == later[0]
    assert compute()[1] != later[1]
    monkeypatch.undo()
    base_image._digest.cache_clear()


def test_suites_and_traps_have_images_of_their_own(tmp_path: Path) -> None:
    found = all_contents(tmp_path)
    assert len({base_image.reference(contents) for contents in found}) == len({(c.suite, c.traps) for c in found})


@pytest.fixture
def no_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on a host that never made this image."""
    monkeypatch.setattr(base_image, "_LOCK", tmp_path / "lock")
    monkeypatch.setattr(base_image, "reference", lambda _contents=DEBIAN_13: "localhost/gpucluster/debian13:none")


@pytest.mark.containers
@pytest.mark.usefixtures("no_image")
def test_without_network_the_mirror_and_the_ways_out_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "debian.sources").write_text("deb http://127.0.0.1:9/debian trixie main\n")
    (folder / "build-of-a-killed-run").mkdir()
    (folder / "debian13-of-an-older-recipe.tar").touch()
    with pytest.raises(EnvironmentFault, match=r"could not be fetched from http://127\.0\.0\.1:9/debian") as caught:
        base_image.ensure_image(tmp_path)
    assert "debian13-none.tar" in caught.value.hint
    assert str(folder / "debian.sources") in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == ["debian.sources"]


def test_a_build_whose_parent_has_ended_before_it_was_bound_does_not_begin(tmp_path: Path) -> None:
    bound = base_image._ending_with_us(["touch", str(tmp_path / "begun")])
    other_parent = ["sh", "-c", '"$@"; status=$?; exit $status', "sh"]
    assert subprocess.run([*other_parent, *bound], check=False).returncode == 130
    assert not (tmp_path / "begun").exists()
    assert subprocess.run(bound, check=False).returncode == 0
    assert (tmp_path / "begun").exists()


@pytest.mark.containers
@pytest.mark.usefixtures("no_image")
def test_full_disk_is_reported_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(10**9, 10**9, 10**6))
    with pytest.raises(EnvironmentFault, match="too little space for the base image"):
        base_image.ensure_image(tmp_path)


def test_disk_that_becomes_full_is_told_from_other_failures(tmp_path: Path) -> None:
    mirror = package_mirror.Mirror("http://mirror.example/debian", None, None, (), tmp_path / "sources.list")
    lines = ["I: extracting archives...", "E: write failed: No space left on device"]
    assert "disk became full" in str(base_image._bootstrap_fault(lines, TRIXIE, mirror, tmp_path / "a.tar"))
    lines = ["Err:1 http://mirror.example trixie InRelease", "E: The repository is not signed."]
    assert "debian-archive-keyring" in base_image._bootstrap_fault(lines, TRIXIE, mirror, tmp_path / "a.tar").hint


@pytest.mark.containers
@pytest.mark.usefixtures("no_image")
def test_two_callers_make_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    events: list[Event] = []
    second_waits = threading.Event()
    info = base_image.BaseImage("localhost/gpucluster/debian13:none", "id", 1, cached=False, seconds=0)

    def make(*_arguments: object) -> base_image.BaseImage:
        assert second_waits.wait(PATIENCE_S)
        made.append("made")
        return info

    def note(event: Event) -> None:
        events.append(event)
        if event.kind == "log":
            second_waits.set()

    monkeypatch.setattr(base_image, "_make", make)
    monkeypatch.setattr(base_image, "_inspect", lambda _contents, _began, *, cached: info if made and cached else None)
    threads = [threading.Thread(target=base_image.ensure_image, args=(tmp_path, note)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert made == ["made"]
    assert [event.message for event in events if event.kind == "log"] == [
        "another run is making a base image; waiting for it"
    ]


@pytest.mark.containers
def test_second_call_finds_the_image(tmp_path: Path) -> None:
    assert probe() == []
    events: list[Event] = []
    base_image.ensure_image(tmp_path)
    info = base_image.ensure_image(tmp_path, events.append)
    assert info.cached
    assert [(event.kind, event.name, event.status) for event in events] == [("resource", "image:debian13", "cached")]
    assert probe(info.reference) == []
