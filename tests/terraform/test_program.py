"""The terraform program: found, or refused with a reason."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault
from gpucluster.terraform.program import find_program


def _fake(folder: Path, name: str, version: str) -> None:
    """A double for the program: it tells a version and proves nothing else."""
    file = folder / name
    file.write_text(f'#!/bin/sh\necho \'{{"terraform_version": "{version}"}}\'\n')
    file.chmod(0o755)


def test_terraform_on_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, "terraform", "1.5.0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert find_program(tmp_path / "cache") == tmp_path / "terraform"


def test_tofu_is_as_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, "tofu", "1.9.1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert find_program(tmp_path / "cache") == tmp_path / "tofu"


@pytest.mark.parametrize("version", ["1.4.7", "0.15.0", "x"])
def test_an_old_or_strange_one_is_refused(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, "terraform", version)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(EnvironmentFault):
        find_program(tmp_path / "cache")


def test_without_one_and_without_network_the_error_reports_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    def no_network(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    with pytest.raises(EnvironmentFault, match=r"no route to host.*Install terraform 1\."):
        find_program(tmp_path / "cache")


def test_a_download_with_another_checksum_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("terraform", "#!/bin/sh\necho something else\n")
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(archive.getvalue()))
    with pytest.raises(EnvironmentFault, match="SHA-256"):
        find_program(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
