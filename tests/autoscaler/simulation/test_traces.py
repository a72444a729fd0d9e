"""Traces of real jobs: what is read, what is left out, and the message for wrong lines."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.autoscaler.simulation.traces import MAX_FINDINGS, TraceJob, from_zero, read_traces
from gpucluster.errors import InputError

TRACES = Path(__file__).parent / "traces"
HEADER = "JobID|Submit|ElapsedRaw|TimelimitRaw|NNodes|Partition|User|State\n"
GOOD = "1|2026-03-02T08:00:00|60|5|1|gpu|alice|COMPLETED\n"


def written(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def test_sacct() -> None:
    trace = read_traces([TRACES / "two_days.sacct"], "sacct")
    assert [(job.node_count, job.run_seconds, job.limit) for job in trace.jobs] == [
        (2, 3600, 7200),
        (1, 1800, 3600),
        (1, 600, 1800),
        (1, 612, 1800),
        (4, 7200, 7200),  # no limit: what it ran for
        (1, 900, 3600),
        (2, 14400, 18000),
    ]
    assert trace.left_out == 3  # a step, and two that never ran
    assert trace.jobs[4].partition == "gpu"
    assert from_zero(trace).jobs[1].submitted_at == 30


def test_swf() -> None:
    trace = read_traces([TRACES / "small.swf"], "swf", processors_per_node=4)
    assert trace.jobs == (
        TraceJob(0, 2, 3600, 7200, user="user1"),
        TraceJob(30, 1, 1800, 3600, user="user2"),
        TraceJob(900, 2, 60.5, 600, user="user3"),
    )
    assert trace.left_out == 1


def test_gzip_and_several_files_and_any_order(tmp_path: Path) -> None:
    late = HEADER + GOOD.replace("03-02", "03-04")
    packed = written(tmp_path, gzip.compress(late.encode()), "late.gz")
    early = written(tmp_path, HEADER + GOOD, "early")
    trace = read_traces([packed, early], "sacct")
    assert trace.jobs[1].submitted_at - trace.jobs[0].submitted_at == 2 * 86400


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1|2026-03-02T08:00:00|60|5|1|gpu|alice", "has 7 columns, the first line has 8"),
        ("1|yesterday|60|5|1|gpu|alice|COMPLETED", "Submit is 'yesterday', not a time"),
        ("1|2026-13-02T08:00:00|60|5|1|gpu|alice|COMPLETED", "not a time"),
        ("1|2026-03-02T08:00:00|an hour|5|1|gpu|alice|COMPLETED", "ElapsedRaw is 'an hour', not a number"),
        ("1|2026-03-02T08:00:00|60|5|-1|gpu|alice|COMPLETED", "NNodes is '-1', not a number"),
    ],
)
def test_a_bad_line_of_sacct_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = written(tmp_path, HEADER + GOOD + line + "\n" + GOOD)
    with pytest.raises(InputError) as caught:
        read_traces([file], "sacct")
    (finding,) = caught.value.findings
    assert str(finding).startswith(f"{file}:3:1: ")
    assert words in finding.message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 0 10 3600", "has 4 fields, not 18"),
        ("1 0 10 abc 8 -1 -1 8 7200 -1 1 1 1 1 1 1 -1 -1", "'abc' is not a number"),
        ("1 nan 10 36 8 -1 -1 8 7200 -1 1 1 1 1 1 1 -1 -1", "'nan' is not a number"),
        ("1 -1 10 36 8 -1 -1 8 7200 -1 1 1 1 1 1 1 -1 -1", "has no submit time"),
    ],
)
def test_a_bad_line_of_swf_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = written(tmp_path, f"; a comment\n{line}\n")
    with pytest.raises(InputError) as caught:
        read_traces([file], "swf")
    assert str(caught.value.findings[0]).startswith(f"{file}:2:1: ")
    assert words in caught.value.findings[0].message


def test_many_bad_lines_are_not_all_told(tmp_path: Path) -> None:
    file = written(tmp_path, HEADER + "x\n" * 1000)
    with pytest.raises(InputError, match="there may be more") as caught:
        read_traces([file], "sacct")
    assert len(caught.value.findings) == MAX_FINDINGS


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not the output of sacct"),
        (b"JobID|Submit\n", "not the output of sacct"),
        (HEADER.encode(), "no job of the trace ran"),
        (b"\xff\xfe\x00", "not text"),
        (gzip.compress(HEADER.encode(), mtime=0)[:-12], "can't read the trace"),
    ],
)
def test_a_file_that_is_not_a_trace(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_traces([written(tmp_path, content)], "sacct")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_traces([tmp_path / "none"], "swf")
    with pytest.raises(InputError, match="Is a directory"):
        read_traces([tmp_path], "swf")


@given(st.sampled_from(["sacct", "swf"]), st.text(alphabet="0123456789|:-T. ;\n\tAé", max_size=200))
def test_no_text_gives_a_traceback(tmp_path_factory: pytest.TempPathFactory, kind: str, text: str) -> None:
    file = written(tmp_path_factory.getbasetemp(), HEADER + text if kind == "sacct" else text)
    with contextlib.suppress(InputError):
        assert all(job.node_count > 0 and job.run_seconds > 0 for job in read_traces([file], kind).jobs)
