"""The dashboards: what each one shows, as panels and their queries.

Queries use the recording rules of `ansible/roles/monitoring/files/rules` wherever there is one: they have joined what belongs
together, and know which exporter a node has.
"""

from __future__ import annotations

import json

from gpucluster.dashboards.grafana import Json, Query, Row, Variable, dashboard, stat, table, timeseries

CLUSTER, NODE, JOB, RDMA, AUTOSCALER, HEALTH = (
    f"gpucluster-{name}" for name in ("cluster", "node", "job", "rdma", "autoscaler", "health")
)
_RED_ABOVE_0 = {1.0: "red"}
_RED_BELOW_1 = {0.0: "red", 1.0: "green"}
_TO_NODE = {"Node": f"/d/{NODE}?var-node=${{__value.text}}"}
_TO_JOB = {"Job": f"/d/{JOB}?var-job_id=${{__value.text}}"}
_POOL = Variable("pool", "Pool", "up", all=True)
_OF_NODE = 'node="$node"'
_OF_JOB = 'job_id="$job_id"'
_OF_POOL = 'pool=~"$pool"'
_ON_JOB_NODES = f"and on (node) gpucluster_job_node{{{_OF_JOB}}}"
_ON_JOB_GPUS = f"and on (node, gpu) gpucluster_job_gpu{{{_OF_JOB}}}"


def all_dashboards() -> dict[str, Json]:
    """Each dashboard by the name of its file without `.json`."""
    found = (_cluster(), _node(), _job(), _rdma(), _autoscaler(), _health())
    return {board["uid"].removeprefix("gpucluster-"): board for board in found}


