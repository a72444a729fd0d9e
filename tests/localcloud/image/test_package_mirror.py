"""Where packages of a suite come from: this machine's apt, a file of the operator, a list of mirrors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault
from gpucluster.localcloud.image import package_mirror
from tests.localcloud.image.test_base_image import NOBLE, TRIXIE

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


def test_the_hosts_own_apt_is_not_a_source_of_ubuntu(apt: Path) -> None:
    (apt / "sources.list").write_text("deb http://archive.example/ubuntu noble main universe\n")
    with pytest.raises(EnvironmentFault, match="no mirror of Ubuntu is named"):
        package_mirror.find(NOBLE, apt / "images", apt)
