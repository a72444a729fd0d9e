"""Rules for the REST API: the release that it needs, and one's own certificate with its key."""
# A row of the table is a line, so that rows can be compared.
# ruff: noqa: E501

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpucluster.errors import InputError
from gpucluster.spec import load
from tests.spec.faults import reported
from tests.spec.spec_texts import LOCAL

# id: (what stands in LOCAL, what stands there instead with § at the error, path, words)
ROWS: dict[str, tuple[str, str, str, str]] = {
    "an old release": ("accounting: true", 'release: "23.11"\n  rest: §true', "slurm.rest", "it needs Slurm 24.11 or later, and the controller has 23.11"),
    "a file without the API": ("accounting: true", "§rest_key_file: rest.key", "slurm.rest_key_file", "it is for the REST API, which is off"),
    "a certificate without a key": ("accounting: true", "rest: true\n  §rest_certificate_file: rest.pem", "slurm.rest_certificate_file", "it needs slurm.rest_key_file, too"),
    "a key without a certificate": ("accounting: true", "rest: true\n  §rest_key_file: rest.key", "slurm.rest_key_file", "it needs slurm.rest_certificate_file, too"),
    "no certificate": ("accounting: true", "rest: true\n  rest_certificate_file: §nowhere.pem\n  rest_key_file: rest.key", "slurm.rest_certificate_file", 'there is no file "nowhere.pem"'),
    "tokens of others": ("{SchedulerParameters: bf_interval=30}", "{§AuthAltTypes: auth/jwt}", "slurm.extra_config.AuthAltTypes", "AuthAltTypes is set by gpucluster itself"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_is_told_once_and_at_its_place(row: tuple[str, str, str, str]) -> None:
    reported(row)


@pytest.mark.parametrize(
    ("version", "release", "refused"),
    [("12", "distribution", "22.05"), ("13", "distribution", ""), ("12", "26.05", ""), ("12", "24.11", "")],
)
def test_the_release_of_the_controller_counts(tmp_path: Path, version: str, release: str, refused: str) -> None:
    image = f'  memory_gb: 32\n  image: {{operating_system: Debian, version: "{version}"}}\nstorage'
    text = LOCAL.replace("  memory_gb: 32\nstorage", image, 1)
    text = text.replace("  accounting: true", f'  accounting: true\n  rest: true\n  release: "{release}"')
    for pool in ("    count: 2\n", "    max_count: 4\n"):
        text = text.replace(pool, f'{pool}    image: {{operating_system: Debian, version: "{version}"}}\n')
    file = tmp_path / "cluster.yml"
    file.write_text(text)
    if not refused:
        assert load(file).slurm.rest
        return
    with pytest.raises(InputError, match=f"the controller has {refused}"):
        load(file)


def _pair(folder: Path, name: str, *options: str) -> None:
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2"]
    argv += [
        "-subj",
        f"/CN={name}",
        "-keyout",
        str(folder / f"{name}.key"),
        "-out",
        str(folder / f"{name}.pem"),
        *options,
    ]
    subprocess.run(argv, check=True, capture_output=True)


def test_a_certificate_and_its_key_are_compared(tmp_path: Path) -> None:
    for name in ("one", "other"):
        _pair(tmp_path, name, "-nodes")
    _pair(tmp_path, "locked", "-passout", "pass:word")
    file = tmp_path / "cluster.yml"

    def write(certificate: str, key: str) -> None:
        files = f"rest: true\n  rest_certificate_file: {certificate}\n  rest_key_file: {key}"
        file.write_text(LOCAL.replace("accounting: true", files))

    write("one.pem", "one.key")
    slurm = load(file).slurm
    assert slurm.rest_certificate == (tmp_path / "one.pem").read_text().strip()
    assert slurm.rest_key_path == tmp_path / "one.key"
    for certificate, key, words in (
        ("one.pem", "other.key", "is not the key of"),
        ("locked.pem", "locked.key", "is not the key of"),
        ("one.pem", "one.pem", "is not the key of"),
        ("one.key", "one.key", "contains a private key"),
        ("one.pem", "nowhere.key", "that can be read"),
    ):
        write(certificate, key)
        with pytest.raises(InputError, match=words):
            load(file)
