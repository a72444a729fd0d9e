"""The volume on a host: real loop devices, file systems and mounts, below a folder that stands for the host's root.

systemctl is a double: which services are stopped meanwhile is shown in tests/e2e/test_controller_state.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.state_volume import address, layout, mounting
from gpucluster.node_agent.state_volume.mounting import BEFORE, SETTINGS, StateVolume
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="needs root and loop devices"
)
MYSQL, AUTHORITY = "var/lib/mysql", "etc/gpucluster/authority"


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What systemctl was asked; no service is active."""
    asked: list[list[str]] = []
    call = programs.call

    def answer(argv: Sequence[str], text: str = "", seconds: float = programs.SECONDS) -> programs.Completed[str]:
        if argv[0] != "systemctl":
            return call(argv, text, seconds)
        asked.append(list(argv))
        return subprocess.CompletedProcess(list(argv), 3 if argv[1] == "is-active" else 0, "", "")

    monkeypatch.setattr(programs, "call", answer)
    return asked


@pytest.fixture
def device(tmp_path: Path) -> Iterator[str]:
    """A blank device of 64 MiB."""
    file = tmp_path / "volume"
    file.touch()
    os.truncate(file, 64 << 20)
    listed = subprocess.run(["losetup", "--find", "--show", str(file)], capture_output=True, text=True, check=True)
    yield listed.stdout.strip()
    for mount in reversed(_mounts_below(tmp_path)):
        subprocess.run(["umount", mount], check=True)
    subprocess.run(["losetup", "--detach", listed.stdout.strip()], check=True)


def _mounts_below(folder: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line.split()[4] for line in lines if line.split()[4].startswith(f"{folder}/")]


def host(root: Path, machine: str, secret: str = "") -> StateVolume:
    """A host with a database and a CA, or a new one."""
    for folder in ("etc/ssh", "etc/systemd/system", "var/lib", "var/spool", "etc/gpucluster"):
        (root / folder).mkdir(parents=True)
    (root / "etc/machine-id").write_text(f"{machine}\n")
    (root / "etc/passwd").write_text(Path("/etc/passwd").read_text())
    (root / "etc/group").write_text(Path("/etc/group").read_text())
    (root / "etc/ssh/ssh_host_ed25519_key").write_text(f"host key of {machine}")
    os.chmod(root / "etc/ssh/ssh_host_ed25519_key", 0o600)
    if secret:
        for place in (MYSQL, AUTHORITY):
            (root / place).mkdir(parents=True)
            (root / place / "content").write_text(secret)
        os.chmod(root / MYSQL, 0o750)
    return StateVolume(root)


def leave(root: Path) -> None:
    """The host ends: what it had mounted is gone."""
    for mount in reversed(_mounts_below(root)):
        subprocess.run(["umount", mount], check=True)


def test_state_moves_once_and_the_next_host_goes_on_with_it(
    tmp_path: Path, device: str, systemctl: list[list[str]]
) -> None:
    first = tmp_path / "first"
    done = host(first, "one", "kept").attach(device, "demo", "root", wait=0)
    assert (done["formatted"], done["host_keys"], set(done["moved"])) == (True, False, {f"/{MYSQL}", f"/{AUTHORITY}"})
    assert (first / MYSQL / "content").read_text() == "kept"
    assert (first / MYSQL).stat().st_mode & 0o777 == 0o750
    assert (first / f"{MYSQL}{BEFORE}" / "content").read_text() == "kept"
    assert ["systemctl", "enable", "--quiet", layout.UNIT] in systemctl
    (first / MYSQL / "content").write_text("newer")
    again = StateVolume(first).attach(device, "demo", "root", wait=0)
    assert (again["formatted"], again["moved"], again["new_host"]) == (False, [], False)
    leave(first)

    second = tmp_path / "second"
    done = host(second, "two").attach(device, "demo", "root", wait=0)
    assert (done["formatted"], done["moved"], done["new_host"], done["host_keys"]) == (False, [], True, True)
    assert (second / MYSQL / "content").read_text() == "newer"
    key = second / "etc/ssh/ssh_host_ed25519_key"
    assert (key.read_text(), key.stat().st_mode & 0o777) == ("host key of one", 0o600)
    leave(second)

    with pytest.raises(Refused, match="another controller has taken over"):
        StateVolume(first).mount(0)
    assert _mounts_below(first) == []


