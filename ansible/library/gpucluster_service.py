#!/usr/bin/python3
"""A service's accounts, files and units in one task."""

from __future__ import annotations

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_accounts import ACCOUNT_SPEC, make_accounts
from ansible.module_utils.gpucluster_files import FILE_SPEC, Files
from ansible.module_utils.gpucluster_units import UNIT_SPEC, run_units

DOCUMENTATION = """
module: gpucluster_service
short_description: Files that have their content, and units that run with them
description:
  - Every task costs each host about a third of a second of processor time, whatever it does. This one does at once
    what would be a row of C(copy), C(blockinfile), C(replace), C(file) and C(systemd) tasks. Check mode and diff work
    as there.
  - First the accounts, then the files, in their order. Then units are enabled and started, and those are restarted
    that are older than a file that they follow. A handler would be lost with a run that is broken off between the
    change and the restart; the age of a process is not. A unit that does not stay up fails the task, with the end of
    its journal.
options:
  accounts:
    description: Accounts of the system, each with a group of its own.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Of the user and of the group., type: str, required: true}
      home: {description: The home directory; it is not made., type: path, required: true}
  files:
    description: The files, in the order in which they are worked on.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Where., type: path, required: true}
      content: {description: The whole text., type: str}
      content_base64: {description: The whole content of a file that is no text., type: str}
      random_bytes: {description: Size of a secret that is made once and then kept., type: int}
      copy_of: {description: "Another file of this host, as it is at that point of the list.", type: path}
      block: {description: Lines that stand between two marker lines; the rest of the file stays as it is., type: str}
      at: {description: Where a new block goes., type: str, choices: [top, bottom], default: bottom}
      replace: {description: "A regular expression (MULTILINE), and what takes its place.", type: dict}
      link: {description: The target of a symbolic link., type: str}
      directory: {description: A directory., type: bool, default: false}
      trusted: {description: A directory that fails the task unless it is root's alone., type: bool, default: false}
      absent: {description: "Nothing; a directory goes with all that is in it.", type: bool, default: false}
      mode: {description: Octal. Without it a new file gets 0644 and a new directory 0755., type: str}
      new_mode: {description: "Octal, for a new file alone: some programs change the mode of theirs.", type: str}
      widest_mode: {description: "Octal; what a file that is there allows beyond this is taken from it.", type: str}
      owner: {description: User name. Without it a new file belongs to root., type: str}
      group: {description: Group name., type: str}
      secret: {description: Leave the content out of the diff., type: bool, default: false}
  units:
    description: The units, in the order in which they are started.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Unit; C(.service) may be left out., type: str, required: true}
      follows: {description: Files whose change asks for a restart., type: list, elements: path, default: []}
      reload: {description: A reload is enough and does less harm than a restart., type: bool, default: false}
      state:
        description: C(enabled) leaves it to the next boot; C(stopped) disables it as well.
        type: str
        choices: [started, enabled, stopped]
        default: started
  timeout:
    description: Seconds that all starts may take together.
    type: int
    default: 90
author: gpucluster
"""

EXAMPLES = """
- name: Run munge with our key
  gpucluster_service:
    files:
      - path: /etc/munge/munge.key
        content_base64: "{{ key }}"
        owner: munge
        mode: "0400"
    units:
      - name: munge
        follows: [/etc/munge/munge.key]
"""

RETURN = """
accounts: {description: The accounts that were made., returned: always, type: list}
paths: {description: The paths that were changed., returned: always, type: list}
enabled: {description: Units that were not enabled., returned: always, type: list}
started: {description: Units that were not running., returned: always, type: list}
restarted: {description: Units that were older than their configuration (reloads too)., returned: always, type: list}
stopped: {description: Units that were running or enabled and should not be., returned: always, type: list}
"""


def main() -> None:
    """Entry point."""
    os.umask(0o022)  # modes are said here, whatever the host's root has
    module = AnsibleModule(
        argument_spec={
            "accounts": {"type": "list", "elements": "dict", "default": [], "options": ACCOUNT_SPEC},
            "files": {"type": "list", "elements": "dict", "default": [], "options": FILE_SPEC},
            "units": {"type": "list", "elements": "dict", "default": [], "options": UNIT_SPEC},
            "timeout": {"type": "int", "default": 90},
        },
        supports_check_mode=True,
    )
    accounts = make_accounts(module, module.params["accounts"])
    files = Files(module)
    for item in module.params["files"]:
        try:
            files.one(item)
        except OSError as error:
            module.fail_json(msg=f"{item['path']}: {error.strerror}", paths=files.paths)
    units = run_units(module, module.params["units"], module.params["timeout"]) if module.params["units"] else {}
    changed = bool(accounts or files.paths or any(units.values()))
    module.exit_json(changed=changed, accounts=accounts, paths=files.paths, diff=files.diff, **units)


if __name__ == "__main__":
    main()
