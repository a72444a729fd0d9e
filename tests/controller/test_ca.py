"""The CA with a real openssl: what is made once, what is made again, and what hosts may trust."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import ca

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(ca, "FOLDER", tmp_path / "etc" / "authority")
    monkeypatch.setattr(shutil, "chown", lambda *_: None)
    # Its work lies in /run, where this user may not write.
    real = tempfile.TemporaryDirectory
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda prefix, **_: real(prefix=prefix))
    # The program sets its own, for a process of its own.
    before = os.umask(0o022)
    yield tmp_path
    os.umask(before)


def run(place: Path, capsys: pytest.CaptureFixture[str], name: str = "ctl") -> dict[str, Any]:
    argv = ["--cluster=demo", f"--name={name}", "--address=10.0.0.2", f"--directory={place}/slapd"]
    status = ca.main([*argv, f"--publish={place}/etc/authority.pem", "--group=openldap"])
    said = capsys.readouterr()
    assert status == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_what_is_there_stays_and_another_name_gets_another_certificate(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(place, capsys)
    assert first["changed"] is True
    certificate = place / "slapd" / "server.pem"
    before = certificate.read_bytes()
    assert run(place, capsys) == {"changed": False, "ca": first["ca"]}
    assert certificate.read_bytes() == before
    assert run(place, capsys, "other") == {"changed": True, "ca": first["ca"]}
    assert certificate.read_bytes() != before
    modes = {path.name: path.stat().st_mode & 0o777 for path in (place / "etc" / "authority").iterdir()}
    assert modes == {"ca.key": 0o600, "ca.pem": 0o644, "server.json": 0o600}
    words = ["openssl", "verify", "-CAfile", str(place / "etc" / "authority.pem"), "-verify_hostname", "other"]
    assert subprocess.run([*words, str(certificate)], capture_output=True, check=False).returncode == 0


def test_half_of_a_ca_is_not_replaced(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(place, capsys)
    (place / "etc" / "authority" / "ca.key").unlink()
    argv = ["--cluster=demo", "--name=ctl", f"--directory={place}/slapd", f"--publish={place}/x", "--group=openldap"]
    assert ca.main(argv) == 1
    said = capsys.readouterr().err
    assert "only one of" in said
    assert "gpucluster apply" in said