def test_a_host_that_has_taken_over_already_goes_on_with_its_services(
    tmp_path: Path, device: str, systemctl: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that has gone on by itself: the operator's command does not end what runs."""
    volume = host(tmp_path / "second", "two")
    volume.attach(device, "demo", "root", wait=0, address="")
    monkeypatch.setattr("gpucluster.node_agent.state_volume.mounting.name_host", lambda _name: None)
    how: dict[str, Any] = {"wait": 0, "address": "", "networks": (), "name": "demo-controller"}
    systemctl.clear()
    volume.take_over(device, "demo", "root", **how)
    assert ["systemctl", "stop", layout.UNIT] in systemctl, "no service is active: it begins from the beginning"
    monkeypatch.setattr(volume, "_is_active", lambda _name: True)
    systemctl.clear()
    done = volume.take_over(device, "demo", "root", **how)
    assert (done["new_host"], done["moved"]) == (False, [])
    assert {words[1] for words in systemctl} == {"is-enabled"}
    # It is to be the standby: whatever is mounted, it begins from the beginning.
    passive = tmp_path / "second" / layout.PASSIVE.lstrip("/")
    passive.parent.mkdir(parents=True, exist_ok=True)
    passive.touch()
    volume.take_over(device, "demo", "root", **how)
    assert ["systemctl", "stop", layout.UNIT] in systemctl


def test_a_host_that_was_lost_does_not_wait_for_what_another_one_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = host(tmp_path / "first", "one")
    settings = {"device": f"{tmp_path}/moved", "cluster": "demo", "user": "root", "address": "127.0.0.1"}
    (tmp_path / "first" / SETTINGS.lstrip("/")).write_text(json.dumps(settings))
    monkeypatch.setattr(mounting, "_PASSIVE_WAIT", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(address, "SSH_PORT", server.getsockname()[1])
        with pytest.raises(Refused, match=r"another host has the address 127\.0\.0\.1 of the service"):
            volume.mount(wait=10 * PATIENCE_S)
    # The address is free: no other host goes on, and the volume may still come.
    with pytest.raises(Failed, match="there is no device"):
        volume.mount(wait=0)


def test_an_attempt_that_was_ended_before_sshd_has_the_keys_is_repeated(
    tmp_path: Path, device: str, systemctl: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    host(tmp_path / "first", "one", "kept").attach(device, "demo", "root", wait=0)
    leave(tmp_path / "first")
    second = tmp_path / "second"
    volume = host(second, "two")

    def ended() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(StateVolume, "_reload_sshd", staticmethod(ended))
        with pytest.raises(KeyboardInterrupt):
            volume.attach(device, "demo", "root", wait=0)
    assert ["systemctl", "try-reload-or-restart", "ssh.service"] not in systemctl
    # The files are there already: what sshd has in its memory is from before.
    again = StateVolume(second).attach(device, "demo", "root", wait=0)
    assert (again["new_host"], again["restored"], again["host_keys"]) == (True, [], True)
    assert ["systemctl", "try-reload-or-restart", "ssh.service"] in systemctl


def test_scripts_of_jobs_that_slurm_had_not_saved_are_kept(
    tmp_path: Path, device: str, systemctl: list[list[str]]
) -> None:
    state = tmp_path / "first/var/lib/slurm/slurmctld"
    first = host(tmp_path / "first", "one", "kept")
    (state / "hash.7/job.7").mkdir(parents=True)
    (state / "hash.7/job.7/script").write_text("#!/bin/sh\n")
    assert first.attach(device, "demo", "root", wait=0)["lost_jobs"] == []  # slurmctld has been stopped to move it
    (state / "job_state").write_text("7")
    os.utime(state / "job_state", (1000, 1000))
    leave(tmp_path / "first")
    second = tmp_path / "second"
    assert host(second, "two").attach(device, "demo", "root", wait=0)["lost_jobs"] == ["7"]
    kept = second / "var/lib/gpucluster-state/lost-jobs"
    assert (kept / "job.7/script").read_text() == "#!/bin/sh\n"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert "lost_jobs" not in StateVolume(second).attach(device, "demo", "root", wait=0)


def test_a_second_call_waits_for_the_first(tmp_path: Path, device: str, systemctl: list[list[str]]) -> None:
    """Its command was killed, and it goes on on the host: two must not copy into one place."""
    volume = host(tmp_path / "root", "one", "kept")
    began = threading.Event()

    def attach() -> dict[str, Any]:
        began.set()
        return StateVolume(tmp_path / "root").attach(device, "demo", "root", wait=0)

    with ThreadPoolExecutor(1) as pool:
        with volume._alone():
            second = pool.submit(attach)
            assert began.wait(PATIENCE_S)
            wait_for("it waits for the lock", _waits_for_a_lock)
            assert _mounts_below(tmp_path) == []
        assert second.result()["formatted"]


def _waits_for_a_lock() -> bool:
    """Whether this process waits for a lock of flock(2)."""
    return any("->" in line and f" {os.getpid()} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_a_boot_mounts_it_again(tmp_path: Path, device: str, systemctl: list[list[str]]) -> None:
    root = tmp_path / "root"
    host(root, "one", "kept").attach(device, "demo", "root", wait=0)
    leave(root)
    assert list((root / MYSQL).iterdir()) == []
    StateVolume(root).mount(0)
    assert (root / MYSQL / "content").read_text() == "kept"


def test_a_device_with_data_is_left_as_it_is(tmp_path: Path, device: str, systemctl: list[list[str]]) -> None:
    subprocess.run(["mkfs.ext4", "-q", "-L", "homes", device], check=True)
    with pytest.raises(Refused, match="'homes'"):
        host(tmp_path / "root", "one", "kept").attach(device, "demo", "root", wait=0)
    with open(device, "r+b") as stream:  # a damaged file system: nothing recognizes it
        stream.write(b"\0" * 1024 + b"x" * 4096)
    with pytest.raises(Refused, match="data of an unknown kind"):
        StateVolume(tmp_path / "root").attach(device, "demo", "root", wait=0)
    assert _mounts_below(tmp_path) == []


def test_no_device_and_another_clusters_volume_are_refused(
    tmp_path: Path, device: str, systemctl: list[list[str]]
) -> None:
    with pytest.raises(Failed, match="not attached to this host"):
        host(tmp_path / "none", "one", "kept").attach(f"{tmp_path}/missing", "demo", "root", wait=0)
    host(tmp_path / "theirs", "two", "theirs").attach(device, "other", "root", wait=0)
    leave(tmp_path / "theirs")
    with pytest.raises(Refused, match="cluster other"):
        StateVolume(tmp_path / "none").attach(device, "demo", "root", wait=0)
    assert _mounts_below(tmp_path / "none") == []
    assert (tmp_path / "none" / MYSQL / "content").read_text() == "kept"


def test_a_volume_that_is_too_small_takes_nothing(tmp_path: Path, device: str, systemctl: list[list[str]]) -> None:
    volume = host(tmp_path / "root", "one", "kept")
    (tmp_path / "root" / MYSQL / "large").write_bytes(os.urandom(60 << 20))
    with pytest.raises(Failed, match="Nothing was moved"):
        volume.attach(device, "demo", "root", wait=0)
    assert not (tmp_path / "root" / f"{MYSQL}{BEFORE}").exists()
    assert (tmp_path / "root" / MYSQL / "content").read_text() == "kept"


def test_a_move_that_was_killed_begins_again(tmp_path: Path, device: str, systemctl: list[list[str]]) -> None:
    root = tmp_path / "root"
    volume = host(root, "one", "newest")
    subprocess.run(["mkfs.ext4", "-q", "-L", "gpucluster-state", device], check=True)
    (root / "var/lib/gpucluster-state").mkdir()
    subprocess.run(["mount", device, str(root / "var/lib/gpucluster-state")], check=True)
    old = root / "var/lib/gpucluster-state/directories/mysql"
    old.mkdir(parents=True)
    (old / "content").write_text("copied before the services wrote more")
    volume.attach(device, "demo", "root", wait=0)
    assert (root / MYSQL / "content").read_text() == "newest"


def test_the_state_moves_back(tmp_path: Path, device: str, systemctl: list[list[str]]) -> None:
    root = tmp_path / "root"
    volume = host(root, "one", "kept")
    volume.attach(device, "demo", "root", wait=0)
    (root / MYSQL / "content").write_text("newer")
    assert f"/{MYSQL}" in volume.move_back()
    assert _mounts_below(root) == []
    assert (root / MYSQL / "content").read_text() == "newer"
    assert (root / MYSQL).stat().st_mode & 0o777 == 0o750
    assert not (root / "etc/gpucluster/state-volume.json").exists()


def test_what_the_volume_states_is_private(tmp_path: Path, device: str, systemctl: list[list[str]]) -> None:
    root = tmp_path / "root"
    host(root, "one", "kept").attach(device, "demo", "root", wait=0)
    mount = root / "var/lib/gpucluster-state"
    assert mount.stat().st_mode & 0o777 == 0o700
    assert json.loads((mount / "cluster.json").read_text()) == {"cluster": "demo", "machine": "one"}
