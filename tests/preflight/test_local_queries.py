"""What preflight asks of this machine: real key files, a real ssh-keygen, programs that report a version."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gpucluster.cloud.client import fingerprint
from gpucluster.preflight.facts import SshPair
from gpucluster.preflight.queries import local
from gpucluster.spec import ClusterSpec
from tests.preflight.preflight_facts import desired


def _openssl(*words: str, given: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *words], input=given, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def key() -> bytes:
    return _openssl("genrsa", "2048")


def test_a_fingerprint_is_what_the_documentation_computes(key: bytes) -> None:
    """docs: Required Keys and OCIDs, "How to Get the Key's Fingerprint"."""
    said = _openssl("dgst", "-md5", "-c", given=_openssl("rsa", "-pubout", "-outform", "DER", given=key))
    assert said.decode().split()[-1] == fingerprint(key)


def test_a_key_that_can_be_used(key: bytes, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(key)
    file.chmod(0o640)
    found = local.key_file({"key_file": str(file), "fingerprint": "aa"})
    assert (found.problem, found.mode, found.fingerprint) == ("", 0o640, fingerprint(key))


def test_keys_that_can_not(key: bytes, tmp_path: Path) -> None:
    locked = _openssl("rsa", "-aes256", "-passout", "pass:secret", given=key)
    problems = []
    for content in (None, b"", b"ssh-rsa AAAA", locked, locked[:-200]):
        file = tmp_path / "key.pem"
        if content is not None:
            file.write_bytes(content)
        problems.append(local.key_file({"key_file": str(file), "fingerprint": "aa"}).problem)
    assert problems[0].startswith("it can't be read: No such file")
    assert problems[1:3] == ["not a private key in PEM format"] * 2
    assert problems[3] == "it has a passphrase"
    assert problems[4]


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A key pair without a passphrase, where the spec names it."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me", "-f", str(tmp_path / "made")], check=True
    )
    return tmp_path / "made"


def _spec_with(pair: Path) -> ClusterSpec:
    return desired(pair.parent, ("public_key_file: operator.pub", f"public_key_file: {pair.name}.pub"))


def _asked(spec: ClusterSpec) -> SshPair:
    found = local.ssh_pair(spec)
    assert isinstance(found, SshPair)
    return found


def test_a_pair_that_belongs_together(pair: Path) -> None:
    found = _asked(_spec_with(pair))
    assert found.derived == found.public != ""


def test_halves_of_two_pairs(pair: Path) -> None:
    spec = _spec_with(pair)
    pair.unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(pair)], input=b"y\n", check=True)
    found = _asked(spec)
    assert "" not in (found.derived, found.public)
    assert found.derived != found.public


def test_a_pair_with_a_passphrase(pair: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(pair)], check=True)
    assert _asked(_spec_with(pair)).locked


def test_a_private_key_that_is_open_spoilt_or_elsewhere(pair: Path) -> None:
    spec = _spec_with(pair)
    pair.chmod(0o644)
    assert _asked(spec).mode == 0o644
    pair.chmod(0o600)
    pair.write_text("nonsense\n")
    assert (_asked(spec).derived, _asked(spec).locked) == ("", False)
    pair.unlink()
    assert not _asked(spec).exists


STATE = ("ssh:\n", "state: {backend: oci, config: {bucket: b, namespace: n}}\nssh:\n")


@pytest.mark.parametrize(("version", "problem"), [("1.12.0", ""), ("1.11.4", "has no backend oci")])
def test_terraform_must_know_the_backend(
    version: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "terraform"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho \'{{"terraform_version": "{version}"}}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/bin:/usr/bin")
    found = local.terraform(desired(tmp_path, STATE))
    assert found is not None
    assert problem in found.problem
    assert bool(found.problem) == bool(found.action) == bool(problem)


def test_the_terraform_that_would_be_downloaded_counts_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = local.terraform(desired(tmp_path, STATE))
    assert found is not None
    assert "has no backend oci" in found.problem


def test_a_local_state_takes_every_terraform(tmp_path: Path) -> None:
    assert local.terraform(desired(tmp_path)) is None
