"""Terraform's output `cluster`, which has a versioned format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpucluster import formats
from gpucluster.cloud.members import PoolMember
from gpucluster.errors import TerraformError
from gpucluster.handover import earlier_formats
from gpucluster.rollout.record import RolloutRecord, parse

#: The format of the outputs `cluster` and `identity`, as terraform/cluster/outputs.tf has it.
CONTRACT_VERSION = formats.CLUSTER_FORMAT
#: The parts of the output `identity` that are known only after the hosts were reached.
RECORDED = ("host_keys", "certificates", "secrets", "physical_hosts", "reported_hosts")
#: The output with the records of rollouts, by pool, and its type as Terraform's state writes it.
ROLLOUTS, ROLLOUTS_TYPE = "rollouts", ("map", "string")
#: The output with the record of the service, and its type as Terraform's state writes it.
SERVICE, SERVICE_TYPE = "service", ("map", "string")
#: The hosts that can be the controller, by their modules' names.
CONTROLLER_HOST, STANDBY_HOST = "controller", "standby"
#: The names of the ssh CA, and of the CA of the directory, among the certificates.
SSH_AUTHORITY, DIRECTORY_AUTHORITY = "ssh", "directory"


@dataclass(frozen=True)
class PoolOutput:
    """The resources of a pool. `instances` is empty for a cluster network and a GPU memory cluster: their members are
    read with the SDK.

    `image_id` is the image of the permanent nodes; the instance configuration uses `baked_image_id`, if there is one.
    """

    availability_domain: str
    kind: str
    shape: str
    image_id: str
    baked_image_id: str | None
    instance_configuration_id: str | None
    compute_cluster_id: str | None
    cluster_network_id: str | None
    instances: tuple[PoolMember, ...]
    gpu_memory_cluster_id: str | None = None

    @property
    def launched_together_id(self) -> str | None:
        """What launches and names the members itself: a cluster network or a GPU memory cluster; None for others."""
        return self.cluster_network_id or self.gpu_memory_cluster_id


@dataclass(frozen=True)
class ShareOutput:
    """A share besides the home share. `file_system_id` is empty if an existing server has it."""

    file_system_id: str
    server: str
    export_path: str


@dataclass(frozen=True)
class OkeOutput:
    """The root's output `oke`: a control plane of Kubernetes Engine.

    Args:
        private_endpoint, public_endpoint: address and port of its API; the second is empty for a private one.
        ca: the certificate of its CA: PEM in base64.
    """

    id: str
    kubernetes_version: str
    private_endpoint: str
    public_endpoint: str
    ca: str


@dataclass(frozen=True)
class ServiceRecord:
    """Which host is in service, of the two that can be the controller: the root's output `service`.

    Args:
        host: CONTROLLER_HOST or STANDBY_HOST.
        address: the private address that moves with the service; empty before the first apply with a standby.
        begun: a failover to `host` has begun and not ended.
        current: the other host was like it after the last apply.
    """

    host: str = CONTROLLER_HOST
    address: str = ""
    begun: bool = False
    current: bool = False

    @classmethod
    def parse(cls, outputs: Mapping[str, Any]) -> ServiceRecord:
        """Read `terraform output -json`, values only. A state without such an output has the controller in service."""
        raw = outputs.get(SERVICE)
        values = raw if isinstance(raw, Mapping) else {}
        host = STANDBY_HOST if values.get("host") == STANDBY_HOST else CONTROLLER_HOST
        return cls(host, str(values.get("address") or ""), bool(values.get("begun")), bool(values.get("current")))

    def to_dict(self) -> dict[str, str]:
        """As the variable and the output `service` have it: what is not set is left out."""
        values = {
            "host": self.host if self.host != CONTROLLER_HOST else "",
            "address": self.address,
            "begun": "yes" if self.begun else "",
            "current": "yes" if self.current else "",
        }
        return {name: value for name, value in values.items() if value}

    @property
    def other(self) -> str:
        """The host that is not in service."""
        return CONTROLLER_HOST if self.host == STANDBY_HOST else STANDBY_HOST


@dataclass(frozen=True)
class Outputs:
    """The root's output `cluster`, and `oke`, which is None with another control plane.

    `controller` is the one in service, and `standby` the host that would go on in its place, None without one. Each
    has the name of what it is now, whatever the cloud calls it.
    `state_volume_id` is empty if the controller's state has no volume of its own.

    `bastion_id` is the bastion through which the controller is reached; None if that has a public address.
    `login` are the login nodes.
    `elastic_compartment_id` is where elastic nodes are: the cluster's compartment unless they have one of their own.
    `private_subnet_domain_name` is empty if the subnet has no DNS label.
    `home_file_system_id` is empty if an existing server has the home share; all of `home_*` is without a home share.
    `identity` is the cluster's random identity, from the output `identity`.
    `shares` are the further shares, by name. A state of an earlier release has none.
    """

    name: str
    region: str
    compartment_id: str
    availability_domain: str
    controller: PoolMember
    home_file_system_id: str
    home_server: str
    home_export_path: str
    pools: Mapping[str, PoolOutput]
    bastion_id: str | None = None
    private_subnet_domain_name: str = ""
    login: tuple[PoolMember, ...] = ()
    elastic_compartment_id: str = ""
    oke: OkeOutput | None = None
    identity: str = ""
    standby: PoolMember | None = None
    state_volume_id: str = ""
    service: ServiceRecord = field(default_factory=ServiceRecord)
    shares: Mapping[str, ShareOutput] = field(default_factory=dict)

    @property
    def file_system_ids(self) -> tuple[str, ...]:
        """The OCIDs of the file systems of all shares."""
        return tuple(
            filter(None, (self.home_file_system_id, *(share.file_system_id for share in self.shares.values())))
        )

    @property
    def controller_address(self) -> str:
        """The private address at which hosts find the controller: the one that moves, where there is a standby."""
        return (self.standby and self.service.address) or self.controller.private_ip

    def turned(self) -> Outputs:
        """The same cluster with the other host in service.

        Raises:
            TerraformError: there is no other host.
        """
        if self.standby is None:
            raise TerraformError("the state holds no standby", hint="Set controller.standby and run: gpucluster apply")
        return replace(
            self,
            controller=replace(self.standby, name=self.controller.name),
            standby=replace(self.controller, name=self.standby.name),
            service=replace(self.service, host=self.service.other),
        )

    @classmethod
    def parse(cls, outputs: Mapping[str, Any]) -> Outputs:
        """Read `terraform output -json`, values only.

        Raises:
            NewerReleaseError: a newer release has written it.
            TerraformError: there is no such output, or something is missing in it.
        """
        outputs = earlier_formats.outputs(outputs)
        cluster = outputs.get("cluster")
        if not isinstance(cluster, Mapping):
            raise TerraformError("the state holds no cluster", hint="Run: gpucluster apply")
        _require_known("cluster", cluster, outputs)
        service = ServiceRecord.parse(outputs)
        try:
            parsed = cls(
                name=cluster["name"],
                region=cluster["region"],
                compartment_id=cluster["compartment_id"],
                availability_domain=cluster["availability_domain"],
                controller=_member(cluster["controller"]),
                home_file_system_id=cluster["home"]["file_system_id"] or "",
                home_server=cluster["home"]["mount_target_ip"] or "",
                home_export_path=cluster["home"]["export_path"] or "",
                pools={name: _pool_output(pool) for name, pool in cluster["pools"].items()},
                bastion_id=cluster.get("bastion_id"),
                private_subnet_domain_name=cluster.get("private_subnet_domain_name") or "",
                login=tuple(_member(instance) for instance in cluster.get("login") or ()),
                elastic_compartment_id=cluster.get("elastic_compartment_id") or cluster["compartment_id"],
                oke=_oke_output(outputs.get("oke")),
                identity=Identity.parse(outputs).id,
                standby=_member(cluster["standby"]) if cluster["standby"] else None,
                state_volume_id=cluster["state_volume_id"] or "",
                service=replace(service, host=CONTROLLER_HOST),
                shares={name: _share_output(share) for name, share in (cluster.get("shares") or {}).items()},
            )
        except (KeyError, TypeError) as error:
            raise TerraformError(f"the output `cluster` lacks {error}", hint="Run: gpucluster apply") from error
        return parsed.turned() if parsed.standby and service.host == STANDBY_HOST else parsed


@dataclass(frozen=True)
class Identity:
    """What a cluster is, as its state has it: the root's output `identity`.

    Args:
        release: the gpucluster that has applied it last; empty if the state does not have it.
        compartment_id: empty if the state does not have it.
        login_keys: the public halves of generated login keys, by user.
        host_keys: the ssh host keys of the controller, the login nodes and the permanent nodes, by OCID.
        certificates: those of the cluster's CAs, by their name: as PEM, for ssh a public key.
        secrets: which generation of each secret the controller has: a number that changes with the secret and does
            not tell it.
        physical_hosts: the cloud's id of the physical host of each instance, by the instance's OCID, where it is known.
        reported_hosts: what is known of physical hosts that were reported to Oracle as bad, as JSON, by their ids.
        name: of the cluster; empty if the state does not have it.
        id: the cluster's random identity; empty if the state does not have it.
        origin: who made the cluster, and where; empty if that is not known.
    """

    compartment_id: str = ""
    login_keys: Mapping[str, str] = field(default_factory=dict)
    host_keys: Mapping[str, str] = field(default_factory=dict)
    certificates: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    physical_hosts: Mapping[str, str] = field(default_factory=dict)
    reported_hosts: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    id: str = ""
    origin: str = ""
    release: str = ""

    @classmethod
    def parse(cls, outputs: Mapping[str, Any]) -> Identity:
        """Read `terraform output -json`, values only. An empty state has none.

        Raises:
            NewerReleaseError: a newer release has written it.
            TerraformError: it has no format.
        """
        outputs = earlier_formats.outputs(outputs)
        identity = outputs.get("identity")
        if not isinstance(identity, Mapping):
            return cls()
        _require_known("identity", identity, outputs)
        texts = {each: str(identity.get(each) or "") for each in ("compartment_id", "name", "id", "origin", "release")}
        parts = {each: dict(identity.get(each) or {}) for each in ("login_keys", *RECORDED)}
        values: dict[str, Any] = {**texts, **parts}
        return cls(**values)

    @property
    def ssh_authority(self) -> str:
        """The public key, `type base64`, that certifies ssh host keys; empty if the state does not have it."""
        return " ".join(self.certificates.get(SSH_AUTHORITY, "").split()[:2])

    @property
    def recorded(self) -> dict[str, dict[str, str]]:
        """What the hosts have reported of themselves, as the variable `recorded` takes it."""
        return {name: dict(getattr(self, name)) for name in RECORDED}


def _require_known(name: str, output: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    version, identity = output.get("contract_version"), outputs.get("identity")
    if not isinstance(version, int) or version < 1:
        raise TerraformError(
            f"the output `{name}` of the state has no format: contract_version is {version}",
            hint="It is not a state that gpucluster has written, or it is damaged: gpucluster state recover",
        )
    release = str(identity.get("release") or "") if isinstance(identity, Mapping) else ""
    formats.require_known(version, what="Terraform's state", release=release)


def rollouts(outputs: Mapping[str, Any]) -> dict[str, RolloutRecord]:
    """The rollouts of images that have not ended with the new one everywhere, by pool. A record that can't be read is
    left out."""
    texts = outputs.get(ROLLOUTS)
    read = {pool: parse(str(text)) for pool, text in texts.items()} if isinstance(texts, Mapping) else {}
    return {pool: record for pool, record in read.items() if record is not None}


def _share_output(raw: Mapping[str, Any]) -> ShareOutput:
    return ShareOutput(raw["file_system_id"] or "", raw["mount_target_ip"] or "", raw["export_path"])


def _member(raw: Mapping[str, Any]) -> PoolMember:
    return PoolMember(raw["id"], raw["name"], raw["private_ip"], raw.get("public_ip") or "")


def _oke_output(raw: Any) -> OkeOutput | None:
    if not isinstance(raw, Mapping):
        return None
    return OkeOutput(
        raw["id"], raw["kubernetes_version"], raw["private_endpoint"], raw.get("public_endpoint") or "", raw["ca"]
    )


def _pool_output(raw: Mapping[str, Any]) -> PoolOutput:
    return PoolOutput(
        raw["availability_domain"],
        raw["kind"],
        raw["shape"],
        raw["image_id"] or "",
        raw["baked_image_id"],
        raw["instance_configuration_id"],
        raw["compute_cluster_id"],
        raw["cluster_network_id"],
        tuple(_member(instance) for instance in raw["instances"]),
        raw.get("gpu_memory_cluster_id"),
    )
