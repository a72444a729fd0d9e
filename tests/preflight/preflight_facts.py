"""Facts for the tests of preflight: specs of each kind, and facts with which nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gpucluster.preflight.facts import (
    Capacity,
    Compartment,
    Created,
    ExistingFileSystem,
    Facts,
    FirstCall,
    FoundImage,
    IngressRule,
    InstalledProgram,
    KeyFile,
    Limit,
    Reservation,
    SshPair,
    Subnet,
    Unknown,
    Vcn,
)
from gpucluster.spec import ClusterSpec, loads
from tests.spec import spec_texts

AD1, AD2 = "Uocm:US-ASHBURN-AD-1", "Uocm:US-ASHBURN-AD-2"
VCN = "ocid1.vcn.oc1.iad.net"
PUBLIC, PRIVATE = "ocid1.subnet.oc1.iad.pub", "ocid1.subnet.oc1.iad.priv"
FILES = "ocid1.filesystem.oc1.iad.home"
RESERVATION = "ocid1.capacityreservation.oc1.iad.ours"
CONTROLLER_SHAPE, GPU_SHAPE = "VM.Standard.E5.Flex", "BM.GPU.H100.8"
ALL = frozenset({CONTROLLER_SHAPE, GPU_SHAPE})
CORES, MEMORY = ("compute", "standard-e5-core-count", AD1), ("compute", "standard-e5-memory-count", AD1)
GPUS = ("compute", "gpu-h100-count", AD1)
REFUSED = "NotAuthorizedOrNotFound"

HPC_IMAGE = "Canonical-Ubuntu-24.04-2026.02.28-0-6.8-DOCA-OFED-3.2.1-GPU-580-OPEN-CUDA-13.0-2026.03.13-0"

EXISTING = (
    ("ssh_allowed_cidrs:", f"vcn_id: {VCN}\n  public_subnet_id: {PUBLIC}\n  private_subnet_id: {PRIVATE}\n  "
     "ssh_allowed_cidrs:"),
)  # fmt: skip
HOME_FILES = "storage.home.file_system_id"
SHARED = (("ssh:\n", f"storage: {{home: {{file_system_id: {FILES}}}}}\nssh:\n"),)
RESERVED = (("count: 2\n", f"count: 2\n    capacity_reservation_id: {RESERVATION}\n"),)
LISTED = (("ocid: ocid1.image.oc1.iad.example", "listing: GPU Image"),)
PERMANENT = (("    max_count: 8\n", ""),)


def desired(folder: Path, *changes: tuple[str, str]) -> ClusterSpec:
    """A spec for OCI with passages replaced: two H100 nodes, at most eight."""
    (folder / "operator.pub").write_text(spec_texts.KEY + "\n")
    text = spec_texts.OCI
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return loads(text, str(folder / "cluster.yml"))


def good(*changed: tuple[str, str], **changes: Any) -> Facts:
    """Facts with which the spec can be created: of existing resources, only those that it names."""
    key = " ".join(spec_texts.KEY.split()[:2])
    ubuntu = FoundImage(
        "ocid1.image.oc1..u", "Canonical-Ubuntu-24.04-2026.06.29-0", system="Canonical Ubuntu", version="24.04"
    )
    hpc = replace(ubuntu, id="ocid1.image.oc1..h", name=HPC_IMAGE, custom=True)
    inside = (IngressRule("all", "10.0.0.0/8"), IngressRule("6", "203.0.113.0/24", (22, 22)))
    facts = Facts(
        key_file=KeyFile(Path("/home/me/.oci/key.pem"), "aa:bb", fingerprint="aa:bb"),
        first_call=FirstCall("region us-ashburn-1", 200, skew=0.4),
        regions=("us-ashburn-1", "eu-frankfurt-1"),
        home_region="us-ashburn-1",
        compartment=Compartment("hpc", "ACTIVE"),
        domains=(AD1, AD2),
        shapes={AD1: ALL, AD2: ALL},
        instances=(),
        limits={
            CORES: Limit(100, 0), MEMORY: Limit(1000, 0), GPUS: Limit(64, 0), ("vcn", "vcn-count", ""): Limit(10, 0),
            ("filesystem", "mount-target-count", AD1): Limit(2, 0),
            ("filesystem", "file-system-count", AD1): Limit(100, 0),
        },
        capacity={(AD1, CONTROLLER_SHAPE): Capacity("AVAILABLE", 50), (AD1, GPU_SHAPE): Capacity("AVAILABLE", 9)},
        images={"controller": ubuntu, "h100": hpc},
        reservations={"h100": Reservation("ACTIVE", AD1, {GPU_SHAPE: 8})},
        vcns=(),
        created=Created(),
        vcn=Vcn(VCN, "net", ("10.0.0.0/16",), "net"),
        subnets={
            "public": Subnet(PUBLIC, VCN, "10.0.0.0/24", "pub", routes=("internetgateway",), ingress=inside),
            "private": Subnet(
                PRIVATE, VCN, "10.0.1.0/24", "priv", private=True, routes=("natgateway", "servicegateway"),
                ingress=inside,
            ),
        },
        file_systems={HOME_FILES: ExistingFileSystem("ACTIVE", AD1)},
        ssh=SshPair(Path("/home/me/.ssh/id"), key, derived=key),
        terraform=InstalledProgram(),
    )  # fmt: skip
    if EXISTING[0] not in changed:
        facts = replace(facts, vcn=None, subnets={})
    if SHARED[0] not in changed:
        facts = replace(facts, file_systems={})
    if RESERVED[0] not in changed:
        facts = replace(facts, reservations={})
    return replace(facts, **changes)


def refused(check: str, what: str = "it", status: int = 404) -> Unknown:
    """What OCI reports of a thing that is not there, or not to be seen."""
    return Unknown(check, what, f"the cloud answered {status} {REFUSED}", status, "Allow group <yours> to see it")