def as_text(board: Json) -> str:
    """A dashboard as the text of its file."""
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _cluster() -> Json:
    return dashboard(
        CLUSTER, "Cluster", "Whether the cluster works, and how much of it is used.",
        [
            Row("Now", [
                stat("Slurm", "1 while slurmctld answers.", "short", Query("max(gpucluster_slurm_up)"), limits=_RED_BELOW_1),
                stat("Nodes", "Nodes of Slurm by state.", "short", Query("gpucluster:slurm_nodes:count", "{{state}}"), width=8),
                stat("Jobs", "Jobs of Slurm by state.", "short", Query("gpucluster:slurm_jobs:count", "{{state}}"), width=6),
                stat("GPUs", "GPUs that Slurm has given to jobs, and all GPUs.", "short",
                     Query("gpucluster:slurm_gpus:count", "{{state}}"), width=6),
                table("Alerts", "Alerts that fire now. Prometheus has the next command of each, at /alerts.",
                      Query('ALERTS{alertstate="firing"}'),
                      columns={"severity": "Severity", "alertname": "Alert", "node": "Node", "job_id": "Job", "gpu": "GPU",
                               "device": "Device", "check": "Check"},
                      links={**_TO_NODE, **_TO_JOB}),
            ]),
            Row("Use", [
                timeseries("GPU utilisation", "Mean of all GPUs of a pool.", "percentunit",
                           Query(f"avg by (pool) (gpucluster:gpu_utilization:ratio{{{_OF_POOL}}})", "{{pool}}"), most=1),
                timeseries("GPU memory", "Part of the memory of all GPUs of a pool that is used.", "percentunit",
                           Query(f"sum by (pool) (gpucluster:gpu_memory_used:bytes{{{_OF_POOL}}})"
                                 f" / sum by (pool) (gpucluster:gpu_memory_total:bytes{{{_OF_POOL}}})", "{{pool}}"), most=1),
                timeseries("GPU power", "Electrical power of all GPUs of a pool.", "watt",
                           Query(f"sum by (pool) (gpucluster:gpu_power:watts{{{_OF_POOL}}})", "{{pool}}"), stacked=True),
                timeseries("RDMA", "Bytes that all RDMA devices of a pool receive.", "Bps",
                           Query(f"sum by (pool) (gpucluster:rdma_receive:bytes_per_second{{{_OF_POOL}}})", "{{pool}}")),
                timeseries("Shared file systems", "Bytes that all nodes read and write over NFS.", "Bps",
                           Query(f"sum(gpucluster:node_filesystem_read:bytes_per_second{{{_OF_POOL}}})", "read"),
                           Query(f"sum(gpucluster:node_filesystem_write:bytes_per_second{{{_OF_POOL}}})", "written")),
                timeseries("CPU", "Mean of all processors of a pool.", "percentunit",
                           Query(f"avg by (pool) (gpucluster:node_cpu_utilization:ratio{{{_OF_POOL}}})", "{{pool}}"), most=1),
            ]),
            Row("Slurm", [
                timeseries("Jobs", "Jobs by state.", "short", Query("gpucluster:slurm_jobs:count", "{{state}}"), stacked=True),
                timeseries("Nodes", "Nodes by state.", "short", Query("gpucluster:slurm_nodes:count", "{{state}}"), stacked=True),
                timeseries("Jobs by user", "The ten users with the most jobs.", "short",
                           Query("topk(10, sum by (user) (max by (user, account, state) (gpucluster_slurm_user_jobs)))", "{{user}}"),
                           stacked=True),
                timeseries("CPUs", "Processors of all nodes by state.", "short",
                           Query("gpucluster:slurm_cpus:count", "{{state}}"), stacked=True),
                table("Running jobs", "Running jobs. GPU use is the mean of the job's GPUs.",
                      Query("max by (job_id, name, user, account, partition) (gpucluster_slurm_job_info)"),
                      Query("gpucluster:job_nodes:count"), Query("gpucluster:job_gpu_utilization:ratio"),
                      columns={"job_id": "Job", "name": "Name", "user": "User", "account": "Account", "partition": "Partition",
                               "Value #B": "Nodes", "Value #C": "GPU use"},
                      units={"GPU use": "percentunit"}, links=_TO_JOB),
            ]),
            Row("Nodes", [
                table("Nodes", "Nodes that are measured: use of GPUs and processors, memory.",
                      Query(f"max by (node, pool, state) (gpucluster_slurm_node_state{{{_OF_POOL}}})"),
                      Query(f"avg by (node, pool) (gpucluster:gpu_utilization:ratio{{{_OF_POOL}}})"),
                      Query(f"gpucluster:node_cpu_utilization:ratio{{{_OF_POOL}}}"),
                      Query(f"gpucluster:node_memory_used:bytes{{{_OF_POOL}}}"),
                      columns={"node": "Node", "pool": "Pool", "state": "State", "Value #B": "GPU use", "Value #C": "CPU use",
                               "Value #D": "Memory"},
                      units={"GPU use": "percentunit", "CPU use": "percentunit", "Memory": "bytes"}, links=_TO_NODE),
            ]),
        ],
        [_POOL],
    )  # fmt: skip


