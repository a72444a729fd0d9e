"""What a host has beside the record of the last apply. A real systemd and dpkg answer in tests/e2e/test_drift.py."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.drift import asked, recorded
from gpucluster.node_agent.drift.__main__ import main
from gpucluster.node_agent.errors import Failed
from tests.doubles.commands import Commands

pytest.importorskip("ansible.plugins", reason="a module of Ansible writes the record")
from tests.ansible.loading import load

applied = load("module_utils/gpucluster_applied.py")
DPKG = """\
Package: slurmd
Status: install ok installed
Version: 24.11.5-4

Package: nvidia-driver
Status: hold ok installed
Version: 570.1

Package: chrony
Status: install ok installed
Version: 4.3
"""
UNITS = {"slurmd.service": "up enabled", "nfs.service": "inactive disabled"}
# In the order of the names.
SHOWN = "ActiveState=inactive\nUnitFileState=disabled\n\nActiveState=active\nUnitFileState=enabled\n"


class Host:
    """A host's files in a folder. `record` writes what apply would record, by the module of Ansible itself."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        for name in ("etc/slurm", "etc/sudoers.d", "etc/munge", "usr/local/bin", "var/lib", "run", "proc", "home"):
            (root / name).mkdir(parents=True)
        for name, text in {
            "etc/slurm/slurm.conf": "ClusterName=a\n",
            "etc/sudoers.d/site": "%wheel ALL=(ALL) ALL\n",
            "etc/munge/munge.key": "secret-key",
            "etc/hostname": "a\n",
            "usr/local/bin/agent": "#!/bin/sh\n",
            "var/lib/status": DPKG,
            "proc/boot": "b1\n",
            "etc/fstab": "# nothing\nserver:/home /home nfs defaults 0 0\n",
            "proc/mounts": "proc /proc proc rw 0 0\nserver:/home /home nfs rw 0 0\n",
        }.items():
            (root / name).write_text(text)
        trees = (str(root / "etc"), str(root / "usr/local"))
        for module in (applied, recorded):
            patch.setattr(module, "RECORD", root / "var/lib/gpucluster/applied.json")
        for name, value in {
            "JOURNAL": root / "run/applied",
            "TREES": trees,
            "LARGE_TREES": (),
            "HOST_ENTRIES": str(root / "var/lib/hosts.json"),
            "PACKAGES": (str(root / "var/lib/status"),),
            "BOOT": str(root / "proc/boot"),
            "FSTAB": str(root / "etc/fstab"),
            "MOUNTS": str(root / "proc/mounts"),
        }.items():
            patch.setattr(applied, name, value)
        patch.setattr(recorded, "DPKG", root / "var/lib/status")
        patch.setattr(recorded, "FSTAB", root / "etc/fstab")
        patch.setattr(recorded, "MOUNTS", root / "proc/mounts")
        for name in ("WATCHED", "OF_PROGRAMS", "_COME_AND_GO"):
            patterns = getattr(recorded, name)
            patch.setattr(recorded, name, tuple(f"{root}{each}" if each[0] == "/" else each for each in patterns))

    def record(self) -> None:
        shown = {name: {"ActiveState": "active" if "up" in text else "inactive", "UnitFileState": text.split()[1]}
                 for name, text in UNITS.items()}  # fmt: skip
        host = applied.Host({}, (), lambda names: {name: shown[name] for name in names}, ["chrony", "nvidia-driver"])
        applied.begin("1")
        written = ("etc/slurm/slurm.conf", "etc/munge/munge.key", "home/keys", "etc/gone.begun")
        applied.note([str(self.root / name) for name in written], list(UNITS), ["slurmd"])
        assert applied.record("1", {}, host) == []

    def found(self) -> list[str]:
        answer = recorded.compare()
        assert "error" not in answer, answer
        assert "secret" not in json.dumps(answer)
        return [
            f"{each['kind']} {each['name'].removeprefix(str(self.root))}: {each['expected']} -> {each['seen']}"
            for each in answer["findings"]
        ]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Commands) -> Host:
    made = Host(tmp_path, monkeypatch)
    commands.prints("systemctl", SHOWN)
    made.record()
    return made


