"""Ends of containers on a busy host, where killed processes wait for a turn. Podman is a double: none dies slowly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.errors import CloudError
from gpucluster.localcloud.engine import containers

# libpod/oci_conmon_common.go and libpod/oci_util.go, as `podman stop` and `podman rm` print it.
DYING = "Error: given PID did not die within timeout"
# Fails so often with the text of a file as that has lines, and records how it was called.
PODMAN = """\
#!/bin/sh
cd "${0%/*}"
echo "$*" >> calls
case $1 in
    container) echo; exit 0 ;;
esac
[ -s errors ] || exit 0
head -n 1 errors >&2
sed -i 1d errors
exit 125
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "podman").write_text(PODMAN)
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(containers, "_POLL_S", 0.0)
    return tmp_path


def calls(folder: Path, verb: str) -> int:
    return sum(line.startswith(f"{verb} ") for line in (folder / "calls").read_text().splitlines())


def test_podman_is_asked_again_while_processes_have_not_ended(folder: Path) -> None:
    (folder / "errors").write_text(f"{DYING}\n" * 2)
    containers.stop("one")
    assert calls(folder, "stop") == 3
    (folder / "errors").write_text(f"{DYING}\n" * 2)
    containers.terminate("one")
    assert calls(folder, "rm") == 3


def test_another_error_is_told_at_once(folder: Path) -> None:
    (folder / "errors").write_text("Error: the storage is gone\n")
    with pytest.raises(CloudError, match="the instance one was not stopped: the storage is gone"):
        containers.stop("one")
    assert calls(folder, "stop") == 1


def test_it_is_not_asked_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_DEATH_S", 0.0)
    (folder / "errors").write_text(f"{DYING}\n")
    with pytest.raises(CloudError, match="did not die within timeout"):
        containers.stop("one")
