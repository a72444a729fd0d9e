"""Network interfaces: what their drivers count of pause frames, discards and errors, and wherever they are.

An interface that moves into a pod gets the name that the pod has for it, such as net1, which others have, too. The
label `pci` is the place of its card, which stays the same.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Callable, NamedTuple

from gpucluster.node_agent import rdma_files
from gpucluster.node_agent.exporter.collect import Place
from gpucluster.node_agent.exporter.collect.ethtool import Ethtool
from gpucluster.node_agent.exporter.exposition import sample
from gpucluster.node_agent.exporter.namespaces import SUBJECT, Namespaces

# A driver such as mlx5 has thousands of statistics. Those that show why a network is slow are kept: frames that stop
# the sender (802.3x and by priority), packets that were thrown away, and errors; and the events of congestion of RoCE.
_KEPT = re.compile(
    r"pause|pfc|x(on|off)|discard|drop|err|crc|out_of_buffer|no_(buff|dma)|missed|timeout|link_down|corrected_bits"
    r"|ecn|cnp|stall|congest",
    re.IGNORECASE,
)
# One for each queue, channel or ring: a large host has a hundred of them, and their sum is in the others.
_OF_A_QUEUE = re.compile(
    r"^(rx|tx|ch|q|rxq|txq)[_-]?\d+[_.:-]|queue|\[|ring|_q\d+_|^ptp_|xsk|xdp|tls|macsec|ipsec", re.IGNORECASE
)
#: Of one interface.
MOST = 128
_NAMES_AGE_S = 600.0


class _Known(NamedTuple):
    total: int
    places: list[int]
    names: list[str]
    until: float


class _Interface(NamedTuple):
    """Where an interface is: the network namespace ("" for our own), its name there, and the place of its card."""

    namespace: str
    name: str
    pci: str


class NetworkCollector:
    """The statistics of the interfaces that are devices: no bridges, no tunnels, no containers' interfaces.

    Args:
        places: finds the interfaces that are devices in a /sys: their names, and the place of each card.
    """

    def __init__(
        self,
        place: Place,
        ethtool: Ethtool | None = None,
        clock: Callable[[], float] = time.monotonic,
        places: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        self._place, self._clock = place, clock
        self._ethtool = ethtool or Ethtool()
        self._places = places or cards
        self._namespaces = Namespaces(place.namespaces, place.proc, lambda sysfs: bool(self._places(sysfs)))
        self._there: dict[str, _Interface] = {}
        self._known: dict[str, _Known] = {}
        self._faults: dict[str, int] = {}

    def subjects(self) -> list[str]:
        """The names of the interfaces of this host, and of those that have moved into a network namespace."""
        own = self._places(self._place.sysfs)
        self._there = {name: _Interface("", name, pci) for name, pci in own.items()}
        for namespace, sysfs in self._namespaces.folders().items():
            for name, pci in self._places(sysfs).items():
                self._there[f"{namespace} {name}"] = _Interface(namespace, name, pci)
        return [*self._there, *([SUBJECT] if self._place.namespaces else [])]

    def samples(self, subject: str) -> Iterator[str]:
        """The lines of one interface; only how often it failed, where its driver has no statistics.

        Raises:
            OSError: there are network namespaces that could not be read, and perhaps interfaces in them.
        """
        if subject == SUBJECT:
            self._namespaces.require_all()
            return
        interface = self._there[subject]
        labels = {"interface": interface.name, "pci": interface.pci}
        try:
            with self._asking(interface) as ethtool:
                if ethtool is None:
                    return  # its namespace has ended since
                counters = self._read(subject, interface.name, ethtool)
            for name, value in counters:
                yield sample("gpucluster_network_counter_total", value, **labels, counter=name)
        except OSError:
            self._known.pop(subject, None)
            self._faults[subject] = self._faults.get(subject, 0) + 1
        yield sample("gpucluster_network_read_errors_total", self._faults.get(subject, 0), **labels)

    def close(self) -> None:
        """Close the sockets."""
        self._ethtool.close()
        self._namespaces.close()

    @contextlib.contextmanager
    def _asking(self, interface: _Interface) -> Iterator[Ethtool | None]:
        if not interface.namespace:
            yield self._ethtool
            return
        with self._namespaces.inside(interface.namespace) as inside:
            yield self._ethtool.through(inside) if inside else None

    def _read(self, subject: str, interface: str, ethtool: Ethtool) -> list[tuple[str, int]]:
        """Names and values. The names are read now and then: they are most of the work."""
        known = self._known.get(subject)
        if known is None or self._clock() >= known.until:
            count = ethtool.count(interface)
            names = ethtool.names(interface, count) if count else []
            places = chosen(names)
            known = _Known(count, places, [names[at] for at in places], self._clock() + _NAMES_AGE_S)
            self._known[subject] = known
        if not known.places:
            return []
        values = ethtool.values(interface, known.total, known.places)
        if values is None:
            # The driver has other statistics than before. They are read with the next scrape.
            del self._known[subject]
            return []
        return list(zip(known.names, values))


def cards(sysfs: str) -> dict[str, str]:
    """The interfaces that are devices: by name the place of the card on its bus, such as 0000:0c:00.0."""
    folder = f"{sysfs}/class/net"
    places = {}
    for name in rdma_files.names(folder):
        device = f"{folder}/{name}/device"
        if os.path.exists(device):
            # A link to the folder of the card. Only the kernel can follow it: the text of a path in an open folder
            # would lead to /sys of the host.
            places[name] = os.path.basename(os.readlink(device)) if os.path.islink(device) else ""
    return places


def chosen(names: list[str]) -> list[int]:
    """The places of the statistics that are kept."""
    kept = [at for at, name in enumerate(names) if name and _KEPT.search(name) and not _OF_A_QUEUE.search(name)]
    return kept[:MOST]
