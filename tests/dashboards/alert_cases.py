# ruff: noqa: E501 - a series and its values are one line
"""For each alert: series with which it fires, and series with which it does not. promtool evaluates the real rules.

Values are in promtool's notation, one each 30 seconds: `0+5x20` is 0, 5, 10 and so on, `_` is a scrape without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpucluster import shapes
from tests.dashboards.promtool import SHAPE

EVENT = 'host="gpu-1", role="node", state="SCHEDULED", action="STOP", event="a1"'
_STARTS = "gpucluster_maintenance_start_timestamp_seconds"
N1 = 'node="gpu-1", pool="gpu"'
H100 = f'{N1}, shape="{SHAPE}"'
GPU = f'{N1}, gpu="3"'
PORT = f'{N1}, shape="{SHAPE}", device="mlx5_0", port="1"'
OF_THE_RANK = {"rank": "2", "process": "1399", "host": "gpu-1", "collective": "AllReduce"}
RANK = ", ".join(f'{name}="{value}"' for name, value in OF_THE_RANK.items())
LONG = "x200"

Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """An alert's two inputs.

    Args:
        fires: series with which it fires at `at`.
        quiet: series with which it does not; at `at`, nor before.
        at: in promtool's notation.
        labels: of the alert that fires.
    """

    fires: Series
    quiet: Series
    at: str = "10m"
    labels: dict[str, str] = field(default_factory=dict)


def _gpus(count: int, values: str = f"40{LONG}") -> Series:
    return {f'DCGM_FI_DEV_GPU_TEMP{{{H100}, gpu="{index}"}}': values for index in range(count)}


def _up(values: str = f"1{LONG}") -> Series:
    return {f'up{{job="dcgm", instance="a:1", {H100}}}': values}


def _devices(count: int, values: str = f"1{LONG}") -> Series:
    names = _H100.rdma_devices[:count]
    return {f'gpucluster_rdma_port_up{{{H100}, device="{name}", port="1"}}': values for name in names}


def _one(series: str, fires: str, quiet: str, at: str = "10m", **labels: str) -> Case:
    return Case({series: fires}, {series: quiet}, at, labels)


NODE = {"node": "gpu-1"}
_H100 = shapes.get(SHAPE)
_RATE = (_H100.rdma_link_gbps or 0) * 1_000_000_000 // 8
FULL, HALF = f"{_RATE}{LONG}", f"{_RATE // 2}{LONG}"

CASES: dict[str, Case] = {
    "UnitFailed": Case(
        {f'node_systemd_unit_state{{{N1}, name="slurmd.service", state="failed", type="notify"}}': f"1{LONG}"},
        {
            f'node_systemd_unit_state{{{N1}, name="slurmd.service", state="failed", type="notify"}}': f"0{LONG}",
            f'node_systemd_unit_state{{{N1}, name="slurmd.service", state="active", type="notify"}}': f"1{LONG}",
        },
        labels={**NODE, "name": "slurmd.service"},
    ),
    "RootFileSystemFull": Case(
        {f'node_filesystem_avail_bytes{{{N1}, mountpoint="/"}}': f"5{LONG}",
         f'node_filesystem_size_bytes{{{N1}, mountpoint="/"}}': f"100{LONG}"},
        {f'node_filesystem_avail_bytes{{{N1}, mountpoint="/"}}': f"20{LONG}",
         f'node_filesystem_size_bytes{{{N1}, mountpoint="/"}}': f"100{LONG}",
         f'node_filesystem_avail_bytes{{{N1}, mountpoint="/scratch"}}': f"1{LONG}",
         f'node_filesystem_size_bytes{{{N1}, mountpoint="/scratch"}}': f"100{LONG}"},
        labels=NODE,
    ),
    # One alert for a share, however many nodes have mounted it.
    "SharedFileSystemFull": Case(
        {f'node_filesystem_avail_bytes{{node="{node}", device="10.0.0.2:/home", fstype="nfs4", mountpoint="/home"}}': f"5{LONG}"
         for node in ("gpu-1", "gpu-2")}
        | {f'node_filesystem_size_bytes{{node="{node}", device="10.0.0.2:/home", fstype="nfs4", mountpoint="/home"}}': f"100{LONG}"
           for node in ("gpu-1", "gpu-2")},
        {'node_filesystem_avail_bytes{node="gpu-1", device="10.0.0.2:/home", fstype="nfs4", mountpoint="/home"}': f"50{LONG}",
         'node_filesystem_size_bytes{node="gpu-1", device="10.0.0.2:/home", fstype="nfs4", mountpoint="/home"}': f"100{LONG}"},
        labels={"device": "10.0.0.2:/home"},
    ),
    "MemoryPressure": _one(f"node_pressure_memory_stalled_seconds_total{{{N1}}}", "0+15x100", "0+1x100", **NODE),
    # promtool's clock starts at 0, and a sample's time is that of its scrape.
    "ClockWrong": _one(f"node_time_seconds{{{N1}}}", "90+30x100", "0+30x100", **NODE),
    "GpuLost": Case(
        {**_up(), **_gpus(7)},
        {**_up(), **_gpus(8)},
        labels=NODE,
    ),
    "GpuXid": Case(
        {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "_x10 79x40"},
        # The end of a user's program.
        {f"DCGM_FI_DEV_XID_ERRORS{{{GPU}}}": "0x10 13x40", f'DCGM_FI_DEV_XID_ERRORS{{{N1}, gpu="4"}}': "_x10 13x40"},
        labels={**NODE, "gpu": "3"},
    ),
    "GpuMemoryError": _one(f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{GPU}}}", f"1{LONG}", f"0{LONG}", **NODE),
    "GpuRowRemapFailed": _one(f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{GPU}}}", f"1{LONG}", f"0{LONG}", **NODE),
    "GpuRowRemapPending": _one(f"DCGM_FI_DEV_ROW_REMAP_PENDING{{{GPU}}}", f"1{LONG}", f"0{LONG}", **NODE),
    # Nanoseconds: 6e9 of 30 s are a fifth. The power limit is not a fault.
    "GpuThrottled": Case(
        {f"DCGM_FI_DEV_THERMAL_VIOLATION{{{GPU}}}": "0+6000000000x60"},
        {f"DCGM_FI_DEV_THERMAL_VIOLATION{{{GPU}}}": "0+600000000x60",
         f"DCGM_FI_DEV_POWER_VIOLATION{{{GPU}}}": "0+25000000000x60"},
        at="20m",
        labels={**NODE, "cause": "thermal"},
    ),
    "GpuHot": _one(f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}}", f"90{LONG}", f"80{LONG}", gpu="3", **NODE),
    "GpuHotWhileIdle": Case(
        {f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}}": f"75{LONG}", f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}": f"0{LONG}"},
        {f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}}": f"75{LONG}", f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}}": f"90{LONG}"},
        at="40m",
        labels=NODE,
    ),
    # One GPU of the job works: its program may need no more of them for now.
    "JobWithoutGpuWork": Case(
        {f'gpucluster_job_gpu{{{N1}, job_id="12", gpu="{index}", uuid="u"}}': f"1{LONG}" for index in (0, 1)}
        | {f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="{index}"}}': f"0{LONG}" for index in (0, 1)},
        {f'gpucluster_job_gpu{{{N1}, job_id="12", gpu="{index}", uuid="u"}}': f"1{LONG}" for index in (0, 1)}
        | {f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="0"}}': f"0{LONG}", f'DCGM_FI_DEV_GPU_UTIL{{{N1}, gpu="1"}}': f"80{LONG}"},
        at="40m",
        labels={"job_id": "12"},
    ),
    # The second port of a device of the VCN never had a cable.
    "RdmaPortDown": Case(
        {f"gpucluster_rdma_port_up{{{PORT}}}": f"0{LONG}"},
        {f"gpucluster_rdma_port_up{{{PORT}}}": f"1{LONG}",
         f'gpucluster_rdma_port_up{{{H100}, device="mlx5_2", port="1"}}': f"0{LONG}"},
        labels={**NODE, "device": "mlx5_0", "port": "1"},
    ),
    "RdmaDeviceLost": Case({**_up(), **_devices(15)}, {**_up(), **_devices(16)}, labels=NODE),
    "RdmaLinkFlaps": _one(
        f"gpucluster_rdma_port_up{{{PORT}}}", "1 1 0 1 0 1 0 1 1 1 1 1 1x20", "1 1 0 1 1 1 1 1x20", device="mlx5_0", **NODE
    ),
    "RdmaErrors": _one(
        f'gpucluster_rdma_counter_total{{{PORT}, counter="link_downed"}}', "3x10 5x60", "3x70", counter="link_downed", **NODE
    ),
    "RdmaPacketsLost": _one(
        f'gpucluster_rdma_counter_total{{{PORT}, counter="out_of_sequence"}}', "0+900x80", "0+30x80", at="25m", **NODE
    ),
    "RdmaRateBelowNominal": Case(
        {f"gpucluster_rdma_port_rate_bytes_per_second{{{PORT}}}": HALF, f"gpucluster_rdma_port_up{{{PORT}}}": f"1{LONG}"},
        # Full speed; and a port that is down, whose speed has no meaning.
        {f"gpucluster_rdma_port_rate_bytes_per_second{{{PORT}}}": FULL, f"gpucluster_rdma_port_up{{{PORT}}}": f"1{LONG}",
         f'gpucluster_rdma_port_rate_bytes_per_second{{{H100}, device="mlx5_1", port="1"}}': HALF,
         f'gpucluster_rdma_port_up{{{H100}, device="mlx5_1", port="1"}}': f"0{LONG}"},
        labels={**NODE, "device": "mlx5_0"},
    ),
    "SlurmDown": _one('gpucluster_slurm_up{node="ctl"}', f"0{LONG}", f"1{LONG}"),
    "NodeDown": Case(
        {f'gpucluster_slurm_node_state{{{N1}, state="down"}}': f"1{LONG}"},
        {f'gpucluster_slurm_node_state{{{N1}, state="drained"}}': f"1{LONG}"},
        labels=NODE,
    ),
    # What an administrator or apply has drained is not a fault.
    "NodeDrainedByChecks": Case(
        {f'gpucluster_slurm_node_drained{{{N1}, reason="gpucluster: check failed: gpu_xid \\"79\\""}}': f"1{LONG}"},
        {f'gpucluster_slurm_node_drained{{{N1}, reason="gpucluster: changed by apply"}}': f"1{LONG}",
         f'gpucluster_slurm_node_drained{{{N1}, reason="loud fan"}}': f"1{LONG}"},
        labels=NODE,
    ),
    # A node that is switched off (powered_down) has no targets, and needs none.
    "NodeNotMonitored": Case(
        # With Kubernetes the autoscaler reports which nodes there are.
        {f'gpucluster_elastic_node_info{{{N1}, address="10.0.0.8"}}': f"1{LONG}", 'up{job="node", node="gpu-2"}': f"1{LONG}"},
        {f'gpucluster_slurm_node_state{{{N1}, state="idle"}}': f"1{LONG}", 'up{job="node", node="gpu-1"}': f"1{LONG}",
         'gpucluster_elastic_node_info{node="gpu-2", pool="gpu", address="10.0.0.9"}': f"1{LONG}",
         'up{job="node", node="gpu-2"}': f"0{LONG}",
         'gpucluster_slurm_node_state{node="gpu-9", pool="gpu", state="powered_down"}': f"1{LONG}"},
        labels=NODE,
    ),
    "SlurmJobsLeftOut": _one('gpucluster_slurm_jobs_left_out{node="ctl"}', f"500{LONG}", f"0{LONG}", at="20m"),
    "JobHung": Case(
        {f'gpucluster_job_state{{{N1}, job_id="12", state="hung"}}': f"1{LONG}",
         f'gpucluster_job_rank_info{{{N1}, job_id="12", state="hung", {RANK}}}': f"1{LONG}",
         'gpucluster_job_state{node="gpu-2", job_id="12", state="waiting"}': f"1{LONG}"},
        # Another node of the job works; what a rank of a straggler does is not a hang.
        {f'gpucluster_job_state{{{N1}, job_id="12", state="hung"}}': f"1{LONG}",
         f'gpucluster_job_rank_info{{{N1}, job_id="12", state="hung", {RANK}}}': f"1{LONG}",
         'gpucluster_job_state{node="gpu-2", job_id="12", state="working"}': f"1{LONG}",
         f'gpucluster_job_rank_info{{{N1}, job_id="13", state="straggling", {RANK}}}': f"1{LONG}"},
        labels={"job_id": "12", "state": "hung", **OF_THE_RANK},
    ),
    "JobStraggles": Case(
        {f'gpucluster_job_rank_info{{{N1}, job_id="12", state="straggling", {RANK}}}': f"1{LONG}"},
        {f'gpucluster_job_rank_info{{{N1}, job_id="12", state="straggling", {RANK}}}': "1x5",
         f'gpucluster_job_rank_info{{{N1}, job_id="12", state="waiting", {RANK}}}': f"1{LONG}"},
        at="12m",
        labels={"job_id": "12", "state": "straggling", **OF_THE_RANK},
    ),
    "JobHoldsIdleGpus": Case(
        {f'gpucluster_job_gpu_idle_seconds{{{N1}, job_id="12", gpu="0"}}': f"3600{LONG}",
         f'gpucluster_job_gpu_idle_seconds{{{N1}, job_id="12", gpu="1"}}': f"1800{LONG}"},
        {f'gpucluster_job_state{{{N1}, job_id="12", state="working"}}': f"1{LONG}"},
        labels={"job_id": "12"},
    ),
    "JobWatchStopped": _one(f"gpucluster_job_watch_age_seconds{{{N1}}}", "0+30x60", f"15{LONG}", **NODE),
    "AutoscalerStopped": _one('gpucluster_last_success_timestamp{node="ctl"}', f"0{LONG}", "0+30x60", at="10m"),
    "AutoscalerCoolsDown": _one(
        'gpucluster_breaker_open{pool="gpu", fault="capacity"}', f"1{LONG}", f"0{LONG}", pool="gpu", fault="capacity"
    ),
    "AutoscalerRequestsFail": Case(
        {'gpucluster_oci_requests_total{op="launch", code="429"}': "0+9x80",
         'gpucluster_oci_requests_total{op="list", code="200"}': "0+1x80"},
        {'gpucluster_oci_requests_total{op="launch", code="429"}': "0+1x80",
         'gpucluster_oci_requests_total{op="list", code="200"}': "0+9x80"},
        at="25m",
    ),
    "ExporterDown": _one(f'up{{job="node", {N1}}}', f"0{LONG}", "1 1 1 0 0 1x60", **NODE, job="node"),
    "CollectorFails": _one(
        f'gpucluster_exporter_collector_up{{{N1}, collector="rdma"}}', f"0{LONG}", f"1{LONG}", collector="rdma", **NODE
    ),
    # A cluster without Slurm has never had the series.
    "MonitorSilent": Case({'gpucluster_slurm_up{node="ctl"}': "1x5 stale"}, {'up{job="node", node="ctl"}': f"1{LONG}"}),
    "PrometheusRulesFail": _one(
        'prometheus_rule_evaluation_failures_total{rule_group="x"}', "0+1x60", f"7{LONG}"
    ),
    "PrometheusCanNotWrite": _one("prometheus_tsdb_wal_writes_failed_total", "0+1x60", f"0{LONG}"),
    "PrometheusKeepsLess": _one("prometheus_tsdb_size_retentions_total", "0 0 0 1x60", f"3{LONG}"),
    "PrometheusDropsSamples": _one(
        "prometheus_target_scrapes_sample_out_of_order_total", "0+20x60", f"100{LONG}"
    ),
    # A clock that jumped back makes the file look as if it came from the future: that is not silence.
    "HealthServiceSilent": _one('gpucluster_health_written_timestamp_seconds{node="ctl"}', f"0{LONG}", "900+30x60"),
    "NodeReportStale": Case(
        {'gpucluster_health_written_timestamp_seconds{node="ctl"}': "0+30x60",
         'gpucluster_health_interval_seconds{node="ctl"}': f"60{LONG}",
         f"gpucluster_health_report_timestamp_seconds{{{N1}}}": f"0{LONG}"},
        # The controller's exporter is there twice for a moment.
        {'gpucluster_health_written_timestamp_seconds{node="ctl"}': "0+30x60",
         'gpucluster_health_written_timestamp_seconds{node="ctl", instance="b"}': "0+30x60",
         'gpucluster_health_interval_seconds{node="ctl"}': f"60{LONG}",
         'gpucluster_health_interval_seconds{node="ctl", instance="b"}': f"60{LONG}",
         f"gpucluster_health_report_timestamp_seconds{{{N1}}}": "0+30x60"},
        labels=NODE,
    ),
    "NodeCheckFails": Case(
        {f'gpucluster_health_check{{{N1}, check="gpu_count", status="fail"}}': f"1{LONG}"},
        {f'gpucluster_health_check{{{N1}, check="gpu_count", status="pass"}}': f"1{LONG}"},
        labels={**NODE, "check": "gpu_count"},
    ),
    "NodeCheckUnknown": Case(
        {f'gpucluster_health_check{{{N1}, check="gpu_count", status="unknown"}}': f"1{LONG}"},
        {f'gpucluster_health_check{{{N1}, check="gpu_count", status="unknown"}}': "1x40 stale"},
        at="40m",
        labels=NODE,
    ),
    "BackupFailed": _one('gpucluster_backup_last_exit_code{node="ctl"}', f"1{LONG}", f"0{LONG}"),
    "BackupOverdue": Case(
        {'gpucluster_backup_last_success_timestamp_seconds{node="ctl"}': f"0{LONG}",
         'gpucluster_backup_overdue_seconds{node="ctl"}': f"300{LONG}"},
        {'gpucluster_backup_last_success_timestamp_seconds{node="ctl"}': f"590{LONG}",
         'gpucluster_backup_overdue_seconds{node="ctl"}': f"300{LONG}"},
    ),
    "DriftFound": _one(
        'gpucluster_drift_findings{node="ctl", area="hosts", host="gpu-1"}', f"2{LONG}", f"0{LONG}", area="hosts", host="gpu-1"
    ),
    "DriftNotKnown": Case(
        {'gpucluster_drift_unknown{node="ctl", area="hosts", host="gpu-1"}': "1x400"},
        {'gpucluster_drift_unknown{node="ctl", area="hosts", host="gpu-1"}': "1x200 0x200"},
        at="150m",
        labels={"area": "hosts", "host": "gpu-1"},
    ),
    "DriftNotLooked": Case(
        {'gpucluster_drift_looked_timestamp_seconds{node="ctl"}': "0x600"},
        {'gpucluster_drift_looked_timestamp_seconds{node="ctl"}': "0+30x600"},
        at="200m",
    ),
    "LogsNotCollected": Case(
        {'gpucluster_logs_collected_timestamp_seconds{node="ctl"}': "0x600"},
        {'gpucluster_logs_collected_timestamp_seconds{node="ctl"}': "0+30x600"},
        at="90m",
    ),
    "StandbyBehind": Case(
        {'gpucluster_standby_current_timestamp_seconds{node="ctl"}': "0x600"},
        {'gpucluster_standby_current_timestamp_seconds{node="ctl"}': "0+30x600"},
        at="90m",
    ),
    "StandbyNotReady": Case(
        {'gpucluster_standby_failover_ready{node="ctl"}': "1 1 0x400"},
        {'gpucluster_standby_failover_ready{node="ctl"}': "0x20 1x400"},
        at="90m",
    ),
    "StandbyWentOn": _one(
        'gpucluster_standby_automatic_failover_timestamp_seconds{node="ctl"}', f"1000{LONG}", f"0{LONG}"
    ),
    "MaintenanceNotReserved": Case(
        {f"gpucluster_maintenance_reserved{{{EVENT}}}": f"0{LONG}", f"{_STARTS}{{{EVENT}}}": f"50000{LONG}"},
        {f"gpucluster_maintenance_reserved{{{EVENT}}}": f"0{LONG}", f"{_STARTS}{{{EVENT}}}": f"500000{LONG}"},
        labels={"host": "gpu-1", "event": "a1"},
    ),
    "MaintenanceOfService": _one(
        f'{_STARTS}{{host="ctl", role="controller", action="STOP", event="a2"}}', f"50000{LONG}", f"500000{LONG}",
        host="ctl", role="controller",
    ),
    "MaintenanceUnknown": _one(
        "gpucluster_maintenance_listed_timestamp_seconds", f"0{LONG}", f"0+30{LONG}", "70m"
    ),
    "KubernetesDown": _one('gpucluster_kubernetes_up{node="ctl"}', f"1 1 0{LONG}", f"1{LONG}"),
    "KubernetesNodeNotReady": _one(
        f"gpucluster_kubernetes_node_ready{{{N1}}}", f"1 1 0{LONG}", f"1 0 0 1{LONG}", **NODE
    ),
    "NodeNeedsAPerson": Case(
        {f'gpucluster_health_drained{{{N1}, kind="person"}}': f"1{LONG}"},
        {f'gpucluster_health_drained{{{N1}, kind="drain"}}': f"1{LONG}"},
        labels=NODE,
    ),
}  # fmt: skip