@pytest.fixture
def commands(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(tmp_path_factory.mktemp("commands"), monkeypatch)


OWNER = f"owner {os.getuid()}:{os.getgid()}"


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/tmp/other")


CHANGES: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "content": (
        lambda root: (root / "etc/slurm/slurm.conf").write_text("x"),
        ["file /etc/slurm/slurm.conf: as apply left it -> other content"],
    ),
    "mode": (
        lambda root: (root / "etc/slurm/slurm.conf").chmod(0o666),
        [f"file /etc/slurm/slurm.conf: mode 0644, {OWNER} -> mode 0666, {OWNER}"],
    ),
    "removed": (
        lambda root: (root / "etc/slurm/slurm.conf").unlink(),
        ["file /etc/slurm/slurm.conf: a file -> no file"],
    ),
    "a link": (
        lambda root: _link(root / "etc/slurm/slurm.conf"),
        ["file /etc/slurm/slurm.conf: a file -> a link to /tmp/other"],
    ),
    "made again": (lambda root: (root / "home/keys").write_text("x"), ["file /home/keys: no file -> a file"]),
    "a rule of sudo": (
        lambda root: (root / "etc/sudoers.d/more").write_text("x"),
        ["unmanaged file /etc/sudoers.d/more: no file -> a file"],
    ),
    "a file of the image": (
        lambda root: (root / "etc/sudoers.d/site").write_text("x"),
        ["unmanaged file /etc/sudoers.d/site: as apply left it -> other content"],
    ),
    "a program": (
        lambda root: (root / "usr/local/bin/agent").unlink(),
        ["unmanaged file /usr/local/bin/agent: a file -> no file"],
    ),
    "a rotated key": (lambda root: (root / "etc/munge/munge.key").write_text("other-secret"), []),
    "the mode of a rotated key": (
        lambda root: (root / "etc/munge/munge.key").chmod(0o644 ^ 0o022),
        [f"file /etc/munge/munge.key: mode 0644, {OWNER} -> mode 0666, {OWNER}"],
    ),
    "a rotation that has begun": (lambda root: (root / "etc/munge/munge.key.next").write_text("x"), []),
    "a file of the system": (lambda root: (root / "etc/hostname").write_text("b\n"), []),
    "a file of another folder": (lambda root: (root / "home/other").write_text("b\n"), []),
    "a package is gone": (
        lambda root: (root / "var/lib/status").write_text(DPKG.replace("Package: chrony", "Package: other")),
        ["package chrony: 4.3 -> not installed"],
    ),
    "a held package": (
        lambda root: (root / "var/lib/status").write_text(DPKG.replace("570.1", "575")),
        ["package nvidia-driver: 570.1 held -> 575 held"],
    ),
    "a package is not held any more": (
        lambda root: (root / "var/lib/status").write_text(DPKG.replace("hold ok", "install ok")),
        ["package nvidia-driver: 570.1 held -> 570.1"],
    ),
    "Slurm": (
        lambda root: (root / "var/lib/status").write_text(DPKG.replace("24.11.5-4", "24.11.5-5")),
        ["package slurmd: 24.11.5-4 -> 24.11.5-5"],
    ),
    "an update of the distribution": (
        lambda root: (root / "var/lib/status").write_text(DPKG.replace("4.3", "4.4")),
        [],
    ),
    "a share": (
        lambda root: (root / "proc/mounts").write_text("proc /proc proc rw 0 0\n"),
        ["mount /home: server:/home nfs -> not mounted"],
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_named_and_what_is_legitimate_is_not(host: Host, what: str) -> None:
    change, expected = CHANGES[what]
    assert host.found() == []
    change(host.root)
    assert host.found() == expected


def test_a_link_to_a_unit_of_tasks_is_told_with_the_unit(host: Host) -> None:
    folder = host.root / "etc/systemd/system/multi-user.target.wants"
    folder.mkdir(parents=True)
    host.record()
    (folder / "slurmd.service").symlink_to("/lib/systemd/system/slurmd.service")
    assert host.found() == []
    (folder / "other.service").symlink_to("/lib/systemd/system/other.service")
    assert host.found() == [
        "unmanaged file /etc/systemd/system/multi-user.target.wants/other.service: "
        "no file -> a link to /lib/systemd/system/other.service"
    ]


def test_what_an_update_of_the_distribution_has_changed_is_none(host: Host) -> None:
    path = host.root / "etc/sudoers.d/site"
    path.write_text("new\n")
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    status = DPKG.replace("Version: 4.3\n", f"Version: 4.4\nConffiles:\n {path} {digest}\nDescription: x\n")
    (host.root / "var/lib/status").write_text(status)
    assert host.found() == []


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("ActiveState=failed\nUnitFileState=enabled", ["unit slurmd.service: running -> failed"]),
        ("ActiveState=inactive\nUnitFileState=enabled", ["unit slurmd.service: running -> inactive"]),
        ("ActiveState=active\nUnitFileState=disabled", ["unit slurmd.service: enabled -> disabled"]),
        ("ActiveState=reloading\nUnitFileState=enabled", []),
    ],
)
def test_a_unit_that_was_stopped_or_disabled_is_drift(
    host: Host, commands: Commands, shown: str, expected: list[str]
) -> None:
    # systemctl is asked for the names in their order: nfs, slurmd.
    commands.prints("systemctl", f"ActiveState=inactive\nUnitFileState=disabled\n\n{shown}\n")
    assert host.found() == expected


