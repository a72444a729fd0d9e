"""The operators' keys on the standby, in a home of a test: what the cloud gave it, what cluster.yml has now."""

from __future__ import annotations

import json
import os
import pwd
import stat
from pathlib import Path

import pytest

from gpucluster.node_agent.standby import operator_keys

FIRST, SECOND, THIRD = "ssh-ed25519 AAAAfirst", "ssh-rsa AAAAsecond", "sk-ssh-ed25519@openssh.com AAAAthird"
MIRROR = 'restrict,command="sudo -n receive $SSH_ORIGINAL_COMMAND" ssh-ed25519 AAAAmirror'
#: As cloud-init writes it for root, on one line.
REFUSES = 'no-port-forwarding,no-pty,command="echo \'Please login as the user \\"debian\\".\';exit 142"'


def keys(text: str) -> list[str]:
    return [operator_keys.words(line) for line in text.splitlines() if operator_keys.words(line)]


def test_a_key_is_known_behind_options_and_before_a_comment() -> None:
    assert operator_keys.words(f"{REFUSES} {FIRST} alice@laptop") == FIRST
    assert operator_keys.words(f"  {THIRD}") == THIRD
    assert operator_keys.words(f"#{FIRST}") == ""
    assert operator_keys.words("") == ""


def test_a_key_that_has_left_goes_one_that_is_new_comes_and_others_stay() -> None:
    text = f"{FIRST} alice\n{SECOND} bob\n# by hand\n{THIRD} carol\n{MIRROR}\n"
    launched, by_hand = {FIRST, SECOND}, [THIRD, operator_keys.words(MIRROR)]
    now = [f"{SECOND} bob", "ssh-ed25519 AAAAnew dave"]
    new = operator_keys.rewritten(text, now, launched)
    assert keys(new) == [SECOND, *by_hand, SECOND, "ssh-ed25519 AAAAnew"]
    assert "# by hand" in new
    assert operator_keys.rewritten(new, now, launched) == new
    # One that was added later goes as well, and one of the launch may come back.
    assert keys(operator_keys.rewritten(new, [SECOND], launched)) == [SECOND, *by_hand, SECOND]
    assert keys(operator_keys.rewritten(new, [FIRST], launched)) == [*by_hand, FIRST]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    me = pwd.getpwuid(os.geteuid())
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: pwd.struct_passwd((*me[:5], "/home/debian", me[6])))
    for home in ("home/debian", "root"):
        (tmp_path / home / ".ssh").mkdir(parents=True)
    (tmp_path / "run/cloud-init").mkdir(parents=True)
    data = {"v1": {"public_ssh_keys": [f"{FIRST} alice", f"{SECOND} bob"]}}
    (tmp_path / "run/cloud-init/instance-data.json").write_text(json.dumps(data))
    (tmp_path / "home/debian/.ssh/authorized_keys").write_text(f"{FIRST} alice\n{SECOND} bob\n")
    (tmp_path / "root/.ssh/authorized_keys").write_text(f"{REFUSES} {FIRST} alice\n{REFUSES} {SECOND} bob\n")
    return tmp_path


def test_both_accounts_lose_a_key_and_the_login_user_gets_the_new_one(root: Path) -> None:
    operator_keys.give("debian", [SECOND, THIRD], root)
    file = root / "home/debian/.ssh/authorized_keys"
    assert keys(file.read_text()) == [SECOND, SECOND, THIRD]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keys((root / "root/.ssh/authorized_keys").read_text()) == [SECOND]


def test_without_keys_and_without_a_record_of_the_launch_no_key_is_taken_away(root: Path) -> None:
    file = root / "home/debian/.ssh/authorized_keys"
    before = file.read_text()
    operator_keys.give("debian", [], root)
    assert file.read_text() == before
    (root / "run/cloud-init/instance-data.json").write_text("{")
    operator_keys.give("debian", [THIRD], root)
    assert keys(file.read_text()) == [FIRST, SECOND, THIRD]
