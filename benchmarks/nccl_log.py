"""How long an output of nccl-tests with 10 MB of NCCL's own lines takes: removing secrets, and the verdict."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from gpucluster.measuring import results
from gpucluster.measuring.results import JobAnswer
from gpucluster.node_agent.rules.scrubbing import scrubbed_text
from tests.measuring.nccl_double import output

MEGABYTES = 10
_LINE = "gpu-1:4711:4820 [3] NCCL INFO Channel 07/16 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA port=1 qps=4\n"


def main(runs: int) -> None:
    """Print the figures."""
    text = _LINE * (MEGABYTES * 1_000_000 // len(_LINE)) + output(465.0, ["gpu-1", "gpu-2"])
    wanted = results.expectation("BM.GPU.H100.8", 2, 8, "default")
    rows: dict[str, Callable[[], object]] = {
        "removing secrets": lambda: scrubbed_text(text),
        "the verdict": lambda: results.nccl(JobAnswer("ended", "", 0, text), wanted),
    }
    for name, work in rows.items():
        times = []
        for _ in range(runs):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        print(f"{MEGABYTES} MB of nccl-tests, {name:<18}{statistics.median(times) * 1000:8.0f} ms")