def _node() -> Json:
    return dashboard(
        NODE, "Node", "One host: its GPUs, network, file systems and checks.",
        [
            Row("Now", [
                stat("GPUs", "GPUs that are seen, and how many the shape has.", "short",
                     Query(f"gpucluster:node_gpus:count{{{_OF_NODE}}}", "seen"),
                     Query(f"gpucluster:node_gpus_nominal:count{{{_OF_NODE}}}", "of the shape"), width=6),
                stat("RDMA devices", "RDMA devices that are seen, and how many the shape has.", "short",
                     Query(f"gpucluster:node_rdma_devices:count{{{_OF_NODE}}}", "seen"),
                     Query(f"gpucluster:node_rdma_devices_nominal:count{{{_OF_NODE}}}", "of the shape"), width=6),
                stat("Exporters", "1 for each exporter that answers.", "short", Query(f"up{{{_OF_NODE}}}", "{{job}}"),
                     limits=_RED_BELOW_1, width=6),
                stat("Root file system", "Part of the root file system that is used.", "percentunit",
                     Query(f'1 - node_filesystem_avail_bytes{{{_OF_NODE}, mountpoint="/"}}'
                           f' / node_filesystem_size_bytes{{{_OF_NODE}, mountpoint="/"}}', "used"),
                     limits={0.8: "orange", 0.9: "red"}, width=6),
                table("Jobs", "Jobs that run on the node now.", Query(f"gpucluster_job_node{{{_OF_NODE}}}"),
                      columns={"job_id": "Job"}, links=_TO_JOB, width=8),
                table("Checks", "The last result of each check.", Query(f"gpucluster_health_check{{{_OF_NODE}}}"),
                      columns={"check": "Check", "status": "Status"}, width=8),
                table("Failed units", "Units of systemd that have failed.",
                      Query(f'node_systemd_unit_state{{{_OF_NODE}, state="failed"}} == 1'), columns={"name": "Unit"}, width=8),
            ]),
            Row("GPUs", [
                timeseries("Utilisation", "Part of the time in which a program ran on the GPU.", "percentunit",
                           Query(f"gpucluster:gpu_utilization:ratio{{{_OF_NODE}}}", "GPU {{gpu}}"), most=1),
                timeseries("Memory", "Memory of the GPU that is used.", "bytes",
                           Query(f"gpucluster:gpu_memory_used:bytes{{{_OF_NODE}}}", "GPU {{gpu}}")),
                timeseries("Power", "Electrical power.", "watt", Query(f"gpucluster:gpu_power:watts{{{_OF_NODE}}}", "GPU {{gpu}}")),
                timeseries("Temperature", "Of the GPU itself.", "celsius",
                           Query(f"gpucluster:gpu_temperature:celsius{{{_OF_NODE}}}", "GPU {{gpu}}"), limits={85: "red"}),
                timeseries("Slowed down", "Part of the time in which the GPU was slowed down, by cause. Under full load the power"
                           " limit does that to most GPUs.", "percentunit",
                           Query(f"gpucluster:gpu_throttled:ratio{{{_OF_NODE}}}", "GPU {{gpu}} {{cause}}")),
                timeseries("Tensor cores", "Part of the cycles in which tensor cores worked. Not every GPU says it.", "percentunit",
                           Query(f"max by (gpu) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{_OF_NODE}}})", "GPU {{gpu}}"), most=1),
                timeseries("Xid", "The code of the last error of the driver; 0 is none.", "short",
                           Query(f"gpucluster:gpu_xid:code{{{_OF_NODE}}}", "GPU {{gpu}}")),
                timeseries("Memory errors", "Errors of memory since the last reset: corrected ones, and those that were not.", "short",
                           Query(f"max by (gpu) (DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{_OF_NODE}}})", "GPU {{gpu}} corrected"),
                           Query(f"max by (gpu) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{_OF_NODE}}})", "GPU {{gpu}} not corrected")),
            ]),
            Row("Host", [
                timeseries("CPU", "Mean of all processors.", "percentunit",
                           Query(f"gpucluster:node_cpu_utilization:ratio{{{_OF_NODE}}}", "CPU"), most=1),
                timeseries("Memory", "Memory that programs use, and all of it.", "bytes",
                           Query(f"gpucluster:node_memory_used:bytes{{{_OF_NODE}}}", "used"),
                           Query(f"gpucluster:node_memory_total:bytes{{{_OF_NODE}}}", "total")),
                timeseries("Network", "All interfaces without RDMA.", "Bps",
                           Query(f"gpucluster:node_network_receive:bytes_per_second{{{_OF_NODE}}}", "received"),
                           Query(f"gpucluster:node_network_transmit:bytes_per_second{{{_OF_NODE}}}", "sent")),
                timeseries("Shared file systems", "Over NFS.", "Bps",
                           Query(f"gpucluster:node_filesystem_read:bytes_per_second{{{_OF_NODE}}}", "read"),
                           Query(f"gpucluster:node_filesystem_write:bytes_per_second{{{_OF_NODE}}}", "written")),
                timeseries("Disks", "Part of the time in which a disk worked.", "percentunit",
                           Query(f"rate(node_disk_io_time_seconds_total{{{_OF_NODE}}}[$__rate_interval])", "{{device}}"), most=1),
                timeseries("File systems", "Part of a file system that is used.", "percentunit",
                           Query(f"1 - node_filesystem_avail_bytes{{{_OF_NODE}}} / node_filesystem_size_bytes{{{_OF_NODE}}}",
                                 "{{mountpoint}}"), most=1, limits={0.9: "red"}),
            ]),
            Row("RDMA", [
                timeseries("Received", "By device.", "Bps",
                           Query(f"gpucluster:rdma_receive:bytes_per_second{{{_OF_NODE}}}", "{{device}}")),
                timeseries("Sent", "By device.", "Bps",
                           Query(f"gpucluster:rdma_transmit:bytes_per_second{{{_OF_NODE}}}", "{{device}}")),
            ]),
        ],
        [Variable("node", "Node", "up")],
    )  # fmt: skip


