"""Why a host can't be reached yet: what ssh and cloud-init print while it boots."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from gpucluster.errors import ToolError
from gpucluster.events import Event
from gpucluster.paths import ClusterPaths
from gpucluster.ssh import Host, SshClient, boot
from tests.ssh.test_client import HOSTS


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    made = ClusterPaths(tmp_path / "a folder" / ".gpucluster")
    made.create()
    return made


def test_it_is_reported_which_hosts_do_not_answer_and_why(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boot, "_QUIET", 1.0)
    silent = [Host(f"c{n}", "127.100.255.254", "debian", f"id{n}") for n in range(5)]
    route = SshClient(paths, None)
    route.write(silent)
    events: list[Event] = []
    with contextlib.closing(route), pytest.raises(ToolError):
        route.wait(silent, 2.5, events.append)
    assert events[0].status == "waiting"
    assert "waiting for c0: ssh: connect to host 127.100.255.254 port 22: Connection refused; c1: " in events[0].message
    assert ", and 2 more" in events[0].message


JUMP = HOSTS[1]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", "no answer"),
        ("ssh: connect to host c port 22: No route to host\n", "ssh: connect to host c port 22: No route to host"),
        (
            "channel 0: open failed: connect failed: No route to host\nstdio forwarding failed\n"
            "kex_exchange_identification: Connection closed by remote host\n",
            "channel 0: open failed: connect failed: No route to host",
        ),
        (
            "kex_exchange_identification: Connection closed by remote host\nConnection closed by UNKNOWN port 65535\n",
            "demo-controller has no connection to it at 10.77.1.3",
        ),
    ],
)
def test_why_there_is_no_connection(said: str, words: str) -> None:
    assert boot._reason(said, JUMP) == words


@pytest.mark.parametrize(
    ("result", "errors"),
    [
        ('{"v1": {"datasource": "DataSourceNoCloud", "errors": []}}', []),
        ('{"v1": {"errors": ["(\'scripts_user\', boom)"]}}', ["('scripts_user', boom)"]),
        ("", ["its result can't be read: "]),
        ('{"v2": {}}', ['its result can\'t be read: {"v2": {}}']),
    ],
)
def test_cloud_inits_own_verdict_counts(result: str, errors: list[str]) -> None:
    assert boot._cloud_init_errors(result) == errors
