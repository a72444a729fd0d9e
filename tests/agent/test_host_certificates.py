"""Certificates for host keys: who gets one, for which names, and what ssh makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, gethostname, socket
from typing import Any

import pytest

from gpucluster.agent import host_certificates, programs
from gpucluster.agent.errors import Failed, Refused
from gpucluster.agent.users import hosts
from tests.listener import answering
from tests.waiting import PATIENCE_S, wait_for

KNOWN = {
    "hosts": {"10.0.0.2": ["demo-controller", "ocid1.instance.c"], "10.0.1.2": ["compute-1"]},
    "elastic": ["compute-e[1-4]"],
    "domain": "nodes.example",
}
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="binds a port below 1024")


def pair(file: Path, kind: str = "ed25519") -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "x", "-f", str(file)], check=True)
    return " ".join(file.with_name(f"{file.name}.pub").read_text().split()[:2])


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    pair(tmp_path / "ca")
    return tmp_path / "ca"


@pytest.fixture
def in_service(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The elastic nodes that Slurm says are in service; a double of sinfo."""
    nodes: dict[str, str] = {}
    monkeypatch.setattr(host_certificates, "in_service", lambda _names: nodes)
    return nodes


def test_what_is_signed_is_what_is_read(authority: Path, tmp_path: Path) -> None:
    key = pair(tmp_path / "host")
    text = host_certificates.sign(key, ["compute-1", "10.0.1.2"], authority)
    signer = " ".join(authority.with_name("ca.pub").read_text().split()[:2])
    assert host_certificates.parse(text) == host_certificates.Certificate(
        key, signer, frozenset({"compute-1", "10.0.1.2"})
    )
    (tmp_path / "c.pub").write_text(text)
    argv = ["ssh-keygen", "-L", "-f", str(tmp_path / "c.pub")]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "host certificate" in shown.stdout
    for broken in ("", "nonsense", key, text[:60], text.replace("AAAA", "AAAB", 1)):
        assert host_certificates.parse(broken) is None


def test_a_host_gets_the_names_of_its_address_and_no_other(in_service: dict[str, str]) -> None:
    in_service.update({"compute-e1": "10.0.1.9", "compute-e2": "10.0.1.8", "compute-e3": "10.0.1.8"})

    def names(address: str) -> list[str]:
        return host_certificates.names_of(address, KNOWN)

    assert names("10.0.0.2") == ["demo-controller", "ocid1.instance.c", "demo-controller.nodes.example", "10.0.0.2"]
    assert names("10.0.1.9") == ["compute-e1", "compute-e1.nodes.example", "10.0.1.9"]
    assert names("10.0.1.8") == [], "two nodes with one address: one of them is not what it says"
    assert names("10.0.9.9") == []
    # A node that says in Slurm that it has a permanent host's address does not get that host's name changed.
    in_service["compute-e4"] = "10.0.0.2"
    assert names("10.0.0.2")[0] == "demo-controller"


def test_only_root_of_a_host_of_the_cluster_is_served(
    authority: Path, tmp_path: Path, in_service: dict[str, str]
) -> None:
    key = pair(tmp_path / "host")
    with pytest.raises(Refused, match="may belong to any user"):
        host_certificates.answer("10.0.1.2", 1024, key, KNOWN, authority)
    with pytest.raises(Refused, match="no host of this cluster"):
        host_certificates.answer("10.0.9.9", 900, key, KNOWN, authority)
    for bad in (
        "",
        "x",
        f"{key} with words",
        f"{key}\nssh-ed25519 AAAA",
        pair(tmp_path / "rsa", "rsa"),
        "ssh-ed25519 A",
    ):
        with pytest.raises(Refused, match="no ed25519 host key"):
            host_certificates.answer("10.0.1.2", 900, bad, KNOWN, authority)
    with pytest.raises(Failed, match="no ssh authority"):
        host_certificates.answer("10.0.1.2", 900, key, KNOWN, tmp_path / "nowhere")
    assert host_certificates.parse(host_certificates.answer("10.0.1.2", 900, key, KNOWN, authority))
    del in_service


