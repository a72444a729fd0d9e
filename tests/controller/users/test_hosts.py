"""Which elastic nodes are in service and at which address, and hosts that do not confirm a change."""

from __future__ import annotations

import json
import socket
import subprocess
from typing import Any

import pytest

from gpucluster.controller.users import config, hosts
from gpucluster.controller.users.hosts import of_hostlist
from gpucluster.node_agent import errors, programs


def node(name: str, address: str = "10.0.0.9", ready: str = "True") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}],
        },
    }


def test_ready_nodes_of_the_hostlist_have_their_addresses() -> None:
    nodes = [node("gpu-e1", "10.0.0.1"), node("gpu-e6", "10.0.0.6"), node("cpu-e2", "10.0.0.2")]
    assert of_hostlist(nodes, "gpu-e[1-6],cpu-e[1-2]") == {
        "gpu-e1": "10.0.0.1", "gpu-e6": "10.0.0.6", "cpu-e2": "10.0.0.2"
    }  # fmt: skip
    assert of_hostlist(nodes, "gpu-e1") == {"gpu-e1": "10.0.0.1"}


def test_others_have_none() -> None:
    others = [
        node("gpu-e7"),
        node("gpu-e01"),
        node("gpu-ex"),
        node("gpu-e"),
        node("head"),
        node("gpu-e2", ready="Unknown"),
    ]
    silent = {"metadata": {"name": "gpu-e1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert of_hostlist([*others, silent, {"metadata": {"name": "gpu-e3"}}], "gpu-e[1-6]") == {}


def test_a_node_that_is_not_ready_may_have_processes() -> None:
    nodes = [node("gpu-e1", "10.0.0.1"), node("gpu-e2", "10.0.0.2", ready="Unknown"), node("cpu-e1", ready="False")]
    assert of_hostlist(nodes, "gpu-e[1-6]", ready=False) == {"gpu-e1": "10.0.0.1", "gpu-e2": "10.0.0.2"}


def test_elastic_nodes_are_asked_while_they_are_there() -> None:
    configured = config.HostLogins({"n-1": "opc", "e[1-3]": "ubuntu"}, None)
    permanent, elastic = hosts.HostLogin("opc", "n-1"), hosts.HostLogin("ubuntu", "10.0.1.7")
    found = hosts.remote(configured, {"e[1-3]": {"e2": "10.0.1.7"}}.__getitem__)
    assert found == ({"n-1": permanent, "e2": elastic}, [])

    def silent(nodes: str) -> dict[str, str]:
        raise errors.Failed(f"nobody knows {nodes}")

    assert hosts.remote(configured, silent) == ({"n-1": permanent}, ["e[1-3]"]), "they are named, not left out"


def test_elastic_nodes_are_reached_by_the_address_that_slurm_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "e1 mix 10.0.1.6\ne1 mix 10.0.1.6\ne2 idle~ e2\ne3 mix# e3\ne4 down* 10.0.1.9\n"
    asked: dict[str, list[str]] = {}

    def call(argv: list[str], *_: Any, **__: Any) -> Any:
        assert {"sinfo", "--Node", "--nodes=e[1-4]", "--format=%N %t %o"} <= set(argv)
        return subprocess.CompletedProcess(argv, 0, listed, "")

    def ask(argv: list[str], *_: Any, **__: Any) -> programs.ProgramAnswer:
        if argv[0] != "ssh":
            return programs.ProgramAnswer(0, b'{"ended": 1, "wrong": []}\n', b"", "")
        address = argv[argv.index("--") + 1]
        asked[address] = argv
        wrong = ["SSSD does not run"] if address == "n-1" else []
        answer = f"a banner\n{json.dumps({'ended': 2, 'wrong': wrong})}\n"
        return programs.ProgramAnswer(255 if address == "10.0.1.9" else 0, answer.encode(), b"", "")

    monkeypatch.setattr(programs, "call", call)
    monkeypatch.setattr(programs, "ask", ask)
    configured = config.HostLogins({"n-1": "opc", "e[1-4]": "ubuntu"}, None)
    report = hosts.confirm(configured, [{"name": "alice"}])
    assert report == hosts.HostsReport(1 + 2 + 2, ("e4",), {"n-1": "SSSD does not run"}), "a report has names"
    assert sorted(asked) == ["10.0.1.6", "10.0.1.9", "n-1"]
    # The address of an elastic node is soon another's: its key is that of its name, which is kept nowhere.
    words = asked["10.0.1.6"]
    assert {"-oHostKeyAlias=e1", "-oStrictHostKeyChecking=yes", "-oUserKnownHostsFile=/dev/null"} <= set(words)
    assert words[words.index("-l") + 1] == "ubuntu"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "2 0",
        "[]",
        '{"ended": true, "wrong": []}',
        '{"ended": 1}',
        '{"ended": 1, "wrong": "no"}',
        "[" * 5000,
        "1" * 20000,
    ],
)
def test_what_is_no_answer_confirms_nothing(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr(programs, "ask", lambda *_, **__: programs.ProgramAnswer(0, answer.encode(), b"", ""))
    here = socket.gethostname().split(".")[0]
    report = hosts.confirm(config.HostLogins())
    assert report.unreachable == (here,)
    with pytest.raises(errors.Unconfirmed) as raised:
        report.require({"name": "lab"}, "lab is removed, but")
    assert (raised.value.status, raised.value.partial_result) == (8, {"name": "lab"})
    assert f"not every host confirms it: {here} does not answer" in raised.value.message


def test_a_host_that_prints_without_end_is_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = 'import sys\nwhile True: sys.stdout.write("x" * 65536)\n'
    monkeypatch.setattr(hosts, "_program", lambda: endless)
    assert hosts.confirm(config.HostLogins()).unreachable == (socket.gethostname().split(".")[0],)
