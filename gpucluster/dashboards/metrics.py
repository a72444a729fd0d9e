"""The series that are not ours but that rules and dashboards use, and the recording rules: what each of them shows.

docs/reference/metrics.md has them, with those of our own exporters, whose texts are where they are made.
"""

from __future__ import annotations

from collections.abc import Mapping

#: By exporter, the series that rules and dashboards use.
USED: Mapping[str, Mapping[str, str]] = {
    "node_exporter": {
        "node_cpu_seconds_total": "Seconds of a processor by mode.",
        "node_disk_io_time_seconds_total": "Seconds in which a disk worked.",
        "node_filesystem_avail_bytes": "Bytes of a file system that users may still write.",
        "node_filesystem_size_bytes": "Bytes of a file system.",
        "node_memory_MemAvailable_bytes": "Memory that programs could still get.",
        "node_memory_MemTotal_bytes": "Memory of the host.",
        "node_mountstats_nfs_total_read_bytes_total": "Bytes read from an NFS server (collector mountstats).",
        "node_mountstats_nfs_total_write_bytes_total": "Bytes written to an NFS server (collector mountstats).",
        "node_network_receive_bytes_total": "Bytes that an interface has received, without RDMA.",
        "node_network_transmit_bytes_total": "Bytes that an interface has sent, without RDMA.",
        "node_pressure_memory_stalled_seconds_total": "Seconds in which all programs waited for memory.",
        "node_systemd_unit_state": "1 for the state of a unit (collector systemd).",
        "node_time_seconds": "The host's clock.",
    },
    "dcgm-exporter": {
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": "Nanoseconds in which a limit of the board slowed the GPU down.",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "Errors of memory that could not be corrected, since the last reset.",
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "Errors of memory that were corrected, since the last reset.",
        "DCGM_FI_DEV_FB_FREE": "MiB of memory that are free.",
        "DCGM_FI_DEV_FB_RESERVED": "MiB of memory that the driver keeps.",
        "DCGM_FI_DEV_FB_TOTAL": "MiB of memory in all.",
        "DCGM_FI_DEV_FB_USED": "MiB of memory that are used.",
        "DCGM_FI_DEV_GPU_TEMP": "Temperature in degrees Celsius.",
        "DCGM_FI_DEV_GPU_UTIL": "Percent of the time in which a program ran. Not where MIG splits the GPU.",
        "DCGM_FI_DEV_POWER_USAGE": "Electrical power in watts.",
        "DCGM_FI_DEV_POWER_VIOLATION": "Nanoseconds in which the power limit slowed the GPU down.",
        "DCGM_FI_DEV_RELIABILITY_VIOLATION": "Nanoseconds in which a limit of reliability slowed the GPU down.",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": "1 if a row of memory could not be replaced.",
        "DCGM_FI_DEV_ROW_REMAP_PENDING": "1 if a row of memory is replaced by the next reset.",
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": "Nanoseconds in which GPUs of one group slowed each other down.",
        "DCGM_FI_DEV_THERMAL_VIOLATION": "Nanoseconds in which heat slowed the GPU down.",
        "DCGM_FI_DEV_XID_ERRORS": "The last Xid. It stays until the next one, or until the exporter is restarted.",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "Part of the time in which the compute engine worked; by MIG instance.",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "Part of the cycles in which tensor cores worked.",
    },
    "Prometheus": {
        "ALERTS": "1 for each alert that is pending or firing.",
        "up": "1 if the target answered.",
        "scrape_duration_seconds": "Seconds that a target needed for its answer.",
        "prometheus_rule_evaluation_failures_total": "Rules that could not be evaluated.",
        "prometheus_target_scrapes_sample_out_of_order_total": "Samples that were older than those that are stored.",
        "prometheus_tsdb_compactions_failed_total": "Blocks that could not be written.",
        "prometheus_tsdb_head_samples_appended_total": "Samples that were stored.",
        "prometheus_tsdb_head_series": "Series in memory.",
        "prometheus_tsdb_size_retentions_total": "Times that blocks were removed because of their size.",
        "prometheus_tsdb_storage_blocks_bytes": "Bytes of all blocks.",
        "prometheus_tsdb_wal_writes_failed_total": "Writes that failed.",
    },
}  # fmt: skip

