"""The host keys on a console, as cloud-init's module keys_to_console writes them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpucluster.cloud.console import Consoles, fingerprint, fingerprints


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A public key by its kind."""
    folder, found = tmp_path_factory.mktemp("keys"), {}
    for kind in ("ecdsa", "ed25519", "rsa"):
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "root@c", "-f", str(folder / kind)], check=True)
        found[kind] = (folder / f"{kind}.pub").read_text().strip()
    return found


def shown(keys: dict[str, str], folder: Path) -> set[str]:
    """The fingerprints, by ssh-keygen."""
    (folder / "all").write_text("".join(f"{key}\n" for key in keys.values()))
    done = subprocess.run(["ssh-keygen", "-l", "-f", str(folder / "all")], capture_output=True, text=True, check=True)
    return {line.split()[1] for line in done.stdout.splitlines()}


def block(kind: str, lines: list[str]) -> str:
    return "\r\n".join([f"-----BEGIN SSH HOST KEY {kind}-----", *lines, f"-----END SSH HOST KEY {kind}-----", ""])


def test_keys_and_fingerprints_are_found_between_other_lines(keys: dict[str, str], tmp_path: Path) -> None:
    wanted = shown(keys, tmp_path)
    assert {fingerprint(key) for key in keys.values()} == wanted
    assert fingerprints("[   12.3] boot\r\n" + block("KEYS", list(keys.values())) + "login: ") == wanted
    logged = [f"<14>Jun  3 17:07:52 cloud-init: 256 {mark} root@c (X)" for mark in sorted(wanted)]
    assert fingerprints(block("FINGERPRINTS", logged)) == wanted
    # The kernel's messages come in between, and a long line is cut.
    cut = [keys["ecdsa"], "[   12.4] eth0: link up", keys["rsa"][:-250]]
    assert fingerprint(keys["ecdsa"]) in fingerprints(block("KEYS", cut))
    assert fingerprint(keys["rsa"]) not in fingerprints(block("KEYS", cut))


def test_what_stands_elsewhere_does_not_count(keys: dict[str, str], tmp_path: Path) -> None:
    assert fingerprints(f"{keys['ed25519']}\n{shown(keys, tmp_path)}\n") == frozenset()
    assert fingerprints("-----BEGIN SSH HOST KEY KEYS-----\n" + keys["ed25519"]) == frozenset()


def test_a_console_that_lags_behind_is_read_again(keys: dict[str, str]) -> None:
    said = [b"", b"booting", block("KEYS", [keys["ed25519"]]).encode()]
    states = ["REQUESTED", "SUCCEEDED"] * 3

    class Compute:
        """A double of the SDK's client."""

        def capture_console_history(self, _details: Any) -> Any:
            return SimpleNamespace(data=SimpleNamespace(id="h"))

        def get_console_history(self, _id: str) -> Any:
            return SimpleNamespace(data=SimpleNamespace(lifecycle_state=states.pop(0)))

        def get_console_history_content(self, _id: str, *, length: int) -> Any:
            assert length >= 1_000_000
            return SimpleNamespace(data=said.pop(0))

    access: Any = SimpleNamespace(client=lambda *_words: Compute())
    assert Consoles(access).fingerprints("ocid1.i") == {fingerprint(keys["ed25519"])}
    said, states = [b"nothing"] * 50, ["SUCCEEDED"] * 50
    assert Consoles(access, patience=0.1).fingerprints("ocid1.i") == frozenset()
