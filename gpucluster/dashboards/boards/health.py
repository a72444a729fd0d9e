"""Checks of nodes, and the monitoring itself."""

from __future__ import annotations

from gpucluster.dashboards.boards.names import HEALTH, RED_ABOVE_0, TO_NODE
from gpucluster.dashboards.grafana import DashboardRow, Json, PanelQuery, dashboard, stat, table, timeseries


def health() -> Json:
    """The dashboard."""
    return dashboard(
        HEALTH,
        "Health",
        "Checks of nodes, drains, and whether the monitoring itself works.",
        [
            DashboardRow(
                "Checks",
                [
                    stat(
                        "Results",
                        "How many checks have which result.",
                        "short",
                        PanelQuery(
                            "sum by (status) (max by (node, check, status) (gpucluster_health_check))", "{{status}}"
                        ),
                        width=12,
                    ),
                    stat(
                        "Drained",
                        "Nodes that failed checks have drained, and those on which an operator decides.",
                        "short",
                        PanelQuery(
                            "sum by (kind) (max by (node, kind) (gpucluster_health_drained)) or vector(0)", "{{kind}}"
                        ),
                        limits=RED_ABOVE_0,
                        width=8,
                    ),
                    stat(
                        "Only reported",
                        "1 if failed checks are only reported, and no node is drained.",
                        "short",
                        PanelQuery("max(gpucluster_health_shadow)", "shadow"),
                    ),
                    table(
                        "Checks that do not pass",
                        "By node.",
                        PanelQuery('max by (node, check, status) (gpucluster_health_check{status!~"pass|skip"})'),
                        columns={"node": "Node", "check": "Check", "status": "Status"},
                        links=TO_NODE,
                        width=12,
                    ),
                    table(
                        "Drained nodes",
                        "With their reasons.",
                        PanelQuery("max by (node, pool, reason) (gpucluster_slurm_node_drained)"),
                        columns={"node": "Node", "pool": "Pool", "reason": "Reason"},
                        links=TO_NODE,
                        width=12,
                    ),
                    timeseries(
                        "Age of the last report",
                        "How long ago a node has reported. An interval is the time between two reports.",
                        "s",
                        PanelQuery(
                            "max(gpucluster_health_written_timestamp_seconds) - on () group_right ()"
                            " max by (node) (gpucluster_health_report_timestamp_seconds)",
                            "{{node}}",
                        ),
                        PanelQuery("max(gpucluster_health_interval_seconds)", "interval"),
                    ),
                    timeseries(
                        "Drains",
                        "Nodes of a pool that were drained in the last hour.",
                        "short",
                        PanelQuery("max by (pool) (gpucluster_health_drains_last_hour)", "{{pool}}"),
                    ),
                ],
            ),
            DashboardRow(
                "Monitoring",
                [
                    stat(
                        "Exporters that do not answer",
                        "Of all hosts.",
                        "short",
                        PanelQuery("count(up == 0) or vector(0)", "exporters"),
                        limits=RED_ABOVE_0,
                        width=6,
                    ),
                    stat(
                        "Series",
                        "Series that Prometheus keeps in memory.",
                        "short",
                        PanelQuery("max(prometheus_tsdb_head_series)", "series"),
                        width=6,
                    ),
                    stat(
                        "Size",
                        "Of Prometheus' blocks on the disk.",
                        "bytes",
                        PanelQuery("max(prometheus_tsdb_storage_blocks_bytes)", "blocks"),
                        width=6,
                    ),
                    stat(
                        "Jobs left out",
                        "Running jobs that have no series of their own: there are too many.",
                        "short",
                        PanelQuery("max(gpucluster_slurm_jobs_left_out)", "jobs"),
                        width=6,
                    ),
                    table(
                        "Exporters that do not answer",
                        "By host.",
                        PanelQuery("min by (node, job, instance) (up) == 0"),
                        columns={"node": "Node", "job": "Exporter", "instance": "Address"},
                        links=TO_NODE,
                        width=12,
                    ),
                    table(
                        "What exporters can't read",
                        "By host.",
                        PanelQuery("max by (node, collector) (gpucluster_exporter_collector_up) == 0"),
                        columns={"node": "Node", "collector": "Collector"},
                        links=TO_NODE,
                        width=12,
                    ),
                    timeseries(
                        "Time of a scrape",
                        "The slowest host of each exporter.",
                        "s",
                        PanelQuery("max by (job) (scrape_duration_seconds)", "{{job}}"),
                    ),
                    timeseries(
                        "Time of a collector",
                        "The slowest host of each collector.",
                        "s",
                        PanelQuery("max by (collector) (gpucluster_exporter_collector_seconds)", "{{collector}}"),
                    ),
                    timeseries(
                        "Time to ask Slurm",
                        "How long the program that asks Slurm needs.",
                        "s",
                        PanelQuery("max(gpucluster_slurm_scrape_seconds)", "Slurm"),
                    ),
                    timeseries(
                        "Samples",
                        "That Prometheus stores.",
                        "short",
                        PanelQuery(
                            "sum(rate(prometheus_tsdb_head_samples_appended_total[$__rate_interval]))", "a second"
                        ),
                    ),
                ],
            ),
        ],
    )
