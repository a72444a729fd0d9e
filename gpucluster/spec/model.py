"""ClusterSpec: everything that a cluster.yml may contain. Its sections are in `sections/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, PrivateAttr, model_validator

from gpucluster.spec.defaults import with_defaults
from gpucluster.spec.sections.backup import BackupSchedule
from gpucluster.spec.sections.checks import Checks
from gpucluster.spec.sections.cloud import Cloud, Iam
from gpucluster.spec.sections.fields import Name, Resolved, SpecPart
from gpucluster.spec.sections.kubernetes import Kubernetes
from gpucluster.spec.sections.logs import Logs
from gpucluster.spec.sections.machines import ControllerSpec, LoginSpec, Machine, PoolSpec
from gpucluster.spec.sections.maintenance import MaintenanceSpec
from gpucluster.spec.sections.monitoring import Monitoring
from gpucluster.spec.sections.network import NetworkSpec, Ssh
from gpucluster.spec.sections.slurm import Autoscaler, SlurmSpec
from gpucluster.spec.sections.software import Containers, Nvidia, Software
from gpucluster.spec.sections.state import StateSpec
from gpucluster.spec.sections.storage import Storage
from gpucluster.spec.sections.users import UsersSpec
from gpucluster.spec.sections.verification import Verify

VERSION = 1
Scheduler = Literal["slurm", "kubernetes", "none"]


class ClusterSpec(SpecPart):
    """The desired state of one cluster.

    Made by load() or loads(): every value is checked, and every default is filled in.
    """

    version: Literal[1] = Field(description="Version of this file format.", examples=[1])
    name: Name = Field(description="Name of the cluster: letters, digits and `-`, at most 15.", examples=["demo"])
    cloud: Cloud = Field(description="The cloud.", examples=[{"provider": "local"}])
    network: NetworkSpec = Field(
        description="The network.",
        examples=[
            {
                "vcn_cidr": "10.20.0.0/16",
                "public_subnet_cidr": "10.20.0.0/24",
                "private_subnet_cidr": "10.20.1.0/24",
            }
        ],
    )
    ssh: Ssh = Field(default_factory=Ssh, description="The operator's key pair.")
    controller: ControllerSpec = Field(
        default_factory=ControllerSpec, description="The controller. Default: a small flexible machine."
    )
    login: LoginSpec = Field(default_factory=LoginSpec, description="The login nodes. Default: none.")
    storage: Storage = Field(default_factory=Storage, description="File systems.")
    pools: dict[str, PoolSpec] = Field(
        min_length=1,
        # What was measured: docs/how-to/resize.md
        max_length=200,
        description="The pools of nodes, by name.",
        examples=[{"compute": {"shape": "BM.GPU4.8", "count": 2}}],
    )
    scheduler: Scheduler = Field(
        default="slurm",
        description="What runs jobs on the nodes: `slurm`, `kubernetes`, or `none`: nodes with a container runtime, a "
        "list of hosts and ssh between them. A cluster keeps its scheduler.",
    )
    users: UsersSpec = Field(default_factory=UsersSpec, description="The users.")
    iam: Iam = Field(default_factory=Iam, description="Permissions of the controller in OCI.")
    state: StateSpec = Field(default_factory=StateSpec, description="Where Terraform stores its state.")
    slurm: SlurmSpec = Field(default_factory=SlurmSpec, description="Slurm as the scheduler.")
    kubernetes: Kubernetes = Field(default_factory=Kubernetes, description="Kubernetes as the scheduler.")
    autoscaler: Autoscaler = Field(default_factory=Autoscaler, description="Limits of elastic nodes.")
    checks: Checks = Field(default_factory=Checks, description="Checks of nodes.")
    maintenance: MaintenanceSpec = Field(
        default_factory=MaintenanceSpec, description="What follows from maintenance that Oracle announces."
    )
    monitoring: Monitoring = Field(default_factory=Monitoring, description="What the cluster measures of itself.")
    backup: BackupSchedule = Field(
        default_factory=BackupSchedule, description="Backups that the controller makes on a schedule."
    )
    logs: Logs = Field(default_factory=Logs, description="Journals of all hosts that the controller keeps.")
    containers: Containers = Field(default_factory=Containers, description="Container runtimes.")
    nvidia: Nvidia = Field(default_factory=Nvidia, description="The NVIDIA driver.")
    software: Software = Field(default_factory=Software, description="Software of every machine.")
    verify: Verify = Field(default_factory=Verify, description="What full verification measures with.")
    _file: Path = PrivateAttr(default=Path("cluster.yml"))
    _source: Path = PrivateAttr(default=Path())

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, data: Any) -> Any:
        return with_defaults(data) if isinstance(data, dict) else data

    def model_post_init(self, context: Any) -> None:
        """Take the path of the file from the validation context."""
        if isinstance(context, Resolved):
            self._file, self._source = context.file, context.directory

    @property
    def file(self) -> Path:
        """The file that this was loaded from."""
        return self._file

    @property
    def source(self) -> Path:
        """The directory of that file; file names in it are relative to this directory."""
        return self._source

    @property
    def host_pools(self) -> dict[str, PoolSpec]:
        """The pools whose nodes gpucluster makes and configures: all that are not managed."""
        return {name: pool for name, pool in self.pools.items() if not pool.managed}

    @property
    def managed_pools(self) -> dict[str, PoolSpec]:
        """The pools whose nodes Kubernetes Engine makes."""
        return {name: pool for name, pool in self.pools.items() if pool.managed}

    @property
    def elastic_pools(self) -> dict[str, PoolSpec]:
        """The elastic pools by name: those in which some nodes exist only while jobs need them."""
        return {name: pool for name, pool in self.pools.items() if pool.elastic}

    @property
    def asks_cloud(self) -> bool:
        """Whether a program of the controller or its standby asks the cloud: the autoscaler, the reader of maintenance,
        or the failover by itself."""
        return bool(self.elastic_pools) or self.maintenance.enabled or self.controller.automatic_failover

    @property
    def reports_hosts(self) -> bool:
        """Whether the autoscaler reports physical hosts of elastic nodes to Oracle."""
        return self.checks.enabled and self.checks.report_hosts and bool(self.elastic_pools)

    @property
    def claiming_pools(self) -> dict[str, PoolSpec]:
        """Those whose GPUs pods claim of NVIDIA's DRA driver, instead of asking for a number of a resource."""
        by_claim = self.scheduler == "kubernetes" and self.kubernetes.gpus == "dra-driver"
        return {name: pool for name, pool in self.pools.items() if by_claim and pool.hardware.has_nvidia_gpus}

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The controller, the login nodes if there are any, and the pools."""
        return (self.controller, *([self.login] if self.login.count else []), *self.pools.values())

    @property
    def partitions(self) -> dict[str, tuple[str, ...]]:
        """The names of the pools of each Slurm partition, in the order of the file."""
        members: dict[str, tuple[str, ...]] = {}
        for name, pool in self.pools.items():
            members[pool.partition] = (*members.get(pool.partition, ()), name)
        return members


def sections() -> dict[type[BaseModel], list[str]]:
    """Every section with its paths in the file, in the order of the model: `pools.<name>`, `users.people[]`.

    An image has three paths: of the controller, of login nodes and of a pool; the path of the top level is empty.
    """
    paths: dict[type[BaseModel], list[str]] = {}
    _collect_sections(ClusterSpec, "", paths)
    return paths


def _collect_sections(kind: Any, path: str, paths: dict[type[BaseModel], list[str]]) -> None:
    if type(None) in get_args(kind):
        for each in get_args(kind):
            _collect_sections(each, path, paths)
    elif get_origin(kind) is dict:
        _collect_sections(get_args(kind)[1], f"{path}.<name>", paths)
    elif get_origin(kind) is tuple:
        _collect_sections(get_args(kind)[0], f"{path}[]", paths)
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        paths.setdefault(kind, []).append(path)
        for name, info in kind.model_fields.items():
            _collect_sections(info.annotation, f"{path}.{name}" if path else name, paths)
