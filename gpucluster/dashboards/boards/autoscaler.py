"""Elastic nodes and the cloud."""

from __future__ import annotations

from gpucluster.dashboards.boards.names import AUTOSCALER, RED_ABOVE_0
from gpucluster.dashboards.grafana import DashboardRow, Json, PanelQuery, dashboard, stat, timeseries


def autoscaler() -> Json:
    """The dashboard."""
    return dashboard(
        AUTOSCALER,
        "Autoscaler",
        "Elastic nodes: how many there are, how long they take, what the cloud answers.",
        [
            DashboardRow(
                "Now",
                [
                    stat(
                        "Last pass",
                        "Seconds since a pass was finished.",
                        "s",
                        PanelQuery("time() - max(gpucluster_last_success_timestamp)", "ago"),
                        limits={60: "orange", 300: "red"},
                    ),
                    stat(
                        "Cost",
                        "What the present instances cost in an hour, in the price table's currency.",
                        "short",
                        PanelQuery("max(gpucluster_cost_usd_per_hour)", "an hour"),
                    ),
                    stat(
                        "Launches that may be sent",
                        "At once, and how many in a second.",
                        "short",
                        PanelQuery("max(gpucluster_oci_throttle_tokens)", "at once"),
                        PanelQuery("max(gpucluster_oci_launch_rate)", "a second"),
                        width=8,
                    ),
                    stat(
                        "Pools that cool down",
                        "Pools for which nothing is launched after faults.",
                        "short",
                        PanelQuery("sum(max by (pool, fault) (gpucluster_breaker_open)) or vector(0)", "pools"),
                        limits=RED_ABOVE_0,
                        width=8,
                    ),
                ],
            ),
            DashboardRow(
                "Nodes",
                [
                    timeseries(
                        "Nodes",
                        "Elastic nodes, by what the scheduler and the cloud report.",
                        "short",
                        PanelQuery(
                            "sum by (pool, node_state, cloud_state) (gpucluster_nodes)",
                            "{{pool}} {{node_state}}/{{cloud_state}}",
                        ),
                        stacked=True,
                    ),
                    timeseries(
                        "Idle nodes",
                        "How many nodes cost and do nothing.",
                        "short",
                        PanelQuery(
                            "sum by (pool) (rate(gpucluster_idle_node_seconds_total[$__rate_interval]))", "{{pool}}"
                        ),
                    ),
                    timeseries(
                        "Time to service",
                        "How long nodes took, by phase: the slowest tenth.",
                        "s",
                        PanelQuery(
                            "histogram_quantile(0.9, sum by (le, phase) (rate(gpucluster_scaleup_seconds_bucket[1h])))",
                            "{{phase}}",
                        ),
                    ),
                    timeseries(
                        "Jobs that needed nodes",
                        "By result.",
                        "short",
                        PanelQuery("sum by (result) (increase(gpucluster_gang_total[1h]))", "{{result}}"),
                    ),
                ],
            ),
            DashboardRow(
                "Cloud",
                [
                    timeseries(
                        "Requests",
                        "By operation and answer.",
                        "reqps",
                        PanelQuery(
                            "sum by (op, code) (rate(gpucluster_oci_requests_total[$__rate_interval]))",
                            "{{op}} {{code}}",
                        ),
                    ),
                    timeseries(
                        "No capacity",
                        "Launches for which no host was free.",
                        "short",
                        PanelQuery(
                            "sum by (shape, ad) (increase(gpucluster_capacity_errors_total[1h]))", "{{shape}} {{ad}}"
                        ),
                    ),
                    timeseries(
                        "A pass",
                        "How long a pass takes: the slowest hundredth.",
                        "s",
                        PanelQuery(
                            "histogram_quantile(0.99, sum by (le) (rate(gpucluster_loop_seconds_bucket[10m])))", "99 %"
                        ),
                    ),
                    timeseries(
                        "Instances without a node",
                        "That were terminated.",
                        "short",
                        PanelQuery("sum(increase(gpucluster_orphans_total[1h]))", "instances"),
                    ),
                ],
            ),
        ],
    )