def test_what_is_not_known_is_said_and_is_no_finding(host: Host, capsys: pytest.CaptureFixture[str]) -> None:
    record = recorded.RECORD
    record.write_text(record.read_text().replace('"format": 2', '"format": 9'))
    assert "another release" in recorded.compare()["error"]
    record.write_text("{")
    assert "can't be read" in recorded.compare()["error"]
    record.unlink()
    assert main([]) == 0
    assert "no complete apply is recorded" in json.loads(capsys.readouterr().out)["error"]


def test_a_systemd_that_does_not_answer_is_not_known(host: Host, commands: Commands) -> None:
    commands.prints("systemctl", "")
    assert "error" in recorded.compare()


@pytest.mark.parametrize("kind", ["file", "large", "folder", "link", "pipe", "absent"])
def test_a_state_is_the_one_that_apply_records(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "file":
        path.write_text("text")
    elif kind == "large":
        path.write_bytes(bytes(recorded.READ_WHOLE + 1))
    elif kind == "folder":
        path.mkdir(mode=0o750)
    elif kind == "link":
        path.symlink_to("elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    assert recorded.state_of(str(path)) == applied.state_of(str(path))
    assert recorded.READ_WHOLE == applied.READ_WHOLE
    assert recorded.FORMAT == applied.FORMAT
    assert recorded.RECORD == Path("/var/lib/gpucluster/applied.json") == applied.RECORD


def test_a_look_changes_nothing(host: Host) -> None:
    def all_of(root: Path) -> dict[str, Any]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_mode) for path in sorted(root.rglob("*"))}

    before = all_of(host.root)
    recorded.compare()
    assert all_of(host.root) == before


def test_versions_of_rpm_packages(commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorded, "DPKG", tmp_path / "none")
    commands.prints("rpm", "slurm 26.05-1\npackage chrony is not installed\n")
    assert recorded.installed(["slurm", "chrony"]) == {"slurm": "26.05-1"}


def test_an_agent_of_the_controller_that_is_older_gives_no_answer(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands.prints("agent", '{"slurm": {"findings": []}}')
    monkeypatch.setattr(asked, "AGENT", "agent")
    assert asked.of_cluster() == {"slurm": {"findings": []}}
    commands.prints("agent", "", status=2, errors="invalid choice: 'drift'")
    with pytest.raises(Failed, match=r"gpucluster apply.*invalid choice"):
        asked.of_cluster()
