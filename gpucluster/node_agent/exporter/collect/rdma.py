"""RDMA: every counter of every port of every device, whatever the driver calls it, and wherever the device is.

A device that moves into a pod and back keeps its name and its counters, so its series go on, with the same labels. The
interface in gpucluster_rdma_port_info has the name that it has in the pod.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from gpucluster.node_agent import rdma_files
from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.exposition import label, sample
from gpucluster.node_agent.exporter.namespaces import SUBJECT, Namespaces
from gpucluster.node_agent.rdma_files import DATA_UNIT, Port

# Drivers without port_rcv_data and port_xmit_data (irdma) count the octets of the IP packets that carry RDMA.
_RECEIVED_OCTETS, _TRANSMITTED_OCTETS = ("ip4InOctets", "ip6InOctets"), ("ip4OutOctets", "ip6OutOctets")
_RATE = re.compile(r"([\d.]+) Gb/sec")
_BITS, _GIGA = 8, 1e9


class Rdma:
    """Counters, state, speed and identity of the ports."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._namespaces = Namespaces(place.namespaces, place.proc)
        self._moved: dict[str, str] = {}
        self._unread: dict[tuple[str, str], int] = {}

    def subjects(self) -> list[str]:
        """The folders of the devices of this host, and the places of those that have moved away."""
        own = rdma_files.devices(self._place.sysfs)
        # Where namespaces share devices, the kernel shows each in all of them.
        taken = {os.path.basename(device) for device in own}
        self._moved = {}
        for namespace, sysfs in self._namespaces.folders().items():
            for device in rdma_files.devices(sysfs):
                name = os.path.basename(device)
                if name not in taken:
                    taken.add(name)
                    self._moved[f"{namespace} {name}"] = device
        return [*own, *self._moved, *([SUBJECT] if self._place.namespaces else [])]

    def samples(self, subject: str) -> Iterator[str]:
        """The lines of all ports of a device.

        Raises:
            OSError: there are network namespaces that could not be read, and perhaps devices in them.
        """
        if subject == SUBJECT:
            self._namespaces.require_all()
            return
        device = self._moved.get(subject, subject)
        for port in rdma_files.ports(device):
            yield from self._counters(port)
            yield from _state(device, port)

    def close(self) -> None:
        """Let go of the folders."""
        self._namespaces.close()

    def _counters(self, port: Port) -> Iterator[str]:
        counters = rdma_files.counters(port)
        key = (port.device, port.number)
        self._unread[key] = self._unread.get(key, 0) + counters.unread
        device, number = label(port.device), label(port.number)
        # The one line of which there are a thousand.
        start = f'gpucluster_rdma_counter_total{{device="{device}",port="{number}",counter="'
        for name, value in counters.values.items():
            yield f'{start}{label(name)}"}} {value}'
        if counters.lifespan is not None:
            yield _of(port, "gpucluster_rdma_lifespan_seconds", counters.lifespan / 1000)
        for metric, words, octets in (
            ("gpucluster_rdma_received_bytes_total", "port_rcv_data", _RECEIVED_OCTETS),
            ("gpucluster_rdma_transmitted_bytes_total", "port_xmit_data", _TRANSMITTED_OCTETS),
        ):
            if words in counters.values:
                yield _of(port, metric, counters.values[words] * DATA_UNIT)
            elif any(name in counters.values for name in octets):
                yield _of(port, metric, sum(counters.values.get(name, 0) for name in octets))
        yield _of(port, "gpucluster_rdma_read_errors_total", self._unread[key])


def _state(device: str, port: Port) -> Iterator[str]:
    state = _text(f"{port.folder}/state")
    if state:
        yield _of(port, "gpucluster_rdma_port_up", int(state.rpartition(" ")[2] == "ACTIVE"))
    rate = _RATE.match(_text(f"{port.folder}/rate"))
    if rate:
        yield _of(port, "gpucluster_rdma_port_rate_bytes_per_second", float(rate[1]) * _GIGA / _BITS)
    yield sample(
        "gpucluster_rdma_port_info",
        1,
        device=port.device,
        port=port.number,
        interface=_interface(device, port),
        link_layer=_text(f"{port.folder}/link_layer"),
        firmware=_text(f"{device}/fw_ver"),
        board=_text(f"{device}/board_id"),
    )


def _interface(device: str, port: Port) -> str:
    """The network interface of a port: of its first address, or the only one beside the device."""
    known = _text(f"{port.folder}/gid_attrs/ndevs/0")
    beside = rdma_files.names(f"{device}/device/net")
    return known or (beside[0] if len(beside) == 1 else "")


def _of(port: Port, metric: str, value: float) -> str:
    return sample(metric, value, device=port.device, port=port.number)


def _text(path: str) -> str:
    try:
        return rdma_files.text(path)
    except OSError:
        return ""
