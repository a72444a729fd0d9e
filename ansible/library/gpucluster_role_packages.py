#!/usr/bin/python
"""The distribution's packages of one role: installed, or removed.

Instead of plain tasks: `package` starts the services of what it installs before they are configured. Where nothing is
missing this one reads the package database alone. `apt` takes 5.2 times the processor time then
(benchmarks/modules.py).
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils import gpucluster_applied, gpucluster_host_facts
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

OS_RELEASE = "/etc/os-release"
SHOWN = 12  # repositories in a message
MAX_WORDS = 400
HINT = "Enable the repository that has it (in the image or in your mirror of packages) and run apply again"

DOCUMENTATION = """
module: gpucluster_role_packages
short_description: Packages of the distribution
description:
  - Installs missing packages with the package manager of the system; this starts no service. If nothing is missing, it
    only reads the package database.
  - One name that no repository has fails the installation as a whole. The error names it, the system and its
    repositories.
  - Settings and data stay when packages are removed.
options:
  present: {description: Packages that must be installed., type: list, elements: str, default: []}
  absent: {description: Packages that must not be installed., type: list, elements: str, default: []}
  repositories:
    {description: Repositories that dnf enables for this installation., type: list, elements: str, default: []}
  hint: {description: What to do if no repository has a package. Without a full stop., type: str, default: ""}
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


def install(manage: Packages, names: list[str], repositories: list[str], hint: str) -> None:
    """Install packages, or fail with the reason and what to do."""
    with nothing_starts():
        failure = manage.attempt(names, repositories=repositories)
    if failure:
        manage.module.fail_json(msg=explanation(manage, names, failure, repositories=repositories, hint=hint))


def explanation(manage: Packages, names: list[str], failure: str, *, repositories: list[str], hint: str = "") -> str:
    """Why packages can't be installed: one name that no repository has fails an installation as a whole.

    Args:
        failure: the words of the package manager.
        repositories: those that were enabled for this installation only.
        hint: what to do if no repository has a package.
    """
    system = gpucluster_host_facts.system(gpucluster_host_facts.read(OS_RELEASE))
    words = " ".join(failure.split())[:MAX_WORDS]
    unknown = manage.unknown(names, repositories)
    if not unknown:
        return f"{', '.join(names)} can't be installed on {system}: {words}"
    known = [*manage.repositories(), *repositories]
    listed = ", ".join(known[:SHOWN]) + (", ..." if len(known) > SHOWN else "")
    return (
        f"no repository of this host ({system}) has {', '.join(unknown)}; its repositories: {listed or 'none'}. "
        f"{hint or HINT}. {words}"
    )


def remove(manage: Packages, names: list[str]) -> None:
    """Remove packages, which stops their services."""
    argv = [*(APT if manage.format == "deb" else DNF), "remove", *names]
    manage.run(argv, f"can't remove {', '.join(names)}")


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "present": {"type": "list", "elements": "str", "default": []},
        "absent": {"type": "list", "elements": "str", "default": []},
        "repositories": {"type": "list", "elements": "str", "default": []},
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
            install(manage, missing, params["repositories"], params["hint"])
        if surplus:
            remove(manage, surplus)
        gpucluster_applied.note(packages=params["present"])
    module.exit_json(changed=bool(missing or surplus or left), packages=[*missing, *surplus])


if __name__ == "__main__":
    main()
