"""What an image of the local cloud contains: its suite, its traps, and the settings for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.localcloud.image import base_image, package_mirror
from gpucluster.localcloud.image.contents import Contents, contents_of
from gpucluster.localcloud.image.suites import SUITES
from gpucluster.spec import PROVIDERS
from gpucluster.systems.matrix import SYSTEMS
from tests.localcloud.image.test_base_image import NOBLE, TRIXIE


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "images").mkdir()
    return tmp_path


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


def test_the_rules_of_cluster_yml_know_what_the_images_contain(tmp_path: Path) -> None:
    """They decide whether the hosts have one Slurm without a build."""
    stand_ins = PROVIDERS["local"].stand_ins
    for system in SYSTEMS:
        named = (system.operating_system, system.version)
        suite = contents_of(*named, tmp_path).suite
        assert (suite.operating_system, suite.version) == stand_ins.get(named, named)
