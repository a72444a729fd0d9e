"""Clusters on a local cloud whose instances are processes: the library, Terraform and ssh are real, hosts are not.

Nothing answers at an address of a host, so a run gets as far as the phase `hosts`. It does not prove what is done on
hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import gpucluster
from gpucluster.localcloud import control
from gpucluster.localcloud.image import base_image
from tests.addresses import free_range
from tests.waiting import wait_for

_CLUSTER = """\
version: 1
name: {name}
cloud: {{provider: local}}
network:
  vcn_cidr: {net}.0.0/16
  public_subnet_cidr: {net}.0.0/24
  private_subnet_cidr: {net}.1.0/24
  ssh_allowed_cidrs: [127.0.0.1/32]
pools:
  cpu: {{shape: VM.Standard.E5.Flex, ocpus: 1, memory_gb: 8, count: 1}}
"""


class ProcessCloud:
    """A server with clusters; their folders are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "cloud"
        self._ranges = ExitStack()
        self._clusters: list[SeenCluster] = []

    def cluster(self, name: str) -> SeenCluster:
        """A new cluster, of which nothing exists yet."""
        file = self.folder / name / "cluster.yml"
        file.parent.mkdir()
        file.write_text(_CLUSTER.format(name=name, net=self._ranges.enter_context(free_range())))
        made = SeenCluster(file)
        self._clusters.append(made)
        return made

    def faults(self, *faults: Mapping[str, Any]) -> None:
        """Make operations of the cloud fail or wait; none clears."""
        part = self.home / "faults.part"
        part.write_text(json.dumps(faults))
        part.replace(self.home / "faults.json")

    def close(self) -> None:
        """Remove all clusters, and end the server."""
        self.faults()
        with self._ranges, contextlib.ExitStack() as ends:
            ends.callback(control.stop, self.home)
            for each in self._clusters:
                if not each.cluster.contents().empty:
                    ends.callback(each.cluster.destroy, delete_data=True)


class SeenCluster:
    """A `Cluster`, and the events that it has reported."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.events: list[gpucluster.Event] = []
        self.cluster = gpucluster.Cluster(gpucluster.load(file), on_event=self.events.append)

    def reached(self, *, name: str, status: str) -> None:
        """Wait for an event."""
        wait_for(
            f"{name} is {status}",
            lambda: any((event.name, event.status) == (name, status) for event in [*self.events]),
            state=lambda: "\n".join(map(str, self.events[-20:])),
        )

    def told(self, words: str) -> None:
        """Wait for an event with these words. Others may follow it."""
        wait_for(
            f"it is told: {words}",
            lambda: any(words in event.message for event in [*self.events]),
            state=lambda: "\n".join(map(str, self.events[-20:])),
        )

    def in_state(self) -> tuple[int, int]:
        """The numbers of networks and instances in Terraform's state."""
        resources = json.loads(self.cluster.paths.terraform_state.read_text())["resources"]
        types = [each["type"] for each in resources if each["mode"] == "managed" for _ in each["instances"]]
        return types.count("oci_core_vcn"), types.count("oci_core_instance")

    def in_cloud(self) -> tuple[int, int]:
        """The same, of the cloud."""
        contents = self.cluster.contents()
        return contents.networks, sum(contents.instances.values())


@contextmanager
def process_cloud(folder: Path) -> Iterator[ProcessCloud]:
    """A local cloud for the time of the block. Its processes do nothing, and need no image."""
    cloud = ProcessCloud(folder)
    cloud.home.mkdir()
    (cloud.home / "process-engine.json").write_text(json.dumps({"argv": ["sleep", "86400"]}))
    with (
        mock.patch.dict(os.environ, {"GPUCLUSTER_HOME": str(cloud.home)}),
        mock.patch.object(base_image, "ensure_image", return_value=None),
    ):
        control.start(cloud.home, engine="process")
        try:
            yield cloud
        finally:
            cloud.close()
