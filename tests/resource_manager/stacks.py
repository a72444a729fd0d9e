"""Stacks for the tests: values of every release as Resource Manager has them, and files in the forms that others have.

The files have the form of public ones (three terraform.tfvars of pipelines of the stack's authors, and one of a fork);
their identifiers, keys and passwords are made up.
"""

from __future__ import annotations

from typing import Any

from tests.resource_manager import oci_hpc
from tests.spec.spec_texts import KEY

IMAGE = "ocid1.image.oc1.iad.exampleimage"
REQUIRED: dict[str, Any] = {
    "region": "us-ashburn-1",
    "tenancy_ocid": "ocid1.tenancy.oc1..exampletenancy",
    "targetCompartment": "ocid1.compartment.oc1..examplecompartment",
    "ad": "Uocm:US-ASHBURN-AD-1",
    "ssh_key": KEY,
}
#: Shapes that the stack's own form chooses, where its variables.tf still has older ones.
SHAPES = {
    "controller_shape": "VM.Standard.E5.Flex",
    "bastion_shape": "VM.Standard.E4.Flex",
    "login_shape": "VM.Standard.E5.Flex",
    "instance_pool_shape": "VM.Standard.E5.Flex",
    "cluster_network_shape": "BM.GPU.H100.8",
    "controller_boot_volume_size": 1024,
    "bastion_boot_volume_size": 256,
}


def stack(release: str, **changes: Any) -> dict[str, str]:
    """All variables of a release with a value, as text: what `stack get` has when nobody changed the form."""
    listed = oci_hpc.of_release(release)
    values = {name: each["default"] for name, each in listed.items() if "default" in each}
    values |= {name: value for name, value in {**REQUIRED, **SHAPES}.items() if name in listed}
    return {name: as_text(value) for name, value in {**values, **changes}.items()}


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


#: A pipeline of the stack's authors: with what is secret or of a place in the environment (TF_VAR_...).
PIPELINE = """\
# tfvars for deployment with fss

add_nfs=true
shared_home="fss"
create_fss="new"
slurm_ha=true

region="eu-milan-1"
fss_ad="abCD:EU-MILAN-1-AD-1"
ad="abCD:EU-MILAN-1-AD-1"
controller_ad="abCD:EU-MILAN-1-AD-1"
login_ad="abCD:EU-MILAN-1-AD-1"
monitoring_ad="abCD:EU-MILAN-1-AD-1"

controller_boot_volume_size=1024
controller_boot_volume_backup=true
controller_shape="VM.Standard.A1.Flex"
rdma_enabled="false"
instance_pool_shape="VM.Standard.A1.Flex"
node_count=2
boot_volume_size=256
use_marketplace_image=false
slurm=true
slurm_version="25.11.0-1"
login_node=true
login_shape="VM.Standard.A1.Flex"
login_boot_volume_size=256
monitoring_node=true
monitoring_shape="VM.Standard.A1.Flex"
monitoring_boot_volume_size=256
controller_ocpus=2
instance_pool_ocpus=2
login_ocpus=2
monitoring_ocpus=4
enroot=true
cluster_monitoring=true
alerting=true
pyxis=true
pam=true
unsupported=true
unsupported_controller=true
use_marketplace_image_controller=false
change_hostname=true
hostname_convention="GPU"
"""

#: A fork of 2.11 with variables of its own, secrets among them.
FORK = f"""\
# Minimal Required Variables
region = "us-ashburn-1"                    # e.g., "us-ashburn-1", "us-phoenix-1"
tenancy_ocid = "ocid1.tenancy.oc1..exampletenancy"             # Your tenancy
targetCompartment = "ocid1.tenancy.oc1..exampletenancy"
ad = "abCD:US-ASHBURN-AD-1"
controller_ad = "abCD:US-ASHBURN-AD-1"
ssh_key = "{KEY}"                  # Path to your public SSH key file
controller_boot_volume_size = 150
controller_boot_volume_backup = false

ood_username = "casey"
ood_user_email = "casey@example.com"
ood_user_password = "Not9.aRe?al)One4]+b*"        # of the portal

slurm = true
cluster_network = true
cluster_network_shape = "BM.Optimized3.36"
cluster_monitoring = true
autoscaling = true
autoscaling_monitoring = true
influxdb = true
controller_object_storage_par = true
rdma_subnet = "10.224.0.0/12"
compute_cluster = false
node_count = 2
healthchecks = false
use_existing_idcs = true
existing_domain_ocid = "ocid1.domain.oc1..exampledomain"
dns_entries = false

use_marketplace_image_controller = false
custom_controller_image = "{IMAGE}"
use_marketplace_image = false
image = "{IMAGE}"

login_node = false
latency_check = false

use_existing_vcn = true
vcn_compartment = "ocid1.tenancy.oc1..exampletenancy"
vcn_id = "ocid1.vcn.oc1.iad.examplevcn"
public_subnet_id = "ocid1.subnet.oc1.iad.examplepublic"
private_subnet_id = "ocid1.subnet.oc1.iad.exampleprivate"

cluster_name = "cluster2"
"""
