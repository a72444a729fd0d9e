"""The certificate of backups on a schedule, as real openssl makes it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.lifecycle.backup_certificate import require_valid_certificate
from gpucluster.spec import ClusterSpec, load
from tests.spec.spec_texts import LOCAL

RSA, CURVE = ("rsa:2048",), ("ec", "-pkeyopt", "ec_paramgen_curve:P-384")


def certificate(folder: Path, *kind: str, days: str = "2") -> str:
    argv = ["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", days, "-subj", "/CN=backup"]
    argv += ["-keyout", "key.pem", "-out", "backup.pem"]
    subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    return (folder / "backup.pem").read_text().strip()


def spec(folder: Path, more: str = "") -> ClusterSpec:
    file = folder / "cluster.yml"
    file.write_text(f"{LOCAL}\nbackup:\n  certificate: backup.pem\n{more}")
    return load(file)


def refused(folder: Path, text: str) -> str:
    (folder / "backup.pem").write_text(text)
    with pytest.raises(InputError) as caught:
        spec(folder)
    (found,) = caught.value.findings
    assert found.path == "backup.certificate"
    return found.message


@pytest.mark.parametrize("kind", [RSA, CURVE], ids=["RSA", "curve"])
def test_a_certificate_turns_the_schedule_on(kind: tuple[str, ...], tmp_path: Path) -> None:
    made = certificate(tmp_path, *kind)
    found = spec(tmp_path).backup
    assert (found.certificate_pem, found.schedule, found.keep, found.directory) == (made, "*-*-* 02:30:00", 14, None)


def test_without_one_there_is_no_schedule(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(LOCAL)
    found = load(file).backup
    assert (found.certificate_pem, found.certificate_end) == (None, None)


def test_what_does_not_encrypt_for_the_operator_alone_is_refused(tmp_path: Path) -> None:
    made = certificate(tmp_path, *RSA)
    key = (tmp_path / "key.pem").read_text()
    assert "contains a private key" in refused(tmp_path, f"{made}\n{key}")
    assert "contains a private key" in refused(tmp_path, key)
    assert "has 2 certificates" in refused(tmp_path, f"{made}\n{made}\n")
    assert "is not a certificate in PEM" in refused(tmp_path, made.replace("M", "N", 3))
    for kind in (("rsa:1024",), ("ed25519",), ("ec", "-pkeyopt", "ec_paramgen_curve:secp256k1")):
        assert "a key for which nothing can be encrypted" in refused(tmp_path, certificate(tmp_path, *kind))


def test_backups_need_the_directory_of_users(tmp_path: Path) -> None:
    certificate(tmp_path, *RSA)
    file = tmp_path / "cluster.yml"
    text = LOCAL.replace("storage:\n  home:\n", "storage:\n  home:\n    enabled: false\n", 1)
    assert text != LOCAL
    file.write_text(f"{text}\nbackup:\n  certificate: backup.pem\n")
    with pytest.raises(InputError) as caught:
        load(file)
    assert "backups need the home share" in str([found.message for found in caught.value.findings])


def test_an_expired_certificate_stops_a_run_and_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(tmp_path, *RSA, days="1")
    read = spec(tmp_path)
    end = read.backup.certificate_end
    assert end
    require_valid_certificate(read)

    def later(_zone: object) -> datetime:
        return end.replace(year=end.year + 1)

    clock: dict[str, Callable[[object], datetime]] = {"now": later}
    monkeypatch.setattr("gpucluster.lifecycle.backup_certificate.datetime", type("Clock", (), clock))
    with pytest.raises(InputError, match="certificate of backups has expired") as caught:
        require_valid_certificate(read)
    (found,) = caught.value.findings
    assert (found.path, "has expired on" in found.message) == ("backup.certificate", True)
