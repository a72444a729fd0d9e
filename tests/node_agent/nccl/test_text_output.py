"""The text of nccl-tests: columns by their header, rows that others write into, several runs in one file."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.nccl.judge import PASS, UNKNOWN
from tests.node_agent.nccl.outputs import ALONE, BOUNDS, HEADER, MISTUNED, TUNED, output
from tests.node_agent.nccl.verdicts import of, told, verdict

WITH_ITERATIONS = "time algbw busbw #wrong i_min i_max i_p99 i_cv%"


def test_singletons_are_found() -> None:
    """srun without working PMI: sixteen worlds, each with a table of its own and a bus bandwidth of 0."""
    alone = TUNED.replace("224.57", "0.00").replace("224.87", "0.00")
    assert "the ranks did not find each other" in told(output(*[alone] * 16, tables=16, ranks=1))
    assert "1 ranks took part" in told(output(alone))
    eight = [*output(ALONE, ranks=8), *output(ALONE, ranks=8)]
    assert "the ranks did not find each other" in told(eight)


def test_two_complete_runs_in_one_file_are_no_fault_but_can_not_be_judged() -> None:
    assert of([*output(TUNED), *output(TUNED)]) == UNKNOWN
    assert "each run for itself" in told([*output(TUNED), *output(TUNED)])


def test_other_words_between_do_not_disturb() -> None:
    lines = output(
        "node:12:12 [0] NCCL INFO Using network IB\n", "[node:00012] UCX  ERROR ibv_create_srq() failed\n",
        "1234 5678 no row of ours\n", TUNED.replace("224.87      0", "224.87    N/A"),
    )  # fmt: skip
    assert of(lines) == PASS
    for label in ("[1,0]<stdout>:", " 3: ", "[1,11]<stdout>: "):
        assert of([label + line for line in lines]) == PASS


@pytest.mark.parametrize(
    ("header", "line"),
    [
        ("# size count type redop time algbw busbw error time algbw busbw error",
         "8589934592 2147483648 float sum 72000 119.30 223.69 4e-07 72000 119.30 223.69 4e-07"),
        (f"# size count type redop root {WITH_ITERATIONS} {WITH_ITERATIONS}",
         "8589934592 2147483648 float sum -1 7.2e+04 119.30 223.69 0 1 2 3 4 72000 119.30 223.69 0 1 2 3 4"),
    ],
    ids=["without root", "with times of iterations"],
)  # fmt: skip
def test_the_columns_are_those_of_the_header(header: str, line: str) -> None:
    lines = [*output(ranks=16)[:-2], f"{header}\n", f"{line}\n", BOUNDS]
    lines = [each for each in lines if each != HEADER]
    assert verdict(lines).busbw == pytest.approx(223.69)
    assert verdict(lines).ranks == 16


@pytest.mark.parametrize("text", ["srun: error: n1: task 3: Killed", "[2026-11-26 08:00:00] n1:7:8 [0] NCCL INFO x"])
@pytest.mark.parametrize("at", [("-1",), ("-1", "      0  "), ("      0  ",)])
def test_a_row_that_others_write_into_is_put_together(text: str, at: tuple[str, ...]) -> None:
    torn = TUNED
    for place in at:
        kept = place.rstrip()
        head, rest = torn.split(place, 1)
        torn = f"{head}{kept}{text}\n{text}\n{place[len(kept) :]}{rest}"
    assert of(output(*torn.splitlines(keepends=True))) == of(output(TUNED)) == PASS
    assert verdict(output(*torn.splitlines(keepends=True))).busbw == verdict(output(TUNED)).busbw


def test_a_row_of_which_the_end_is_missing_is_none() -> None:
    begun = TUNED.split("-1")[0] + "-1srun: error: n1: task 3: Killed\n"
    assert of(output(begun)) == UNKNOWN
    assert verdict(output(begun, MISTUNED)).busbw == verdict(output(MISTUNED)).busbw