#: By recording rule: its labels, and what it shows.
RECORDED: Mapping[str, tuple[str, str]] = {
    "gpucluster:gpu_utilization:ratio": ("node, pool, gpu", "Part of the time in which a program ran on the GPU."),
    "gpucluster:gpu_memory_used:bytes": ("node, pool, gpu", "Memory of the GPU that is used."),
    "gpucluster:gpu_memory_total:bytes": ("node, pool, gpu", "Memory of the GPU."),
    "gpucluster:gpu_instance_utilization:ratio": (
        "node, pool, gpu, gpu_instance", "Part of the time in which an instance (MIG) worked. Needs DCGM."),
    "gpucluster:gpu_instance_memory_used:bytes": (
        "node, pool, gpu, gpu_instance", "Memory of an instance (MIG) that is used."),
    "gpucluster:gpu_power:watts": ("node, pool, gpu", "Electrical power of the GPU."),
    "gpucluster:gpu_temperature:celsius": ("node, pool, gpu", "Temperature of the GPU."),
    "gpucluster:gpu_xid:code": ("node, pool, gpu", "The last Xid."),
    "gpucluster:gpu_xid_of_hardware:code": ("node, pool, gpu", "The last Xid, where it asks for a reset or a repair."),
    "gpucluster:gpu_throttled:ratio": ("node, pool, gpu, cause", "Part of the time in which the GPU was slowed down."),
    "gpucluster:node_gpus:count": ("node, pool", "GPUs that are seen."),
    "gpucluster:node_gpus_nominal:count": ("node, pool", "GPUs that the shape has."),
    "gpucluster:node_rdma_devices:count": ("node, pool", "RDMA devices of the shape that are seen."),
    "gpucluster:node_rdma_devices_nominal:count": ("node, pool", "RDMA devices that the shape has."),
    "gpucluster:shape_gpus:count": ("shape", "GPUs of a shape."),
    "gpucluster:shape_rdma_rate:bytes_per_second": ("shape, device", "Speed of an RDMA device of a shape."),
    "gpucluster:node_cpu_utilization:ratio": ("node, pool", "Mean of all processors of the host."),
    "gpucluster:node_memory_total:bytes": ("node, pool", "Memory of the host."),
    "gpucluster:node_memory_used:bytes": ("node, pool", "Memory of the host that programs can't get any more."),
    "gpucluster:node_network_receive:bytes_per_second": ("node, pool", "All interfaces without RDMA."),
    "gpucluster:node_network_transmit:bytes_per_second": ("node, pool", "All interfaces without RDMA."),
    "gpucluster:node_filesystem_read:bytes_per_second": ("node, pool", "Read over NFS."),
    "gpucluster:node_filesystem_write:bytes_per_second": ("node, pool", "Written over NFS."),
    "gpucluster:rdma_receive:bytes_per_second": ("node, pool, device, port", "Received by RDMA."),
    "gpucluster:rdma_transmit:bytes_per_second": ("node, pool, device, port", "Sent by RDMA."),
    "gpucluster:rdma_errors:per_second": (
        "node, pool, device, port, counter", "Errors of a link, packets lost or sent again, operations that failed."),
    "gpucluster:rdma_congestion:per_second": ("node, pool, device, port, counter", "Notices of congestion."),
    "gpucluster:rdma_errors_limit:per_hour": ("counter", "How far a counter may grow without a warning of the checks."),
    "gpucluster:job_nodes:count": ("job_id", "Nodes of the job."),
    "gpucluster:job_gpus:count": ("job_id", "GPUs of the job, and instances (MIG)."),
    "gpucluster:job_gpu_instances:count": ("job_id, node", "Instances of divided GPUs (MIG) of the job."),
    "gpucluster:job_gpu_utilization:ratio": ("job_id", "Mean of the job's GPUs."),
    "gpucluster:job_gpu_memory_used:bytes": ("job_id", "Sum of the job's GPUs."),
    "gpucluster:job_gpu_power:watts": ("job_id", "Sum of the job's GPUs; none where it has instances (MIG)."),
    "gpucluster:job_gpu_temperature:celsius": ("job_id", "The hottest of the job's GPUs."),
    "gpucluster:job_rdma_receive:bytes_per_second": ("job_id", "Sum of the job's nodes."),
    "gpucluster:job_rdma_transmit:bytes_per_second": ("job_id", "Sum of the job's nodes."),
    "gpucluster:job_rdma_errors:per_second": ("job_id", "Sum of the job's nodes and of all counters of errors."),
    "gpucluster:job_network_receive:bytes_per_second": ("job_id", "Sum of the job's nodes, without RDMA."),
    "gpucluster:job_network_transmit:bytes_per_second": ("job_id", "Sum of the job's nodes, without RDMA."),
    "gpucluster:job_filesystem_read:bytes_per_second": ("job_id", "Sum of the job's nodes, over NFS."),
    "gpucluster:job_filesystem_write:bytes_per_second": ("job_id", "Sum of the job's nodes, over NFS."),
    "gpucluster:job_cpu_utilization:ratio": ("job_id", "Mean of the job's nodes, all programs there."),
    "gpucluster:job_memory_used:bytes": ("job_id", "Sum of the job's nodes, all programs there."),
    "gpucluster:job_stuck:info": (
        "job_id, state, rank, process, host, collective", "1 while a job is hung or straggling, and who keeps it."
    ),
    "gpucluster:job_gpus_idle:hours": (
        "job_id", "GPU hours that GPUs without a process have cost so far, above the limit of cluster.yml."
    ),
    "gpucluster:slurm_nodes:count": ("state", "Slurm's nodes."),
    "gpucluster:slurm_jobs:count": ("state", "Slurm's jobs."),
    "gpucluster:slurm_gpus:count": ("state", "Slurm's GPUs."),
    "gpucluster:slurm_cpus:count": ("state", "Slurm's processors."),
}  # fmt: skip


def table(rows: Mapping[str, str]) -> str:
    """A table of series for the reference page."""
    return "\n".join(
        ["| series | what it shows |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows.items())]
    )


def recorded() -> str:
    """The table of the recording rules."""
    lines = [f"| `{name}` | {labels} | {text} |" for name, (labels, text) in RECORDED.items()]
    return "\n".join(["| series | labels | what it shows |", "|---|---|---|", *lines])
