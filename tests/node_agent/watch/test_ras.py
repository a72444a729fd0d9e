"""Answers of NCCL's RAS port, in the forms of its releases."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucluster.node_agent.watch import ras
from gpucluster.node_agent.watch.ras import Behind, Rank
from tests.doubles import ras_server
from tests.doubles.ras_server import HOST

RANK_2 = Rank(2, HOST, 1399, 2)


def all_reduce(*counts: int) -> list[dict[str, int]]:
    return [{"AllReduce": count} for count in counts]


# --- text -----


def test_a_text_without_a_mismatch_has_no_counts() -> None:
    assert ras.parse(ras_server.text()) == ras.RasAnswer((), (), (), unnamed=False, counts=None)


def test_a_text_names_the_rank_that_never_comes() -> None:
    # The words of NCCL 2.28.9 on four H100, where rank 2 slept.
    answer = ras.parse(ras_server.text(warnings=ras_server.mismatch("AllReduce", [220, 220, 200, 220])))
    assert answer.behind == (Behind(RANK_2, "AllReduce", 200, 220, 1),)
    assert (answer.missing, answer.unnamed) == ((), False)


def test_a_text_does_not_name_the_majority_that_is_behind() -> None:
    answer = ras.parse(ras_server.text(warnings=ras_server.mismatch("AllGather", [0, 0, 1, 0])))
    assert (answer.behind, answer.unnamed) == ((), True)


def test_a_group_of_several_ranks_is_listed_below_its_count() -> None:
    counts = [6650, 6649, 6650, 6649, 6650, 6650]
    answer = ras.parse(ras_server.text(warnings=ras_server.mismatch("AllReduce", counts)))
    assert [each.rank.rank for each in answer.behind] == [1, 3]
    assert {(each.launched, each.highest, each.peers) for each in answer.behind} == {(6649, 6650, 2)}


def test_the_text_of_the_first_release_has_no_names_of_collectives_and_lists_ranks_and_processes_apart() -> None:
    errors = (
        "INCOMPLETE\n  Missing communicator data from 1 job process\n"
        "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n"
        "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 21\n\n"
    )
    warnings = (
        "TIMEOUT\n  Encountered 2 communication timeouts while gathering communicator data\n\n"
        "#0-0 (cf264af53edbe986) MISMATCH\n  Communicator ranks have different collective operation counts\n"
        "  26 ranks have launched up to operation 6650\n  6 ranks have launched up to operation 6649\n"
        f"  Rank 0 -- {ras_server.named(0)}\n  Rank 2 -- [process information not found]\n"
    )
    answer = ras.parse(ras_server.text(errors, warnings, "INCOMPLETE"))
    assert answer.missing == (Rank(21, "172.16.64.213", 3487984, 5),)
    assert [(each.rank, each.collective, each.peers) for each in answer.behind] == [
        (Rank(0, HOST, 1397, 0), "", 6),
        (Rank(2), "", 6),
    ]
    assert answer.unnamed, "four of six ranks that are behind are not named"


def test_a_missing_rank_is_named_with_its_process_and_the_number_of_its_gpu_outside_of_the_container() -> None:
    errors = (
        "#1-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 2 ranks\n"
        f"  Rank 5 -- GPU 0 (NVML 5) managed by process 77 on node {HOST}\n"
        "  Rank 6 -- GPU 6 managed by process 78 on node fd00::12\n\n"
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        f"  Process 77 on node {HOST} managing GPU 0 (NVML 5)\n\n"
    )
    assert ras.parse(ras_server.text(errors)).missing == (Rank(5, HOST, 77, 5), Rank(6, "fd00::12", 78, 6))


def test_ranks_that_differ_in_their_status_are_not_behind() -> None:
    warnings = (
        "#0-0 (9e17999afaa87dbb) MISMATCH\n  Communicator ranks have different status\n  26 ranks have status NOCOMM\n"
        f"  4 ranks have status RUNNING\n  Rank 0 -- {ras_server.named(0)}\n"
        f"  Rank 4 has status FINALIZE -- {ras_server.named(4)}\n\n"
    )
    answer = ras.parse(ras_server.text(warnings=warnings))
    assert (answer.behind, answer.missing, answer.counts) == ((), (), None)


# --- JSON -----


def test_json_names_all_ranks_and_who_is_behind() -> None:
    answer = ras.parse(ras_server.json_text(all_reduce(220, 220, 200, 220)))
    assert answer.behind == (Behind(RANK_2, "AllReduce", 200, 220, 1),)
    assert [rank.pid for rank in answer.ranks] == [1397, 1398, 1399, 1400]


def test_where_one_rank_calls_another_collective_each_rank_is_behind_in_one() -> None:
    counts = [{"AllReduce": 200}, {"AllReduce": 200}, {"AllReduce": 199, "AllGather": 1}, {"AllReduce": 200}]
    behind = ras.parse(ras_server.json_text(counts)).behind
    assert {(each.rank.rank, each.collective, each.peers) for each in behind} == {
        (0, "AllGather", 3), (1, "AllGather", 3), (3, "AllGather", 3), (2, "AllReduce", 1),
    }  # fmt: skip


def test_json_names_missing_ranks_and_leaves_out_those_that_only_left_the_communicator() -> None:
    text = ras_server.json_text(all_reduce(9, 9, 9, 9), missing=[1, 2])
    assert ras.parse(text.replace('"unresponsive": true', '"unresponsive": false', 1)).missing == (RANK_2,)


def test_what_nccl_2_28_reports_of_a_process_that_is_gone_is_not_json_and_is_read() -> None:
    """Its words on two H200, and those of 2.29 and later, with the comma."""
    text = ras_server.json_text(all_reduce(17028, 17028), missing=[1])
    missing = """"missing_ranks": [
        {
          "rank": 1,
          "host": "127.0.0.1",
          "pid": 1036,
          "cuda_dev": 3,
          "nvml_dev": 3
          "status": {
            "unresponsive": true,
            "considered_dead": false
          }
        }
      ]"""
    begin = text.index('"missing_ranks": [')
    old = text[:begin] + missing + text[text.index("]", begin) + 1 :]
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(old)
    new = old.replace('"nvml_dev": 3\n', '"nvml_dev": 3,\n')
    json.loads(new)
    assert ras.parse(old).missing == ras.parse(new).missing == (Rank(1, "127.0.0.1", 1036, 3),)


def test_who_launches_a_seldom_collective_alone_is_named_in_it() -> None:
    odd = [{"AllReduce": 2812}, {"AllReduce": 2812, "Broadcast": 1}]
    (behind,) = ras.parse(ras_server.json_text(odd)).behind
    assert (behind.rank.rank, behind.alone and behind.alone.rank) == (0, 1)
    (behind,) = ras.parse(ras_server.json_text(all_reduce(2811, 2812))).behind
    assert (behind.rank.rank, behind.alone) == (0, None)


def test_counts_are_equal_while_nothing_is_launched() -> None:
    def counts(*values: int) -> object:
        return ras.parse(ras_server.json_text(all_reduce(*values))).counts

    assert counts(220, 220, 200, 220) == counts(220, 220, 200, 220)
    assert counts(220, 220, 200, 220) != counts(220, 220, 201, 220)
    assert counts(220, 220) != counts(221, 221)


def test_a_process_that_nccl_does_not_know_has_no_address() -> None:
    raw = json.loads(ras_server.json_text(all_reduce(3)))
    raw["communicators"][0]["ranks"][0].update(host="unknown", pid=-1)
    assert ras.parse(json.dumps(raw)).ranks == (Rank(0, "", 0, 0),)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{}", '{"communicators": 3}', '{"communicators": [3]}', '{"communicators": [{"ranks": 3}]}',
        '{"communicators": [{"ranks": [{"rank": 0}], "missing_ranks": []}]}',
        '{"communicators": [{"ranks": [{"rank": -1, "collective_counts": {}}], "missing_ranks": []}]}',
        '{"communicators": [{"ranks": [{"rank": 0, "collective_counts": {"A": "x"}}], "missing_ranks": []}]}',
        "{" * 5000, "HTTP/1.1 400 Bad Request\r\n",
    ],
)  # fmt: skip
def test_what_is_not_an_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        ras.parse(text)


@given(st.text())
def test_whatever_a_process_sends_is_an_answer_or_refused(noise: str) -> None:
    for text in (noise, f"Communicators...\n{noise}", ras_server.text(warnings=noise)):
        try:
            ras.parse(text)
        except ValueError:
            continue