def _job() -> Json:
    return dashboard(
        JOB, "Job", "One job: what its GPUs and nodes do. What is counted for a node belongs to all jobs that share it.",
        [
            Row("Job", [
                table("Job", "What Slurm says of it while it runs.",
                      Query(f"max by (job_id, name, user, account, partition) (gpucluster_slurm_job_info{{{_OF_JOB}}})"),
                      columns={"job_id": "Job", "name": "Name", "user": "User", "account": "Account", "partition": "Partition"},
                      width=12),
                stat("Nodes", "Nodes of the job.", "short", Query(f"gpucluster:job_nodes:count{{{_OF_JOB}}}", "nodes")),
                stat("GPUs", "GPUs of the job.", "short", Query(f"gpucluster:job_gpus:count{{{_OF_JOB}}}", "GPUs")),
                stat("Power", "Electrical power of its GPUs.", "watt", Query(f"gpucluster:job_gpu_power:watts{{{_OF_JOB}}}", "power")),
            ]),
            Row("GPUs", [
                timeseries("Utilisation", "Mean of the job's GPUs.", "percentunit",
                           Query(f"gpucluster:job_gpu_utilization:ratio{{{_OF_JOB}}}", "mean"), most=1),
                timeseries("Utilisation of each GPU", "One that does less than the others makes all of them wait.", "percentunit",
                           Query(f"gpucluster:gpu_utilization:ratio {_ON_JOB_GPUS}", "{{node}} GPU {{gpu}}"), most=1),
                timeseries("Memory", "Memory that is used of all its GPUs.", "bytes",
                           Query(f"gpucluster:job_gpu_memory_used:bytes{{{_OF_JOB}}}", "used")),
                timeseries("Power", "Electrical power of all its GPUs.", "watt",
                           Query(f"gpucluster:job_gpu_power:watts{{{_OF_JOB}}}", "power")),
                timeseries("Temperature", "Of its hottest GPU.", "celsius",
                           Query(f"gpucluster:job_gpu_temperature:celsius{{{_OF_JOB}}}", "hottest"), limits={85: "red"}),
                timeseries("Slowed down", "Part of the time in which a GPU was slowed down, by cause.", "percentunit",
                           Query(f"gpucluster:gpu_throttled:ratio {_ON_JOB_GPUS}", "{{node}} GPU {{gpu}} {{cause}}")),
            ]),
            Row("Network and file systems", [
                timeseries("RDMA", "All RDMA devices of its nodes.", "Bps",
                           Query(f"gpucluster:job_rdma_receive:bytes_per_second{{{_OF_JOB}}}", "received"),
                           Query(f"gpucluster:job_rdma_transmit:bytes_per_second{{{_OF_JOB}}}", "sent")),
                timeseries("RDMA errors", "Errors, and packets that were lost or sent again, on its nodes.", "short",
                           Query(f"gpucluster:rdma_errors:per_second > 0 {_ON_JOB_NODES}", "{{node}} {{device}} {{counter}}")),
                timeseries("Network", "All other interfaces of its nodes.", "Bps",
                           Query(f"gpucluster:job_network_receive:bytes_per_second{{{_OF_JOB}}}", "received"),
                           Query(f"gpucluster:job_network_transmit:bytes_per_second{{{_OF_JOB}}}", "sent")),
                timeseries("Shared file systems", "What its nodes read and write over NFS.", "Bps",
                           Query(f"gpucluster:job_filesystem_read:bytes_per_second{{{_OF_JOB}}}", "read"),
                           Query(f"gpucluster:job_filesystem_write:bytes_per_second{{{_OF_JOB}}}", "written")),
                table("RDMA counters", "How far each counter has grown in the time that is shown, on the job's nodes now.",
                      Query("sum by (node, device, port, counter) (increase(gpucluster_rdma_counter_total[$__range]))"
                            f" > 0 {_ON_JOB_NODES}"),
                      columns={"node": "Node", "device": "Device", "port": "Port", "counter": "Counter", "Value": "Growth"},
                      units={"Growth": "short"}, links=_TO_NODE),
            ]),
            Row("Nodes", [
                timeseries("CPU", "Mean of all processors of its nodes.", "percentunit",
                           Query(f"gpucluster:job_cpu_utilization:ratio{{{_OF_JOB}}}", "mean"), most=1),
                timeseries("Memory", "Memory that is used on its nodes.", "bytes",
                           Query(f"gpucluster:job_memory_used:bytes{{{_OF_JOB}}}", "used")),
            ]),
        ],
        [Variable("job_id", "Job", "gpucluster_job_node")],
    )  # fmt: skip


