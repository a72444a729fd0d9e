"""Sections `cloud` and `iam`: where the cluster is created, and the controller's permissions in OCI."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from pydantic import Field

from gpucluster.oci.authentication import Authentication
from gpucluster.spec.sections.fields import (
    COMPARTMENT_PATTERN,
    DOMAIN_PATTERN,
    DOMAIN_URL_PATTERN,
    ELASTIC_COMPARTMENT_PATTERN,
    REGION_PATTERN,
    TAG_PATTERN,
    WORD_PATTERN,
    Factor,
    SpecPart,
    TagValue,
)

ProviderName = Literal["local", "oci"]

#: OCI allows 10 free-form (`oci.tags.MOST`) and 64 defined tags on a resource; gpucluster needs five of the former.
FREEFORM_TAGS = 5
DEFINED_TAGS = 64
_CREATE = "create"


@dataclass(frozen=True)
class ProviderTraits:
    """What differs between the providers in a cluster.yml. Nothing in `spec` asks for a provider by its name.

    Args:
        title: first line of a new cluster.yml.
        only_region: the one region that it has; empty where the file must name one.
        default_image: image of a machine that names none; None where every machine must name one.
        stand_ins: the systems, as operating system and version, whose images contain another one.
        needs_compartment: the file must name a compartment.
        authentications: the values of `cloud.auth` that it knows.
        uses_profile: credentials come from a profile of the operator's OCI configuration file.
        generates_keys: gpucluster may generate key pairs, for the operator and for users.
        hardware_emulated: machines have less hardware than their shape has.
    """

    title: str
    only_region: str = ""
    default_image: Mapping[str, str] | None = None
    stand_ins: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    needs_compartment: bool = False
    authentications: tuple[Authentication, ...] = ("profile", "oidc")
    uses_profile: bool = False
    generates_keys: bool = False
    hardware_emulated: bool = False


LOCAL_IMAGE: Mapping[str, str] = MappingProxyType({"operating_system": "Debian", "version": "13"})
# As in localcloud/image/systems.toml; a test compares them.
_LOCAL_STAND_INS = MappingProxyType(
    {
        ("Canonical Ubuntu", "24.04"): ("Debian", "13"),
        ("Canonical Ubuntu", "22.04"): ("Debian", "12"),
        ("Oracle Linux", "9"): ("Debian", "12"),
        ("Oracle Linux", "8"): ("Debian", "13"),
    }
)

PROVIDERS: Mapping[ProviderName, ProviderTraits] = MappingProxyType(
    {
        "local": ProviderTraits(
            title="A cluster on this machine.",
            only_region="local-1",
            default_image=LOCAL_IMAGE,
            stand_ins=_LOCAL_STAND_INS,
            generates_keys=True,
            hardware_emulated=True,
        ),
        "oci": ProviderTraits(
            title="A cluster on Oracle Cloud Infrastructure.",
            needs_compartment=True,
            authentications=get_args(Authentication),
            uses_profile=True,
        ),
    }
)


class Local(SpecPart):
    """What the local cloud takes from the machine that runs it."""

    gpus: Literal["emulated", "real"] = Field(
        default="emulated",
        description="`emulated`: Slurm counts the GPUs of a shape, and there is no device. `real`: an instance gets as "
        "many NVIDIA GPUs of this machine as its shape has, each for itself. They may be other cards than the shape's. "
        "This machine needs NVIDIA's driver and a CDI specification (`nvidia-ctk cdi generate`).",
        examples=["real"],
    )


class Oidc(SpecPart):
    """The identity domain that gives a session for the ID token of a CI system."""

    domain_url: str = Field(
        pattern=DOMAIN_URL_PATTERN,
        description="URL of the identity domain, which its page in the console shows.",
        examples=["https://idcs-0123456789abcdef.identity.oraclecloud.com"],
    )
    client_id: str = Field(
        pattern=WORD_PATTERN,
        max_length=255,
        description="Client ID of the confidential application that may exchange tokens. Its secret is in the variable "
        "`GPUCLUSTER_OIDC_CLIENT_SECRET`.",
        examples=["0123456789abcdef0123456789abcdef"],
    )
    audience: str | None = Field(
        default=None,
        pattern=WORD_PATTERN,
        max_length=255,
        description="Audience of the ID token that GitHub is asked for. `null`: the URL of the repository's owner. "
        "GitLab has it in the pipeline (`id_tokens`).",
        examples=["oci"],
    )


class Cloud(SpecPart):
    """The cloud, and where in it the cluster is created."""

    provider: ProviderName = Field(
        description="`local`: containers on this machine. `oci`: Oracle Cloud Infrastructure.", examples=["local"]
    )
    region: str = Field(
        default="",
        pattern=REGION_PATTERN,
        description="Region. Required with provider oci; the local cloud has one region, `local-1`.",
        examples=["us-ashburn-1"],
    )
    compartment_id: str | None = Field(
        default=None,
        pattern=COMPARTMENT_PATTERN,
        description="OCID of the compartment in which everything is created. Required with provider oci; the local "
        "cloud has a compartment of its own.",
        examples=["ocid1.compartment.oc1..exampleuniqueid"],
    )
    availability_domain: str | None = Field(
        default=None,
        pattern=WORD_PATTERN,
        description="Availability domain, such as `Uocm:US-ASHBURN-AD-1`. `null`: the first of the region.",
    )
    auth: Authentication = Field(
        default="profile",
        description="How gpucluster, Terraform's provider and the backend `oci` prove who they are. `profile`: the "
        "operator's OCI configuration file. `instance_principal`: the instance that runs gpucluster. "
        "`resource_principal`: a build run of OCI DevOps, and others. `workload_identity`: a pod of OKE. `oidc`: the "
        "ID token of a CI job, for a session of an identity domain. The variable `GPUCLUSTER_CLOUD_AUTH` replaces it "
        "on one machine.",
        examples=["instance_principal"],
    )
    oidc: Oidc | None = Field(
        default=None, description="Where an ID token is exchanged for a session. Needed with `auth: oidc`."
    )
    profile: str = Field(
        default="DEFAULT",
        pattern=WORD_PATTERN,
        description="Profile in the operator's OCI configuration file. With provider oci and `auth: profile` only.",
    )
    freeform_tags: dict[str, TagValue] = Field(
        default_factory=dict,
        max_length=FREEFORM_TAGS,
        description="Free-form tags of everything that is created, in addition to those that gpucluster sets itself.",
        examples=[{"team": "vision"}],
    )
    defined_tags: dict[str, TagValue] = Field(
        default_factory=dict,
        max_length=DEFINED_TAGS,
        description="Defined tags of everything that is created: `Namespace.Key` and a value. Namespace and key must "
        "exist in the tenancy.",
        examples=[{"Operations.CostCenter": "42"}],
    )

    price_factor: Factor = Field(
        default=1.0,
        description="What this tenancy pays of Oracle's public list price, for the prices of `gpucluster plan`: `0.7` "
        "with a discount of 30 %.",
        examples=[0.7],
    )
    local: Local = Field(default_factory=Local, description="What instances get of this machine. Provider local only.")

    @property
    def real_gpus(self) -> bool:
        """Whether instances of the local cloud get GPUs of this machine. Their other hardware stays emulated."""
        return self.traits.hardware_emulated and self.local.gpus == "real"

    @property
    def traits(self) -> ProviderTraits:
        """What is particular to the provider."""
        return PROVIDERS[self.provider]


class Iam(SpecPart):
    """Permissions of the controller in OCI. They are only needed where a pool is elastic."""

    create: bool = Field(
        default=True,
        description="Whether the dynamic group and its policies are created. `false`: an administrator creates what "
        "`gpucluster policies` prints.",
    )
    identity_domain: str | None = Field(
        default=None,
        pattern=DOMAIN_PATTERN,
        description="Identity domain of the dynamic group. `null`: the default domain.",
        examples=["Default"],
    )
    elastic_compartment: str | None = Field(
        default=None,
        pattern=ELASTIC_COMPARTMENT_PATTERN,
        description="Compartment of elastic nodes, in which alone the controller may launch and end instances. "
        "`create`: one in the cluster's compartment, `gpucluster-` with the cluster's name, which is created. An OCID: "
        "one that exists. `null`: the cluster's compartment.",
        examples=["create"],
    )
    tag: str | None = Field(
        default=None,
        pattern=TAG_PATTERN,
        description="Defined tag, `Namespace.Key`, that exists in the tenancy. Elastic nodes, and what they are "
        "launched from, get it with the cluster's name as its value, and the controller may launch and end nothing "
        "else. `null`: the controller may launch any instance in the compartment, and end every one.",
        examples=["Gpucluster.Cluster"],
    )
    any_launch: bool = Field(
        default=False,
        description="Only with `tag`. `true`: the controller may launch instances without an instance configuration, "
        "too. OCI does not document as which operation it checks a launch from one; set this if it refuses them all.",
    )

    @property
    def creates_compartment(self) -> bool:
        """Whether Terraform creates the compartment of elastic nodes."""
        return self.elastic_compartment == _CREATE