def test_which_elastic_nodes_are_known_is_asked_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vars(host_certificates)["in_service"] is hosts.in_service
    lines = "compute-e1 idle 10.0.1.9\ncompute-e2 idle~ 10.0.1.8\ncompute-e3 mix# 10.0.1.7\n"
    monkeypatch.setattr(programs, "call", lambda *_a, **_k: subprocess.CompletedProcess([], 0, lines, ""))
    assert host_certificates.names_of("10.0.1.9", KNOWN)[0] == "compute-e1"
    # Powered down: its address may be another host's now. Powering up: it has not reported itself.
    assert host_certificates.names_of("10.0.1.8", KNOWN) == host_certificates.names_of("10.0.1.7", KNOWN) == []


@contextmanager
def serving(authority: Path, known: dict[str, Any]) -> Iterator[int]:
    """The authority, as systemd runs it: one program for each connection. Yields its port."""
    program = (
        "import sys, json; from pathlib import Path; from gpucluster.agent import host_certificates as h;"
        f"h.KNOWN = Path({str(authority) + '.json'!r});"
        f"h.answer.__defaults__ = (Path({str(authority)!r}),); sys.exit(h.main(['answer']))"
    )
    Path(f"{authority}.json").write_text(json.dumps(known))
    with socket(AF_INET, SOCK_STREAM) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.listen()

        def run(connection: socket, other_end: tuple[str, int]) -> None:
            env = {**os.environ, "REMOTE_ADDR": other_end[0], "REMOTE_PORT": str(other_end[1])}
            ends = connection.fileno()
            subprocess.run([sys.executable, "-c", program], stdin=ends, stdout=ends, env=env, check=False)

        with answering(ear, run):
            yield ear.getsockname()[1]


@AS_ROOT
def test_a_host_asks_until_the_controller_knows_it(
    authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = pair(tmp_path / "ssh_host_ed25519_key")
    name = gethostname().partition(".")[0]
    monkeypatch.setattr(host_certificates, "_PAUSE", 0.1)
    asked: list[list[str]] = []
    reloaded: list[tuple[int, int]] = []

    def call(argv: list[str]) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, 0, "4711\n", "")

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(os, "kill", lambda *given: reloaded.append(given))
    known: dict[str, Any] = {"hosts": {}, "elastic": [], "domain": ""}
    with serving(authority, known) as port:
        settings: dict[str, Any] = {
            "address": "127.0.0.1", "port": port, "sshd": "ssh",
            "authority": " ".join(authority.with_name("ca.pub").read_text().split()[:2]),
        }  # fmt: skip
        public = tmp_path / "ssh_host_ed25519_key.pub"
        asking = threading.Thread(target=host_certificates.request, args=(settings, public), daemon=True)
        asking.start()
        told: list[str] = []

        def is_told() -> bool:
            told.append(capsys.readouterr().err)
            return "no host of this cluster has the address 127.0.0.1 now" in "".join(told)

        wait_for("it says that the controller does not know it", is_told)
        known["hosts"]["127.0.0.1"] = [name]
        new = Path(f"{authority}.new")
        new.write_text(json.dumps(known))
        new.replace(f"{authority}.json")
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
        certificate = host_certificates.parse((tmp_path / "ssh_host_ed25519_key-cert.pub").read_text())
        assert certificate is not None
        assert (certificate.key, certificate.names) == (key, frozenset({name, "127.0.0.1"}))
        assert asked == [["systemctl", "show", "--property=MainPID", "--value", "ssh"]]
        assert reloaded == [(4711, signal.SIGHUP)]
        # It has one: it asks no more. With another key, and where the cluster has another authority, it needs another.
        host_certificates.request(settings, public)
        assert len(reloaded) == 1
        assert not host_certificates.is_valid(certificate, "ssh-ed25519 other", settings["authority"], name)
        assert not host_certificates.is_valid(certificate, key, "ssh-ed25519 other", name)
        assert not host_certificates.is_valid(certificate, key, settings["authority"], "other")
