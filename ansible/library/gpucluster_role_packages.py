#!/usr/bin/python3
"""The distribution's packages of one role: there, or gone again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_package_files import APT, DNF, Packages, manager

DOCUMENTATION = """
module: gpucluster_role_packages
short_description: The distribution's packages of one role
description:
  - Installs what is missing with the system's own package manager; no service is started by that. A host that has
    everything pays for one look.
  - Settings and data stay when packages go.
options:
  present: {description: Names that must be installed., type: list, elements: str, default: []}
  absent: {description: Names that must not., type: list, elements: str, default: []}
  hint: {description: What to do where no repository has the packages., type: str, default: ""}
author: gpucluster
"""

EXAMPLES = """
- name: Install Docker
  gpucluster_role_packages:
    present: [docker.io]
"""

RETURN = """
packages: {description: What was installed or removed., returned: always, type: list}
"""

POLICY = Path("/usr/sbin/policy-rc.d")
OURS = "#!/bin/sh\n# Of gpucluster, while it installs packages.\nexit 101\n"


def policy_is_ours() -> bool:
    """Whether a run that was killed has left it: nothing of the host's would start any more."""
    return POLICY.is_file() and POLICY.read_text(encoding="utf-8", errors="replace") == OURS


@contextmanager
def nothing_starts() -> Iterator[None]:
    """Keep Debian's packages from starting their services: they start when they are configured."""
    if POLICY.exists() or not POLICY.parent.is_dir():
        yield
        return
    POLICY.write_text(OURS, encoding="utf-8")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def install(manage: Packages, names: list[str], hint: str) -> None:
    """Install packages, or say where they could come from."""
    if hint and manage.format == "rpm":
        code, _out, _err = manage.module.run_command([*DNF, "list", "--available", *names])
        if code != 0:
            manage.module.fail_json(msg=f"no repository of this host has {', '.join(names)}. {hint}")
    with nothing_starts():
        manage.install(names, older=False)


def remove(manage: Packages, names: list[str]) -> None:
    """Remove packages. Their services stop with them."""
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
    wish, manage = module.params, manager(module)
    have = manage.installed([*wish["present"], *wish["absent"]])
    missing = [name for name in wish["present"] if name not in have]
    surplus = [name for name in wish["absent"] if name in have]
    left = policy_is_ours()
    if not module.check_mode:
        if left:
            POLICY.unlink()
        if missing:
            install(manage, missing, wish["hint"])
        if surplus:
            remove(manage, surplus)
    module.exit_json(changed=bool(missing or surplus or left), packages=[*missing, *surplus])


if __name__ == "__main__":
    main()
