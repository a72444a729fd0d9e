"""Shared connections, with another user of this machine who wants to be the one who answers."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucluster.paths import ClusterPaths
from gpucluster.ssh import Host, SshClient
from gpucluster.ssh.sockets import LONGEST, Sockets

HOST = Host("demo-controller", "127.100.255.254", "debian", "ocid1.c")
STRANGER = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /tmp, in which others can make folders too, with a short name; our home may not have sockets."""
    folder = Path("/tmp") / f"s{os.getpid()}"
    folder.mkdir()
    folder.chmod(0o1777)
    home = tmp_path_factory.mktemp("home")
    (home / ".cache").write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
    yield folder
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture
def client(tmp_path: Path) -> SshClient:
    paths = ClusterPaths(tmp_path / ".gpucluster")
    paths.create()
    return SshClient(paths, None)


def as_stranger(shell: str) -> None:
    subprocess.run(["sh", "-ec", shell], user=STRANGER, group=STRANGER, extra_groups=[], check=True)


def shared_at(client: SshClient) -> str:
    """Where ssh would look for a connection to share; "none" if nowhere."""
    argv = client.argv(HOST.name)
    done = subprocess.run([argv[0], "-G", *argv[1:]], capture_output=True, text=True, check=True)
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return found.get("controlpath", "none")


def test_the_folder_is_made_again_when_it_is_missing(place: Path, client: SshClient) -> None:
    run = place / "run"
    run.mkdir(mode=0o700)
    client.write([HOST])
    folder = Path(shared_at(client)).parent
    assert folder.parent == run / "gpucluster"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    folder.parent.rmdir()
    # The machine has booted again: the file is there, the folder is not.
    bare = subprocess.run(["ssh", "-F", str(client.config), HOST.name], capture_output=True, text=True, check=False)
    assert "unix_listener" not in bare.stderr
    assert "Connection refused" in bare.stderr
    assert Path(shared_at(client)).parent == folder
    assert folder.is_dir()
    client.close()
    assert not folder.exists()


def test_without_a_runtime_folder_it_is_in_the_home(
    place: Path, client: SshClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place / "h"
    monkeypatch.setenv("HOME", str(home))
    for runtime in (str(place / "missing"), "run", ""):
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        client.write([HOST])
        assert Path(shared_at(client)).parent.parent == home / ".cache" / "gpucluster"
    # A path that is too long for the address of a socket: ssh would fail.
    monkeypatch.setenv("HOME", str(home / ("x" * LONGEST)))
    client.write([HOST])
    assert shared_at(client) == "none"


def test_a_cluster_without_connections_gets_no_folder(place: Path, client: SshClient) -> None:
    (place / "run").mkdir(mode=0o700)
    client.close()
    assert list((place / "run").iterdir()) == []


def test_two_clusters_have_two_folders(place: Path) -> None:
    (place / "run").mkdir(mode=0o700)
    assert Sockets(Path("/a")).folder() != Sockets(Path("/b")).folder()


@contextmanager
def listening(file: Path) -> Iterator[socket.socket]:
    """A process answers at a socket."""
    with socket.socket(socket.AF_UNIX) as ear:
        ear.bind(str(file))
        ear.listen()
        ear.setblocking(False)
        yield ear


def test_a_folder_that_others_may_write_to_is_not_used(place: Path, client: SshClient) -> None:
    run = place / "run"
    run.mkdir(mode=0o700)
    client.write([HOST])
    folder = Path(shared_at(client)).parent
    for wide in (folder, folder.parent, run):
        wide.chmod(0o777)
        assert shared_at(client) == "none"
        wide.chmod(0o700)
    assert Path(shared_at(client)).parent == folder


def test_a_link_in_place_of_the_folder_is_not_followed(place: Path, client: SshClient) -> None:
    run, elsewhere = place / "run", place / "elsewhere"
    run.mkdir(mode=0o700)
    client.write([HOST])
    folder = Path(shared_at(client)).parent
    for linked in (folder, folder.parent):
        linked.rename(elsewhere)
        linked.symlink_to(elsewhere)
        assert shared_at(client) == "none"
        linked.unlink()
        elsewhere.rename(linked)
    run.rename(elsewhere)
    run.symlink_to(elsewhere)
    assert shared_at(client) == "none"


#: What another user does before the victim's first command, in a place where both can write. D is the folder.
ATTACKS = {
    "the folder, made first": "mkdir -p {D} && chmod -R 777 {run}",
    "the folder, made first and closed": "mkdir -p {D} && chmod -R 700 {run}",
    "a link to a folder of theirs": "mkdir -p {place}/t/{rest} && chmod -R 755 {place}/t && ln -s {place}/t {run}",
}


@AS_ROOT
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_planted_master_is_told_nothing(attack: str, place: Path, client: SshClient) -> None:
    run = place / "run"
    run.mkdir(mode=0o700)
    client.write([HOST])  # as before a reboot: the configuration names the folder
    found = Path(shared_at(client))
    client.close()
    subprocess.run(["rm", "-rf", str(run)], check=True)
    folder, rest = found.parent, found.parent.relative_to(run)
    words = {"D": folder, "run": run, "place": place, "rest": rest}
    as_stranger(ATTACKS[attack].format_map({key: shlex.quote(str(word)) for key, word in words.items()}))
    with listening(found) as ear:
        os.chown(found, STRANGER, STRANGER)
        for argv in (client.argv(HOST.name, ["true"]), ["ssh", "-F", str(client.config), HOST.name, "true"]):
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            # It went to the network, where no program listens.
            assert "Connection refused" in done.stderr
        client.write([HOST])
        assert shared_at(client) == "none"
        client.close()
        with pytest.raises(BlockingIOError):
            ear.accept()


@AS_ROOT
def test_a_socket_of_another_user_in_our_folder_is_not_used(place: Path, client: SshClient) -> None:
    (place / "run").mkdir(mode=0o700)
    client.write([HOST])
    found = Path(shared_at(client))
    with listening(found) as ear:
        os.chown(found, STRANGER, STRANGER)
        done = subprocess.run(client.argv(HOST.name), capture_output=True, text=True, check=False)
        assert "Connection refused" in done.stderr
        with pytest.raises(BlockingIOError):
            ear.accept()
