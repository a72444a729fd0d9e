"""The autoscaler's program on the controller. ssh is a double."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.cluster import Cluster
from gpucluster.errors import InputError, ToolError
from gpucluster.process import Completed
from gpucluster.spec import load
from tests.spec.spec_texts import LOCAL


def test_words_for_the_autoscaler_reach_it_whole(cluster: Cluster) -> None:
    argv = cluster.autoscaler.argv(["pause", "new firewall; reboot 'now' $(id)"])
    assert argv[0] == "ssh"
    assert argv[-3:-1] == ["demo-controller", "--"]
    # The remote shell passes on what was given.
    done = process.run(["sh", "-c", argv[-1].replace("sudo gpucluster-autoscaler", "printf %s,", 1)])
    assert done.stdout == "pause,new firewall; reboot 'now' $(id),"


def test_without_elastic_pools_there_is_no_autoscaler_to_ask(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text(LOCAL.replace("    max_count: 4", "    count: 1"))
    plain = Cluster(load(tmp_path / "cluster.yml"))
    with pytest.raises(InputError, match="no elastic pool"):
        plain.autoscaler.argv(["status"])


def test_the_status_of_an_autoscaler_that_does_not_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, Completed((), 255, "", "Warning\nssh: connect to host: No route\n"))
    with pytest.raises(ToolError, match="the controller can't be reached: ssh: connect to host: No route"):
        cluster.autoscaler.status()
    _answer(monkeypatch, Completed((), 1, '{"healthy": false}', ""))
    assert cluster.autoscaler.status() == {"healthy": False}


def _answer(monkeypatch: pytest.MonkeyPatch, answer: Completed) -> None:
    monkeypatch.setattr(process, "run", lambda *_, **_options: answer)
