"""What this machine saves of a cluster between runs, in addition to Terraform's state and the run log.

    hosts.json     the hosts, and which of them have booted: a later run knows how to reach them, and waits for fewer
    lock-id        the id of the last lock of this folder: a later run knows what a killed one has left
    identity.json  the cluster's name and random identity, before Terraform's state has them
    release.json   which release has applied the cluster last, and the format of what it has stored (`formats`)
    compartment    where the cluster was built, for a state that does not have it: a new one, or a damaged one

Each is a file in `.gpucluster/`; all of them are removed with the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace

from gpucluster.formats import RELEASE_OF_FORMAT_1
from gpucluster.node_agent import bounded
from gpucluster.paths import ClusterPaths, read_saved, write_private
from gpucluster.ssh import Host


@dataclass(frozen=True)
class SavedIdentity:
    """Which cluster this folder works on: its random identity, and who made it where (empty if that is not known)."""

    name: str
    id: str
    origin: str = ""


@dataclass(frozen=True)
class SavedRelease:
    """Which release has applied the cluster last, as far as this folder knows, and the format of what it has stored."""

    format: int = 1
    version: str = RELEASE_OF_FORMAT_1


@dataclass(frozen=True)
class SavedHost:
    """A host as the last run found it. `booted` is the OCID of its instance once that has answered, else None."""

    name: str
    address: str
    booted: str | None


class SavedState:
    """The files of one cluster."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._hosts = paths.root / "hosts.json"
        self._compartment = paths.root / "compartment"
        self._identity = paths.root / "identity.json"
        self._lock_id = paths.root / "lock-id"
        self.release_file = paths.root / "release.json"

    @property
    def compartment(self) -> str:
        """Where this machine has built the cluster; empty if it does not know. The state knows better: it is the same
        for every machine."""
        try:
            return read_saved(self._compartment).strip()
        except OSError:
            return ""

    @compartment.setter
    def compartment(self, compartment: str) -> None:
        if self.compartment != compartment:
            write_private(self._compartment, compartment + "\n")

    @property
    def lock_id(self) -> str:
        """The id of the last lock that a run of this folder has taken; empty if there was none."""
        try:
            return self._lock_id.read_text().strip()
        except (OSError, ValueError):
            return ""

    @lock_id.setter
    def lock_id(self, lock_id: str) -> None:
        write_private(self._lock_id, lock_id + "\n")

    @property
    def identity(self) -> SavedIdentity | None:
        """Which cluster this folder works on; None if it does not know."""
        try:
            saved = bounded.load(self._identity)
            return SavedIdentity(str(saved["name"]), str(saved["id"]), str(saved["origin"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @identity.setter
    def identity(self, identity: SavedIdentity) -> None:
        if self.identity != identity:
            write_private(self._identity, json.dumps(asdict(identity), indent=2) + "\n")

    @property
    def release(self) -> SavedRelease:
        """The release that has applied the cluster last. A damaged file is like none: the state has it, too."""
        try:
            saved = bounded.load(self.release_file)
            return SavedRelease(int(saved["format"]), str(saved["release"]))
        except (OSError, ValueError, LookupError, TypeError):
            return SavedRelease()

    @release.setter
    def release(self, release: SavedRelease) -> None:
        if self.release != release:
            text = json.dumps({"format": release.format, "release": release.version}, indent=2)
            write_private(self.release_file, text + "\n")

    def hosts(self) -> tuple[SavedHost, ...]:
        """The hosts of the last run that found them, the controller first; empty if no run has found any, or if the
        file is damaged: then they have to be found again."""
        try:
            saved = bounded.load(self._hosts)
            return tuple(
                SavedHost(str(host["name"]), str(host["address"]), host.get("booted")) for host in saved["hosts"]
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return ()

    def hosts_saved_at(self) -> float | None:
        """When the hosts were saved, in seconds since the epoch; None if they are not."""
        try:
            return self._hosts.stat().st_mtime
        except OSError:
            return None

    def save_hosts(self, hosts: Sequence[Host], booted: AbstractSet[str]) -> None:
        """Save the hosts.

        Args:
            booted: the OCIDs of instances that have booted; it may hold OCIDs of other instances, too.
        """
        saved = [
            SavedHost(host.name, host.address, host.instance_id if host.instance_id in booted else None)
            for host in hosts
        ]
        self._write_hosts(saved)

    def forget_booted(self, instances: AbstractSet[str]) -> None:
        """Forget that these instances have booted.

        Args:
            instances: their OCIDs.
        """
        hosts = self.hosts()
        if any(host.booted in instances for host in hosts):
            self._write_hosts([replace(host, booted=None) if host.booted in instances else host for host in hosts])

    def _write_hosts(self, hosts: Sequence[SavedHost]) -> None:
        write_private(self._hosts, json.dumps({"hosts": [asdict(host) for host in hosts]}, indent=2) + "\n")

    def forget_hosts(self) -> None:
        """Delete the hosts: the cluster does not exist."""
        self._hosts.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete all of it."""
        for file in (self._hosts, self._compartment, self._identity, self._lock_id, self.release_file):
            file.unlink(missing_ok=True)
