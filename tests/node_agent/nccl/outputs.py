"""Outputs of nccl-tests, made of rows in NVIDIA's own format. The A100's figures are those of the worked examples."""

from __future__ import annotations

_HALF = "     time   algbw   busbw #wrong"
_UNITS = "            (us)  (GB/s)  (GB/s)"
HEADER = f"#       size         count      type   redop    root{_HALF}{_HALF}\n"
UNITS = f"#        (B)    (elements)                       {_UNITS}{_UNITS}\n"
_10G = " 10737418240    2684354560     float     sum      -1"
_8G = "  8589934592    2147483648     float     sum      -1"
TUNED = f"{_10G}    89649  119.77  224.57      0    89528  119.93  224.87      0\n"
MISTUNED = f"{_8G}   225083   38.16   71.56      0   225082   38.16   71.56      0\n"
ALONE = f"{_10G}    80978  132.60  232.04      0    81154  132.31  231.54      0\n"
BOUNDS = "# Out of bounds values : 0 OK\n"


def output(
    *rows: str, ranks: int = 16, tables: int = 1, end: str = BOUNDS, program: str = "", gpu: str = "GPU", each: int = 8
) -> list[str]:
    """The lines of a run.

    Args:
        gpu: its name, as CUDA reports it.
        each: ranks on a node.
        program: its name, as versions since 2.17.4 print it; older ones print none.
    """
    begin = (
        "# nThread 1 nGpus 1 minBytes 64 maxBytes 10737418240 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"
    )
    starting = f"# Collective test starting: {program}\n" if program else ""
    devices = [
        f"#  Rank {rank:2} Group  0 Pid {rank} on node-{rank // each} device  {rank % each} [0000:0f:00] {gpu}\n"
        for rank in range(ranks)
    ]
    return [*([starting] if program else []), begin, *devices, *([HEADER, UNITS] * tables), *rows, end,
            "# Avg bus bandwidth    : 24.2\n"]  # fmt: skip


def row(
    algbw: float, factor: float, *, operator: str = "sum", root: int = -1, size: int = 8 << 30, wrong: str = "0"
) -> str:
    """A row with the bus bandwidth that follows from the factor."""
    half = f"{size / algbw / 1000:8.1f} {algbw:7.2f} {algbw * factor:7.2f} {wrong:>6}"
    return f" {size} {size // 4} float {operator:>7} {root:>7} {half} {half}\n"
