"""The base image: its recipe, its mirror, and the messages when it can't be built."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.events import Event
from gpucluster.localcloud.image import base_image, package_mirror, traps
from gpucluster.localcloud.image.contents import DEBIAN_13, Contents, all_contents, contents_of
from gpucluster.localcloud.image.suites import SUITES, Suite
from gpucluster.localcloud.podman import host
from gpucluster.localcloud.podman.command import probe
from gpucluster.spec import PROVIDERS
from gpucluster.systems.matrix import SYSTEMS
from tests.waiting import PATIENCE_S

DEB822 = """\
# the archive
Types: deb deb-src
# a comment within
URIs: http://mirror.example/debian
Suites: bookworm
 bookworm-updates
Components: main
Signed-By: /nowhere.gpg

Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
Components: main
Enabled: no
"""
ONE_LINE = """\
deb https://packages.example/apt tool-bookworm main
# deb http://commented.example/debian bookworm main
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/nowhere.gpg] http://mirror.example/debian bookworm main contrib
deb http://security.example/debian-security bookworm-security main # updates
"""


TRIXIE, NOBLE = SUITES["trixie"], SUITES["noble"]


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "images").mkdir()
    return tmp_path


@pytest.mark.parametrize(("name", "text"), [("a.sources", DEB822), ("a.list", ONE_LINE)])
def test_mirror_is_the_hosts_own(apt: Path, name: str, text: str) -> None:
    (apt / "sources.list.d" / name).write_text(text)
    found = package_mirror.find(TRIXIE, apt / "images", apt)
    assert found.lines(TRIXIE) == [
        "deb http://mirror.example/debian trixie main",
        "deb http://mirror.example/debian trixie-updates main",
        "deb http://security.example/debian-security trixie-security main",
    ]
    assert found.file == apt / "sources.list.d" / name


def test_own_file_comes_before_the_hosts(apt: Path) -> None:
    (apt / "sources.list").write_text(ONE_LINE)
    (apt / "images/debian.sources").write_text("deb http://near.example/debian trixie main\n")
    found = package_mirror.find(TRIXIE, apt / "images", apt)
    assert (found.uri, found.file) == ("http://near.example/debian", apt / "images/debian.sources")


def test_list_of_mirrors_is_resolved(apt: Path) -> None:
    (apt / "mirrors").write_text("# nearest first\nhttp://first.example/debian priority:1\n")
    (apt / "sources.list").write_text(f"deb mirror+file:{apt}/mirrors trixie main\n")
    assert package_mirror.find(TRIXIE, apt / "images", apt).uri == "http://first.example/debian"


def test_host_without_a_debian_mirror_is_told_where_to_write_one(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://archive.example/ubuntu noble main\n")
    with pytest.raises(EnvironmentFault, match=f"Write one into {re.escape(str(apt / 'images/debian.sources'))}"):
        package_mirror.find(TRIXIE, apt / "images", apt)


@pytest.mark.parametrize("line", ["", "deb http://archive.example/ubuntu jammy main universe\n"])
def test_ubuntu_is_a_stand_in_until_a_mirror_with_its_suite_is_named(apt: Path, line: str) -> None:
    folder = apt / "images"
    (folder / "ubuntu.sources").write_text(line)
    stood_in = contents_of("Canonical Ubuntu", "24.04", folder)
    assert (stood_in.suite, stood_in.stand_in) == (TRIXIE, True)
    (folder / "archive.gpg").touch()
    (folder / "ubuntu.sources").write_text(
        f"deb [signed-by={folder}/archive.gpg] http://archive.example/ubuntu noble main universe\n"
    )
    real = contents_of("Canonical Ubuntu", "24.04", folder)
    assert (real.suite, real.stand_in, real.traps) == (NOBLE, False, stood_in.traps)
    mirror = package_mirror.find(NOBLE, folder, apt)
    suites = ("noble", "noble-updates", "noble-security")
    assert mirror.lines(NOBLE) == [f"deb http://archive.example/ubuntu {name} main universe" for name in suites]
    command = base_image._bootstrap_command(NOBLE, mirror, apt / "image.tar")
    assert f"--keyring={folder}/archive.gpg" in command
    assert "docker.io" in ",".join(command)
    (folder / "archive.gpg").unlink()
    with pytest.raises(EnvironmentFault, match=r"keyring .*archive\.gpg does not exist"):
        package_mirror.find(NOBLE, folder, apt)


def test_the_hosts_own_apt_is_not_a_source_of_ubuntu(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://archive.example/ubuntu noble main universe\n")
    with pytest.raises(EnvironmentFault, match="no mirror of Ubuntu is named"):
        package_mirror.find(NOBLE, apt / "images", apt)


def test_both_releases_of_debian_are_what_their_names_state(tmp_path: Path) -> None:
    for version, name in (("12", "bookworm"), ("13", "trixie")):
        assert contents_of("Debian", version, tmp_path) == Contents(SUITES[name])


def test_oracle_linux_is_always_a_stand_in(tmp_path: Path) -> None:
    found = contents_of("Oracle Linux", "9", tmp_path)
    assert (found.stand_in, found.suite.distribution, "firewalld" in found.traps) == (True, "Debian", True)


def test_traps_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"without_traps": ["firewalld"]}')
    traps_there = contents_of("Oracle Linux", "9", tmp_path).traps
    assert "firewalld" not in traps_there
    assert "hostinfo" in traps_there


@pytest.mark.parametrize("text", ["{", "[]", '{"stand_ins": 1}', '{"without_traps": ["fire"]}', '{"traps": []}'])
def test_wrong_settings_are_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(InputError, match=r"JSON|must be an object"):
        contents_of("Oracle Linux", "9", tmp_path)


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


def test_probe_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name in ("podman", "netavark") else "/" + name)
    assert "missing: netavark, podman. Install with: apt install netavark podman" in probe()


def test_probe_reports_that_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert probe()[0].startswith("you are not root")


def test_crun_is_refused_on_old_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_unified_cgroups", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None if name == "runc" else "/" + name)
    assert any("apt install runc" in problem for problem in probe())
    monkeypatch.setattr(host, "_unified_cgroups", lambda: True)
    assert host._runtime() == "crun"


def test_the_rules_of_cluster_yml_know_what_the_images_contain(tmp_path: Path) -> None:
    """They decide whether the hosts have one Slurm without a build."""
    stand_ins = PROVIDERS["local"].stand_ins
    for system in SYSTEMS:
        named = (system.operating_system, system.version)
        suite = contents_of(*named, tmp_path).suite
        assert (suite.operating_system, suite.version) == stand_ins.get(named, named)
