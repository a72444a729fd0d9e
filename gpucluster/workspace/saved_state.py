"""What is kept of a cluster between runs, beside Terraform's state and the diary.

    hosts.json     the hosts, and which of them have booted: a later run finds the way in, and waits for fewer
    compartment    where the cluster was built
    home-in-use    stands from the moment when users may reach the share

Each is a file in `.gpucluster/`; all of them go with the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

from gpucluster.errors import InputError
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.ssh import Host


@dataclass(frozen=True)
class KeptHost:
    """A host as the last run found it. `booted` is the OCID of its instance once that has answered, else None."""

    name: str
    address: str
    booted: str | None


class Kept:
    """The files of one cluster."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._hosts = paths.root / "hosts.json"
        self._compartment = paths.root / "compartment"
        self._home_in_use = paths.root / "home-in-use"

    @property
    def begun(self) -> bool:
        """Whether something of this cluster may stand."""
        return self._compartment.exists()

    def stay_in(self, compartment: str) -> None:
        """Refuse to look for this cluster in another compartment (or another local cloud) than it was built in: there,
        Terraform would find nothing of it and build it all again.

        Raises:
            InputError: with both compartments.
        """
        if not self.begun:
            write_private(self._compartment, compartment + "\n")
            return
        built_in = self._compartment.read_text().strip()
        if built_in != compartment:
            raise InputError(
                f"this cluster was built in another compartment: {built_in}, and not {compartment}",
                where=str(self._compartment),
                hint="Go back to the file (or the local cloud) that it was built with, and destroy it there first",
            )

    def hosts(self) -> tuple[KeptHost, ...]:
        """The hosts of the last run that found them, the controller first; empty where none did."""
        try:
            kept: dict[str, Any] = json.loads(self._hosts.read_text())
        except (OSError, ValueError):
            return ()
        return tuple(KeptHost(host["name"], host["address"], host.get("booted")) for host in kept.get("hosts") or ())

    def keep_hosts(self, hosts: Sequence[Host], booted: AbstractSet[str]) -> None:
        """Write down the hosts.

        Args:
            booted: the OCIDs of instances that have booted; others may be among them.
        """
        found = [
            KeptHost(host.name, host.address, host.instance_id if host.instance_id in booted else None)
            for host in hosts
        ]
        write_private(self._hosts, json.dumps({"hosts": [asdict(host) for host in found]}, indent=2) + "\n")

    @property
    def home_in_use(self) -> bool:
        """Whether users may have files in the share. Before they can reach it, nobody can."""
        return self._home_in_use.exists()

    @home_in_use.setter
    def home_in_use(self, in_use: bool) -> None:
        if in_use:
            self._home_in_use.touch()
        else:
            self._home_in_use.unlink(missing_ok=True)

    def forget(self) -> None:
        """Keep nothing more."""
        for file in (self._hosts, self._home_in_use, self._compartment):
            file.unlink(missing_ok=True)
