"""The order of versions: of projects, and of the packages of distributions."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.advisories.versions import is_of_line, is_older, of_project

#: Each is older than the next one.
ORDER = (
    "1.0~rc1",
    "1.0",
    "1.0-1",
    "1.0-1+deb12u1",
    "1.0-1+deb12u3",
    "1.0-1+deb12u10",
    "1.0-2",
    "1.0a",
    "1.0+ds1-1",
    "1.0.1",
    "1.6.20~ds1-1",
    "1.6.20",
    "22.05.8-4+deb12u3",
    "1:0.9",
)


@pytest.mark.parametrize(("older", "newer"), [*itertools.pairwise(ORDER)])
def test_debian_orders_them_so(older: str, newer: str) -> None:
    assert is_older(older, newer)
    assert not is_older(newer, older)
    assert not is_older(older, older)


@pytest.mark.skipif(not shutil.which("dpkg"), reason="no dpkg here to ask")
@pytest.mark.slow
@given(
    *[st.from_regex(r"[0-9][0-9a-z.+~]{0,6}(-[0-9a-z.+~]{1,4})?", fullmatch=True, alphabet="019ab.+~-")] * 2,
)
def test_dpkg_orders_any_two_of_them_so(first: str, second: str) -> None:
    done = subprocess.run(["dpkg", "--compare-versions", first, "lt", second], check=False)
    assert is_older(first, second) is (done.returncode == 0)


@pytest.mark.parametrize(
    ("version", "own"),
    [
        ("v1.20.2", "1.20.2"),
        ("25.11.8-1", "25.11.8"),
        ("26.05.0rc1", "26.05.0~rc1"),
        ("26.05.0-0rc1", "26.05.0~rc1"),
        ("1.4.0-rc.3", "1.4.0~rc3"),
        ("1.0.0~rc95+ds1-2", "1.0.0~rc95"),
        ("1:1.6.20~ds1-1+deb12u3", "1.6.20"),
        ("1.1.5+ds1-1+deb12u1", "1.1.5"),
        ("6.12.85+deb13-amd64", "6.12.85"),
        ("6.8.0-117-generic", "6.8.0"),
        ("5.15.0-318.199.3.el8uek.x86_64", "5.15.0"),
        ("580.95.05", "580.95.05"),
        ("1.7.27-1.el9", "1.7.27"),
        ("unknown", ""),
        ("", ""),
    ],
)
def test_what_packagers_add_is_left_out(version: str, own: str) -> None:
    assert of_project(version) == own


@pytest.mark.parametrize(
    ("version", "line", "expected"),
    [
        ("25.11.7", "25.11", True),
        ("25.11.0~rc1", "25.11", True),
        ("25.1.7", "25.11", False),
        ("580.95.05", "580", True),
        ("58.1", "580", False),
        ("25", "25.11", False),
    ],
)
def test_a_line_is_the_begin_of_a_version(version: str, line: str, expected: bool) -> None:
    assert is_of_line(version, line) is expected
