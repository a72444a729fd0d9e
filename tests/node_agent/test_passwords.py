"""Passwords: hashed by the real openssl, in files that only root can read."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from gpucluster.node_agent import passwords
from gpucluster.node_agent.errors import Failed

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def crypt(password: str, digest: str) -> str:
    """The hash of a password with the salt of another hash, by openssl."""
    salt = digest.split("$")[2]
    argv = ["openssl", "passwd", "-6", "-salt", salt, "-stdin"]
    return "{CRYPT}" + subprocess.run(argv, input=password, check=True, capture_output=True, text=True).stdout.strip()


@needs_openssl
def test_each_password_has_its_own_hash_in_their_order() -> None:
    digests = passwords.crypted(["one", "zwölf", "one"])
    assert digests[0] == crypt("one", digests[0])
    assert digests[1] == crypt("zwölf", digests[1])
    assert digests[0] != digests[2]  # another salt


@needs_openssl
def test_passwords_of_programs_are_long_and_none_is_made_twice() -> None:
    pairs = passwords.made(3)
    assert len({password for password, _digest in pairs}) == 3
    assert all(len(password) >= 43 and digest == crypt(password, digest) for password, digest in pairs)
    assert passwords.made(0) == []


@needs_openssl
def test_the_first_scheme_that_the_host_has_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "_argon2", lambda _password: "{ARGON2}$argon2id$x")
    assert passwords.hashed("secret") == "{ARGON2}$argon2id$x"
    assert passwords.hashed("secret", ("CRYPT",)).startswith("{CRYPT}$6$")
    # slappasswd without the module prints another hash.
    monkeypatch.setattr(passwords, "_argon2", lambda _password: "{SSHA}x")
    assert passwords.hashed("secret").startswith("{CRYPT}$6$")


def test_a_host_without_a_program_for_it_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(passwords, "_MEMORY", str(tmp_path))
    with pytest.raises(Failed, match="no installed program can hash"):
        passwords.hashed("secret")
    with pytest.raises(Failed, match="openssl can't hash"):
        passwords.crypted(["secret"])
    assert list(tmp_path.iterdir()) == []


def test_a_password_in_a_file_is_gone_after_the_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(passwords, "_MEMORY", str(tmp_path))
    with passwords.in_a_file("secret") as file:
        assert (file.parent, file.read_text(), stat.S_IMODE(file.stat().st_mode)) == (tmp_path, "secret", 0o600)
    with pytest.raises(ZeroDivisionError), passwords.in_a_file("secret"):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_as_a_whole_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "password"
    passwords.write_file(file, "one")
    passwords.write_file(file, "two")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("two", 0o600)
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]


def test_a_file_gets_the_mode_of_another_one(tmp_path: Path) -> None:
    like = tmp_path / "like"
    like.touch(mode=0o640)
    like.chmod(0o640)
    passwords.write_file(tmp_path / "password", "one", like.stat())
    assert stat.S_IMODE((tmp_path / "password").stat().st_mode) == 0o640


def test_what_is_left_of_a_killed_process_and_a_link_do_not_matter(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("theirs")
    (tmp_path / ".password.new").symlink_to(other)
    passwords.write_file(tmp_path / "password", "one")
    assert (other.read_text(), (tmp_path / "password").read_text()) == ("theirs", "one")


def test_a_file_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Failed, match="file/password can't be written: "):
        passwords.write_file(tmp_path / "file" / "password", "one")