def _rdma() -> Json:
    of = 'node=~"$node"'
    return dashboard(
        RDMA, "RDMA", "The ports of the RDMA network: state, speed, errors, congestion.",
        [
            Row("Ports", [
                stat("Ports down", "Ports that are not up now.", "short",
                     Query(f"count(max by (node, device, port) (gpucluster_rdma_port_up{{{of}}}) == 0) or vector(0)", "down"),
                     limits=_RED_ABOVE_0, width=6),
                stat("Ports", "All ports that are seen.", "short",
                     Query(f"count(max by (node, device, port) (gpucluster_rdma_port_up{{{of}}}))", "ports"), width=6),
                stat("Nodes with fewer devices than their shape has", "Nodes of which devices are missing.", "short",
                     Query("count(gpucluster:node_rdma_devices_nominal:count > on (node, pool) gpucluster:node_rdma_devices:count)"
                           " or vector(0)", "nodes"), limits=_RED_ABOVE_0, width=12),
                table("Ports", "Each port, with the present speed of its link.",
                      Query(f"max by (node, device, port, interface, link_layer, firmware) (gpucluster_rdma_port_info{{{of}}})"),
                      Query(f"max by (node, device, port) (gpucluster_rdma_port_up{{{of}}})"),
                      Query(f"max by (node, device, port) (gpucluster_rdma_port_rate_bytes_per_second{{{of}}})"),
                      columns={"node": "Node", "device": "Device", "port": "Port", "interface": "Interface",
                               "link_layer": "Link", "firmware": "Firmware", "Value #B": "Up", "Value #C": "Speed"},
                      units={"Speed": "Bps"}, links=_TO_NODE),
            ]),
            Row("Traffic", [
                timeseries("Received", "By device.", "Bps",
                           Query(f"gpucluster:rdma_receive:bytes_per_second{{{of}}}", "{{node}} {{device}}")),
                timeseries("Sent", "By device.", "Bps",
                           Query(f"gpucluster:rdma_transmit:bytes_per_second{{{of}}}", "{{node}} {{device}}")),
                timeseries("Least of each node", "What the device of a node receives that receives least: in a ring of all devices"
                           " they receive the same.", "Bps",
                           Query(f"min by (node) (gpucluster:rdma_receive:bytes_per_second{{{of}}})", "{{node}}")),
                timeseries("Pause frames and discards", "Counters of the network interfaces that tell of congestion.", "short",
                           Query("sum by (node, interface, counter) (rate(gpucluster_network_counter_total"
                                 f'{{{of}, counter=~".*(pause|discard).*"}}[$__rate_interval])) > 0',
                                 "{{node}} {{interface}} {{counter}}")),
            ]),
            Row("Errors", [
                timeseries("Errors", "Errors of links, packets that were lost or sent again, operations that failed.", "short",
                           Query(f"gpucluster:rdma_errors:per_second{{{of}}} > 0", "{{node}} {{device}} {{counter}}")),
                timeseries("Congestion", "How often a port was told to send more slowly, or told another one.", "short",
                           Query(f"gpucluster:rdma_congestion:per_second{{{of}}}", "{{node}} {{device}} {{counter}}")),
                timeseries("Counters that can't be read", "Files of counters that gave no number.", "short",
                           Query(f"sum by (node) (rate(gpucluster_rdma_read_errors_total{{{of}}}[$__rate_interval]))", "{{node}}")),
                table("Counters", "Each counter, as the driver has it.",
                      Query(f"max by (node, device, port, counter) (gpucluster_rdma_counter_total{{{of}}})"),
                      columns={"node": "Node", "device": "Device", "port": "Port", "counter": "Counter", "Value": "Value"},
                      links=_TO_NODE, width=12),
            ]),
        ],
        [Variable("node", "Node", "gpucluster_rdma_port_up", all=True)],
    )  # fmt: skip


