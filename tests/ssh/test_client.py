"""The ssh configuration, as the real ssh reads it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, ToolError
from gpucluster.paths import ClusterPaths
from gpucluster.ssh import GATEWAY, Host, JumpHost, SshClient, ensure_key, public_key

HOSTS = (
    Host("demo-controller", "127.100.0.2", "debian", "ocid1.instance.local..c"),
    Host("compute-1", "10.77.1.3", "opc", "ocid1.instance.local..n", jump="demo-controller"),
)


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths(tmp_path / "a folder" / ".gpucluster")
    made.create()
    return made


def _read(route: SshClient, host: str) -> dict[str, str]:
    done = subprocess.run(["ssh", "-F", str(route.config), "-G", host], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_ssh_understands_the_route(paths: ClusterPaths) -> None:
    key = ensure_key(paths.ssh / "operator_ed25519", "test")
    route = SshClient(paths, key)
    route.write(HOSTS)
    try:
        controller, node = _read(route, "demo-controller"), _read(route, "compute-1")
        assert (controller["hostname"], controller["user"]) == ("127.100.0.2", "debian")
        assert (node["hostname"], node["user"], node["hostkeyalias"]) == (
            "10.77.1.3",
            "opc",
            "ocid1.instance.local..n",
        )
        assert node["proxycommand"].endswith("-W %h:%p demo-controller")
        assert "proxycommand" not in controller
        assert node["identityfile"].strip('"') == str(key)
        assert node["stricthostkeychecking"] == "accept-new"
        assert route.config.stat().st_mode & 0o777 == 0o600
    finally:
        route.close()


def test_a_gateway_stands_before_the_controller(paths: ClusterPaths) -> None:
    route = SshClient(paths, None)
    behind = replace(HOSTS[0], address="10.77.1.2", jump=GATEWAY)
    route.write((behind, HOSTS[1]))
    route.write_gateway(
        JumpHost("host.bastion.example", 2222, "ocid1.bastionsession.local..s", "ocid1.bastion.local..b")
    )
    try:
        controller, gateway, node = _read(route, behind.name), _read(route, GATEWAY), _read(route, "compute-1")
        assert controller["proxycommand"].endswith(f"-W %h:%p {GATEWAY}")
        assert node["proxycommand"].endswith("-W %h:%p demo-controller")
        assert (gateway["hostname"], gateway["port"], gateway["user"], gateway["hostkeyalias"]) == (
            "host.bastion.example",
            "2222",
            "ocid1.bastionsession.local..s",
            "ocid1.bastion.local..b",
        )
        assert "proxycommand" not in gateway
        assert gateway["controlmaster"] == "false"
        # A new session takes the place of the old one.
        route.write_gateway(JumpHost("host.bastion.example", 2222, "ocid1.bastionsession.local..t", "x"))
        assert _read(route, GATEWAY)["user"] == "ocid1.bastionsession.local..t"
        assert (paths.ssh / "gateway").stat().st_mode & 0o777 == 0o600
    finally:
        route.close()


def test_a_key_pair_is_made_once(tmp_path: Path) -> None:
    key = ensure_key(tmp_path / "ssh" / "k", "who")
    text = public_key(key)
    assert text.startswith("ssh-ed25519 ")
    assert text.endswith(" who")
    assert key.stat().st_mode & 0o777 == 0o600
    assert public_key(ensure_key(key, "other")) == text


def test_hosts_that_do_not_answer_are_all_named(paths: ClusterPaths) -> None:
    silent = [Host(f"c{n}", "127.100.255.254", "debian", f"id{n}") for n in (1, 2)]
    route = SshClient(paths, None)
    route.write(silent)
    try:
        with pytest.raises(ToolError) as caught:
            route.wait(silent, 1.5)
        assert "c1: " in str(caught.value)
        assert "c2: " in str(caught.value)
    finally:
        route.close()


def test_ctrl_c_ends_the_wait_for_a_host_that_sends_nothing(paths: ClusterPaths) -> None:
    host = Host("c1", "127.100.255.254", "debian", "id1")
    route = SshClient(paths, None)
    route.write([host])
    # It ends with ssh, which is killed.
    route.config.write_text("Host c1\n  ProxyCommand cat > /dev/null\n" + route.config.read_text())
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with contextlib.closing(route), pytest.raises(KeyboardInterrupt):
        route.wait([host], 600)


def test_a_missing_ssh_is_told_at_once(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    route = SshClient(paths, None)
    route.write(HOSTS)
    monkeypatch.setenv("PATH", str(paths.runs))
    with pytest.raises(EnvironmentFault, match="the program ssh was not found") as caught:
        route.wait(HOSTS, 600)
    assert "openssh-client" in caught.value.hint
    monkeypatch.undo()
    route.close()


def test_the_key_of_a_host_with_another_disk_is_forgotten_and_those_of_others_stay(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path)
    paths.create()
    client = SshClient(paths, None)
    client.forget({"ocid1.a"})  # without any key
    known = paths.ssh / "known_hosts"
    known.write_text("ocid1.a ssh-ed25519 AAAA\nocid1.ab ssh-ed25519 BBBB\nocid1.a ssh-rsa CCCC\n")
    client.forget({"ocid1.a"})
    assert known.read_text() == "ocid1.ab ssh-ed25519 BBBB\n"
    assert known.stat().st_mode & 0o77 == 0
    client.forget(())
    assert known.read_text() == "ocid1.ab ssh-ed25519 BBBB\n"


def test_other_keys_of_hosts_take_the_place_of_those_of_the_same_type(paths: ClusterPaths) -> None:
    client = SshClient(paths, None)
    client.write([], {"ocid1.a": "ssh-ed25519 OLD", "ocid1.b": "ecdsa-sha2-nistp256 OLD"}, authority="ssh-ed25519 CA")
    others = {
        "ocid1.a": ["ssh-ed25519 NEW", "ssh-rsa NEW"],
        "ocid1.b": ["ssh-ed25519 NEW"],
        "ocid1.unknown": ["ssh-ed25519 NEW"],
    }
    assert client.learn_others(others) == {"ocid1.a": "ssh-ed25519 NEW"}
    assert client.host_keys() == {"ocid1.a": "ssh-ed25519 NEW", "ocid1.b": "ecdsa-sha2-nistp256 OLD"}
    assert "@cert-authority * ssh-ed25519 CA\n" in (paths.ssh / "known_hosts").read_text()
    assert client.learn_others({}) == {}
    client.learn_authority("ssh-ed25519 NEXT")
    text = (paths.ssh / "known_hosts").read_text()
    assert "@cert-authority * ssh-ed25519 NEXT\n" in text
    assert "ssh-ed25519 CA" not in text
    assert client.host_keys()["ocid1.a"] == "ssh-ed25519 NEW"


def test_a_host_is_reached_past_one_that_does_not_answer(tmp_path: Path) -> None:
    client = SshClient(ClusterPaths(tmp_path), None)
    direct = client.argv("compute-1", ["true"], direct=True)
    assert direct == ["ssh", "-F", str(client.config), "-o", "ProxyCommand=none", "compute-1", "--", "true"]


def test_where_there_is_a_ca_no_host_is_trusted_at_first_sight(paths: ClusterPaths) -> None:
    client = SshClient(paths, None)
    known, hosts = paths.ssh / "known_hosts", [HOSTS[0]]
    (controller,) = (host.instance_id for host in hosts)

    def checking() -> str:
        return _read(client, HOSTS[0].name)["stricthostkeychecking"]

    client.write(hosts)
    assert checking() == "accept-new"
    client.write(hosts, authority="ssh-ed25519 AAAA")
    assert known.read_text() == "@cert-authority * ssh-ed25519 AAAA\n"
    assert checking() == "true"
    client.write(hosts, new={controller})  # of the run that builds it
    assert checking() == "accept-new"
    client.write(hosts, {controller: "ssh-ed25519 CCCC"}, new={controller})
    assert checking() == "true"
    assert client.host_keys() == {controller: "ssh-ed25519 CCCC"}
    client.write(hosts, authority="ssh-ed25519 BBBB")
    assert "AAAA" not in known.read_text()
    client.forget({controller})
    client.write(hosts)
    assert checking() == "true"
    client.forget_all()
    client.write(hosts)
    assert checking() == "accept-new"
    client.close()
