"""Certificates for host keys: who gets one, for which names, and what ssh makes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpucluster.controller import booting_nodes, ssh_ca
from gpucluster.controller.users import hosts
from gpucluster.node_agent import host_certificates, programs
from gpucluster.node_agent.errors import Failed, Refused
from tests.controller.host_keys import pair

KNOWN = {
    "hosts": {"10.0.0.2": ["demo-controller", "ocid1.instance.c"], "10.0.1.2": ["compute-1"]},
    "elastic": ["compute-e[1-4]"],
    "domain": "nodes.example",
}


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    pair(tmp_path / "ca")
    return tmp_path / "ca"


@pytest.fixture
def in_service(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The elastic nodes that are in service in Slurm; a double of sinfo."""
    nodes: dict[str, str] = {}
    monkeypatch.setattr(ssh_ca, "in_service", lambda _names: nodes)
    return nodes


def test_what_is_signed_is_what_is_read(authority: Path, tmp_path: Path) -> None:
    key = pair(tmp_path / "host")
    text = ssh_ca.sign(key, ["compute-1", "10.0.1.2"], authority)
    signer = " ".join(authority.with_name("ca.pub").read_text().split()[:2])
    assert host_certificates.parse(text) == host_certificates.HostCertificate(
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
        return ssh_ca.names_of(address, KNOWN)

    assert names("10.0.0.2") == ["demo-controller", "ocid1.instance.c", "demo-controller.nodes.example", "10.0.0.2"]
    assert names("10.0.1.9") == ["compute-e1", "compute-e1.nodes.example", "10.0.1.9"]
    assert names("10.0.1.8") == [], "two nodes with one address: one of them is not what it says"
    assert names("10.0.9.9") == []
    # A node that claims in Slurm that it has a permanent host's address does not get that host's name changed.
    in_service["compute-e4"] = "10.0.0.2"
    assert names("10.0.0.2")[0] == "demo-controller"


def test_only_root_of_a_host_of_the_cluster_is_served(
    authority: Path, tmp_path: Path, in_service: dict[str, str]
) -> None:
    key = pair(tmp_path / "host")
    with pytest.raises(Refused, match="may belong to any user"):
        ssh_ca.answer("10.0.1.2", 1024, key, KNOWN, authority)
    with pytest.raises(Refused, match="no host of this cluster"):
        ssh_ca.answer("10.0.9.9", 900, key, KNOWN, authority)
    for bad in (
        "",
        "x",
        f"{key} with words",
        f"{key}\nssh-ed25519 AAAA",
        pair(tmp_path / "rsa", "rsa"),
        "ssh-ed25519 A",
    ):
        with pytest.raises(Refused, match="not an ed25519 host key"):
            ssh_ca.answer("10.0.1.2", 900, bad, KNOWN, authority)
    with pytest.raises(Failed, match="no ssh CA"):
        ssh_ca.answer("10.0.1.2", 900, key, KNOWN, tmp_path / "nowhere")
    assert host_certificates.parse(ssh_ca.answer("10.0.1.2", 900, key, KNOWN, authority))
    del in_service


def test_which_elastic_nodes_are_known_is_asked_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vars(ssh_ca)["in_service"] is hosts.in_service
    lines = "compute-e1 idle 10.0.1.9\ncompute-e2 idle~ 10.0.1.8\ncompute-e3 mix# 10.0.1.7\n"
    monkeypatch.setattr(programs, "call", lambda *_a, **_k: subprocess.CompletedProcess([], 0, lines, ""))
    assert ssh_ca.names_of("10.0.1.9", KNOWN)[0] == "compute-e1"
    # Powered down: its address may be another host's now. Powering up: it has not reported itself.
    assert ssh_ca.names_of("10.0.1.8", KNOWN) == ssh_ca.names_of("10.0.1.7", KNOWN) == []


def test_the_autoscaler_s_word_names_a_node_before_slurm_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_service: dict[str, str]
) -> None:
    """Its claims about other hosts do not count. Entries in the directory: tests/security/test_entries_at_boot."""
    file = tmp_path / "nodes.json"
    monkeypatch.setattr(ssh_ca, "BOOTING", file)

    def names(address: str, node: str) -> list[str]:
        file.write_text(json.dumps(booting_nodes.content([(address, booting_nodes.BootingNode(node, "ocid1"))])))
        return ssh_ca.names_of(address, KNOWN)

    assert names("10.0.1.9", "compute-e1") == ["compute-e1", "compute-e1.nodes.example", "10.0.1.9"]
    assert names("10.0.1.9", "compute-e5") == names("10.0.1.9", "demo-controller") == []
    assert names("10.0.0.2", "compute-e1")[0] == "demo-controller"
    # Two nodes with one address: one of them is not what it claims.
    two = [("10.0.1.9", booting_nodes.BootingNode(name, name)) for name in ("compute-e1", "compute-e2")]
    file.write_text(json.dumps(booting_nodes.content(two)))
    assert ssh_ca.names_of("10.0.1.9", KNOWN) == []
    in_service["compute-e3"] = "10.0.1.9"
    assert ssh_ca.names_of("10.0.1.9", KNOWN)[0] == "compute-e3"
