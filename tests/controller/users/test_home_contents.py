"""Changes in the home of a user, made with the user's own rights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.users import home_contents, state
from gpucluster.controller.users.errors import InHome
from gpucluster.node_agent import errors
from tests.controller.users.harness import KEY
from tests.controller.users.requests_of_users import alice
from tests.waiting import hang, wait_for


@pytest.mark.parametrize(
    ("before", "keys", "after"),
    [
        ("", [KEY], "B\nKEY\nE\n"),
        ("own\n", [KEY], "B\nKEY\nE\nown\n"),
        ("own", [KEY], "B\nKEY\nE\nown\n"),
        ("first\nB\nold\nE\nown\n", [KEY], "first\nB\nKEY\nE\nown\n"),
        ("B\nold\nE\nown\n", [], "own\n"),
        ("own\n", [], "own\n"),
    ],
)
def test_own_keys_survive(before: str, keys: list[str], after: str) -> None:
    def spell(text: str) -> str:
        words = {"B": home_contents.KEYS_BEGIN, "E": home_contents.KEYS_END, "KEY": KEY}
        return "".join(f"{words.get(line, line)}\n" for line in text.splitlines()) if text.endswith("\n") else text

    assert home_contents.with_keys(spell(before), keys) == spell(after)


@pytest.fixture
def umask_of_the_program() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask_of_the_program")
def test_a_new_home_is_filled_and_private(tmp_path: Path) -> None:
    skeleton, home = tmp_path / "skel", tmp_path / "alice"
    (skeleton / "sub").mkdir(parents=True)
    (skeleton / ".bashrc").write_text("alias\n")
    (skeleton / "sub" / "link").symlink_to("nowhere")
    home.mkdir(mode=0o700)
    person = alice(home, KEY)
    assert home_contents.fill(home, person, skeleton) is True
    assert (home / ".bashrc").read_text() == "alias\n"
    assert (home / "sub" / "link").is_symlink()
    ssh = home / ".ssh"
    modes = [path.stat().st_mode & 0o777 for path in (home, ssh, ssh / "authorized_keys")]
    assert modes == [0o700, 0o700, 0o600]
    # No private key lies where root of a node can read it.
    assert [path.name for path in ssh.iterdir()] == ["authorized_keys"]
    assert (ssh / "authorized_keys").read_text().splitlines()[1:-1] == [KEY]
    assert home_contents.fill(home, person, skeleton) is False
    (home / ".bashrc").unlink()
    assert home_contents.fill(home, person, skeleton) is False, "what a person has removed does not come back"


def test_a_home_that_was_begun_is_completed_and_one_in_use_is_not(tmp_path: Path) -> None:
    skeleton, begun, used = tmp_path / "skel", tmp_path / "begun", tmp_path / "used"
    for folder in (skeleton, begun, used):
        folder.mkdir()
    for name in (".bashrc", ".profile"):
        (skeleton / name).write_text("new\n")
    (begun / ".bashrc").write_text("kept\n")
    (begun / ".profile.gpucluster").write_text("ne")
    (used / "thesis").write_text("mine\n")
    home_contents.fill(begun, alice(begun), skeleton)
    home_contents.fill(used, alice(used), skeleton)
    assert [(begun / name).read_text() for name in (".bashrc", ".profile")] == ["kept\n", "new\n"]
    assert not (used / ".bashrc").exists()


def test_keys_are_put_aside_and_back(tmp_path: Path) -> None:
    home_contents.fill(tmp_path, alice(tmp_path, KEY))
    ssh = tmp_path / ".ssh"
    (ssh / "authorized_keys2").write_text("old\n")
    before = (ssh / "authorized_keys").read_text()
    assert home_contents.fill(tmp_path, alice(tmp_path, KEY, enabled=False)) is True
    assert sorted(path.name for path in ssh.glob("authorized*")) == [
        "authorized_keys.disabled",
        "authorized_keys2.disabled",
    ]
    assert home_contents.fill(tmp_path, alice(tmp_path, KEY)) is True
    assert (ssh / "authorized_keys").read_text() == before


def test_what_is_done_in_a_home_is_done_as_its_owner(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    who = state.DirectoryUser("alice", 4_000_001, 4_000_001, "Alice", str(tmp_path), "/bin/bash")
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if str(parent).startswith("/tmp/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    file = tmp_path / "mine"

    def work() -> bool:
        file.write_text("x")
        return True

    assert home_contents.as_user(who, work) == 1
    assert file.stat().st_uid == 4_000_001
    # A link to what is not theirs does not become writable by being in their home.
    target = tmp_path.parent / f"{tmp_path.name}-root"
    target.write_text("root's")
    target.chmod(0o600)
    (tmp_path / "link").symlink_to(target)

    def trespass() -> bool:
        (tmp_path / "link").write_text("mine now")
        return True

    with pytest.raises(errors.Failed, match="Permission denied"):
        home_contents.as_user(who, trespass)
    assert target.read_text() == "root's"


def become_nobody_else() -> Any:
    """The user who runs the tests, as the owner of a home in which something is done."""
    return state.DirectoryUser("alice", os.geteuid(), os.getegid(), "Alice", "/nowhere", "/bin/bash")


def stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root, no process becomes another user."""
    if os.geteuid() != 0:
        for call in ("setgroups", "setgid", "setuid"):
            monkeypatch.setattr(os, call, lambda _: None)


def test_what_does_not_end_in_a_home_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    stay(monkeypatch)
    real, children = os.fork, list[int]()

    def fork() -> int:
        children.append(real())
        return children[-1]

    def ended(pid: int) -> bool:
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(InHome, match="no answer in time"):
        home_contents.as_user(become_nobody_else(), lambda: hang() or 1, seconds=0.5)  # type: ignore[func-returns-value]
    (child,) = children
    wait_for("the child is ended", lambda: ended(child), ignore=FileNotFoundError)
    assert home_contents.as_user(become_nobody_else(), lambda: 7) == 7


def test_no_pipe_and_no_endless_file_delays_a_request(tmp_path: Path) -> None:
    file = tmp_path / "authorized_keys"
    os.mkfifo(file)
    with pytest.raises(InHome, match="not a regular file"):
        home_contents.read(file)
    file.unlink()
    with file.open("w") as large:
        large.truncate(home_contents.LARGEST_BYTES + 1)
    with pytest.raises(InHome, match="larger than"):
        home_contents.read(file)
    assert home_contents.read(tmp_path / "nowhere") == ""


def test_bytes_that_are_no_text_stay_in_a_file_of_keys(tmp_path: Path) -> None:
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    (ssh / "authorized_keys").write_bytes(b"# ren\xe9\nssh-ed25519 AAAA\n")
    assert home_contents.fill(tmp_path, alice(tmp_path, KEY)) is True
    content = (ssh / "authorized_keys").read_bytes()
    assert content.endswith(b"# ren\xe9\nssh-ed25519 AAAA\n")
    assert KEY.encode() in content
    assert home_contents.delete_keys(ssh) == 2
    assert home_contents.delete_keys(ssh) == 0
