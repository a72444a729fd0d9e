"""The text of a first cluster.yml, with comments, as `gpucluster init` writes it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from gpucluster.spec.sections.cloud import PROVIDERS, ProviderName

#: The network of the local cloud's template, where this machine does not use it.
LOCAL_NETWORK = "10.77.0.0/16"
#: Characters of a cluster's name.
LONGEST_NAME = 15

# Words that YAML does not take for texts.
_NO_TEXT = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

_HEAD = """\
# {title}
# Every key: docs/reference/cluster-yml.md
version: 1
name: {name}
"""

_LOCAL = """
cloud:
  provider: local                 # containers on this machine; `oci` is Oracle Cloud Infrastructure

network:
  vcn_cidr: 10.77.0.0/16          # must be free on this machine
  public_subnet_cidr: 10.77.0.0/24
  private_subnet_cidr: 10.77.1.0/24
  ssh_allowed_cidrs:
    - 127.0.0.0/8                 # the controller is reached from this machine only

controller:
  shape: VM.Standard.E5.Flex
  ocpus: 4
  memory_gb: 32

# scheduler: kubernetes           # or slurm (the default), or none: docs/how-to/kubernetes.md

# login: {count: 1}               # a host of its own for the logins of users: docs/how-to/login-nodes.md

pools:
  compute:                        # also the name of its Slurm partition
    shape: BM.GPU4.8              # emulated: Slurm sees eight GPUs per node, but there is no CUDA
    count: 2                      # permanent nodes

users:
  people:
    - name: alice
      full_name: Alice Example
      generate_key: true          # gpucluster generates a key pair; or set ssh_public_keys
"""

_OCI = """
cloud:
  provider: oci
  region: us-ashburn-1
  compartment_id: ocid1.compartment.oc1..exampleuniqueid    # your compartment
  # availability_domain: null     # null: the first of the region
  # freeform_tags: {team: vision}
  # defined_tags: {Operations.CostCenter: "42"}

network:
  # access: bastion               # no public addresses; then delete public_subnet_cidr
  vcn_cidr: 10.0.0.0/16
  public_subnet_cidr: 10.0.0.0/24
  private_subnet_cidr: 10.0.1.0/24
  # vcn_id: ocid1.vcn...          # an existing VCN, with public_subnet_id and private_subnet_id
  ssh_allowed_cidrs:
    - 203.0.113.0/24              # the network that you log in from

ssh:
  public_key_file: ~/.ssh/id_ed25519.pub

controller:
  shape: VM.Standard.E5.Flex
  ocpus: 4
  memory_gb: 32
  image: {operating_system: Canonical Ubuntu, version: "24.04"}

# scheduler: kubernetes           # or slurm (the default), or none: docs/how-to/kubernetes.md

# login: {count: 1}               # a host of its own for the logins of users: docs/how-to/login-nodes.md

storage:
  home:
    mount_path: /mnt/home
    # file_system_id: ocid1.filesystem...    # an existing file system

pools:
  compute:                        # also the name of its Slurm partition
    shape: BM.GPU4.8
    count: 2                      # permanent nodes
    # max_count: 8                # above count: nodes that exist only while jobs need them
    # idle_timeout: 600           # seconds without a job after which such a node is removed
    # For such nodes, at the top level of this file, a compartment in which alone the controller may launch and end
    # instances (docs/how-to/policies.md):    iam: {elastic_compartment: create}
    image:                        # it needs NVIDIA's driver and the RDMA stack: docs/reference/systems.md
      listing: Oracle Linux - GPU Cluster Networking Image    # of the marketplace; Oracle Linux 8
      listing_version: "*-GPU-570-OPEN-*"    # the newest with this branch of the driver
      login_user: opc
    # Or Oracle's HPC image of Ubuntu 24.04, the system of the controller, after you imported it:
    # image: {ocid: ocid1.image.oc1..exampleuniqueid, make_compatible: true, login_user: ubuntu}
    # platform: {numa_nodes_per_socket: NPS4, smt: false}
    # capacity_reservation_id: ocid1.capacityreservation...
    # removed_nodes: [compute-2]  # remove this node and no other; lower count as well

users:
  people:
    - name: alice
      full_name: Alice Example
      ssh_public_key_files:
        - ~/.ssh/id_ed25519.pub   # or ssh_public_keys with the text of a key
      # groups: [privilege]       # may run containers as root with Docker and containerd

# monitoring:
#   enabled: true                 # Prometheus on the controller, exporters on every host

# containers:
#   runtimes: [enroot]            # with Pyxis: srun --container-image=...; also docker, containerd
# software:
#   mirror: mirror                # a directory with release files; fill it: gpucluster software fetch mirror

# state:                          # where Terraform stores its state; default: on this machine
#   backend: oci
#   config: {bucket: terraform, namespace: exampletenancy}
"""


_BODIES: Mapping[ProviderName, str] = {"local": _LOCAL, "oci": _OCI}


def template(
    name: str = "demo", provider: ProviderName = "local", schema: str = "", *, network: str = LOCAL_NETWORK
) -> str:
    """The text of a new cluster.yml. It is valid without changes if the files that it names exist.

    Args:
        name: of the cluster.
        provider: the cloud that it is for.
        network: for the local cloud, the range of its network: a /16.
        schema: the JSON schema for editors, relative to the file; empty: no line for it is written.
    """
    body = _BODIES[provider].replace(LOCAL_NETWORK.removesuffix("0.0/16"), network.removesuffix("0.0/16"))
    name = f'"{name}"' if name in _NO_TEXT else name
    editors = f"# yaml-language-server: $schema={schema}\n" if schema else ""
    return editors + _HEAD.format(title=PROVIDERS[provider].title, name=name) + body


def name_of_folder(folder: str) -> str:
    """A name for the cluster of a folder: what the folder is called, by the rules of names of clusters."""
    plain = unicodedata.normalize("NFKD", folder).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).lstrip("-0123456789")[:LONGEST_NAME].rstrip("-")
    return name or "cluster"
