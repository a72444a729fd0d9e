"""Nodes, jobs and settings of a small cluster, as the monitor gets them."""

from __future__ import annotations

import json
from pathlib import Path

from gpucluster.controller.monitor.settings import ElasticPool, MonitorSettings, ScrapedHost
from gpucluster.controller.rules.slurm_nodes import NodeLine, node_flags


def node_line(name: str, state: str, *, gres: str = "gpu:8(S:0-1)", used: str = "gpu:(null):3(IDX:0-1,4)") -> str:
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 CPUAlloc=2 CPUEfctv=4 CPUTot=4 CPULoad=0.0 Gres={gres} "
        f"GresDrain=N/A GresUsed={used} NodeAddr=10.0.1.1 OS=Linux 6.1 CPUTot=9 State={state} ThreadsPerCore=1 "
        f"Owner=N/A Reason=a CPUAlloc=7 Gres=gpu:9 b [root@2026-01-01T00:00:00] Comment=CPUTot=3\n"
    )


SDIAG = """
*******************************************************
sdiag output at Mon Nov 23 02:41:00 2026 (1795401660)
Server thread count:  3
RPC queue enabled:    0
Agent queue size:     1
DBD Agent queue size: 2

Jobs submitted: 7
Jobs started:   6

Main schedule statistics (microseconds):
\tLast cycle:   1500
\tMean cycle:   900
\tLast queue length: 4

Backfilling stats
\tTotal backfilled jobs (since last slurm start): 5
\tLast cycle: 2500000
\tLast depth cycle: 8

Remote Procedure Call statistics by message type
\tREQUEST_JOB_INFO ( 2003) count:9      ave_time:200    total_time:1800
\tJobs submitted: 99
"""


SETTINGS = MonitorSettings(
    slurm=True,
    interval=30,
    jobs={"node": 9100, "dcgm": 9400},
    hosts=(
        ScrapedHost("ctl", "10.0.0.2", "", "", ("node",)),
        ScrapedHost("gpu-1", "10.0.1.1", "gpu", "BM", ("node", "dcgm")),
    ),
    elastic={"gpu": ElasticPool("gpu-e[1-3]", "BM", ("node", "dcgm"))},
    optional=frozenset({"dcgm"}),
)


def job(
    number: int, state: str = "RUNNING", name: str = "n", user: str = "alice", tasks: str = "N/A"
) -> tuple[str, ...]:
    return (str(number), str(number), tasks, "main", state, user, "root", name)


def node(name: str, state: str, address: str = "10.0.1.9") -> NodeLine:
    return NodeLine(name, node_flags(state), address)


def groups(folder: Path, job: str) -> dict[str, list[str]]:
    read = json.loads((folder / f"targets-{job}.json").read_text())
    return {each["labels"]["node"]: each["targets"] for each in read}
