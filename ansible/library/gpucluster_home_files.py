#!/usr/bin/python3
"""How many files on the home share are people's own work."""

from __future__ import annotations

import filecmp
import os
import pwd
from collections import Counter
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_home_files
short_description: Count the files on the home share by owner
description:
  - Counts files and links of people. Left out are what a new home directory comes with (untouched copies of
    /etc/skel, C(.ssh/authorized_keys)) and what belongs to root.
options:
  path: {description: The share., type: path, required: true}
  skeleton: {description: What new homes are copied from., type: path, default: /etc/skel}
author: gpucluster
"""

EXAMPLES = """
- name: Count
  gpucluster_home_files:
    path: /mnt/home
"""

RETURN = """
owners:
  description: Number of files by owner; a number where nobody has this uid.
  returned: always
  type: dict
"""


# What role people puts into a home beside the skeleton: keys that let their owner in, and the pair for ssh between
# hosts.
MADE_WITH_A_HOME = frozenset(Path(".ssh", name) for name in ("authorized_keys", "id_ed25519", "id_ed25519.pub"))


def owner_name(uid: int) -> str:
    """The user's name, or the number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def comes_with_a_home(home_relative: Path, file: Path, skeleton: Path) -> bool:
    """Whether a file lies in a home because the home was made."""
    if home_relative in MADE_WITH_A_HOME:
        return True
    model = skeleton / home_relative
    if file.is_symlink() or not model.is_file():
        return False
    try:
        return filecmp.cmp(model, file, shallow=False)
    except OSError:
        return False


def fail(error: OSError) -> None:
    """A directory that can not be read must not look like an empty one."""
    raise error


def count(share: Path, skeleton: Path) -> dict[str, int]:
    """Files by owner.

    Raises:
        OSError: a directory of the share can't be read.
    """
    found: Counter[int] = Counter()
    for directory, names, files in os.walk(share, onerror=fail):
        links = [name for name in names if Path(directory, name).is_symlink()]
        for name in (*files, *links):
            file = Path(directory, name)
            try:
                uid = file.lstat().st_uid
            except FileNotFoundError:
                continue  # its owner is at work and has just removed it
            inside = file.relative_to(share).parts[1:]
            if uid != 0 and not (inside and comes_with_a_home(Path(*inside), file, skeleton)):
                found[uid] += 1
    return {owner_name(uid): number for uid, number in sorted(found.items())}


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "path": {"type": "path", "required": True},
        "skeleton": {"type": "path", "default": "/etc/skel"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    share = Path(module.params["path"])
    if not share.is_mount():
        module.fail_json(msg=f"{share} is not mounted, so nobody's files can be counted; run apply, or mount it")
    try:
        owners = count(share, Path(module.params["skeleton"]))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; nobody's files can be counted")
    module.exit_json(changed=False, owners=owners)


if __name__ == "__main__":
    main()
