"""The keys of the controller and of containers on a booted host: the role's units with real systemd, and TLS.

The host is the controller, too, and proves nothing of networks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpucluster.artifacts import agent_archive
from tests.ansible.booted import Booted, booted
from tests.ansible.render import render, variables
from tests.controller.certificates import server_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.containers, pytest.mark.slow]

UNIT, SERVER = "gpucluster-shared-keys.service", "gpucluster-munge-keys"
HOME, MESH = "/home/opc", "/etc/gpucluster/mesh"
DOCUMENT = "/etc/gpucluster/shared-keys.document"
FIRST, NEXT = "ssh-ed25519 AAAA1 demo controller", "ssh-ed25519 AAAA2 demo controller"


def document(key: str) -> str:
    containers = {"login": f"{key} login\n", "server": f"{key} server\n", "authorized": [key], "known": [key]}
    return json.dumps({"controller": [key], "containers": containers})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Booted]:
    authority, certificate, key = server_of(tmp_path, "127.0.0.1")
    facts: dict[str, Any] = {"ansible_facts": {"gpucluster_host": {"user_home": HOME}}}
    found = variables(role="slurm") | facts | {"directory_certificates": "/etc/gpucluster/tls"}
    with booted() as started:
        started.put("/usr/local/bin/gpucluster-agent", agent_archive.of_controller(), 0o755)
        for file, name in ((authority, "authority.pem"), (certificate, "tls/server.pem"), (key, "tls/server.key")):
            started.put(f"/etc/gpucluster/{name}", file.read_text())
        settings = {"address": "127.0.0.1", "port": 6825, "authority": "/etc/gpucluster/authority.pem"}
        started.put("/etc/gpucluster/munge-key.json", json.dumps(settings))
        started.put("/etc/gpucluster/shared-keys.json", json.dumps({"user": "opc"}))
        names = {"hosts": {"127.0.0.1": ["ctl"]}, "elastic": [], "domain": ""}
        started.put("/etc/gpucluster/host-names.json", json.dumps(names))
        for name in (UNIT, f"{SERVER}.socket", f"{SERVER}@.service"):
            started.put(f"/etc/systemd/system/{name}", render("slurm", name, found))
        started.put(f"{MESH}/config", "Host *\n    Port 12345\n")
        started.sh(f"ip link set lo up; useradd -m -d {HOME} opc; chmod 700 {MESH}; install -d -m 700 {HOME}/.ssh")
        block = f"# BEGIN gpucluster\n{FIRST}\n# END gpucluster\n"
        started.put(f"{HOME}/.ssh/authorized_keys", f"ssh-rsa BBBB admin\n{block}", 0o600)
        started.sh(f"chown -R opc {HOME}/.ssh; systemctl daemon-reload; systemctl start {SERVER}.socket")
        yield started


def journal(host: Booted) -> str:
    """The last lines of the unit."""
    return host.sh(f"journalctl --no-pager -u {UNIT} | tail -n 15", check=False)


def test_a_host_that_boots_has_the_keys_of_now_when_its_unit_is_up(host: Booted) -> None:
    keys = f"{HOME}/.ssh/authorized_keys"
    host.sh(f"systemctl start {UNIT}")
    assert FIRST in host.read(keys), "nothing was rotated yet"
    assert "No such file" in host.sh(f"ls {MESH}/id_ed25519", check=False)
    host.put(DOCUMENT, document(NEXT), 0o600)
    host.sh(f"systemctl restart {UNIT}")
    assert host.read(keys) == f"ssh-rsa BBBB admin\n# BEGIN gpucluster\n{NEXT}\n# END gpucluster\n", journal(host)
    assert host.sh(f"stat -c '%U %a' {keys}").split() == ["opc", "600"]
    assert host.read(f"{MESH}/known_hosts") == f"[*]:12345 {NEXT}\n"
    assert host.sh(f"stat -c '%U %a' {MESH}/id_ed25519").split() == ["root", "600"]

    # Without the controller it starts with what it has, and learns the keys later.
    host.sh(f"systemctl stop {SERVER}.socket")
    host.sh(f"systemctl restart {UNIT}")
    assert "no news of the shared keys" in journal(host)
    host.put(DOCUMENT, document(FIRST), 0o600)
    host.sh(f"systemctl start {SERVER}.socket; systemctl restart {UNIT}")
    wait_for("the host has learned them", lambda: FIRST in host.read(keys), state=lambda: journal(host))
