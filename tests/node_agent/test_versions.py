"""What a host says of its versions: from dpkg's file, rpm, programs and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent import programs, versions

_DPKG = """\
Package: slurmd
Status: install ok installed
Priority: optional
Description: daemon
 Version: no
Version: 22.05.8-4+deb12u3

Package: slurm-client
Status: install ok installed
Version: 22.05.8-4+deb12u2

Package: runc
Status: deinstall ok config-files
Version: 1.1.5+ds1-1

Package: containerd
Status: hold ok installed
Architecture: amd64
Version: 1:1.6.20~ds1-1+b1

Package: enroot
Status: install ok installed
Version: 4.1.2-1
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "etc/os-release", 'PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\nVERSION_ID="12"\n')
    write(tmp_path / "var/lib/dpkg/status", _DPKG)
    return tmp_path


def write(file: Path, text: str, *, program: bool = False) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755 if program else 0o644)


def said(root: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    assert versions.main(["--root", str(root)]) == 0
    return json.loads(capsys.readouterr().out)


def test_packages_are_those_of_the_distribution_or_of_a_project(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(root, capsys) == {
        "system": "debian-12",
        "installed": [
            {"product": "slurm", "version": "22.05.8-4+deb12u3", "package": "slurmd"},
            {"product": "enroot", "version": "4.1.2-1", "package": ""},
            {"product": "containerd", "version": "1:1.6.20~ds1-1+b1", "package": "containerd"},
        ],
        "denied": [],
    }


def test_a_module_is_denied_where_it_is_not_loaded_and_the_kernel_is_the_hosts_own(root: Path) -> None:
    text = (
        "# Managed by gpucluster.\nblacklist esp4\ninstall esp4 /bin/false\nblacklist rxrpc\ninstall rxrpc /bin/false\n"
    )
    write(root / "etc/modprobe.d/gpucluster-denied.conf", text)
    write(root / "proc/modules", "rxrpc 434176 0 - Live 0x0\n")
    assert versions.denied(root) == ["esp4"]
    write(root / "run/systemd/container", "podman")
    assert versions.denied(root) == []


def test_a_slurm_that_was_built_is_none_of_the_distribution(root: Path) -> None:
    write(root / "var/lib/dpkg/status", _DPKG.replace("slurmd", "slurm-smd").replace("22.05.8-4+deb12u3", "26.05.5-1"))
    assert versions.installed(root)[0] == versions.Installed("slurm", "26.05.5-1")


def test_rpm_is_asked_where_there_is_no_dpkg(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "var/lib/dpkg/status").unlink()
    write(root / "etc/os-release", 'ID="ol"\nVERSION_ID="9.6"\n')
    asked: list[list[str]] = []

    def call(argv: list[str], **_how: Any) -> Any:
        asked.append(argv)
        text = "slurm 22.05.9-1.el9\npackage enroot is not installed\nrunc 1.2.4-2.el9\n"
        return programs.Completed(argv, 1, text, "")

    monkeypatch.setattr(programs, "call", call)
    found = versions.installed(root)
    assert found == [
        versions.Installed("slurm", "22.05.9-1.el9", "slurm"), versions.Installed("runc", "1.2.4-2.el9", "runc"),
    ]  # fmt: skip
    assert (len(asked), asked[0][:2]) == (1, ["rpm", "--query"])
    assert versions.system('ID="ol"\nVERSION_ID="9.6"\n') == "ol-9"
    # The packages of a release that was built have the names of the distribution's.
    write(root / "etc/gpucluster/slurm-packages", "abc\n")
    assert versions.installed(root)[0] == versions.Installed("slurm", "22.05.9-1.el9")


def test_programs_and_files_of_releases_say_their_versions(root: Path) -> None:
    write(
        root / "opt/gpucluster/nerdctl/bin/containerd",
        "#!/bin/sh\necho containerd example.com/x v2.3.5 abc\n",
        program=True,
    )
    write(root / "opt/gpucluster/nerdctl/bin/runc", "#!/bin/sh\necho runc version 1.4.3\n", program=True)
    write(root / "usr/bin/runc", "#!/bin/sh\necho nothing\n", program=True)
    write(root / "usr/local/bin/kubelet", "#!/bin/sh\necho Kubernetes v1.36.4\n", program=True)
    write(root / "usr/local/lib/slurm/spank_pyxis.so", "\0ELF\0pyxis: version v0.24.0\0more")
    write(root / "sys/module/nvidia/version", "580.159.03\n")
    write(root / "proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
    write(root / "proc/version", "Linux version 6.1.0-18-amd64 (x) #1 SMP Debian 6.1.76-1 (2024-02-01)\n")
    found = {(each.product, each.version) for each in versions.installed(root)}
    assert found >= {
        ("containerd", "2.3.5"), ("runc", "1.4.3"), ("kubernetes", "1.36.4"), ("pyxis", "0.24.0"),
        ("nvidia-driver", "580.159.03"), ("kernel", "6.1.76-1"),
    }  # fmt: skip
    # A program that says nothing is there all the same.
    assert ("runc", "unknown") in found
    write(root / "proc/version", "Linux version 6.8.0-117-generic (x) #117-Ubuntu SMP\n")
    write(root / "proc/sys/kernel/osrelease", "6.8.0-117-generic\n")
    assert versions.Installed("kernel", "6.8.0-117-generic", "linux") in versions.installed(root)


def test_a_folder_that_may_not_be_read_hides_nothing_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    assert [each.product for each in versions.installed(root)] == ["slurm", "enroot", "containerd"]


def test_a_host_without_anything_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versions.installed(tmp_path) == []
    assert versions.system("") == "unknown-"
