#!/usr/bin/python
"""The distribution's packages of one role: installed, or removed.

Instead of plain tasks: `package` starts the services of what it installs before they are configured. Where nothing is
missing this one reads the package database alone. `apt` takes 5.2 times the processor time then
(benchmarks/modules.py).
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils import gpucluster_applied
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_package_files import (
    APT,
    DNF,
    POLICY,
    Packages,
    manager,
    nothing_starts,
    policy_is_left,
)

DOCUMENTATION = """
module: gpucluster_role_packages
short_description: Packages of the distribution
description:
  - Installs missing packages with the package manager of the system; this starts no service. If nothing is missing, it
    only reads the package database.
  - Settings and data stay when packages are removed.
options:
  present: {description: Packages that must be installed., type: list, elements: str, default: []}
  absent: {description: Packages that must not be installed., type: list, elements: str, default: []}
  hint: {description: Advice for the error that no repository has the packages., type: str, default: ""}
author: gpucluster
"""

EXAMPLES = """
- name: Install Docker
  gpucluster_role_packages:
    present: [docker.io]
"""

RETURN = """
packages: {description: Packages that were installed or removed., returned: always, type: list}
"""


def install(manage: Packages, names: list[str], hint: str) -> None:
    """Install packages, or fail with the hint."""
    if hint and manage.format == "rpm":
        code, _out, _err = manage.module.run_command([*DNF, "list", "--available", *names])
        if code != 0:
            manage.module.fail_json(msg=f"no repository of this host has {', '.join(names)}. {hint}")
    with nothing_starts():
        manage.install(names, older=False)


def remove(manage: Packages, names: list[str]) -> None:
    """Remove packages, which stops their services."""
    argv = [*(APT if manage.format == "deb" else DNF), "remove", *names]
    manage.run(argv, f"can't remove {', '.join(names)}")


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "present": {"type": "list", "elements": "str", "default": []},
        "absent": {"type": "list", "elements": "str", "default": []},
        "hint": {"type": "str", "default": ""},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    params, manage = module.params, manager(module)
    have = manage.installed([*params["present"], *params["absent"]])
    missing = [name for name in params["present"] if name not in have]
    surplus = [name for name in params["absent"] if name in have]
    left = policy_is_left()
    if not module.check_mode:
        if left:
            POLICY.unlink()
        if missing:
            install(manage, missing, params["hint"])
        if surplus:
            remove(manage, surplus)
        gpucluster_applied.note(packages=params["present"])
    module.exit_json(changed=bool(missing or surplus or left), packages=[*missing, *surplus])


if __name__ == "__main__":
    main()
