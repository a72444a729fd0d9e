"""Public ssh keys: which texts are one, and what is reported of another text. Its content is never repeated."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest

from gpucluster.controller.rules import ssh_keys
from gpucluster.controller.rules.ssh_keys import BadKey


def packed(*parts: bytes) -> str:
    """The second word of a key: its parts, each after its length (RFC 4253, section 6.6)."""
    return base64.b64encode(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).decode()


ED25519 = f"ssh-ed25519 {packed(b'ssh-ed25519', bytes(range(32)))}"
RSA = f"ssh-rsa {packed(b'ssh-rsa', b'xyz', bytes([255]) * 256)}"


@pytest.mark.parametrize(
    "key",
    [ED25519, RSA, f"  {ED25519} ada@laptop\n", f"ssh-ed25519  {ED25519.split()[1]} two words"],
)
def test_a_key_is_accepted_without_the_blanks_around_it(key: str) -> None:
    assert ssh_keys.check(key) == key.strip()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
@pytest.mark.parametrize("kind", [["ed25519"], ["rsa", "-b", "2048"], ["ecdsa", "-b", "256"], ["ecdsa", "-b", "521"]])
def test_keys_of_ssh_keygen_are_accepted(kind: list[str], tmp_path: Path) -> None:
    argv = ["ssh-keygen", "-q", "-t", *kind, "-N", "", "-C", "ada@laptop", "-f", str(tmp_path / "key")]
    subprocess.run(argv, check=True)
    key = ssh_keys.check((tmp_path / "key.pub").read_text())
    assert ssh_keys.label(key) == "ada@laptop"
    with pytest.raises(BadKey, match="a PRIVATE key"):
        ssh_keys.check((tmp_path / "key").read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (f"{ED25519}\n{ED25519}", "more than one line"),
        (f"{ED25519}\t", ""),
        (f"{ED25519} a\tb", "not a line of text"),
        (f"{ED25519} {'x' * (16 << 10)}", "not a line of text"),
        ("ssh-ed25519", "cut off"),
        ("ssh-ed25519 secret!", "not base64"),
        (f"ssh-ed25519 {packed(b'ssh-ed25519', bytes(31))}", "its length is wrong"),
        (f"ssh-ed25519 {packed(b'ssh-ed25519')}", "a part is missing"),
        (f"ssh-ed25519 {RSA.split()[1]}", "holds a key of type ssh-rsa"),
        (f"ssh-ed25519 {packed(b'nonsense')}", "holds something else"),
        (f"ssh-ed25519 {base64.b64encode(b'12345678').decode()}", "cut off"),
        (f"ssh-rsa {packed(b'ssh-rsa', b'xyz', bytes([127]) * 128)}", "an RSA key of 1023 bits"),
        ("ssh-dss AAAA", "a DSA key"),
        ("ssh-ed25519-cert-v01@openssh.com AAAA", "a certificate, not a key"),
        (f'command="x" {ED25519}', "preceded by options"),
        ("hello world", "not a public key"),
        ("PuTTY-User-Key-File-3: x", "a PRIVATE key"),
        ("---- BEGIN SSH2 PUBLIC KEY ----", "another format"),
        ("-----BEGIN CERTIFICATE-----", "a certificate or a key in another format"),
    ],
)
def test_what_is_not_a_key_is_described_and_not_repeated(text: str, message: str) -> None:
    if not message:  # blanks at the end do not matter
        assert ssh_keys.check(text)
        return
    with pytest.raises(BadKey, match=message) as raised:
        ssh_keys.check(text)
    assert "secret" not in raised.value.message + raised.value.hint


def test_a_key_is_the_same_whatever_its_comment_is() -> None:
    assert ssh_keys.same(f"{ED25519} ada", f"{ED25519} bob")
    assert not ssh_keys.same(ED25519, RSA)
    assert (ssh_keys.label(f"{ED25519} ada@demo x"), ssh_keys.label(ED25519)) == ("ada@demo", "")
