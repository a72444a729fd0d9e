"""One host: its GPUs, network, file systems and checks."""

from __future__ import annotations

from gpucluster.dashboards.boards.names import NODE, OF_NODE, RED_BELOW_1, TO_JOB
from gpucluster.dashboards.grafana import DashboardRow, Json, PanelQuery, Variable, dashboard, stat, table, timeseries


def node() -> Json:
    """The dashboard."""
    return dashboard(
        NODE,
        "Node",
        "One host: its GPUs, network, file systems and checks.",
        [
            DashboardRow(
                "Now",
                [
                    stat(
                        "GPUs",
                        "GPUs that are seen, and how many the shape has.",
                        "short",
                        PanelQuery(f"gpucluster:node_gpus:count{{{OF_NODE}}}", "seen"),
                        PanelQuery(f"gpucluster:node_gpus_nominal:count{{{OF_NODE}}}", "of the shape"),
                        width=6,
                    ),
                    stat(
                        "RDMA devices",
                        "RDMA devices that are seen, and how many the shape has.",
                        "short",
                        PanelQuery(f"gpucluster:node_rdma_devices:count{{{OF_NODE}}}", "seen"),
                        PanelQuery(f"gpucluster:node_rdma_devices_nominal:count{{{OF_NODE}}}", "of the shape"),
                        width=6,
                    ),
                    stat(
                        "Exporters",
                        "1 for each exporter that answers.",
                        "short",
                        PanelQuery(f"up{{{OF_NODE}}}", "{{job}}"),
                        limits=RED_BELOW_1,
                        width=6,
                    ),
                    stat(
                        "Root file system",
                        "Part of the root file system that is used.",
                        "percentunit",
                        PanelQuery(
                            f'1 - node_filesystem_avail_bytes{{{OF_NODE}, mountpoint="/"}}'
                            f' / node_filesystem_size_bytes{{{OF_NODE}, mountpoint="/"}}',
                            "used",
                        ),
                        limits={0.8: "orange", 0.9: "red"},
                        width=6,
                    ),
                    table(
                        "Jobs",
                        "Jobs that run on the node now.",
                        PanelQuery(f"gpucluster_job_node{{{OF_NODE}}}"),
                        columns={"job_id": "Job"},
                        links=TO_JOB,
                        width=8,
                    ),
                    table(
                        "Checks",
                        "The last result of each check.",
                        PanelQuery(f"gpucluster_health_check{{{OF_NODE}}}"),
                        columns={"check": "Check", "status": "Status"},
                        width=8,
                    ),
                    table(
                        "Failed units",
                        "Units of systemd that have failed.",
                        PanelQuery(f'node_systemd_unit_state{{{OF_NODE}, state="failed"}} == 1'),
                        columns={"name": "Unit"},
                        width=8,
                    ),
                ],
            ),
            DashboardRow(
                "GPUs",
                [
                    timeseries(
                        "Utilisation",
                        "Part of the time in which a program ran on the GPU.",
                        "percentunit",
                        PanelQuery(f"gpucluster:gpu_utilization:ratio{{{OF_NODE}}}", "GPU {{gpu}}"),
                        most=1,
                    ),
                    timeseries(
                        "Memory",
                        "Memory of the GPU that is used.",
                        "bytes",
                        PanelQuery(f"gpucluster:gpu_memory_used:bytes{{{OF_NODE}}}", "GPU {{gpu}}"),
                    ),
                    timeseries(
                        "Power",
                        "Electrical power.",
                        "watt",
                        PanelQuery(f"gpucluster:gpu_power:watts{{{OF_NODE}}}", "GPU {{gpu}}"),
                    ),
                    timeseries(
                        "Temperature",
                        "Of the GPU itself.",
                        "celsius",
                        PanelQuery(f"gpucluster:gpu_temperature:celsius{{{OF_NODE}}}", "GPU {{gpu}}"),
                        limits={85: "red"},
                    ),
                    timeseries(
                        "Slowed down",
                        "Part of the time in which the GPU was slowed down, by cause. Under full load the power"
                        " limit does that to most GPUs.",
                        "percentunit",
                        PanelQuery(f"gpucluster:gpu_throttled:ratio{{{OF_NODE}}}", "GPU {{gpu}} {{cause}}"),
                    ),
                    timeseries(
                        "Tensor cores",
                        "Part of the cycles in which tensor cores worked. Not every GPU reports it.",
                        "percentunit",
                        PanelQuery(f"max by (gpu) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{OF_NODE}}})", "GPU {{gpu}}"),
                        most=1,
                    ),
                    timeseries(
                        "Xid",
                        "The code of the last error of the driver; 0 is none.",
                        "short",
                        PanelQuery(f"gpucluster:gpu_xid:code{{{OF_NODE}}}", "GPU {{gpu}}"),
                    ),
                    timeseries(
                        "Memory errors",
                        "Errors of memory since the last reset: corrected ones, and those that were not.",
                        "short",
                        PanelQuery(
                            f"max by (gpu) (DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{OF_NODE}}})", "GPU {{gpu}} corrected"
                        ),
                        PanelQuery(
                            f"max by (gpu) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{OF_NODE}}})", "GPU {{gpu}} not corrected"
                        ),
                    ),
                ],
            ),
            DashboardRow(
                "Host",
                [
                    timeseries(
                        "CPU",
                        "Mean of all processors.",
                        "percentunit",
                        PanelQuery(f"gpucluster:node_cpu_utilization:ratio{{{OF_NODE}}}", "CPU"),
                        most=1,
                    ),
                    timeseries(
                        "Memory",
                        "Memory that programs use, and all of it.",
                        "bytes",
                        PanelQuery(f"gpucluster:node_memory_used:bytes{{{OF_NODE}}}", "used"),
                        PanelQuery(f"gpucluster:node_memory_total:bytes{{{OF_NODE}}}", "total"),
                    ),
                    timeseries(
                        "Network",
                        "All interfaces without RDMA.",
                        "Bps",
                        PanelQuery(f"gpucluster:node_network_receive:bytes_per_second{{{OF_NODE}}}", "received"),
                        PanelQuery(f"gpucluster:node_network_transmit:bytes_per_second{{{OF_NODE}}}", "sent"),
                    ),
                    timeseries(
                        "Shared file systems",
                        "Over NFS.",
                        "Bps",
                        PanelQuery(f"gpucluster:node_filesystem_read:bytes_per_second{{{OF_NODE}}}", "read"),
                        PanelQuery(f"gpucluster:node_filesystem_write:bytes_per_second{{{OF_NODE}}}", "written"),
                    ),
                    timeseries(
                        "Disks",
                        "Part of the time in which a disk worked.",
                        "percentunit",
                        PanelQuery(
                            f"rate(node_disk_io_time_seconds_total{{{OF_NODE}}}[$__rate_interval])", "{{device}}"
                        ),
                        most=1,
                    ),
                    timeseries(
                        "File systems",
                        "Part of a file system that is used.",
                        "percentunit",
                        PanelQuery(
                            f"1 - node_filesystem_avail_bytes{{{OF_NODE}}} / node_filesystem_size_bytes{{{OF_NODE}}}",
                            "{{mountpoint}}",
                        ),
                        most=1,
                        limits={0.9: "red"},
                    ),
                ],
            ),
            DashboardRow(
                "RDMA",
                [
                    timeseries(
                        "Received",
                        "By device.",
                        "Bps",
                        PanelQuery(f"gpucluster:rdma_receive:bytes_per_second{{{OF_NODE}}}", "{{device}}"),
                    ),
                    timeseries(
                        "Sent",
                        "By device.",
                        "Bps",
                        PanelQuery(f"gpucluster:rdma_transmit:bytes_per_second{{{OF_NODE}}}", "{{device}}"),
                    ),
                ],
            ),
        ],
        [Variable("node", "Node", "up")],
    )
