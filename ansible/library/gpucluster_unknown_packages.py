#!/usr/bin/python
"""Why the package manager could not install packages: which of them no repository has.

Instead of plain tasks: plain tasks report the package manager's own words, which name neither the system nor its
repositories. It runs after a failure only, and costs nothing else.
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_package_files import Packages, manager

DOCUMENTATION = """
module: gpucluster_unknown_packages
short_description: Why packages can't be installed
description:
  - One name that no repository has fails an installation as a whole. This module fails as well, and names the package,
    the system and its repositories. It runs only after an installation has failed.
options:
  names: {description: The packages that were to be installed., type: list, elements: str, required: true}
  system: {description: Name of the operating system., type: str, required: true}
  said: {description: The message of the package manager., type: str, required: true}
  enabled: {description: Further repositories that were enabled., type: list, elements: str, default: []}
author: gpucluster
"""

EXAMPLES = """
- name: Explain why
  gpucluster_unknown_packages:
    names: [slapd]
    system: Ubuntu-24
    said: No package matching 'slapd' is available
"""

RETURN = """
unknown: {description: The packages that no repository has., returned: always, type: list}
"""

SHOWN = 12  # repositories in a message
MAX_WORDS = 400


def explanation(
    manage: Packages, system: str, names: list[str], said: str, enabled: list[str]
) -> tuple[list[str], str]:
    """The packages that no repository has, and the message."""
    unknown = manage.unknown(names, enabled)
    words = " ".join(said.split())[:MAX_WORDS]
    if not unknown:
        return [], f"{', '.join(names)} can't be installed on {system}: {words}"
    repositories = [*manage.repositories(), *enabled]
    listed = ", ".join(repositories[:SHOWN]) + (", ..." if len(repositories) > SHOWN else "")
    return unknown, (
        f"no repository of this host ({system}) has {', '.join(unknown)}; its repositories: {listed or 'none'}. Enable "
        f"the repository that has it (in the image or in your mirror of packages) and run apply again. {words}"
    )


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "names": {"type": "list", "elements": "str", "required": True},
        "system": {"type": "str", "required": True},
        "said": {"type": "str", "required": True},
        "enabled": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    asked = module.params
    unknown, message = explanation(manager(module), asked["system"], asked["names"], asked["said"], asked["enabled"])
    module.fail_json(msg=message, unknown=unknown)


if __name__ == "__main__":
    main()
