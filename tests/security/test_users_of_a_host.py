"""A user of a host against root of that host, in folders where every user may create files, and in homes.

The user has no rights besides. What must not happen: root gives the user something that is not theirs, or changes it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.node_agent import programs
from gpucluster.node_agent import rootless_containers as rootless
from gpucluster.node_agent.errors import AgentError
from tests.ansible.loading import load
from tests.ansible.render import render
from tests.ansible.test_enroot import known
from tests.security.hostile import TRIES, Victim, at_every_step, empty, racing, victim

__all__ = ["victim"]
EXPECTED = (AgentError, OSError)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="what is attacked is root's work")]
NOBODY = pwd.getpwnam("nobody")


@pytest.fixture
def disk() -> Iterator[Path]:
    """A local disk, on which every user may create files."""
    with tempfile.TemporaryDirectory(prefix="gpucluster-disk-", dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


def test_requests_for_lingering(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "run", lambda *_argv: "")

    def prepare() -> None:
        (disk / "folder" / "deep").mkdir(parents=True)
        (disk / "folder" / "deep" / "file").write_text("x")
        (disk / "10001").write_text("")

    at_every_step(disk, prepare, lambda _: rootless.linger(disk), EXPECTED)


def test_a_request_with_two_names_is_none(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(programs, "run", lambda *argv: asked.append(argv[-1]))
    (disk / "mine").write_text("")
    os.chown(disk / "mine", 10001, 10001)
    os.link(disk / "mine", disk / "10001")
    rootless.linger(disk)
    assert asked == []


def test_a_folder_for_containers_where_others_can_write(disk: Path) -> None:
    """The parent is checked by its role; this holds also where it is not root's alone."""
    at_every_step(disk, lambda: None, lambda _: rootless.give_directory(disk, 10001, 10001), EXPECTED)
    at_every_step(disk, (disk / "user-10001").mkdir, lambda _: rootless.give_directory(disk, 0, 10001), EXPECTED)


@pytest.mark.parametrize("first", ["a folder", "a link to a folder", "a link to a folder of root"])
def test_who_makes_the_folder_of_containers_before_the_prolog(
    disk: Path, victim: Victim, tmp_path: Path, first: str
) -> None:
    """Enroot's prolog on a disk that was just formatted: the user is faster, between a look and its `mkdir`."""
    base, own, programs_ = disk / "containers", disk / "own", tmp_path / "bin"
    programs_.mkdir()
    own.mkdir()
    os.chown(own, NOBODY.pw_uid, NOBODY.pw_gid)
    does = {
        "a folder": f"mv {own} {base}",
        "a link to a folder": f"ln -s {own} {base}",
        "a link to a folder of root": f"ln -s {victim.folder} {base}",
    }[first]
    faster = programs_ / "mkdir"
    faster.write_text(f'#!/bin/sh\ncase "$*" in *{base}) [ -e {base} ] || {does} ;; esac\nexec /bin/mkdir "$@"\n')
    faster.chmod(0o755)
    prolog = tmp_path / "prolog"
    given = known(containers_storage=str(base)) | {"enroot_runtime": str(tmp_path / "run")}
    text = render("enroot", "prolog-enroot", given)
    prolog.write_text(text.replace("PATH=/usr/sbin:", f"PATH={programs_}:/usr/sbin:"))
    names = {"SLURM_JOB_UID": "4711", "SLURM_JOB_GID": "4711"}
    subprocess.run(["sh", prolog], env=names, check=True, capture_output=True)
    assert os.path.lexists(base), "the user was not faster"
    assert os.listdir(base if first == "a folder" else own) == [], "root works in a folder of the user"
    assert not victim.difference(disk)


def test_a_race_for_the_skeleton_in_a_new_home(
    disk: Path, victim: Victim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a share, the module of accounts fills a home whose owner has processes already."""
    people = load("library/gpucluster_people.py")
    skeleton = tmp_path / "skel"
    (skeleton / "below").mkdir(parents=True)
    names = {f"file-{number}" for number in range(30)}
    for name in names:
        (skeleton / "below" / name).write_text("skeleton")
    victim.has_too(names)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    home = disk / "home"
    account = pwd.struct_passwd(("nobody", "x", NOBODY.pw_uid, NOBODY.pw_gid, "", str(home), "/bin/sh"))
    monkeypatch.setattr(people, "account_of", lambda _name: account)
    copied = shutil.copytree

    def copy(source: Any, *given: Any, **more: Any) -> Any:
        return copied(skeleton if str(source) == "/etc/skel" else source, *given, **more)

    monkeypatch.setattr(people.shutil, "copytree", copy)
    one: Any = SimpleNamespace(check_mode=False, run_command=None)
    link = disk / "link"
    for _ in range(TRIES // 2):
        empty(disk)
        link.symlink_to(victim.folder)
        with racing(home / "below", link), contextlib.suppress(OSError, shutil.Error):
            people.People(one).home({"name": "nobody", "ssh_keys": []})
        difference = victim.difference(disk)
        assert not difference, "\n".join(difference)