def _autoscaler() -> Json:
    return dashboard(
        AUTOSCALER, "Autoscaler", "Elastic nodes: how many there are, how long they take, what the cloud answers.",
        [
            Row("Now", [
                stat("Last pass", "Seconds since a pass was finished.", "s",
                     Query("time() - max(gpucluster_last_success_timestamp)", "ago"), limits={60: "orange", 300: "red"}),
                stat("Cost", "What the present instances cost in an hour, in the price table's currency.", "short",
                     Query("max(gpucluster_cost_usd_per_hour)", "an hour")),
                stat("Launches that may be sent", "At once, and how many in a second.", "short",
                     Query("max(gpucluster_oci_throttle_tokens)", "at once"), Query("max(gpucluster_oci_launch_rate)", "a second"),
                     width=8),
                stat("Pools that cool down", "Pools for which nothing is launched after faults.", "short",
                     Query("sum(max by (pool, fault) (gpucluster_breaker_open)) or vector(0)", "pools"), limits=_RED_ABOVE_0,
                     width=8),
            ]),
            Row("Nodes", [
                timeseries("Nodes", "Elastic nodes, by what Slurm and the cloud say.", "short",
                           Query("sum by (pool, slurm_state, cloud_state) (gpucluster_nodes)", "{{pool}} {{slurm_state}}/{{cloud_state}}"),
                           stacked=True),
                timeseries("Idle nodes", "How many nodes cost and do nothing.", "short",
                           Query("sum by (pool) (rate(gpucluster_idle_node_seconds_total[$__rate_interval]))", "{{pool}}")),
                timeseries("Time to service", "How long nodes took, by phase: the slowest tenth.", "s",
                           Query("histogram_quantile(0.9, sum by (le, phase) (rate(gpucluster_scaleup_seconds_bucket[1h])))", "{{phase}}")),
                timeseries("Jobs that needed nodes", "By result.", "short",
                           Query("sum by (result) (increase(gpucluster_gang_total[1h]))", "{{result}}")),
            ]),
            Row("Cloud", [
                timeseries("Requests", "By operation and answer.", "reqps",
                           Query("sum by (op, code) (rate(gpucluster_oci_requests_total[$__rate_interval]))", "{{op}} {{code}}")),
                timeseries("No capacity", "Launches for which no host was free.", "short",
                           Query("sum by (shape, ad) (increase(gpucluster_capacity_errors_total[1h]))", "{{shape}} {{ad}}")),
                timeseries("A pass", "How long a pass takes: the slowest hundredth.", "s",
                           Query("histogram_quantile(0.99, sum by (le) (rate(gpucluster_loop_seconds_bucket[10m])))", "99 %")),
                timeseries("Instances without a node", "That were terminated.", "short",
                           Query("sum(increase(gpucluster_orphans_total[1h]))", "instances")),
            ]),
        ],
    )  # fmt: skip


