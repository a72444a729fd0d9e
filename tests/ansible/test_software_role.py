"""The role `software` on a booted host: files are copied, served read-only, and removed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.booted import Booted, booted
from tests.ansible.loading import ANSIBLE, read
from tests.mirror import Mirror

pytestmark = pytest.mark.containers

FOLDER = "/var/lib/gpucluster-software"
#: Files are sent in parts of this size here, so that a small file has several.
PART = 1000
ASK = """
import sys, urllib.request, urllib.error
for path in sys.argv[2:]:
    try:
        answer = urllib.request.urlopen(sys.argv[1] + path)
        print(answer.status, len(answer.read()))
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@pytest.fixture(scope="module")
def host() -> Iterator[Booted]:
    with booted() as node:
        node.put("/root/ask.py", ASK)
        # Files are served by the controller.
        assert node.play([AGENT], {"agent_kind": "controller"}).changed == 1
        assert node.play([AGENT], {"agent_kind": "controller"}).changed == 0
        yield node


def software(mirror: Mirror, *names: str) -> dict[str, Any]:
    release = {"component": "box", "version": "1", "format": "any", "architecture": "any"}
    files = [{**release, "file": name, "sha256": mirror.sha256(name)} for name in names]
    return {
        "gpucluster_hosts": [{"name": "compute-1", "address": "127.0.0.1"}],
        "software_files": files,
        "software_directory": str(mirror.folder) if files else None,
        **read("group_vars/all/software.yml"),
    }


FACTS = {
    "gpucluster_host": {
        "user": "root",
        "key": "x",
        "agent": "/usr/local/bin/gpucluster-agent",
        "packages": read("group_vars/all/packages.yml")["packages"],
        "purposes": [],
    }
}
AGENT = {"gpucluster_service": {"files": ["{{ agent_file }}"]}}
ROLE = [FACTS, {"ansible.builtin.include_role": {"name": "software"}}]


def ask(host: Booted, *paths: str) -> list[str]:
    port = read("group_vars/all/software.yml")["software_port"]
    return host.sh(f"python3 /root/ask.py http://127.0.0.1:{port} {' '.join(paths)}").splitlines()


def test_the_role(host: Booted, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "mirror")
    mirror.file("box+caps_1_all.deb", "x" * 4567)
    mirror.file("tree.tar.gz", "one")
    first = software(mirror, "box+caps_1_all.deb", "tree.tar.gz")

    assert host.play(ROLE, first, "--check").changed > 0
    assert not host.exists(FOLDER)
    assert host.play(ROLE, first).changed == 2
    assert ask(host, "/box%2Bcaps_1_all.deb", "/box+caps_1_all.deb", "/tree.tar.gz") == [
        "200 4567",
        "200 4567",
        "200 3",
    ]
    assert host.play(ROLE, first).changed == 0
    # When it is started, it answers: a host that asks in the same moment is not refused.
    host.sh("systemctl restart gpucluster-software && bash -c ': </dev/tcp/127.0.0.1/8471'")
    assert host.sh(f"stat -c '%U %a' {FOLDER} {FOLDER}/tree.tar.gz").split() == ["root", "755", "root", "644"]

    # Read-only, only this folder, without a listing, by a user who is not root.
    host.sh(f"ln -s /etc/shadow {FOLDER}/shadow; mkdir {FOLDER}/below; echo x > {FOLDER}/below/x")
    outside = ["/", "/shadow", "/below/x", "/below", "/../../../etc/shadow", "/%2e%2e/x", "/.known.json", "/none"]
    assert ask(host, *outside) == ["404"] * len(outside)
    assert host.sh("ps -o user= -p $(systemctl show -P MainPID gpucluster-software)").strip() not in ("root", "")
    assert host.sh("ss -Hltn sport = :8471").split()[3] == "127.0.0.1:8471"
    host.sh(f"rm -r {FOLDER}/shadow {FOLDER}/below")

    # Of the next set only new files are sent; damaged ones are sent again; unlisted ones are removed.
    mirror.file("box+caps_2_all.deb", "y" * 100)
    host.sh(f"echo two > {FOLDER}/tree.tar.gz")
    second = software(mirror, "box+caps_2_all.deb", "tree.tar.gz")
    assert host.play(ROLE, second).changed == 1
    assert host.sh(f"ls {FOLDER}; cat {FOLDER}/tree.tar.gz").split() == ["box+caps_2_all.deb", "tree.tar.gz", "one"]

    host.play(ROLE, software(mirror))
    for place in (FOLDER, "/etc/systemd/system/gpucluster-software.service"):
        assert not host.exists(place), place
    assert host.play(ROLE, software(mirror)).changed == 0


def test_a_file_that_changed_on_this_machine_is_not_taken(host: Booted, tmp_path: Path) -> None:
    mirror = Mirror(tmp_path / "mirror")
    mirror.file("tree.tar.gz", "one")
    given = software(mirror, "tree.tar.gz")
    mirror.file("tree.tar.gz", "other")
    host.sh(f"rm -rf {FOLDER}")
    done = host.play(ROLE, given, check=False)
    assert "has another checksum than expected" in done.said
    assert host.sh(f"ls -A {FOLDER}").strip() == ""


def test_large_archives_go_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The action plugin alone, with a connection that is a list of commands."""
    spec = importlib.util.spec_from_file_location("folder_plugin", ANSIBLE / "action_plugins/gpucluster_folder.py")
    assert spec is not None
    assert spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    monkeypatch.setattr(plugin, "PART_BYTES", PART)
    sent: list[tuple[str, bytes]] = []

    class Action(plugin.ActionModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            pass

        def _low_level_execute_command(self, command: str, in_data: bytes) -> dict[str, Any]:
            sent.append((command, in_data))
            return {"rc": 0}

    whole = tmp_path / "packed"
    whole.write_bytes(bytes(range(250)) * 9)
    with whole.open("rb") as packed:
        Action()._send(packed, "/at a/place")
    assert [command for command, _part in sent] == ["cat > '/at a/place'"] + ["cat >> '/at a/place'"] * 2
    assert b"".join(part for _command, part in sent) == whole.read_bytes()
