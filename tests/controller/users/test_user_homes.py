"""The users program: its changes in a home directory, and its questions and answers on a terminal."""

from __future__ import annotations

import fcntl
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller.users import cli, csv_file, home_contents, homes, lock, requests, state, tables
from gpucluster.controller.users.errors import InHome
from gpucluster.node_agent import errors
from tests.controller.users.harness import KEY
from tests.waiting import hang, wait_for


def alice(home: Path, *keys: str, enabled: bool = True) -> Any:
    return state.DirectoryUser("alice", os.geteuid(), os.getegid(), "Alice", str(home), "/bin/bash", keys, enabled)


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


def test_without_the_share_no_home_is_made(tmp_path: Path) -> None:
    with pytest.raises(errors.Failed, match="is not mounted"):
        homes.Homes(tmp_path).check()
    homes.Homes(Path("/proc")).check()


def test_an_archive_follows_no_link_and_root_alone_reads_it(tmp_path: Path) -> None:
    store = homes.Homes(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("x" * 100_000)
    home = tmp_path / "alice"
    home.mkdir()
    (home / "link").symlink_to(secret)
    archive = store.archive("alice")
    assert archive
    assert archive.stat().st_mode & 0o777 == 0o600
    assert archive.parent.stat().st_mode & 0o777 == 0o700
    assert archive.stat().st_size < 1000
    removed = tmp_path / homes.REMOVED
    (removed / ".bob-1.deleting").mkdir()
    (removed / ".bob-1.tar.gz.partial").touch()
    aside = store.set_aside("alice")
    assert aside
    assert aside.exists()
    assert not home.exists()
    with (removed / ".carl-1.tar.gz.partial").open("w") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        store.sweep("alice", aside)
        assert sorted(path.name for path in removed.iterdir()) == [".carl-1.tar.gz.partial", archive.name]
    store.sweep("alice", None)
    assert secret.exists()
    assert [path.name for path in (tmp_path / homes.REMOVED).iterdir()] == [archive.name]
    assert not home.exists()


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


def test_the_lock_is_root_s_and_no_command_waits_for_ever(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.touch(mode=0o644)
    with lock.held(file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with pytest.raises(errors.Failed, match="another change"), lock.held(file, seconds=0.1):
            pytest.fail("two have it")
    with lock.held(file, seconds=0):
        pass
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"), lock.held(tmp_path / "link"):
        pytest.fail("another user's file")


def test_csv_gives_the_same_as_json() -> None:
    text = '\ufeffname,full_name,uid,groups\r\nalice,"Example, A",10500,lab; red\r\n\r\nbob,,,\r\n'
    ask = Typed(terminal_=False, files={"people.csv": text, "-": text, "people.json": '[{"name": "alice"}]'})
    want = [{"name": "alice", "full_name": "Example, A", "uid": 10500, "groups": ["lab", "red"]}, {"name": "bob"}]
    assert typed("user import people.csv", ask) == ("user.import", {"users": want})
    assert typed("user import -", ask)[1] == {"users": want}
    assert typed("user import people.json", ask)[1] == {"users": [{"name": "alice"}]}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("alice,10500\n", "name the columns"),
        ("name,colour\nalice,red\n", "name the columns"),
        ("name,name\nalice,red\n", "name the columns"),
        ("name,password\nalice,geheim\n", "must not be in a file"),
        ("name\nalice,5\n", "line 2 has 2 cells"),
        ('name\n"alice\n', "not CSV"),
    ],
)
def test_what_is_not_csv_is_refused(text: str, word: str) -> None:
    with pytest.raises(errors.Refused, match=word) as refused:
        csv_file.users(text)
    assert refused.value.hint


class Typed(cli.InputTerminal):
    """Somebody who types these answers."""

    def __init__(self, *answers: str, terminal_: bool = True, files: dict[str, str] | None = None) -> None:
        self.answers, self._terminal, self.files = list(answers), terminal_, files or {}
        self.prompts: list[str] = []

    @property
    def attached(self) -> bool:
        return self._terminal

    def read(self, name: str) -> str:
        return self.files[name]

    def secret(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return self.answers.pop(0)

    def line(self, prompt: str) -> str:
        return self.secret(prompt)


def typed(line: str, ask: Typed) -> tuple[str, dict[str, Any]]:
    operation, given = cli.request(cli.parser().parse_args(line.split()), ask)
    return str(operation), dict(given)


def test_the_documented_way_to_add_a_user_asks_three_questions() -> None:
    ask = Typed("geheim", "geheim", "User Name")
    assert typed("user add user_name --gid 9876", ask) == (
        "user.add",
        {"name": "user_name", "gid": 9876, "password": "geheim", "full_name": "User Name"},
    )
    assert ask.prompts == ["Password: ", "Repeat for confirmation: ", "Full Name: "]
    with pytest.raises(errors.Refused, match="differ"):
        typed("user add user_name", Typed("one", "two"))


def test_a_password_that_is_typed_is_not_shown() -> None:
    """`--password-stdin` on a terminal asks, as without it, and reads nothing to the end of the input."""
    for verb in ("add", "edit"):
        ask = Typed("geheim", "geheim")
        assert typed(f"user {verb} alice --password-stdin", ask)[1] == {"name": "alice", "password": "geheim"}
        assert ask.prompts == ["Password: ", "Repeat for confirmation: "]
        with pytest.raises(errors.Refused, match="differ"):
            typed(f"user {verb} alice --password-stdin", Typed("one", "two"))
        # The empty one is refused by who checks passwords, and is not taken for none.
        assert typed(f"user {verb} alice --password-stdin", Typed("", ""))[1]["password"] == ""


@pytest.mark.parametrize(
    "words",
    [
        "add alice --ssh-key - --password-stdin",
        "add alice --ssh-key - --ssh-key -",
        "edit alice --add-ssh-key - --password-stdin",
        "edit alice --ssh-key k.pub --ssh-key - --add-ssh-key -",
    ],
)
@pytest.mark.parametrize("terminal_", [True, False])
def test_standard_input_is_one_thing(words: str, terminal_: bool) -> None:
    with pytest.raises(errors.Refused, match="for one option only"):
        typed(f"user {words}", Typed(terminal_=terminal_, files={"k.pub": KEY}))


def test_without_a_terminal_nothing_is_asked() -> None:
    ask = Typed(terminal_=False, files={"-": "geheim\n", "k.pub": f"# mine\n{KEY}\n\n"})
    assert typed("user add alice --password-stdin --ssh-key k.pub --groups a,b --slurm-account ml", ask) == (
        "user.add",
        {"name": "alice", "password": "geheim", "ssh_keys": [KEY], "groups": ["a", "b"], "slurm_account": "ml"},
    )
    assert typed("user remove alice --archive-home", ask) == ("user.remove", {"name": "alice", "home": "archive"})
    assert typed("group add-member red alice", ask) == ("group.add_member", {"group": "red", "user": "alice"})
    assert typed("group create red --gid 5000", ask) == ("group.add", {"name": "red", "gid": 5000})


def test_tables_hold_nothing_that_a_terminal_would_obey() -> None:
    user = {"name": "alice", "uid": 1, "group": "g", "groups": [], "full_name": "\x1b[2J", "enabled": True}
    shown = tables.text("user.list", {"users": [{**user, "slurm_account": None}]})
    assert "\x1b" not in shown
    assert shown.splitlines()[1].split()[:3] == ["alice", "1", "g"]


def no_service() -> Any:
    """It is never used: what is asked for is not an operation."""


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "nul", '{"operation": 5}', '{"operation": "user.add", "more": 1}', "[" * 100_000]
)
def test_what_is_not_a_request_is_refused(text: str) -> None:
    target = io.StringIO()
    assert requests.serve(no_service, io.StringIO(text), target) == 2
    said = json.loads(target.getvalue())["error"]
    assert said["message"]
    assert said["hint"]