def _health() -> Json:
    return dashboard(
        HEALTH, "Health", "Checks of nodes, drains, and whether the monitoring itself works.",
        [
            Row("Checks", [
                stat("Results", "How many checks have which result.", "short",
                     Query("sum by (status) (max by (node, check, status) (gpucluster_health_check))", "{{status}}"), width=12),
                stat("Drained", "Nodes that failed checks have drained, and those on which a person decides.", "short",
                     Query("sum by (kind) (max by (node, kind) (gpucluster_health_drained)) or vector(0)", "{{kind}}"),
                     limits=_RED_ABOVE_0, width=8),
                stat("Only said", "1 if failed checks are said only, and no node is drained.", "short",
                     Query("max(gpucluster_health_shadow)", "shadow")),
                table("Checks that do not pass", "By node.",
                      Query('max by (node, check, status) (gpucluster_health_check{status!~"pass|skip"})'),
                      columns={"node": "Node", "check": "Check", "status": "Status"}, links=_TO_NODE, width=12),
                table("Drained nodes", "With their reasons.",
                      Query("max by (node, pool, reason) (gpucluster_slurm_node_drained)"),
                      columns={"node": "Node", "pool": "Pool", "reason": "Reason"}, links=_TO_NODE, width=12),
                timeseries("Age of the last report", "How long ago a node has reported. An interval is the time between two reports.", "s",
                           Query("max(gpucluster_health_written_timestamp_seconds) - on () group_right ()"
                                 " max by (node) (gpucluster_health_report_timestamp_seconds)", "{{node}}"),
                           Query("max(gpucluster_health_interval_seconds)", "interval")),
                timeseries("Drains", "Nodes of a pool that were drained in the last hour.", "short",
                           Query("max by (pool) (gpucluster_health_drains_last_hour)", "{{pool}}")),
            ]),
            Row("Monitoring", [
                stat("Exporters that do not answer", "Of all hosts.", "short", Query("count(up == 0) or vector(0)", "exporters"),
                     limits=_RED_ABOVE_0, width=6),
                stat("Series", "Series that Prometheus keeps in memory.", "short",
                     Query("max(prometheus_tsdb_head_series)", "series"), width=6),
                stat("Size", "Of Prometheus' blocks on the disk.", "bytes",
                     Query("max(prometheus_tsdb_storage_blocks_bytes)", "blocks"), width=6),
                stat("Jobs left out", "Running jobs that have no series of their own: there are too many.", "short",
                     Query("max(gpucluster_slurm_jobs_left_out)", "jobs"), width=6),
                table("Exporters that do not answer", "By host.", Query("min by (node, job, instance) (up) == 0"),
                      columns={"node": "Node", "job": "Exporter", "instance": "Address"}, links=_TO_NODE, width=12),
                table("What exporters can't read", "By host.", Query("max by (node, collector) (gpucluster_exporter_collector_up) == 0"),
                      columns={"node": "Node", "collector": "Collector"}, links=_TO_NODE, width=12),
                timeseries("Time of a scrape", "The slowest host of each exporter.", "s",
                           Query("max by (job) (scrape_duration_seconds)", "{{job}}")),
                timeseries("Time of a collector", "The slowest host of each collector.", "s",
                           Query("max by (collector) (gpucluster_exporter_collector_seconds)", "{{collector}}")),
                timeseries("Time to ask Slurm", "How long the program that asks Slurm needs.", "s",
                           Query("max(gpucluster_slurm_scrape_seconds)", "Slurm")),
                timeseries("Samples", "That Prometheus stores.", "short",
                           Query("sum(rate(prometheus_tsdb_head_samples_appended_total[$__rate_interval]))", "a second")),
            ]),
        ],
    )  # fmt: skip
