"""An instance as a configuration of Terraform has it, and the plan that the stand-in makes of it."""

from __future__ import annotations

from typing import Any

from gpucluster.localcloud.provider.planning import with_unknowns
from gpucluster.localcloud.provider.schema import catalogue

KINDS = catalogue().resources


def planned(type_name: str, **values: Any) -> dict[str, Any]:
    return with_unknowns(KINDS[type_name].schema, values)


INSTANCE = {
    "availability_domain": "ad",
    "compartment_id": "c",
    "display_name": "compute-1",
    "shape": "VM.Standard.E5.Flex",
    "preserve_boot_volume": False,
    "metadata": {"ssh_authorized_keys": "ssh-ed25519 AAAA"},
    "create_vnic_details": [{"assign_public_ip": "true", "hostname_label": "compute-1", "subnet_id": "s"}],
    "shape_config": [{"ocpus": 4, "memory_in_gbs": 32}],
    "source_details": [{"source_type": "image", "source_id": "i", "boot_volume_size_in_gbs": "256"}],
    "timeouts": {"create": "60m", "delete": None, "update": None},
}
