"""The command `gpucluster-agent nccl`: its output, its exit status, and outputs of real machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpucluster.node_agent.nccl.__main__ import main
from gpucluster.node_agent.nccl.judge import FAIL, PASS, UNKNOWN
from tests.node_agent.nccl.outputs import TUNED, output


def content(**changes: object) -> str:
    half = {"time": 1.0, "alg_bw": 119.77, "bus_bw": 224.57, "nwrong": 0}
    made = {
        "version": 3, "args": ["/opt/all_reduce_perf", "-b", "8G"], "env": ["NCCL_ALGO=Ring", "TOKEN=secret"],
        "config": {"ngpus": 8, "nthreads": 1, "devices": [{"rank": 0, "group": 0, "hostname": "a"},
                                                          {"rank": 8, "group": 0, "hostname": "b"}]},
        "results": [{"size": 8589934592, "redop": "sum", "root": "-1", "out_of_place": half, "in_place": half}],
        "out_of_bounds": {"count": 0, "okay": "true"}, "errors": [], "end_time": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return json.dumps({**made, **changes})


def run(tmp_path: Path, text: str, *words: str) -> tuple[int, str]:
    file = tmp_path / "printed"
    file.write_text(text)
    return main(["judge", str(file), "--shape", "BM.GPU4.8", "--nodes", "2", *words]), ""


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 0),
        ({"end_time": None}, 3),
        ({"results": []}, 3),
        ({"out_of_bounds": {"count": 0, "okay": "unchecked"}}, 3),
        ({"out_of_bounds": {"count": 1, "okay": "false"}}, 2),
        ({"results": [{"size": 8 << 30, "redop": "sum", "root": "-1", "out_of_place": None, "in_place": None}]}, 3),
        ({"results": None}, 3),
        ({"config": {"ngpus": 1, "devices": [{"rank": 0}]}}, 2),
        ({"errors": ["rank 3 timed out"]}, 3),
    ],
)
def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], status: int) -> None:
    assert run(tmp_path, content(**changes), "--output", "json")[0] == status, capsys.readouterr().out
    told = capsys.readouterr().out
    assert "secret" not in told
    assert json.loads(told)["verdict"] == {0: PASS, 2: FAIL, 3: UNKNOWN}[status]


def test_a_json_file_that_was_cut_off_is_unknown(tmp_path: Path) -> None:
    text = content()
    assert {run(tmp_path, text[:length])[0] for length in range(0, len(text) - 1, 7)} == {3}


DATA = Path(__file__).with_name("data")
MEASURED = {
    "all_reduce": 344.80, "all_gather": 321.35, "reduce_scatter": 300.71,
    "alltoall": 351.30, "broadcast": 369.10, "sendrecv": 366.29, "all_reduce_info": 345.16,
}  # fmt: skip


@pytest.mark.parametrize("name", [path.name for path in sorted(DATA.iterdir())])
def test_the_output_of_two_gpus(capsys: pytest.CaptureFixture[str], name: str) -> None:
    words = ["judge", str(DATA / name), "--shape", "BM.GPU.H200.8", "--nodes", "1", "--output", "json"]
    measured = MEASURED[name.partition(".")[0]]
    for expected, status in ((measured - 1, 0), (measured + 1, 2)):
        assert main([*words, "--gpus", "2", "--expect", str(expected)]) == status
        found = json.loads(capsys.readouterr().out)
        assert found["busbw"] == pytest.approx(measured, abs=0.01)
        assert (found["ranks"], found["operation"]) == (2, name.partition(".")[0].removesuffix("_info"))
    assert main(words) in (2, 3)
    assert "2 " in " ".join(json.loads(capsys.readouterr().out)["reasons"])


@pytest.mark.parametrize(
    "words",
    [
        ["judge", "/nowhere", "--shape", "BM.GPU4.8", "--nodes", "2"],
        ["judge", "/", "--shape", "BM.GPU4.8", "--nodes", "2"],
        ["judge", "/dev/null", "--shape", "BM.GPU4.8", "--nodes", "2"],
        ["judge", "/dev/null", "--shape", "BM.GPU5.8", "--nodes", "2"],
        ["judge", "/dev/null", "--shape", "BM.GPU4.8", "--nodes", "0"],
        ["judge", "/dev/null", "--shape", "BM.GPU4.8", "--nodes", "x"],
        ["judge", "/dev/null", "--nodes", "2", "--expect", "nan"],
        [],
    ],
)
def test_bad_arguments_are_unknown_and_not_bad(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    try:
        status = main(words)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 3
    assert "Traceback" not in "".join(capsys.readouterr())


def test_the_text_has_verdict_measurement_and_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "".join(output(TUNED)))[0] == 0
    assert capsys.readouterr().out == (
        "PASS\nall_reduce, largest message 10737418240 bytes: busbw 224.72 GB/s\n"
        "  - busbw 224.72 GB/s with 10737418240 bytes reaches 185, the published limit of 2 x BM.GPU4.8\n"
    )


def test_binary_rubbish_and_one_endless_line_are_unknown(tmp_path: Path) -> None:
    file = tmp_path / "printed"
    file.write_bytes(bytes(range(256)) * 4096)
    assert main(["judge", str(file), "--shape", "BM.GPU4.8", "--nodes", "2"]) == 3
