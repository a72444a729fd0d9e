"""Lines of NCCL's log in the formats of its source (`info_log`)."""

from __future__ import annotations

from gpucluster.node_agent.nccl.shape_limits import SHAPES

H100, A100, B200, A10 = (SHAPES[f"BM.GPU{name}"] for name in (".H100.8", "4.8", ".B200.8", ".A10.4"))


def info(text: str, host: str = "node-0", gpu: int = 0) -> str:
    return f"{host}:4711:4720 [{gpu}] NCCL INFO {text}\n"


def devices(names: tuple[str, ...], host: str = "node-0") -> str:
    listed = "".join(f" [{number}]{name}:1/RoCE" for number, name in enumerate(names))
    return info(f"NET/IB : Using{listed} [RO]; OOB eth0:10.0.0.4<0>", host)
