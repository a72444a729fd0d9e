"""Sections `network` and `ssh`: the virtual cloud network, and the operator's key pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from gpucluster.spec.sections.fields import VCN_PATTERN, Cidr, FileName, Resolved, SpecPart, SubnetId, located


class NetworkSpec(SpecPart):
    """The virtual cloud network (VCN): a public subnet for the controller, a private one for the nodes. IPv4 only."""

    access: Literal["public", "bastion"] = Field(
        default="public",
        description="How the controller is reached. `public`: it has a public address. `bastion`: it is in the "
        "private subnet, no machine has a public address, and ssh goes through the OCI Bastion service.",
    )
    vcn_cidr: Cidr = Field(
        description="Range of the VCN, /16 to /30. With an existing VCN: the range that it has.",
        examples=["10.0.0.0/16"],
    )
    public_subnet_cidr: Cidr | None = Field(
        default=None,
        description="Subnet of the controller, inside `vcn_cidr`. Required with access public, refused with access "
        "bastion.",
        examples=["10.0.0.0/24"],
    )
    private_subnet_cidr: Cidr = Field(
        description="Subnet of the nodes and the home share, inside `vcn_cidr`. It must hold every pool at its "
        "maximum.",
        examples=["10.0.1.0/24"],
    )
    vcn_id: str | None = Field(
        default=None,
        pattern=VCN_PATTERN,
        description="OCID of an existing VCN. Its subnets must be named, too; gateways, route tables and security "
        "lists are not changed. `null`: a VCN is created.",
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
        description="Range of the addresses of RDMA interfaces. It is separate from the VCN and must not overlap it.",
        examples=["192.168.0.0/16"],
    )
    ssh_allowed_cidrs: tuple[Cidr, ...] = Field(
        min_length=1,
        description="Networks from which ssh to the controller, or to the bastion, is allowed. There is no default, "
        "and the whole internet is refused: no network larger than /8.",
        examples=[["203.0.113.0/24"]],
    )


class Ssh(SpecPart):
    """The operator's key pair, with which gpucluster logs in."""

    public_key_file: FileName | None = Field(
        default=None,
        description="Public key; relative to this file, `~` is your home. `null` with provider local: gpucluster "
        "generates a key pair.",
        examples=["~/.ssh/id_ed25519.pub"],
    )
    private_key_file: FileName | None = Field(
        default=None, description="Private key. `null`: the name of the public key without `.pub`."
    )
    public_keys: tuple[str, ...] = Field(
        default=(),
        max_length=20,
        description="Public keys of operators as text, beside `public_key_file` or instead of it. Each of them "
        "logs in with the private key that ssh or its agent has.",
        examples=[["ssh-ed25519 AAAA... alice@laptop"]],
    )
    _directory: Path | None = PrivateAttr(default=None)
    _public_key: str | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Take the content of the key file from the validation context."""
        if isinstance(context, Resolved):
            self._directory = context.directory
            if self.public_key_file is not None:
                self._public_key = next(iter(context.public_keys.get(self.public_key_file, ())), None)

    @property
    def public_key(self) -> str | None:
        """The text of the key in `public_key_file`; None without one."""
        return self._public_key

    @property
    def authorized_keys(self) -> tuple[str, ...]:
        """The public keys of all operators, that of `public_key_file` first; empty if gpucluster generates a key
        pair."""
        first = (self._public_key,) if self._public_key else ()
        return tuple(dict.fromkeys((*first, *(key.strip() for key in self.public_keys))))

    @property
    def private_key_path(self) -> Path | None:
        """The path of the private key; None without `public_key_file`: then gpucluster generates a key pair, or ssh and
        its agent have one of `public_keys`."""
        if self.public_key_file is None:
            return None
        name = self.private_key_file or self.public_key_file.removesuffix(".pub")
        return located(name, self._directory or Path())
