"""Sections that say where a cluster stands: cloud, network, the operator's keys, rights, Terraform's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from gpucluster.spec.fields import (
    COMPARTMENT_PATTERN,
    DOMAIN_PATTERN,
    REGION_PATTERN,
    VCN_PATTERN,
    WORD_PATTERN,
    Cidr,
    FileName,
    Part,
    Resolved,
    SubnetId,
    TagValue,
    located,
)

#: OCI's limits for the tags of one resource are 10 free-form and 64 defined ones; of ours a resource has up to five.
FREEFORM_TAGS = 5
DEFINED_TAGS = 64


class Cloud(Part):
    """Which cloud, and where in it."""

    provider: Literal["local", "oci"] = Field(
        description="`local`: containers on this machine. `oci`: Oracle Cloud Infrastructure.", examples=["local"]
    )
    region: str = Field(
        default="",
        pattern=REGION_PATTERN,
        description="Region. Needed with provider oci; the local cloud has one region, `local-1`.",
        examples=["us-ashburn-1"],
    )
    compartment_id: str | None = Field(
        default=None,
        pattern=COMPARTMENT_PATTERN,
        description="OCID of the compartment that everything is created in. Needed with provider oci; the local cloud "
        "has one of its own.",
        examples=["ocid1.compartment.oc1..exampleuniqueid"],
    )
    availability_domain: str | None = Field(
        default=None,
        pattern=WORD_PATTERN,
        description="Availability domain, such as `Uocm:US-ASHBURN-AD-1`. `null`: the first of the region.",
    )
    profile: str = Field(
        default="DEFAULT",
        pattern=WORD_PATTERN,
        description="Profile in the OCI configuration file of the operator. Provider oci only.",
    )
    freeform_tags: dict[str, TagValue] = Field(
        default_factory=dict,
        max_length=FREEFORM_TAGS,
        description="Free-form tags of everything that is created, beside those that gpucluster sets itself.",
        examples=[{"team": "vision"}],
    )
    defined_tags: dict[str, TagValue] = Field(
        default_factory=dict,
        max_length=DEFINED_TAGS,
        description="Defined tags of everything that is created: `Namespace.Key` and a value. Namespace and key exist "
        "already in the tenancy.",
        examples=[{"Operations.CostCenter": "42"}],
    )


class Network(Part):
    """The virtual cloud network: a public subnet for the controller, a private one for the nodes. IPv4."""

    access: Literal["public", "bastion"] = Field(
        default="public",
        description="How the controller is reached. `public`: it has a public address. `bastion`: it stands in the "
        "private subnet, no machine has a public address, and the way in is the OCI Bastion service.",
    )
    vcn_cidr: Cidr = Field(
        description="The whole network, /16 to /30. Of an existing one: the range that it has.",
        examples=["10.0.0.0/16"],
    )
    public_subnet_cidr: Cidr | None = Field(
        default=None,
        description="Subnet of the controller, inside the network. Needed with access public, and not there with "
        "access bastion.",
        examples=["10.0.0.0/24"],
    )
    private_subnet_cidr: Cidr = Field(
        description="Subnet of the nodes and the shared home, inside the network. It must hold every pool at its "
        "maximum.",
        examples=["10.0.1.0/24"],
    )
    vcn_id: str | None = Field(
        default=None,
        pattern=VCN_PATTERN,
        description="OCID of an existing network. Its subnets must be named, too; gateways, route tables and security "
        "lists stay as its owner made them. `null`: a network is created.",
        examples=["ocid1.vcn.oc1.iad.exampleuniqueid"],
    )
    public_subnet_id: SubnetId | None = Field(
        default=None,
        description="OCID of an existing subnet for the controller.",
        examples=["ocid1.subnet.oc1.iad.exampleuniqueid"],
    )
    private_subnet_id: SubnetId | None = Field(
        default=None,
        description="OCID of an existing subnet for the nodes.",
        examples=["ocid1.subnet.oc1.iad.exampleuniqueid"],
    )
    rdma_cidr: Cidr = Field(
        default="192.168.0.0/16",
        description="Range of the addresses of RDMA interfaces. They are no part of the network above, and may not "
        "overlap it.",
        examples=["192.168.0.0/16"],
    )
    ssh_allowed_cidrs: tuple[Cidr, ...] = Field(
        min_length=1,
        description="From where ssh to the controller, or to the bastion, is let in. There is no default, and the "
        "whole internet is refused: no network larger than /8.",
        examples=[["203.0.113.0/24"]],
    )


class Ssh(Part):
    """The operator's key pair, with which gpucluster logs in."""

    public_key_file: FileName | None = Field(
        default=None,
        description="Public key; relative to this file, `~` is your home. `null` with provider local: gpucluster makes "
        "a pair of its own.",
        examples=["~/.ssh/id_ed25519.pub"],
    )
    private_key_file: FileName | None = Field(
        default=None, description="Private key. `null`: the name of the public one without `.pub`."
    )
    _directory: Path | None = PrivateAttr(default=None)
    _public_key: str | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Take what the file names hold from the context of the validation."""
        if isinstance(context, Resolved):
            self._directory = context.directory
            if self.public_key_file is not None:
                self._public_key = next(iter(context.public_keys.get(self.public_key_file, ())), None)

    @property
    def public_key(self) -> str | None:
        """The text of the operator's public key; None if gpucluster is to make a pair."""
        return self._public_key

    @property
    def private_key_path(self) -> Path | None:
        """Where the private key lies; None if gpucluster is to make a pair."""
        if self.public_key_file is None:
            return None
        name = self.private_key_file or self.public_key_file.removesuffix(".pub")
        return located(name, self._directory or Path())


class Iam(Part):
    """Rights of the controller in OCI. They matter only where a pool is elastic."""

    create: bool = Field(
        default=True,
        description="Whether the dynamic group and its policies are created. `false`: an administrator makes what "
        "`gpucluster policies` prints.",
    )
    identity_domain: str | None = Field(
        default=None,
        pattern=DOMAIN_PATTERN,
        description="Identity domain of the dynamic group. `null`: the default domain.",
        examples=["Default"],
    )


class State(Part):
    """Where Terraform keeps its state."""

    backend: Literal["local", "oci", "s3", "http"] = Field(
        default="local",
        description="Terraform's backend. `local`: a file beside gpucluster's other files, for one operator.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        max_length=50,
        description="Settings of the backend, by Terraform's names. Secrets are refused: they come from the "
        "environment.",
        examples=[{"bucket": "terraform", "namespace": "exampletenancy"}],
    )
