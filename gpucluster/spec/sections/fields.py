"""Types of single values in a cluster.yml, with their patterns and bounds, and the base class of all sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpucluster.controller.rules import names as name_rules

NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,13}[a-z0-9])?$"
POOL_NAME_PATTERN = r"^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$"
USER_NAME_PATTERN = rf"^{name_rules.NAME_PATTERN}$"
PATH_PATTERN = r"^(/[A-Za-z0-9._-]+)+$"
REGION_PATTERN = r"^[a-z]+(-[a-z0-9]+)*-[0-9]+$"
_OCID_REST = r"\.[a-z0-9-]+\.[a-z0-9_-]*\.[A-Za-z0-9]+$"
COMPARTMENT_PATTERN = r"^ocid1\.(compartment|tenancy)" + _OCID_REST
# The word, or the OCID of a compartment that is not the tenancy's root.
ELASTIC_COMPARTMENT_PATTERN = r"^create$|^ocid1\.compartment" + _OCID_REST
IMAGE_PATTERN = r"^ocid1\.image" + _OCID_REST
VCN_PATTERN = r"^ocid1\.vcn" + _OCID_REST
SUBNET_PATTERN = r"^ocid1\.subnet" + _OCID_REST
FILE_SYSTEM_PATTERN = r"^ocid1\.filesystem" + _OCID_REST
LISTING_PATTERN = r"^ocid1\.appcataloglisting" + _OCID_REST
MEMORY_FABRIC_PATTERN = r"^ocid1\.computegpumemoryfabric" + _OCID_REST
RESERVATION_PATTERN = r"^ocid1\.capacityreservation" + _OCID_REST
SLURM_CLUSTER_PATTERN = r"^[a-z][a-z0-9_-]{0,39}$"
# Slurm writes names of accounts and QOS in small letters, and descriptions as well.
DESCRIPTION_PATTERN = r"^([A-Za-z0-9]([A-Za-z0-9 ._:()/+-]{0,98}[A-Za-z0-9.)])?)?$"
TIMEZONE_PATTERN = r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}$"
TITLE_PATTERN = r"^\S(.*\S)?$"
TAG_PATTERN = r"^[!-\-/-~]{1,100}\.[!-\-/-~]{1,100}$"
DOMAIN_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
PYTHON_PATTERN = r"^3\.(1[1-9]|[2-9][0-9])$"
#: As /proc/modules has them, with underscores.
MODULE_PATTERN = r"^[a-z0-9][a-z0-9_]{0,54}$"
WORD_PATTERN = r"^[^\s]+$"
VERSION_PATTERN = r"^[0-9][0-9A-Za-z.+~-]{0,39}$"
BRANCH_PATTERN = r"^[0-9]{3}$"
# Of the characters that a URL may have (RFC 3986), those that no language in which we write one reads as a quote.
URL_PATTERN = r"^https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~:/?#!$&()*+,;=%-]*)?$"
FINGERPRINT_PATTERN = r"^[0-9A-Fa-f]{40}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
# A host, a domain with a dot before it, an address, or a network.
#: An identity domain gets the secret of a client: without TLS only on this machine.
DOMAIN_URL_PATTERN = r"^(https://[A-Za-z0-9._-]+|http://(127\.0\.0\.1|localhost))(:[0-9]{1,5})?/?$"
NO_PROXY_PATTERN = r"^[A-Za-z0-9.:/_-]+$"
MONITORING_HOST_PATTERN = r"^(controller|login-[1-9][0-9]{0,2})$"
IMAGE_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:@#-]*$"

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
AccountingName = Annotated[str, Field(pattern=SLURM_CLUSTER_PATTERN)]
UserName = Annotated[str, Field(pattern=USER_NAME_PATTERN)]
AbsolutePath = Annotated[str, Field(pattern=PATH_PATTERN, max_length=255)]
Cidr = Annotated[str, Field(pattern=WORD_PATTERN)]
Address = Annotated[str, Field(pattern=WORD_PATTERN)]
SubnetId = Annotated[str, Field(pattern=SUBNET_PATTERN)]
TagValue = Annotated[str, Field(max_length=256)]
ImageName = Annotated[str, Field(pattern=IMAGE_NAME_PATTERN, max_length=512)]
NoProxy = Annotated[str, Field(pattern=NO_PROXY_PATTERN, max_length=255)]
KernelModule = Annotated[str, Field(pattern=MODULE_PATTERN)]
Version = Annotated[str, Field(pattern=VERSION_PATTERN)]
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
FileName = Annotated[str, Field(min_length=1, max_length=4096)]
Count = Annotated[int, Field(ge=0, le=10_000)]
LoginCount = Annotated[int, Field(ge=0, le=32)]
Gigabytes = Annotated[int, Field(ge=50, le=32768)]
GpuIndex = Annotated[int, Field(ge=0, le=15)]
InstanceCount = Annotated[int, Field(ge=1, le=16)]
VolumeUnits = Annotated[int, Field(ge=10, le=120)]
Number = Annotated[int, Field(ge=1, le=1_000_000)]
Hours = Annotated[int, Field(ge=1, le=8760)]
Seconds = Annotated[float, Field(gt=0, le=1_000_000)]
Factor = Annotated[float, Field(gt=0, le=10)]
Price = Annotated[float, Field(gt=0, le=1_000_000_000)]
# Lower ids belong to users of the system, of its packages, and to the login user of the image.
Id = Annotated[int, Field(ge=name_rules.FIRST_ID, le=name_rules.LAST_ID)]


@dataclass(frozen=True)
class Resolved:
    """What is not in the file itself: its path, and the content of files that it names (public keys, prices,
    certificates)."""

    file: Path
    directory: Path
    public_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    certificates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class SpecPart(BaseModel):
    """Base class of every section: unknown keys are refused, values are not converted, instances are immutable."""

    # Only the whole file and an image are checked: a validator of each section would be built for nothing.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, str_strip_whitespace=False, defer_build=True)


def located(name: str, directory: Path) -> Path:
    """The path that the file name `name` means in a cluster.yml in `directory`.

    Raises:
        RuntimeError: `~user` names a user that does not exist.
    """
    return directory / Path(name).expanduser()
