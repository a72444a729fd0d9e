"""A first cluster.yml, with comments, for people to change."""

from __future__ import annotations

from typing import Literal

_HEAD = """\
# {title}
# Every key: docs/reference/cluster-yml.md
version: 1
name: {name}
"""

_LOCAL = """
cloud:
  provider: local                 # containers on this machine; `oci` is the real cloud

network:
  vcn_cidr: 10.77.0.0/16          # change it if this machine uses these addresses
  public_subnet_cidr: 10.77.0.0/24
  private_subnet_cidr: 10.77.1.0/24
  ssh_allowed_cidrs:
    - 127.0.0.0/8                 # the controller listens on this machine only

controller:
  shape: VM.Standard.E5.Flex
  ocpus: 4
  memory_gb: 32

pools:
  compute:                        # a Slurm partition of the same name
    shape: BM.GPU4.8              # emulated: Slurm sees eight GPUs a node, CUDA is not there
    count: 2                      # nodes that are always there

users:
  people:
    - name: alice
      full_name: Alice Example
      generate_key: true          # a key pair is made for her; with a key of her own: ssh_public_keys
"""

_OCI = """
cloud:
  provider: oci
  region: us-ashburn-1
  compartment_id: ocid1.compartment.oc1..exampleuniqueid    # yours
  # availability_domain: null     # null: the first of the region
  # freeform_tags: {team: vision}
  # defined_tags: {Operations.CostCenter: "42"}

network:
  # access: bastion               # nothing has a public address: delete public_subnet_cidr
  vcn_cidr: 10.0.0.0/16
  public_subnet_cidr: 10.0.0.0/24
  private_subnet_cidr: 10.0.1.0/24
  # vcn_id: ocid1.vcn...          # an existing network, with public_subnet_id and private_subnet_id
  ssh_allowed_cidrs:
    - 203.0.113.0/24              # the network that you log in from

ssh:
  public_key_file: ~/.ssh/id_ed25519.pub

controller:
  shape: VM.Standard.E5.Flex
  ocpus: 4
  memory_gb: 32
  image: {operating_system: Canonical Ubuntu, version: "24.04"}

storage:
  home:
    mount_path: /mnt/home
    # file_system_id: ocid1.filesystem...    # an existing file system

pools:
  compute:                        # a Slurm partition of the same name
    shape: BM.GPU4.8
    count: 2                      # nodes that are always there
    # max_count: 8                # with more than count: nodes that exist only while jobs need them
    # idle_timeout: 600           # seconds without a job until such a node is removed
    image: {operating_system: Canonical Ubuntu, version: "24.04"}
    # image: {listing: Oracle Linux - GPU Cluster Networking Image, login_user: opc}    # of the marketplace
    # platform: {numa_nodes_per_socket: NPS4, smt: false}
    # capacity_reservation_id: ocid1.capacityreservation...
    # removed_nodes: [compute-2]  # this node goes, and no other; lower count with it

users:
  people:
    - name: alice
      full_name: Alice Example
      ssh_public_key_files:
        - ~/.ssh/id_ed25519.pub   # or ssh_public_keys with the text of a key
      # groups: [privilege]       # root-like powers in Docker and containerd; Enroot needs none

# containers:
#   runtimes: [enroot]            # with Pyxis: srun --container-image=...; also docker, containerd
# software:
#   mirror: mirror                # where their releases come from: gpucluster software fetch mirror

# state:                          # where Terraform keeps its state: without this, on this machine
#   backend: oci
#   config: {bucket: terraform, namespace: exampletenancy}
"""


def template(name: str = "demo", provider: Literal["local", "oci"] = "local", schema: str = "") -> str:
    """The text of a new cluster.yml. It is valid as it stands, as far as the files that it names exist.

    Args:
        name: name of the cluster.
        provider: which cloud it is for.
        schema: where editors find the JSON schema, seen from the file; a line for it is written if it is given.
    """
    title = "A cluster on this machine." if provider == "local" else "A cluster on Oracle Cloud Infrastructure."
    body = _LOCAL if provider == "local" else _OCI
    editors = f"# yaml-language-server: $schema={schema}\n" if schema else ""
    return editors + _HEAD.format(title=title, name=name) + body
