"""The factor between what an operation moves and what a link carries."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.nccl import collectives
from gpucluster.node_agent.nccl.judge import FAIL, PASS, ExpectedRun
from tests.node_agent.nccl.outputs import output, row
from tests.node_agent.nccl.verdicts import of, verdict


@pytest.mark.parametrize("name", sorted(collectives.COLLECTIVES))
@pytest.mark.parametrize("ranks", [2, 8, 16, 64])
def test_the_factor_of_each_operation_shows_how_many_ranks_there_were(name: str, ranks: int) -> None:
    known = collectives.COLLECTIVES[name]
    line = row(20.0, known.factor(ranks), operator="sum" if known.reduces else "none", root=0 if known.rooted else -1)
    text = output(line, ranks=ranks, program=f"{name}_perf")
    wanted = ExpectedRun(None, max(ranks // 8, 1), min(ranks, 8), expect=1)
    assert of(text, wanted) == PASS, verdict(text, wanted)
    assert verdict(text, wanted).ranks == ranks
    if known.ranks is not None:
        more = wanted._replace(nodes=wanted.nodes * 2)
        assert of(text, more) == FAIL
