"""The text format of Prometheus (version 0.0.4): one line for each sample, and a page that groups them by metric.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Union

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Of a label's value; the rest of a longer one is cut off.
MOST_LABEL = 256
_UNSAFE = re.compile(r'[\\"\n\ud800-\udfff]')
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


class Metric(NamedTuple):
    """The type of a metric, and its help text."""

    type: str
    help: str


#: Every metric of this exporter, in the order of the page.
METRICS: Mapping[str, Metric] = {
    "gpucluster_rdma_counter_total": Metric(
        "counter", "A file of counters/ or hw_counters/ of an RDMA port, as the kernel gives it."
    ),
    "gpucluster_rdma_lifespan_seconds": Metric(
        "gauge", "For how long the driver repeats the values of hw_counters that it has read."
    ),
    "gpucluster_rdma_received_bytes_total": Metric(
        "counter", "Bytes that an RDMA port received: four times port_rcv_data, or the IP octets of irdma."
    ),
    "gpucluster_rdma_transmitted_bytes_total": Metric(
        "counter", "Bytes that an RDMA port sent: four times port_xmit_data, or the IP octets of irdma."
    ),
    "gpucluster_rdma_port_up": Metric("gauge", "1 while an RDMA port is ACTIVE."),
    "gpucluster_rdma_port_rate_bytes_per_second": Metric("gauge", "Speed of the link of an RDMA port."),
    "gpucluster_rdma_port_info": Metric("gauge", "1; the labels describe an RDMA port."),
    "gpucluster_rdma_read_errors_total": Metric(
        "counter", "Files of counters of an RDMA port that could not be read, or have no number."
    ),
    "gpucluster_network_counter_total": Metric(
        "counter",
        "A statistic of a network interface's driver: pause frames, discards, errors. pci is the place of its card.",
    ),
    "gpucluster_network_read_errors_total": Metric(
        "counter", "How often the statistics of a network interface could not be read."
    ),
    "gpucluster_job_node": Metric("gauge", "1 for each job that runs on this node."),
    "gpucluster_job_gpu": Metric(
        "gauge", "1 for each GPU of a job that runs on this node; gpu_instance where it is an instance of one (MIG)."
    ),
    "gpucluster_job_files_unread": Metric("gauge", "Files in the folder of running jobs that do not describe a job."),
    "gpucluster_job_state": Metric(
        "gauge", "1 for what a job does on this node: working, waiting, hung, straggling, idle or unmeasured."
    ),
    "gpucluster_job_state_seconds": Metric("gauge", "For how long a job has done that."),
    "gpucluster_job_rank_info": Metric(
        "gauge", "1 for the rank that the others wait for: its process, its host, and what it has not launched."
    ),
    "gpucluster_job_gpu_idle_seconds": Metric(
        "gauge", "For how long a GPU of a job has had no process, above the limit of cluster.yml."
    ),
    "gpucluster_job_watch_age_seconds": Metric("gauge", "Seconds since the watcher of jobs looked last."),
    "gpucluster_gpu_utilization_ratio": Metric("gauge", "Part of the last second in which a GPU worked."),
    "gpucluster_gpu_memory_used_bytes": Metric("gauge", "Memory of a GPU that is in use."),
    "gpucluster_gpu_memory_total_bytes": Metric("gauge", "Memory of a GPU."),
    "gpucluster_gpu_instance_memory_used_bytes": Metric(
        "gauge", "Memory of an instance of a GPU (MIG) that is in use."
    ),
    "gpucluster_gpu_instance_memory_total_bytes": Metric("gauge", "Memory of an instance of a GPU (MIG)."),
    "gpucluster_gpu_power_watts": Metric("gauge", "Power that a GPU draws."),
    "gpucluster_gpu_temperature_celsius": Metric("gauge", "Temperature of a GPU."),
    "gpucluster_exporter_collector_up": Metric(
        "gauge", "1 if the collector's samples on this page are complete and of this scrape."
    ),
    "gpucluster_exporter_collector_seconds": Metric("gauge", "How long the collector took; its limit if it hangs."),
    "gpucluster_exporter_collector_age_seconds": Metric("gauge", "Seconds since the collector was last complete."),
    "gpucluster_exporter_collector_hung": Metric(
        "gauge", "Processes of the collector that the kernel does not end: each waits for something that hangs."
    ),
    "gpucluster_exporter_series_left_out": Metric("gauge", "Samples of the collector above its limit of series."),
    "gpucluster_exporter_cpu_seconds_total": Metric(
        "counter", "Processor time of this exporter, without the tool that asks GPUs."
    ),
    "gpucluster_exporter_info": Metric("gauge", "1; the version of this exporter."),
}

Value = Union[int, float]


def sample(metric: str, value: Value, **labels: str) -> str:
    """One line, without its end. The metric is one of those of its page."""
    inside = ",".join([f'{name}="{label(text)}"' for name, text in labels.items()])
    return f"{metric}{{{inside}}} {_number(value)}" if inside else f"{metric} {_number(value)}"


def label(text: str) -> str:
    """The value of a label between its quotes: whatever the text is, the line stays one line of UTF-8."""
    if len(text) > MOST_LABEL:
        text = text[:MOST_LABEL]
    return _UNSAFE.sub(lambda match: _ESCAPES.get(match[0], "\ufffd"), text)


def _number(value: Value) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(value)


def page(lines: Iterable[str], metrics: Mapping[str, Metric] = METRICS) -> str:
    """The page of these samples: grouped by metric, each series once (the first of several counts).

    A line that is not a sample of `metrics` is left out.
    """
    by_metric: dict[str, dict[str, str]] = {name: {} for name in metrics}
    for line in lines:
        series, _space, value = line.rpartition(" ")
        samples = by_metric.get(series.partition("{")[0])
        if samples is not None:
            samples.setdefault(series, value)
    parts = []
    for name, samples in by_metric.items():
        if samples:
            parts.append(f"# HELP {name} {metrics[name].help}\n# TYPE {name} {metrics[name].type}\n")
            parts += [f"{series} {value}\n" for series, value in samples.items()]
    return "".join(parts)
