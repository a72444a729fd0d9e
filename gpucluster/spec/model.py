"""ClusterSpec: what a cluster.yml may say. Sections: place.py, machines.py, service.py; single values: fields.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from gpucluster.spec.derive import derived
from gpucluster.spec.fields import Name, Part, Resolved
from gpucluster.spec.machines import Controller, Pool, Storage
from gpucluster.spec.place import Cloud, Iam, Network, Ssh, State
from gpucluster.spec.service import Autoscaler, Slurm, Users
from gpucluster.spec.software import Containers, Nvidia, Software

VERSION = 1


class ClusterSpec(Part):
    """One cluster, as wanted.

    Made by load() or loads(): every value is checked, and every default filled in.
    """

    version: Literal[1] = Field(description="Version of this file format.", examples=[1])
    name: Name = Field(description="Name of the cluster: letters, digits and `-`, at most 15.", examples=["demo"])
    cloud: Cloud = Field(description="Which cloud.")
    network: Network = Field(description="The network.")
    ssh: Ssh = Field(default_factory=Ssh, description="The operator's keys.")
    controller: Controller = Field(
        default_factory=Controller, description="The controller. Default: a small flexible machine."
    )
    storage: Storage = Field(default_factory=Storage, description="File systems.")
    pools: dict[str, Pool] = Field(min_length=1, max_length=50, description="The pools by name.")
    users: Users = Field(default_factory=Users, description="The users.")
    iam: Iam = Field(default_factory=Iam, description="Rights of the controller in OCI.")
    state: State = Field(default_factory=State, description="Where Terraform keeps its state.")
    slurm: Slurm = Field(default_factory=Slurm, description="The scheduler.")
    autoscaler: Autoscaler = Field(default_factory=Autoscaler, description="Limits of elastic nodes.")
    containers: Containers = Field(default_factory=Containers, description="Container runtimes.")
    nvidia: Nvidia = Field(default_factory=Nvidia, description="The GPUs' driver.")
    software: Software = Field(default_factory=Software, description="Software on every machine.")
    _file: Path = PrivateAttr(default=Path("cluster.yml"))
    _source: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        return derived(data) if isinstance(data, dict) else data

    def model_post_init(self, context: Any) -> None:
        """Remember where the file lies."""
        if isinstance(context, Resolved):
            self._file, self._source = context.file, context.directory

    @property
    def file(self) -> Path:
        """The file that this came from."""
        return self._file

    @property
    def source(self) -> Path:
        """The directory of that file; relative file names in it count from here."""
        return self._source

    @property
    def elastic_pools(self) -> dict[str, Pool]:
        """The pools whose nodes come and go, by name."""
        return {name: pool for name, pool in self.pools.items() if pool.elastic}

    @property
    def partitions(self) -> dict[str, tuple[str, ...]]:
        """The names of the pools of each Slurm partition, in the order of the file."""
        found: dict[str, tuple[str, ...]] = {}
        for name, pool in self.pools.items():
            found[pool.partition] = (*found.get(pool.partition, ()), name)
        return found
