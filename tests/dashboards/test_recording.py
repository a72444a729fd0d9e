# ruff: noqa: E501 - a series and its values are one line
"""Recording rules on what goes wrong in a cluster: series that are there twice, shared nodes, counters that wrap, gaps.

promtool fails when a rule can't be evaluated, which is how a join that multiplies series shows itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboards import promtool
from tests.dashboards.promtool import SHAPE

pytestmark = pytest.mark.slow

N1 = 'node="gpu-1", pool="gpu"'
N2 = 'node="gpu-2", pool="gpu"'
DCGM = 'UUID="GPU-5e1b", device="nvidia0", modelName="NVIDIA H100 80GB HBM3", Hostname="gpu-1", pci_bus_id="00000000:0F:00.0"'
ODD = 'name="a \\"b\\" {c}\\nd\\\\", user="o\'brien", account="äöü", partition="gpu"'


def returns(expr: str, *samples: tuple[str, float], at: str = "10m") -> dict[str, Any]:
    expected = [{"labels": labels, "value": value} for labels, value in samples]
    return {"expr": expr, "eval_time": at, "exp_samples": expected}


def _twice(series: dict[str, str]) -> dict[str, str]:
    """The same node under two addresses, as its targets are for a moment after it came back."""
    return {
        metric.replace("{", f'{{instance="10.0.0.{host}:9400", job="dcgm", ', 1): values
        for metric, values in series.items()
        for host in (5, 6)
    }


SCENARIOS = [
    promtool.scenario(
        "two jobs on one node, each with GPUs of its own, one GPU of no job; all targets twice",
        _twice({
            f'gpucluster_job_node{{{N1}, job_id="12"}}': "1x40",
            f'gpucluster_job_node{{{N1}, job_id="13_4"}}': "1x40",
            f'gpucluster_job_gpu{{{N1}, job_id="12", gpu="0", uuid="GPU-0"}}': "1x40",
            f'gpucluster_job_gpu{{{N1}, job_id="12", gpu="1", uuid="GPU-1"}}': "1x40",
            f'gpucluster_job_gpu{{{N1}, job_id="13_4", gpu="2", uuid="GPU-2"}}': "1x40",
            f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="0", {DCGM}}}': "100x40",
            f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="1", {DCGM}}}': "50x40",
            f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="2", {DCGM}}}': "20x40",
            f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="3", {DCGM}}}': "7x40",
            f'DCGM_FI_DEV_POWER_USAGE{{{N1}, gpu="0", {DCGM}}}': "300x40",
            f'DCGM_FI_DEV_POWER_USAGE{{{N1}, gpu="1", {DCGM}}}': "200x40",
            f"node_memory_MemTotal_bytes{{{N1}}}": "1000x40",
            f"node_memory_MemAvailable_bytes{{{N1}}}": "400x40",
            f'gpucluster_rdma_received_bytes_total{{{N1}, device="mlx5_0", port="1"}}': "0+3000x40",
            f'gpucluster_rdma_received_bytes_total{{{N1}, device="mlx5_1", port="1"}}': "0+1500x40",
            f'gpucluster_slurm_job_info{{job_id="12", {ODD}}}': "1x40",
        }),
        [
            returns("gpucluster:job_gpu_utilization:ratio",
                    ('gpucluster:job_gpu_utilization:ratio{job_id="12"}', 0.75),
                    ('gpucluster:job_gpu_utilization:ratio{job_id="13_4"}', 0.2)),
            returns("gpucluster:job_gpu_power:watts", ('gpucluster:job_gpu_power:watts{job_id="12"}', 500)),
            # What is counted for a node belongs to both.
            returns("gpucluster:job_memory_used:bytes",
                    ('gpucluster:job_memory_used:bytes{job_id="12"}', 600),
                    ('gpucluster:job_memory_used:bytes{job_id="13_4"}', 600)),
            returns('gpucluster:job_rdma_receive:bytes_per_second{job_id="12"}',
                    ('gpucluster:job_rdma_receive:bytes_per_second{job_id="12"}', 150)),
            returns('gpucluster:job_gpus:count{job_id="12"}', ('gpucluster:job_gpus:count{job_id="12"}', 2)),
            returns("count(gpucluster:gpu_utilization:ratio)", ("{}", 4)),
        ],
    ),
    promtool.scenario(
        "a job that two nodes call hung, one of them with the rank; one that works elsewhere; idle GPUs; all targets twice",
        _twice({
            f'gpucluster_job_state{{{N1}, job_id="12", state="hung"}}': "1x40",
            f'gpucluster_job_rank_info{{{N1}, job_id="12", state="hung", rank="2"}}': "1x40",
            'gpucluster_job_state{node="gpu-2", job_id="12", state="hung"}': "1x40",
            f'gpucluster_job_state{{{N1}, job_id="13", state="hung"}}': "1x40",
            'gpucluster_job_state{node="gpu-2", job_id="13", state="working"}': "1x40",
            f'gpucluster_job_state{{{N1}, job_id="14", state="hung"}}': "1x40",
            f'gpucluster_job_gpu_idle_seconds{{{N1}, job_id="14", gpu="0"}}': "3600x40",
            'gpucluster_job_gpu_idle_seconds{node="gpu-2", job_id="14", gpu="0"}': "1800x40",
        }),
        [
            returns("gpucluster:job_stuck:info",
                    ('gpucluster:job_stuck:info{job_id="12", state="hung", rank="2"}', 1),
                    ('gpucluster:job_stuck:info{job_id="14", state="hung"}', 1)),
            returns("gpucluster:job_gpus_idle:hours", ('gpucluster:job_gpus_idle:hours{job_id="14"}', 1.5)),
        ],
    ),
    promtool.scenario(
        "one job on two nodes, and a GPU that two jobs share",
        {
            **{f'gpucluster_job_node{{node="{node}", pool="gpu", job_id="7"}}': "1x40" for node in ("gpu-1", "gpu-2")},
            **{f'gpucluster_job_gpu{{node="{node}", pool="gpu", job_id="7", gpu="0", uuid="u"}}': "1x40"
               for node in ("gpu-1", "gpu-2")},
            f'gpucluster_job_gpu{{{N1}, job_id="8", gpu="0", uuid="u"}}': "1x40",
            f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="0"}}': "100x40",
            f'DCGM_FI_DEV_GPU_UTIL{{{N2}, gpu="0"}}': "50x40",
            f'DCGM_FI_DEV_FB_USED{{{N1}, gpu="0"}}': "1x40",
            f'DCGM_FI_DEV_FB_USED{{{N2}, gpu="0"}}': "2x40",
        },
        [
            returns("gpucluster:job_nodes:count", ('gpucluster:job_nodes:count{job_id="7"}', 2)),
            returns("gpucluster:job_gpu_utilization:ratio",
                    ('gpucluster:job_gpu_utilization:ratio{job_id="7"}', 0.75),
                    ('gpucluster:job_gpu_utilization:ratio{job_id="8"}', 1)),
            returns("gpucluster:job_gpu_memory_used:bytes",
                    ('gpucluster:job_gpu_memory_used:bytes{job_id="7"}', 3 * 1048576),
                    ('gpucluster:job_gpu_memory_used:bytes{job_id="8"}', 1048576)),
        ],
    ),
    promtool.scenario(
        "a GPU that is split by MIG: rows of its instances, some also once for each container",
        # Numbers that binary fractions hold: the order in which they are added does not matter.
        {
            **{f'DCGM_FI_DEV_FB_USED{{{N1}, gpu="0", GPU_I_PROFILE="3g.40gb", GPU_I_ID="{part}"}}': "100x40" for part in (1, 2)},
            **{f'DCGM_FI_DEV_FB_FREE{{{N1}, gpu="0", GPU_I_PROFILE="3g.40gb", GPU_I_ID="{part}"}}': "300x40" for part in (1, 2)},
            f'DCGM_FI_DEV_FB_USED{{{N1}, gpu="0", GPU_I_PROFILE="3g.40gb", GPU_I_ID="2", container="a"}}': "100x40",
            f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{N1}, gpu="0", GPU_I_PROFILE="3g.40gb", GPU_I_ID="1"}}': "0.5x40",
            f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{N1}, gpu="0", GPU_I_PROFILE="3g.40gb", GPU_I_ID="2"}}': "0.125x40",
            f'DCGM_FI_DEV_GPU_TEMP{{{N1}, gpu="0", GPU_I_PROFILE="3g.40gb", GPU_I_ID="1"}}': "41x40",
            f'DCGM_FI_DEV_GPU_TEMP{{{N1}, gpu="0", GPU_I_PROFILE="3g.40gb", GPU_I_ID="2"}}': "41x40",
            # A GPU that is not split has both: the counter of the whole GPU reports it.
            f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="1"}}': "80x40",
            f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{N1}, gpu="1"}}': "0.7x40",
            f'DCGM_FI_DEV_POWER_USAGE{{{N1}, gpu="0", GPU_I_PROFILE="3g.40gb", GPU_I_ID="1"}}': "300x40",
            f'DCGM_FI_DEV_POWER_USAGE{{{N1}, gpu="1"}}': "500x40",
            # An instance each; both of them; one and the whole GPU; one that the node does not know.
            f'gpucluster_job_gpu{{{N1}, job_id="3", gpu="0", gpu_instance="1", uuid="MIG-1"}}': "1x40",
            f'gpucluster_job_gpu{{{N1}, job_id="4", gpu="0", gpu_instance="2", uuid="MIG-2"}}': "1x40",
            **{f'gpucluster_job_gpu{{{N1}, job_id="5", gpu="0", gpu_instance="{part}", uuid="MIG-{part}"}}': "1x40"
               for part in (1, 2)},
            f'gpucluster_job_gpu{{{N1}, job_id="6", gpu="0", gpu_instance="2", uuid="MIG-2"}}': "1x40",
            f'gpucluster_job_gpu{{{N1}, job_id="6", gpu="1", uuid="GPU-1"}}': "1x40",
            f'gpucluster_job_gpu{{{N1}, job_id="7", gpu="unknown-1", gpu_instance="unknown", uuid=""}}': "1x40",
            f'gpucluster_job_gpu{{{N1}, job_id="8", gpu="1", uuid="GPU-1"}}': "1x40",
        },
        [
            returns("gpucluster:gpu_utilization:ratio",
                    (f'gpucluster:gpu_utilization:ratio{{{N1}, gpu="0"}}', 0.3125),
                    (f'gpucluster:gpu_utilization:ratio{{{N1}, gpu="1"}}', 0.8)),
            returns("gpucluster:gpu_memory_used:bytes", (f'gpucluster:gpu_memory_used:bytes{{{N1}, gpu="0"}}', 200 * 1048576)),
            returns("gpucluster:gpu_memory_total:bytes", (f'gpucluster:gpu_memory_total:bytes{{{N1}, gpu="0"}}', 800 * 1048576)),
            returns("gpucluster:gpu_temperature:celsius", (f'gpucluster:gpu_temperature:celsius{{{N1}, gpu="0"}}', 41)),
            returns("gpucluster:job_gpu_utilization:ratio",
                    ('gpucluster:job_gpu_utilization:ratio{job_id="3"}', 0.5),
                    ('gpucluster:job_gpu_utilization:ratio{job_id="4"}', 0.125),
                    ('gpucluster:job_gpu_utilization:ratio{job_id="5"}', 0.3125),
                    ('gpucluster:job_gpu_utilization:ratio{job_id="6"}', 0.4625),
                    ('gpucluster:job_gpu_utilization:ratio{job_id="8"}', 0.8)),
            # The whole GPU 1 reports no memory here.
            returns("gpucluster:job_gpu_memory_used:bytes",
                    *((f'gpucluster:job_gpu_memory_used:bytes{{job_id="{job}"}}', number * 100 * 1048576)
                      for job, number in ((3, 1), (4, 1), (5, 2), (6, 1)))),
            returns("gpucluster:job_gpu_power:watts", ('gpucluster:job_gpu_power:watts{job_id="8"}', 500)),
            returns("gpucluster:job_gpu_temperature:celsius",
                    *((f'gpucluster:job_gpu_temperature:celsius{{job_id="{job}"}}', 41) for job in (3, 4, 5, 6))),
            returns("gpucluster:job_gpus:count",
                    *((f'gpucluster:job_gpus:count{{job_id="{job}"}}', number)
                      for job, number in ((3, 1), (4, 1), (5, 2), (6, 2), (7, 1), (8, 1)))),
            returns('gpucluster:job_gpu_instances:count{job_id=~"[58]"}',
                    ('gpucluster:job_gpu_instances:count{job_id="5", node="gpu-1"}', 2)),
        ],
    ),
    promtool.scenario(
        "instances of a GPU without DCGM: nvidia-smi has their memory, and the use of the whole GPU, if any, is nobody's",
        {
            f'gpucluster_gpu_utilization_ratio{{{N1}, gpu="0", uuid="u"}}': "1x40",
            f'gpucluster_gpu_memory_used_bytes{{{N1}, gpu="0", uuid="u"}}': "900x40",
            f'gpucluster_gpu_power_watts{{{N1}, gpu="0", uuid="u"}}': "700x40",
            f'gpucluster_gpu_instance_memory_used_bytes{{{N1}, gpu="0", gpu_instance="9", uuid="MIG-9"}}': "200x40",
            f'gpucluster_job_gpu{{{N1}, job_id="3", gpu="0", gpu_instance="9", uuid="MIG-9"}}': "1x40",
            # On this node only the instance is not measured, on another one the watcher calls the job hung.
            f'gpucluster_job_state{{{N1}, job_id="3", state="unmeasured"}}': "1x40",
            'gpucluster_job_state{node="gpu-2", job_id="3", state="hung"}': "1x40",
        },
        [
            returns("gpucluster:job_gpu_utilization:ratio"),
            returns("gpucluster:job_gpu_power:watts"),
            returns("gpucluster:job_stuck:info"),
            returns("gpucluster:job_gpu_memory_used:bytes", ('gpucluster:job_gpu_memory_used:bytes{job_id="3"}', 200)),
        ],
    ),
    promtool.scenario(
        "nodes without DCGM are read by our exporter, and a node that moves to another pool is there twice",
        {
            f'gpucluster_gpu_utilization_ratio{{{N2}, gpu="0", uuid="u"}}': "0.4x40",
            'gpucluster_gpu_utilization_ratio{node="gpu-2", pool="new", gpu="0", uuid="u"}': "0.4x40",
            f'gpucluster_gpu_memory_total_bytes{{{N2}, gpu="0", uuid="u"}}': "5x40",
            f'gpucluster_job_gpu{{{N2}, job_id="9", gpu="0", uuid="u"}}': "1x40",
            f'up{{{N2}, shape="{SHAPE}", job="node"}}': "1x40",
            f'up{{node="gpu-2", pool="new", shape="{SHAPE}", job="node"}}': "1x40",
            # A shape that shapes.toml does not have, and a host that is not a node.
            'up{node="gpu-3", pool="x", shape="BM.New.8", job="node"}': "1x40",
            'up{node="controller", job="node"}': "1x40",
        },
        [
            returns("gpucluster:job_gpu_utilization:ratio", ('gpucluster:job_gpu_utilization:ratio{job_id="9"}', 0.4)),
            returns("gpucluster:gpu_memory_total:bytes", (f'gpucluster:gpu_memory_total:bytes{{{N2}, gpu="0"}}', 5)),
            returns("gpucluster:node_gpus_nominal:count",
                    (f"gpucluster:node_gpus_nominal:count{{{N2}}}", 8),
                    ('gpucluster:node_gpus_nominal:count{node="gpu-2", pool="new"}', 8)),
        ],
    ),
    promtool.scenario(
        "counters that wrap, are set back, and have gaps",
        {
            # Wraps at 2^32 after the tenth scrape, and goes on at the same speed: 30 a second.
            f'gpucluster_rdma_received_bytes_total{{{N1}, device="wraps", port="1"}}': "4294958296+900x9 0+900x40",
            f'gpucluster_rdma_received_bytes_total{{{N1}, device="reset", port="1"}}': "1e15+900x9 0+900x40",
            f'gpucluster_rdma_received_bytes_total{{{N1}, device="gap", port="1"}}': "0+900x9 _x3 11700+900x40",
            f'gpucluster_rdma_received_bytes_total{{{N1}, device="gone", port="1"}}': "0+900x9 stale",
            f'node_cpu_seconds_total{{{N1}, cpu="0", mode="idle"}}': "1000+15x9 0+15x40",
            f'node_cpu_seconds_total{{{N1}, cpu="1", mode="idle"}}': "1000+15x9 0+15x40",
        },
        [
            returns('gpucluster:rdma_receive:bytes_per_second < 0 or gpucluster:rdma_receive:bytes_per_second > 31', at="6m"),
            returns("count_over_time((gpucluster:rdma_receive:bytes_per_second < 0)[15m:30s])", at="15m"),
            returns("max_over_time(gpucluster:node_cpu_utilization:ratio[15m]) > 1", at="15m"),
            returns("gpucluster:rdma_receive:bytes_per_second",
                    *[(f'gpucluster:rdma_receive:bytes_per_second{{{N1}, device="{device}", port="1"}}', 30)
                      for device in ("wraps", "reset", "gap")], at="15m"),
        ],
    ),
    promtool.scenario(
        "a share that is mounted twice, and interfaces that count the same bytes again",
        {
            f'node_mountstats_nfs_total_read_bytes_total{{{N1}, export="10.0.0.2:/home", protocol="tcp", mountaddr="10.0.0.2"}}':
                "0+300x40",
            f'node_mountstats_nfs_total_read_bytes_total{{{N1}, export="10.0.0.2:/data", protocol="tcp", mountaddr="10.0.0.2"}}':
                "0+600x40",
            f'node_network_receive_bytes_total{{{N1}, device="eth0"}}': "0+3000x40",
            f'node_network_receive_bytes_total{{{N1}, device="lo"}}': "0+3000x40",
            f'node_network_receive_bytes_total{{{N1}, device="veth12ab"}}': "0+3000x40",
            f'gpucluster_job_node{{{N1}, job_id="12"}}': "1x40",
        },
        [
            returns("gpucluster:job_filesystem_read:bytes_per_second",
                    ('gpucluster:job_filesystem_read:bytes_per_second{job_id="12"}', 30)),
            returns("gpucluster:job_network_receive:bytes_per_second",
                    ('gpucluster:job_network_receive:bytes_per_second{job_id="12"}', 100)),
        ],
    ),
    promtool.scenario(
        "all GPUs of a node are lost at once; those of a node that was taken away are not",
        {
            **{f'up{{job="{job}", {N1}, shape="{SHAPE}"}}': "1x80" for job in ("node", "dcgm")},
            **{f'DCGM_FI_DEV_GPU_TEMP{{{N1}, gpu="{gpu}"}}': "40x20 stale" for gpu in range(8)},
            f'up{{job="node", {N2}, shape="{SHAPE}"}}': "1x20 stale",
            **{f'DCGM_FI_DEV_GPU_TEMP{{{N2}, gpu="{gpu}"}}': "40x20 stale" for gpu in range(8)},
            # Its exporter does not answer: that is reported by another alert.
            f'up{{job="dcgm", node="gpu-4", pool="gpu", shape="{SHAPE}"}}': "1x20 0x60",
            **{f'DCGM_FI_DEV_GPU_TEMP{{node="gpu-4", pool="gpu", gpu="{gpu}"}}': "40x20 stale" for gpu in range(8)},
        },
        [returns('count by (node) (ALERTS{alertname="GpuLost", alertstate="firing"})', ('{node="gpu-1"}', 1), at="30m")],
    ),
]  # fmt: skip


def test_the_recording_rules(tmp_path: Path) -> None:
    promtool.run(tmp_path, SCENARIOS)
