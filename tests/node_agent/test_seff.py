"""What seff makes of the accounting's answer. tests/e2e/test_main_path.py asks a real Slurm."""

from __future__ import annotations

import subprocess

import pytest

from gpucluster.node_agent import programs, seff

TRES = "billing=4,cpu=4,gres/gpu=2,mem=4096M,node=2"
ROWS = f"""
12_1|15|demo|alice|people|COMPLETED|0:0|2|4|10|00:20.500||{TRES}
12_1.batch|15.batch|demo|||COMPLETED|0:0|1|2|10|00:00.500|cpu=00:00:00,mem=1048576,vmem=0|cpu=2
12_1.0|15.0|demo|||COMPLETED|0:0|2|4|10|00:20|cpu=00:00:20,energy=0,mem=1073741824|cpu=4
"""


def test_a_job_has_its_shares_of_processors_and_memory() -> None:
    (job,) = seff.parse(ROWS.splitlines())
    assert seff.report(job).splitlines() == [
        "Job ID: 12_1",
        "Cluster: demo",
        "User/Group: alice/people",
        "State: COMPLETED (exit code 0)",
        "Nodes: 2",
        "Cores per node: 2",
        "CPU Utilized: 00:00:20",
        "CPU Efficiency: 51.25% of 00:00:40 core-walltime",
        "Job Wall-clock time: 00:00:10",
        "Memory Utilized: 1.00 GB",
        "Memory Efficiency: 25.00% of 4.00 GB",
    ]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (f"7|7|demo|bob|people|PENDING|0:0|1|0|0|00:00:00||{TRES}", "has not run yet"),
        (f"7|7|demo|bob|people|RUNNING|0:0|1|1|90000|1-01:00:00||{TRES}", "CPU Utilized: 1-01:00:00"),
        (f"7|7|demo|bob|people|RUNNING|0:0|1|1|90000|1-01:00:00||{TRES}", "still runs"),
        (f"7|7|demo|bob|people|FAILED|3:0|1|1|9|00:01||{TRES}", "Memory Utilized: unknown"),
        (f"7|7|demo|bob|people|FAILED|3:0|1|1|9|00:01||{TRES}", "FAILED (exit code 3)"),
    ],
)
def test_what_slurm_does_not_know_is_reported(row: str, told: str) -> None:
    (job,) = seff.parse([row])
    assert told in seff.report(job)


def test_bad_input_is_an_error_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        seff.main(["; rm"])
    assert ended.value.code == 2
    monkeypatch.setattr(programs, "call", lambda argv: subprocess.CompletedProcess(argv, 0, "", ""))
    assert seff.main(["99"]) == 1
    assert "no job 99" in capsys.readouterr().err
