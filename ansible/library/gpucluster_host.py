#!/usr/bin/python
"""The facts of a host that the roles need before they change it, in one cheap task.

Instead of plain tasks: `setup` beside a `stat`, `slurp` or `command` for each of the other facts. `setup` alone takes
1.9 times the processor time of all of it (benchmarks/modules.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible.module_utils import gpucluster_applied, gpucluster_fork_server
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_host_facts import UnsuitableHost, collected, wanted_packages
from ansible.module_utils.gpucluster_units import Systemd, UnitFailed

DOCUMENTATION = """
module: gpucluster_host
short_description: Facts of a host that the roles depend on
description:
  - Sets the fact C(gpucluster_host). It replaces C(setup), which costs more and does not report what a
    container can do.
options:
  user:
    description: The login user, for its home directory.
    type: str
    required: true
  key:
    description: Path of a public key to read, relative to that home directory.
    type: str
    required: true
  agent:
    description: Path of the program gpucluster-agent, for its checksum.
    type: path
    required: true
  packages:
    description: For each system (such as C(Debian-13)) lists of packages by purpose.
    type: dict
    required: true
  purposes:
    description: The lists that this host needs. A host without a time service gets the list C(time) as well.
    type: list
    elements: str
    required: true
  rdma:
    description: Whether the host is in an RDMA network. Then its place there is asked of OCI's metadata service.
    type: bool
    default: false
  inputs:
    description: >-
      A digest of what this run works from. What a complete run leaves is recorded with it, so that a later run with
      the same inputs can be left out (module_utils/gpucluster_unchanged.py). Without it nothing is recorded.
    type: str
    default: ""
  hosts:
    description: The names of the permanent hosts, for C(inputs).
    type: list
    elements: str
    default: []
  complete:
    description: The run has configured the host. What it left is recorded.
    type: bool
    default: false
author: gpucluster
"""

EXAMPLES = """
- name: Gather facts of the host
  gpucluster_host:
    user: debian
    key: .ssh/gpucluster.pub
    agent: /usr/local/bin/gpucluster-agent
    packages: {Debian-13: {every_host: [munge], compute: [slurmd]}}
    purposes: [every_host, compute]
"""

RETURN = """
ansible_facts:
  description: One fact, C(gpucluster_host).
  returned: always
  type: dict
"""


def main() -> None:
    """Entry point."""
    os.umask(0o022)  # independent of the umask of the host's root
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "key": {"type": "str", "required": True, "no_log": False},
            "agent": {"type": "path", "required": True},
            "packages": {"type": "dict", "required": True},
            "purposes": {"type": "list", "elements": "str", "required": True},
            "rdma": {"type": "bool", "default": False},
            "inputs": {"type": "str", "default": ""},
            "hosts": {"type": "list", "elements": "str", "default": []},
            "complete": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    complete = module.params["complete"]
    inputs = "" if module.check_mode else module.params["inputs"]
    # First, and not in check mode: it writes a program. At the end of a run it is there.
    starts = not (module.check_mode or complete)
    python = gpucluster_fork_server.start() if starts else gpucluster_fork_server.REAL
    try:
        facts = collected(module.params)
        if complete:
            module.exit_json(changed=False, differing=_record(module, inputs, facts) if inputs else [])
    except (UnsuitableHost, UnitFailed) as error:
        module.fail_json(msg=str(error))
    if inputs:
        gpucluster_applied.begin(inputs)
    module.exit_json(changed=False, ansible_facts={"gpucluster_host": {**facts, "python": python}})


def _record(module: AnsibleModule, inputs: str, facts: Mapping[str, Any]) -> list[str]:
    """Record what the run left. Returns what has changed after its tasks: then nothing is recorded."""
    asked = {name: module.params[name] for name in gpucluster_applied.ASKED}
    # Of its system alone: a later look needs no other.
    asked["packages"] = {facts["system"]: asked["packages"][facts["system"]]}
    packages = wanted_packages(module.params, facts)
    host = gpucluster_applied.Host(facts, asked["hosts"], Systemd(module).show, packages)
    differing: list[str] = gpucluster_applied.record(inputs, asked, host)
    return differing


if __name__ == "__main__":
    main()
