#!/usr/bin/python
"""A command that also runs where nothing else has changed.

Instead of plain tasks: `command` does not keep what a later apply has to repeat, and Ansible would have to start for it
(3.5 s on three hosts, beside 0.9 s for the same commands; benchmarks/run.py apply).
"""

from __future__ import annotations

from ansible.module_utils import gpucluster_applied, gpucluster_updates
from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_update
short_description: Run a command, and note it for a later apply
description:
  - Runs a command until it succeeds. `gpucluster apply` repeats it where all hosts are as the last complete apply left
    them, without Ansible. If it does not succeed then, or does not print what is expected, all tasks run. Nothing runs
    in check mode.
options:
  name: {description: "Its name, for messages, and for the caller that needs its output.", type: str, required: true}
  argv: {description: The command., type: list, elements: str, required: true}
  stdin: {description: Its standard input. Nothing secret., type: str, default: ""}
  environment: {description: Added to its environment., type: dict, default: {}}
  every_line:
    description: A regular expression that must be found in every line of the output.
    type: str
    default: ""
  later_lines:
    description: Regular expressions, each of which must match the begin of a line in a later apply. Here they need not.
    type: list
    elements: str
    default: []
  seconds: {description: For so long a failure is tried again., type: int, default: 0}
author: gpucluster
"""

EXAMPLES = """
- name: Wait until the users can be resolved
  gpucluster_update:
    name: users can be resolved
    argv: [getent, passwd, alice]
    seconds: 30
"""

RETURN = """
stdout: {description: The standard output., returned: always, type: str}
"""


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec=gpucluster_updates.UPDATE_SPEC, supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, stdout="")
    update = {name: module.params[name] for name in gpucluster_updates.UPDATE_SPEC}
    outcome = gpucluster_updates.run(update, later=False, patience=update["seconds"])
    printed = {"rc": outcome.status, "stdout": outcome.stdout, "stderr": outcome.stderr}
    if outcome.fault:
        message = "non-zero return code" if outcome.status else outcome.fault
        module.fail_json(msg=message, **printed)
    gpucluster_applied.note(updates=[update])
    module.exit_json(changed=outcome.changed, **printed)


if __name__ == "__main__":
    main()
