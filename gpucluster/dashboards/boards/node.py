"""One host: its GPUs, network, file systems and checks."""

from __future__ import annotations

from gpucluster.dashboards.boards.names import NODE, OF_NODE, RED_BELOW_1, TO_JOB
from gpucluster.dashboards.grafana import Json, Query, Row, Variable, dashboard, stat, table, timeseries


def node() -> Json:
    """The dashboard."""
    return dashboard(
        NODE,
        "Node",
        "One host: its GPUs, network, file systems and checks.",
        [
            Row(
                "Now",
                [
                    stat(
                        "GPUs",
                        "GPUs that are seen, and how many the shape has.",
                        "short",
                        Query(f"gpucluster:node_gpus:count{{{OF_NODE}}}", "seen"),
                        Query(f"gpucluster:node_gpus_nominal:count{{{OF_NODE}}}", "of the shape"),
                        width=6,
                    ),
                    stat(
                        "RDMA devices",
                        "RDMA devices that are seen, and how many the shape has.",
                        "short",
                        Query(f"gpucluster:node_rdma_devices:count{{{OF_NODE}}}", "seen"),
                        Query(f"gpucluster:node_rdma_devices_nominal:count{{{OF_NODE}}}", "of the shape"),
                        width=6,
                    ),
                    stat(
                        "Exporters",
                        "1 for each exporter that answers.",
                        "short",
                        Query(f"up{{{OF_NODE}}}", "{{job}}"),
                        limits=RED_BELOW_1,
                        width=6,
                    ),
                    stat(
                        "Root file system",
                        "Part of the root file system that is used.",
                        "percentunit",
                        Query(
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
                        Query(f"gpucluster_job_node{{{OF_NODE}}}"),
                        columns={"job_id": "Job"},
                        links=TO_JOB,
                        width=8,
                    ),
                    table(
                        "Checks",
                        "The last result of each check.",
                        Query(f"gpucluster_health_check{{{OF_NODE}}}"),
                        columns={"check": "Check", "status": "Status"},
                        width=8,
                    ),
                    table(
                        "Failed units",
                        "Units of systemd that have failed.",
                        Query(f'node_systemd_unit_state{{{OF_NODE}, state="failed"}} == 1'),
                        columns={"name": "Unit"},
                        width=8,
                    ),
                ],
            ),
            Row(
                "GPUs",
                [
                    timeseries(
                        "Utilisation",
                        "Part of the time in which a program ran on the GPU.",
                        "percentunit",
                        Query(f"gpucluster:gpu_utilization:ratio{{{OF_NODE}}}", "GPU {{gpu}}"),
                        most=1,
                    ),
                    timeseries(
                        "Memory",
                        "Memory of the GPU that is used.",
                        "bytes",
                        Query(f"gpucluster:gpu_memory_used:bytes{{{OF_NODE}}}", "GPU {{gpu}}"),
                    ),
                    timeseries(
                        "Power",
                        "Electrical power.",
                        "watt",
                        Query(f"gpucluster:gpu_power:watts{{{OF_NODE}}}", "GPU {{gpu}}"),
                    ),
                    timeseries(
                        "Temperature",
                        "Of the GPU itself.",
                        "celsius",
                        Query(f"gpucluster:gpu_temperature:celsius{{{OF_NODE}}}", "GPU {{gpu}}"),
                        limits={85: "red"},
                    ),
                    timeseries(
                        "Slowed down",
                        "Part of the time in which the GPU was slowed down, by cause. Under full load the power"
                        " limit does that to most GPUs.",
                        "percentunit",
                        Query(f"gpucluster:gpu_throttled:ratio{{{OF_NODE}}}", "GPU {{gpu}} {{cause}}"),
                    ),
                    timeseries(
                        "Tensor cores",
                        "Part of the cycles in which tensor cores worked. Not every GPU says it.",
                        "percentunit",
                        Query(f"max by (gpu) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{OF_NODE}}})", "GPU {{gpu}}"),
                        most=1,
                    ),
                    timeseries(
                        "Xid",
                        "The code of the last error of the driver; 0 is none.",
                        "short",
                        Query(f"gpucluster:gpu_xid:code{{{OF_NODE}}}", "GPU {{gpu}}"),
                    ),
                    timeseries(
                        "Memory errors",
                        "Errors of memory since the last reset: corrected ones, and those that were not.",
                        "short",
                        Query(f"max by (gpu) (DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{OF_NODE}}})", "GPU {{gpu}} corrected"),
                        Query(
                            f"max by (gpu) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{OF_NODE}}})", "GPU {{gpu}} not corrected"
                        ),
                    ),
                ],
            ),
            Row(
                "Host",
                [
                    timeseries(
                        "CPU",
                        "Mean of all processors.",
                        "percentunit",
                        Query(f"gpucluster:node_cpu_utilization:ratio{{{OF_NODE}}}", "CPU"),
                        most=1,
                    ),
                    timeseries(
                        "Memory",
                        "Memory that programs use, and all of it.",
                        "bytes",
                        Query(f"gpucluster:node_memory_used:bytes{{{OF_NODE}}}", "used"),
                        Query(f"gpucluster:node_memory_total:bytes{{{OF_NODE}}}", "total"),
                    ),
                    timeseries(
                        "Network",
                        "All interfaces without RDMA.",
                        "Bps",
                        Query(f"gpucluster:node_network_receive:bytes_per_second{{{OF_NODE}}}", "received"),
                        Query(f"gpucluster:node_network_transmit:bytes_per_second{{{OF_NODE}}}", "sent"),
                    ),
                    timeseries(
                        "Shared file systems",
                        "Over NFS.",
                        "Bps",
                        Query(f"gpucluster:node_filesystem_read:bytes_per_second{{{OF_NODE}}}", "read"),
                        Query(f"gpucluster:node_filesystem_write:bytes_per_second{{{OF_NODE}}}", "written"),
                    ),
                    timeseries(
                        "Disks",
                        "Part of the time in which a disk worked.",
                        "percentunit",
                        Query(f"rate(node_disk_io_time_seconds_total{{{OF_NODE}}}[$__rate_interval])", "{{device}}"),
                        most=1,
                    ),
                    timeseries(
                        "File systems",
                        "Part of a file system that is used.",
                        "percentunit",
                        Query(
                            f"1 - node_filesystem_avail_bytes{{{OF_NODE}}} / node_filesystem_size_bytes{{{OF_NODE}}}",
                            "{{mountpoint}}",
                        ),
                        most=1,
                        limits={0.9: "red"},
                    ),
                ],
            ),
            Row(
                "RDMA",
                [
                    timeseries(
                        "Received",
                        "By device.",
                        "Bps",
                        Query(f"gpucluster:rdma_receive:bytes_per_second{{{OF_NODE}}}", "{{device}}"),
                    ),
                    timeseries(
                        "Sent",
                        "By device.",
                        "Bps",
                        Query(f"gpucluster:rdma_transmit:bytes_per_second{{{OF_NODE}}}", "{{device}}"),
                    ),
                ],
            ),
        ],
        [Variable("node", "Node", "up")],
    )
