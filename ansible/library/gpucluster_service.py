#!/usr/bin/python
"""Accounts, files and units of a service in one task.

Instead of plain tasks: a `copy` or `file` for each file, a `systemd` for each unit, and handlers, which an
interrupted run loses. Six files take 6.3 times the processor time as plain tasks (benchmarks/modules.py, nothing to
do).
"""

from __future__ import annotations

import os

from ansible.module_utils import gpucluster_applied
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_accounts import ACCOUNT_SPEC, make_accounts
from ansible.module_utils.gpucluster_files import FILE_SPEC, Files
from ansible.module_utils.gpucluster_trials import TRIAL_SPEC, run_trials
from ansible.module_utils.gpucluster_units import UNIT_SPEC, full_name, run_units

DOCUMENTATION = """
module: gpucluster_service
short_description: Accounts, files and units of a service
description:
  - Every task costs each host about a third of a second of processor time, whatever it does. This module replaces a
    series of C(copy), C(blockinfile), C(replace), C(file) and C(systemd) tasks. It supports check mode and diff in the
    same way.
  - First the accounts, then the files, in their order. Then units are enabled and started, and a unit that is older
    than a file that it follows is restarted. If a run is interrupted between the change and the restart, a handler is
    lost; the age of a process is not. A unit that does not stay up fails the task, with the end of its journal. If it
    ran before, the files of before are put back first, and it is started with them.
  - Before anything is changed, trials let the programs that read the files read the new ones, in a copy of their
    directories that only the trial sees. They cost nothing as long as none of their files changes.
options:
  accounts:
    description: System accounts, each with a group of its own.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Name of the user and of the group., type: str, required: true}
      home: {description: The home directory; it is not created., type: path, required: true}
      id: {description: "Its uid and gid, where they must be the same on every host.", type: int}
  files:
    description: The files, in the order in which they are written.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Path of the file., type: path, required: true}
      content: {description: The whole text., type: str}
      content_base64: {description: The whole content of a binary file., type: str}
      random_bytes: {description: Size of a secret that is created once and then kept., type: int}
      copy_of: {description: "Another file of this host, as it is at that point of the list.", type: path}
      block: {description: Lines between two marker lines; the rest of the file is not changed., type: str}
      at: {description: Where a new block is inserted., type: str, choices: [top, bottom], default: bottom}
      replace: {description: "C(regexp), a regular expression (MULTILINE), and C(with), its replacement.", type: dict}
      link: {description: The target of a symbolic link., type: str}
      directory: {description: A directory., type: bool, default: false}
      trusted: {description: Fail unless only root can write to it and its parents., type: bool, default: false}
      absent: {description: "Remove it; a directory with its contents.", type: bool, default: false}
      mode: {description: Octal. Without it a new file gets 0644 and a new directory 0755., type: str}
      new_mode: {description: "Octal, only for a new file: some programs change the mode of their files.", type: str}
      widest_mode: {description: "Octal; further permissions of an existing file are removed.", type: str}
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
      follows: {description: Files whose change requires a restart., type: list, elements: path, default: []}
      reload: {description: Reload the unit instead of restarting it., type: bool, default: false}
      answers:
        description: A command that succeeds once its program works, where systemd calls it started before that.
        type: list
        elements: str
        default: []
      state:
        description: C(enabled) starts it at the next boot only; C(stopped) disables it as well.
        type: str
        choices: [started, enabled, stopped]
        default: started
  trials:
    description: The programs that must accept the new files before the old ones are replaced, also in check mode.
    type: list
    elements: dict
    default: []
    suboptions:
      command:
        description: The program and its arguments. It finds the new files where the old ones are.
        type: list
        elements: str
        required: true
      files:
        description: Files of this task; one that changes requires the trial.
        type: list
        elements: path
        required: true
      while_running: {description: Only while this unit runs., type: str}
      up:
        description: A regular expression. Output that shows that a daemon has come up; the trial ends it. Without it
          the exit code of the program decides.
        type: str
      inconclusive:
        description: A regular expression. Output of a program that failed only because of its trial.
        type: str
      scratch:
        description: Directories that are empty for the trial, except for the files that are listed. The program can
          write to them; it can't write to the root file system.
        type: list
        elements: dict
        default: []
        suboptions:
          path: {description: The directory., type: path, required: true}
          files: {description: Names of files of which the trial gets copies., type: list, elements: str, default: []}
      address: {description: Gives the trial a network of its own with this address and no way out., type: str}
      hint:
        description: What to do when the program refuses the files.
        type: str
        default: Correct the setting and run again
  timeout:
    description:
      - Maximum seconds of all starts together. systemd itself ends a start that hangs, after 90 s for most units; a
        database on a busy host takes longer.
    type: int
    default: 300
author: gpucluster
"""

EXAMPLES = """
- name: Run munge with the cluster's key
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
accounts: {description: The accounts that were created., returned: always, type: list}
paths: {description: The paths that were changed., returned: always, type: list}
enabled: {description: Units that were not enabled., returned: always, type: list}
started: {description: Units that were not running., returned: always, type: list}
restarted: {description: Units that were older than their configuration (reloads too)., returned: always, type: list}
stopped: {description: Units that were stopped or disabled., returned: always, type: list}
"""


def main() -> None:
    """Entry point."""
    os.umask(0o022)  # independent of the umask of the host's root
    module = AnsibleModule(
        argument_spec={
            "accounts": {"type": "list", "elements": "dict", "default": [], "options": ACCOUNT_SPEC},
            "files": {"type": "list", "elements": "dict", "default": [], "options": FILE_SPEC},
            "units": {"type": "list", "elements": "dict", "default": [], "options": UNIT_SPEC},
            "trials": {"type": "list", "elements": "dict", "default": [], "options": TRIAL_SPEC},
            "timeout": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    files = Files(module)
    run_trials(module, files)
    accounts = make_accounts(module, module.params["accounts"])
    for item in module.params["files"]:
        try:
            files.apply(item)
        except OSError as error:
            module.fail_json(msg=f"{item['path']}: {error.strerror}", paths=files.paths)
    wanted = module.params["units"]
    units = run_units(module, wanted, module.params["timeout"], files.restore) if wanted else {}
    if not module.check_mode:
        paths = [item["path"] for item in module.params["files"]]
        gpucluster_applied.note(paths, [full_name(unit["name"]) for unit in wanted])
    changed = bool(accounts or files.paths or any(units.values()))
    module.exit_json(changed=changed, accounts=accounts, paths=files.paths, diff=files.diff, **units)


if __name__ == "__main__":
    main()
