"""The command `gpucluster-agent kubernetes` of every host: what it prints, and its exit status."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.kubernetes import __main__ as program
from gpucluster.node_agent.kubernetes import authority, instance_token, joining, rdma_labels, routes
from gpucluster.node_agent.kubernetes.kubectl import ADMIN, Kubectl


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    # pytest runs in the same process after that.
    monkeypatch.setattr(signal, "signal", lambda *_: None)


def fails(*_: Any) -> Any:
    raise Failed("there is no answer", "Try again")


def test_only_root_can_run_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert program.main(["authority"]) == 1
    assert capsys.readouterr() == ("", "gpucluster-agent kubernetes: only root can run this\n")


def test_what_is_not_a_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        program.main(["nonsense"])
    assert "invalid choice: 'nonsense'" in capsys.readouterr().err


def test_a_good_host_prints_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    requests: list[Any] = []

    def look(request: Any) -> list[Any]:
        requests.append(request)
        return []

    monkeypatch.setattr(joining, "look", look)
    assert program.check_host('{"version": "1.30.1"}') == 0
    assert program.check_host("[]") == 0  # not an object: nothing is asked for
    assert (requests, capsys.readouterr().out) == ([{"version": "1.30.1"}, {}], "")


def test_problems_of_a_host_are_a_line_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = [{"message": "swap is on", "hint": "Run: swapoff"}, {"message": "no cgroups", "hint": "Reboot"}]
    monkeypatch.setattr(joining, "look", lambda _request: problems)
    assert program.check_host("{}") == 1
    assert capsys.readouterr().out == "swap is on. Run: swapoff\nno cgroups. Reboot\n"
    monkeypatch.setattr(joining, "look", fails)
    assert program.check_host("{}") == 1
    assert capsys.readouterr().out == "there is no answer. Try again\n"


def test_input_that_is_not_json_is_an_error_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.check_host("{") == 1
    assert capsys.readouterr().out == "standard input is not JSON. \n"
    assert program.keep_images("{") == 2
    assert capsys.readouterr().err == "gpucluster-agent kubernetes: standard input is not JSON\n"


def test_labels_that_changed_are_printed_sorted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rdma_labels, "topology_data", lambda: "the place")
    monkeypatch.setattr(rdma_labels, "keep", lambda _kubectl, _place: {"z": "rack-1", "a": None})
    assert program.keep_place(Kubectl("none")) == 0
    assert capsys.readouterr().out == "a: removed\nz: rack-1\n"


def test_labels_stay_while_the_metadata_service_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rdma_labels, "topology_data", fails)
    monkeypatch.setattr(rdma_labels, "keep", lambda *_: pytest.fail("no label may change"))
    assert program.keep_place(Kubectl("none")) == 0
    assert capsys.readouterr().err == "the labels of the RDMA network stay as they are: there is no answer\n"


def test_each_command_gets_its_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(authority, "of_host", lambda: "an authority")
    monkeypatch.setattr(instance_token, "credential", lambda cluster: {"token of": cluster})
    ranges: list[tuple[str, str]] = []

    def follow(pods: str, node: str) -> int:
        ranges.append((pods, node))
        return 3

    monkeypatch.setattr(routes, "main", follow)
    assert program.main(["authority"]) == 0
    assert capsys.readouterr().out == "an authority\n"
    assert program.main(["token", "--cluster", "ocid1.cluster.x"]) == 0
    assert json.loads(capsys.readouterr().out) == {"token of": "ocid1.cluster.x"}
    assert program.main(["routes", "--pods", "10.244.0.0/16", "--node", "gpu-1"]) == 3
    assert ranges == [("10.244.0.0/16", "gpu-1")]


def test_an_error_has_its_hint_and_its_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(authority, "of_host", fails)
    assert program.main(["authority"]) == Failed("x").status
    errors = capsys.readouterr().err
    assert "there is no answer" in errors
    assert "Try again" in errors
    assert "Traceback" not in errors


def test_kubectl_has_the_kubeconfig_of_the_command_line(tmp_path: Path) -> None:
    parser = program.parser_of(program.COMMANDS, "text")
    assert parser.parse_args(["place"]).kubeconfig == ADMIN
    assert parser.parse_args(["place", "--kubeconfig", str(tmp_path)]).kubeconfig == str(tmp_path)
