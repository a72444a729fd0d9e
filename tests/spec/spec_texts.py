"""Texts for the tests of the spec: a valid cluster.yml of each cloud, and public keys that are made, not copied."""

from __future__ import annotations

import base64

MARK = "§"


def public_key(kind: str = "ssh-ed25519", *parts: bytes, comment: str = "alice@laptop") -> str:
    """A public key with a well-formed body; with `parts` the body holds these after the type."""
    fields = (kind.encode(), *(parts or (bytes(range(32)),)))
    body = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return f"{kind} {base64.b64encode(body).decode()} {comment}"


KEY = public_key()

# Every default.
MINIMAL = """\
version: 1
name: tiny
cloud: {provider: local}
network: {vcn_cidr: 10.77.0.0/16, public_subnet_cidr: 10.77.0.0/24, private_subnet_cidr: 10.77.1.0/24,
          ssh_allowed_cidrs: [127.0.0.1/32]}
pools: {compute: {shape: BM.GPU4.8, count: 1}}
"""

LOCAL = f"""\
version: 1
name: demo
cloud:
  provider: local
network:
  vcn_cidr: 10.77.0.0/16
  public_subnet_cidr: 10.77.0.0/24
  private_subnet_cidr: 10.77.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller:
  shape: VM.Standard.E5.Flex
  ocpus: 4
  memory_gb: 32
storage:
  home:
    mount_path: /mnt/home
    export_path: /mnt/home
pools:
  compute:
    shape: BM.GPU4.8
    count: 2
  cpu:
    shape: VM.Standard.E5.Flex
    ocpus: 8
    memory_gb: 64
    max_count: 4
users:
  group: people
  gid: 9999
  first_uid: 10001
  people:
    - name: alice
      full_name: Alice Example
      uid: 10001
      ssh_public_keys:
        - {KEY}
    - name: bob
      generate_key: true
slurm:
  accounting: true
  extra_config: {{SchedulerParameters: bf_interval=30}}
software:
  timezone: UTC
"""

#: The same at other addresses: a cluster of `make demo` may stand on the machine of the tests.
APART_FROM_THE_DEMO = LOCAL.replace("10.77.", "10.39.")

OCI = f"""\
version: 1
name: prod
cloud:
  provider: oci
  region: us-ashburn-1
  compartment_id: ocid1.compartment.oc1..exampleuniqueid
network:
  vcn_cidr: 10.0.0.0/16
  public_subnet_cidr: 10.0.0.0/24
  private_subnet_cidr: 10.0.1.0/24
  ssh_allowed_cidrs: [203.0.113.0/24]
ssh:
  public_key_file: operator.pub
controller:
  image: {{operating_system: Canonical Ubuntu, version: "24.04"}}
pools:
  h100:
    shape: BM.GPU.H100.8
    count: 2
    max_count: 8
    image: {{ocid: ocid1.image.oc1.iad.example, login_user: ubuntu}}
users:
  people:
    - name: alice
      ssh_public_keys: [{KEY}]
"""


def marked(text: str) -> tuple[str, int, int]:
    """The text without its mark, and the line and column where the mark stood."""
    before, mark, after = text.partition(MARK)
    assert mark, f"no {MARK} in the text"
    return before + after, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
