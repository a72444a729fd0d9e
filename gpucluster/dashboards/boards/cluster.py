"""The cluster: whether it works, and how much of it is used."""

from __future__ import annotations

from gpucluster.dashboards.boards.names import CLUSTER, OF_POOL, POOL, RED_BELOW_1, TO_JOB, TO_NODE
from gpucluster.dashboards.grafana import DashboardRow, Json, PanelQuery, dashboard, stat, table, timeseries


def cluster() -> Json:
    """The dashboard."""
    return dashboard(
        CLUSTER,
        "Cluster",
        "Whether the cluster works, and how much of it is used.",
        [
            DashboardRow(
                "Now",
                [
                    stat(
                        "Slurm",
                        "1 while slurmctld answers.",
                        "short",
                        PanelQuery("max(gpucluster_slurm_up)"),
                        limits=RED_BELOW_1,
                    ),
                    stat(
                        "Nodes",
                        "Nodes of Slurm by state.",
                        "short",
                        PanelQuery("gpucluster:slurm_nodes:count", "{{state}}"),
                        width=8,
                    ),
                    stat(
                        "Jobs",
                        "Jobs of Slurm by state.",
                        "short",
                        PanelQuery("gpucluster:slurm_jobs:count", "{{state}}"),
                        width=6,
                    ),
                    stat(
                        "GPUs",
                        "GPUs that Slurm has given to jobs, and all GPUs.",
                        "short",
                        PanelQuery("gpucluster:slurm_gpus:count", "{{state}}"),
                        width=6,
                    ),
                    table(
                        "Alerts",
                        "Alerts that fire now. Prometheus has the next command of each, at /alerts.",
                        PanelQuery('ALERTS{alertstate="firing"}'),
                        columns={
                            "severity": "Severity",
                            "alertname": "Alert",
                            "node": "Node",
                            "job_id": "Job",
                            "gpu": "GPU",
                            "device": "Device",
                            "check": "Check",
                        },
                        links={**TO_NODE, **TO_JOB},
                    ),
                ],
            ),
            DashboardRow(
                "Use",
                [
                    timeseries(
                        "GPU utilisation",
                        "Mean of all GPUs of a pool.",
                        "percentunit",
                        PanelQuery(f"avg by (pool) (gpucluster:gpu_utilization:ratio{{{OF_POOL}}})", "{{pool}}"),
                        most=1,
                    ),
                    timeseries(
                        "GPU memory",
                        "Part of the memory of all GPUs of a pool that is used.",
                        "percentunit",
                        PanelQuery(
                            f"sum by (pool) (gpucluster:gpu_memory_used:bytes{{{OF_POOL}}})"
                            f" / sum by (pool) (gpucluster:gpu_memory_total:bytes{{{OF_POOL}}})",
                            "{{pool}}",
                        ),
                        most=1,
                    ),
                    timeseries(
                        "GPU power",
                        "Electrical power of all GPUs of a pool.",
                        "watt",
                        PanelQuery(f"sum by (pool) (gpucluster:gpu_power:watts{{{OF_POOL}}})", "{{pool}}"),
                        stacked=True,
                    ),
                    timeseries(
                        "RDMA",
                        "Bytes that all RDMA devices of a pool receive.",
                        "Bps",
                        PanelQuery(
                            f"sum by (pool) (gpucluster:rdma_receive:bytes_per_second{{{OF_POOL}}})", "{{pool}}"
                        ),
                    ),
                    timeseries(
                        "Shared file systems",
                        "Bytes that all nodes read and write over NFS.",
                        "Bps",
                        PanelQuery(f"sum(gpucluster:node_filesystem_read:bytes_per_second{{{OF_POOL}}})", "read"),
                        PanelQuery(f"sum(gpucluster:node_filesystem_write:bytes_per_second{{{OF_POOL}}})", "written"),
                    ),
                    timeseries(
                        "CPU",
                        "Mean of all processors of a pool.",
                        "percentunit",
                        PanelQuery(f"avg by (pool) (gpucluster:node_cpu_utilization:ratio{{{OF_POOL}}})", "{{pool}}"),
                        most=1,
                    ),
                ],
            ),
            DashboardRow(
                "Slurm",
                [
                    timeseries(
                        "Jobs",
                        "Jobs by state.",
                        "short",
                        PanelQuery("gpucluster:slurm_jobs:count", "{{state}}"),
                        stacked=True,
                    ),
                    timeseries(
                        "Nodes",
                        "Nodes by state.",
                        "short",
                        PanelQuery("gpucluster:slurm_nodes:count", "{{state}}"),
                        stacked=True,
                    ),
                    timeseries(
                        "Jobs by user",
                        "The ten users with the most jobs.",
                        "short",
                        PanelQuery(
                            "topk(10, sum by (user) (max by (user, account, state) (gpucluster_slurm_user_jobs)))",
                            "{{user}}",
                        ),
                        stacked=True,
                    ),
                    timeseries(
                        "CPUs",
                        "Processors of all nodes by state.",
                        "short",
                        PanelQuery("gpucluster:slurm_cpus:count", "{{state}}"),
                        stacked=True,
                    ),
                    timeseries(
                        "Scheduler",
                        "How long the last scheduling cycle took, and the last one of the backfill scheduler.",
                        "s",
                        PanelQuery("max(gpucluster_slurm_scheduler_last_cycle_seconds)", "main"),
                        PanelQuery("max(gpucluster_slurm_scheduler_backfill_last_cycle_seconds)", "backfill"),
                    ),
                    table(
                        "Running jobs",
                        "Running jobs. GPU use is the mean of the job's GPUs.",
                        PanelQuery("max by (job_id, name, user, account, partition) (gpucluster_slurm_job_info)"),
                        PanelQuery("gpucluster:job_nodes:count"),
                        PanelQuery("gpucluster:job_gpu_utilization:ratio"),
                        columns={
                            "job_id": "Job",
                            "name": "Name",
                            "user": "User",
                            "account": "Account",
                            "partition": "Partition",
                            "Value #B": "Nodes",
                            "Value #C": "GPU use",
                        },
                        units={"GPU use": "percentunit"},
                        links=TO_JOB,
                    ),
                ],
            ),
            DashboardRow(
                "Nodes",
                [
                    table(
                        "Nodes",
                        "Nodes that are measured: use of GPUs and processors, memory.",
                        PanelQuery(f"max by (node, pool, state) (gpucluster_slurm_node_state{{{OF_POOL}}})"),
                        PanelQuery(f"avg by (node, pool) (gpucluster:gpu_utilization:ratio{{{OF_POOL}}})"),
                        PanelQuery(f"gpucluster:node_cpu_utilization:ratio{{{OF_POOL}}}"),
                        PanelQuery(f"gpucluster:node_memory_used:bytes{{{OF_POOL}}}"),
                        columns={
                            "node": "Node",
                            "pool": "Pool",
                            "state": "State",
                            "Value #B": "GPU use",
                            "Value #C": "CPU use",
                            "Value #D": "Memory",
                        },
                        units={"GPU use": "percentunit", "CPU use": "percentunit", "Memory": "bytes"},
                        links=TO_NODE,
                    ),
                ],
            ),
        ],
        [POOL],
    )
