"""The ports of the RDMA network."""

from __future__ import annotations

from gpucluster.dashboards.boards.names import RDMA, RED_ABOVE_0, TO_NODE
from gpucluster.dashboards.grafana import DashboardRow, Json, PanelQuery, Variable, dashboard, stat, table, timeseries


def rdma() -> Json:
    """The dashboard."""
    of = 'node=~"$node"'
    return dashboard(
        RDMA,
        "RDMA",
        "The ports of the RDMA network: state, speed, errors, congestion.",
        [
            DashboardRow(
                "Ports",
                [
                    stat(
                        "Ports down",
                        "Ports that are not up now.",
                        "short",
                        PanelQuery(
                            f"count(max by (node, device, port) (gpucluster_rdma_port_up{{{of}}}) == 0) or vector(0)",
                            "down",
                        ),
                        limits=RED_ABOVE_0,
                        width=6,
                    ),
                    stat(
                        "Ports",
                        "All ports that are seen.",
                        "short",
                        PanelQuery(f"count(max by (node, device, port) (gpucluster_rdma_port_up{{{of}}}))", "ports"),
                        width=6,
                    ),
                    stat(
                        "Nodes with fewer devices than their shape has",
                        "Nodes of which devices are missing.",
                        "short",
                        PanelQuery(
                            "count(gpucluster:node_rdma_devices_nominal:count"
                            " > on (node, pool) gpucluster:node_rdma_devices:count)"
                            " or vector(0)",
                            "nodes",
                        ),
                        limits=RED_ABOVE_0,
                        width=12,
                    ),
                    table(
                        "Ports",
                        "Each port, with the present speed of its link.",
                        PanelQuery(
                            "max by (node, device, port, interface, link_layer, firmware)"
                            f" (gpucluster_rdma_port_info{{{of}}})"
                        ),
                        PanelQuery(f"max by (node, device, port) (gpucluster_rdma_port_up{{{of}}})"),
                        PanelQuery(f"max by (node, device, port) (gpucluster_rdma_port_rate_bytes_per_second{{{of}}})"),
                        columns={
                            "node": "Node",
                            "device": "Device",
                            "port": "Port",
                            "interface": "Interface",
                            "link_layer": "Link",
                            "firmware": "Firmware",
                            "Value #B": "Up",
                            "Value #C": "Speed",
                        },
                        units={"Speed": "Bps"},
                        links=TO_NODE,
                    ),
                ],
            ),
            DashboardRow(
                "Traffic",
                [
                    timeseries(
                        "Received",
                        "By device.",
                        "Bps",
                        PanelQuery(f"gpucluster:rdma_receive:bytes_per_second{{{of}}}", "{{node}} {{device}}"),
                    ),
                    timeseries(
                        "Sent",
                        "By device.",
                        "Bps",
                        PanelQuery(f"gpucluster:rdma_transmit:bytes_per_second{{{of}}}", "{{node}} {{device}}"),
                    ),
                    timeseries(
                        "Least of each node",
                        "What the device of a node receives that receives least: in a ring of all devices"
                        " they receive the same.",
                        "Bps",
                        PanelQuery(f"min by (node) (gpucluster:rdma_receive:bytes_per_second{{{of}}})", "{{node}}"),
                    ),
                    timeseries(
                        "Pause frames and discards",
                        "Counters of the network interfaces that tell of congestion.",
                        "short",
                        PanelQuery(
                            "sum by (node, interface, pci, counter) (rate(gpucluster_network_counter_total"
                            f'{{{of}, counter=~".*(pause|discard).*"}}[$__rate_interval])) > 0',
                            "{{node}} {{interface}} {{pci}} {{counter}}",
                        ),
                    ),
                ],
            ),
            DashboardRow(
                "Errors",
                [
                    timeseries(
                        "Errors",
                        "Errors of links, packets that were lost or sent again, operations that failed.",
                        "short",
                        PanelQuery(f"gpucluster:rdma_errors:per_second{{{of}}} > 0", "{{node}} {{device}} {{counter}}"),
                    ),
                    timeseries(
                        "Congestion",
                        "How often a port was told to send more slowly, or told another one.",
                        "short",
                        PanelQuery(f"gpucluster:rdma_congestion:per_second{{{of}}}", "{{node}} {{device}} {{counter}}"),
                    ),
                    timeseries(
                        "Counters that can't be read",
                        "Files of counters that gave no number.",
                        "short",
                        PanelQuery(
                            f"sum by (node) (rate(gpucluster_rdma_read_errors_total{{{of}}}[$__rate_interval]))",
                            "{{node}}",
                        ),
                    ),
                    table(
                        "Counters",
                        "Each counter, as the driver has it.",
                        PanelQuery(f"max by (node, device, port, counter) (gpucluster_rdma_counter_total{{{of}}})"),
                        columns={
                            "node": "Node",
                            "device": "Device",
                            "port": "Port",
                            "counter": "Counter",
                            "Value": "Value",
                        },
                        links=TO_NODE,
                        width=12,
                    ),
                ],
            ),
        ],
        [Variable("node", "Node", "gpucluster_rdma_port_up", all=True)],
    )
