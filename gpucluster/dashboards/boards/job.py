"""One job: what its GPUs and nodes do."""

from __future__ import annotations

from gpucluster.dashboards.boards.names import (
    JOB,
    OF_JOB,
    ON_JOB_CARDS,
    ON_JOB_GPUS,
    ON_JOB_INSTANCES,
    ON_JOB_NODES,
    TO_NODE,
)
from gpucluster.dashboards.grafana import DashboardRow, Json, PanelQuery, Variable, dashboard, stat, table, timeseries


def job() -> Json:
    """The dashboard."""
    return dashboard(
        JOB,
        "Job",
        "One job: what its GPUs and nodes do. What is counted for a node belongs to all jobs that share it.",
        [
            DashboardRow(
                "Job",
                [
                    table(
                        "Job",
                        "What Slurm reported of it in the time that is shown.",
                        PanelQuery(
                            "max by (job_id, name, user, account, partition)"
                            f" (last_over_time(gpucluster_slurm_job_info{{{OF_JOB}}}[$__range]))"
                        ),
                        columns={
                            "job_id": "Job",
                            "name": "Name",
                            "user": "User",
                            "account": "Account",
                            "partition": "Partition",
                        },
                        width=12,
                    ),
                    stat(
                        "Nodes",
                        "Nodes of the job.",
                        "short",
                        PanelQuery(f"gpucluster:job_nodes:count{{{OF_JOB}}}", "nodes"),
                    ),
                    stat(
                        "GPUs",
                        "GPUs of the job.",
                        "short",
                        PanelQuery(f"gpucluster:job_gpus:count{{{OF_JOB}}}", "GPUs"),
                    ),
                    stat(
                        "Power",
                        "Electrical power of its GPUs; none where it has instances (MIG).",
                        "watt",
                        PanelQuery(f"gpucluster:job_gpu_power:watts{{{OF_JOB}}}", "power"),
                    ),
                ],
            ),
            DashboardRow(
                "GPUs",
                [
                    timeseries(
                        "Utilisation",
                        "Mean of the job's GPUs.",
                        "percentunit",
                        PanelQuery(f"gpucluster:job_gpu_utilization:ratio{{{OF_JOB}}}", "mean"),
                        most=1,
                    ),
                    timeseries(
                        "Utilisation of each GPU",
                        "One that does less than the others makes all of them wait.",
                        "percentunit",
                        PanelQuery(f"gpucluster:gpu_utilization:ratio {ON_JOB_GPUS}", "{{node}} GPU {{gpu}}"),
                        PanelQuery(
                            f"gpucluster:gpu_instance_utilization:ratio {ON_JOB_INSTANCES}",
                            "{{node}} GPU {{gpu}} instance {{gpu_instance}}",
                        ),
                        most=1,
                    ),
                    timeseries(
                        "Memory",
                        "Memory that is used of all its GPUs.",
                        "bytes",
                        PanelQuery(f"gpucluster:job_gpu_memory_used:bytes{{{OF_JOB}}}", "used"),
                    ),
                    timeseries(
                        "Power",
                        "Electrical power of all its GPUs; none where it has instances (MIG).",
                        "watt",
                        PanelQuery(f"gpucluster:job_gpu_power:watts{{{OF_JOB}}}", "power"),
                    ),
                    timeseries(
                        "Temperature",
                        "Of its hottest GPU.",
                        "celsius",
                        PanelQuery(f"gpucluster:job_gpu_temperature:celsius{{{OF_JOB}}}", "hottest"),
                        limits={85: "red"},
                    ),
                    timeseries(
                        "Slowed down",
                        "Part of the time in which a GPU was slowed down, by cause.",
                        "percentunit",
                        PanelQuery(f"gpucluster:gpu_throttled:ratio {ON_JOB_CARDS}", "{{node}} GPU {{gpu}} {{cause}}"),
                    ),
                ],
            ),
            DashboardRow(
                "Network and file systems",
                [
                    timeseries(
                        "RDMA",
                        "All RDMA devices of its nodes.",
                        "Bps",
                        PanelQuery(f"gpucluster:job_rdma_receive:bytes_per_second{{{OF_JOB}}}", "received"),
                        PanelQuery(f"gpucluster:job_rdma_transmit:bytes_per_second{{{OF_JOB}}}", "sent"),
                    ),
                    timeseries(
                        "RDMA errors",
                        "Errors, and packets that were lost or sent again, on its nodes.",
                        "short",
                        PanelQuery(
                            f"gpucluster:rdma_errors:per_second > 0 {ON_JOB_NODES}", "{{node}} {{device}} {{counter}}"
                        ),
                    ),
                    timeseries(
                        "Network",
                        "All other interfaces of its nodes.",
                        "Bps",
                        PanelQuery(f"gpucluster:job_network_receive:bytes_per_second{{{OF_JOB}}}", "received"),
                        PanelQuery(f"gpucluster:job_network_transmit:bytes_per_second{{{OF_JOB}}}", "sent"),
                    ),
                    timeseries(
                        "Shared file systems",
                        "What its nodes read and write over NFS.",
                        "Bps",
                        PanelQuery(f"gpucluster:job_filesystem_read:bytes_per_second{{{OF_JOB}}}", "read"),
                        PanelQuery(f"gpucluster:job_filesystem_write:bytes_per_second{{{OF_JOB}}}", "written"),
                    ),
                    table(
                        "RDMA counters",
                        "How far each counter of the job's nodes has grown in the time that is shown."
                        " Choose the time of the job.",
                        PanelQuery(
                            "max by (node, device, port, counter) (increase(gpucluster_rdma_counter_total[$__range]))"
                            f" > 0 and on (node) last_over_time(gpucluster_job_node{{{OF_JOB}}}[$__range])"
                        ),
                        columns={
                            "node": "Node",
                            "device": "Device",
                            "port": "Port",
                            "counter": "Counter",
                            "Value": "Growth",
                        },
                        units={"Growth": "short"},
                        links=TO_NODE,
                    ),
                ],
            ),
            DashboardRow(
                "Nodes",
                [
                    timeseries(
                        "CPU",
                        "Mean of all processors of its nodes.",
                        "percentunit",
                        PanelQuery(f"gpucluster:job_cpu_utilization:ratio{{{OF_JOB}}}", "mean"),
                        most=1,
                    ),
                    timeseries(
                        "Memory",
                        "Memory that is used on its nodes.",
                        "bytes",
                        PanelQuery(f"gpucluster:job_memory_used:bytes{{{OF_JOB}}}", "used"),
                    ),
                ],
            ),
        ],
        [Variable("job_id", "Job", "gpucluster_job_node")],
    )
