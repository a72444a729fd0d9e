"""The command `simulate`: its output, and what it refuses."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpucluster.autoscaler.simulation.command import add_arguments, run
from gpucluster.errors import InputError

TRACES = Path(__file__).parent / "traces"


def arguments(*words: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    words = [TRACES / "two_days.sacct", "--nodes", "4", "8", "--idle-timeout", "60", "600", "--price", "3"]
    assert run(arguments(*words)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "7 jobs; 3 lines without a job that ran"
    assert lines[1].startswith("policy")
    assert [line.split("  ")[0] for line in lines[2:6]] == [
        "4 nodes, idle 60 s",
        "4 nodes, idle 600 s",
        "8 nodes, idle 60 s",
        "8 nodes, idle 600 s",
    ]
    assert "7 jobs name a partition that the policy lacks" in lines[6]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = [TRACES / "small.swf", "--format", "swf", "--processors-per-node", "4", "--nodes", "8", "--output", "json"]
    assert run(arguments(*words)) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["trace"] == {"jobs": 3, "left_out": 1}
    (result,) = document["results"]
    assert result["jobs_done"] == 3
    assert result["cost"] is None
    assert 0 < result["idle_share"] < 1


def test_a_policy_of_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = {
        "partition": "gpu",
        "prefix": "a-e",
        "names": 10,
        "max_nodes": 4,
        "shape": "BM.GPU4.8",
        "baked": False,
        "availability_domain": "AD-1",
        "instance_configuration_id": "x",
        "compute_cluster_id": None,
    }
    policy = {
        "version": 1,
        "cluster": "c",
        "compartment_id": "x",
        "region": "x",
        "prices": {"BM.GPU4.8": 24.4},
        "authentication": {"method": "instance_principal"},
        "pools": {"a": pool},
    }
    file = tmp_path / "autoscaler.json"
    file.write_text(json.dumps(policy))
    assert run(arguments(TRACES / "two_days.sacct", "--policy", file, "--output", "json")) == 0
    result = json.loads(capsys.readouterr().out)["results"][0]
    assert result["jobs_moved"] == 1  # partition debug
    assert result["cost"] == pytest.approx(24.4 * sum(result["node_hours"].values()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.txt", "--nodes", "4"], "No such file"),
        ([TRACES / "small.swf", "--nodes", "4"], "not the output of sacct"),
        ([TRACES / "two_days.sacct"], "the number of nodes is missing"),
        ([TRACES / "two_days.sacct", "--policy", "none.json"], "can't read the policy"),
    ],
)
def test_wrong_input_is_told(words: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(arguments(*words))


@pytest.mark.parametrize("words", [["--nodes", "0"], ["--idle-timeout", "-1"], ["--boot-seconds", "nan"]])
def test_wrong_words_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("trace", *words)


def test_neither_oci_nor_a_cluster_is_needed() -> None:
    blocked = "import sys; sys.modules['oci'] = None; sys.modules['click'] = None; "
    words = blocked + "import gpucluster.autoscaler.simulation.command"
    subprocess.run([sys.executable, "-c", words], check=True)
