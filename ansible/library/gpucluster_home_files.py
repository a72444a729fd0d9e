#!/usr/bin/python
"""Number of files on the home share that users created."""

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
  - Counts files and links of users. Files of a new home directory (unchanged copies of /etc/skel,
    C(.ssh/authorized_keys)) and files of root do not count.
options:
  path: {description: The share., type: path, required: true}
  skeleton: {description: Template of new homes., type: path, default: /etc/skel}
author: gpucluster
"""

EXAMPLES = """
- name: Count
  gpucluster_home_files:
    path: /mnt/home
"""

RETURN = """
owners:
  description: Number of files by owner; the uid where no user has it.
  returned: always
  type: dict
"""


# What the role people adds to a home besides the skeleton: authorized keys, and the key pair for ssh between hosts.
NEW_HOME_FILES = frozenset(Path(".ssh", name) for name in ("authorized_keys", "id_ed25519", "id_ed25519.pub"))


def owner_name(uid: int) -> str:
    """The user's name, or the uid."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def belongs_to_new_home(home_relative: Path, file: Path, skeleton: Path) -> bool:
    """Whether a file is in a home because the home was created with it."""
    if home_relative in NEW_HOME_FILES:
        return True
    model = skeleton / home_relative
    if file.is_symlink() or not model.is_file():
        return False
    try:
        return filecmp.cmp(model, file, shallow=False)
    except OSError:
        return False


def fail(error: OSError) -> None:
    """A directory that can't be read must not look like an empty one."""
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
                continue  # the owner has just removed it
            inside = file.relative_to(share).parts[1:]
            if uid != 0 and not (inside and belongs_to_new_home(Path(*inside), file, skeleton)):
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
        module.fail_json(msg=f"{share} is not mounted, so the files of users can't be counted; run apply, or mount it")
    try:
        owners = count(share, Path(module.params["skeleton"]))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; the files of users can't be counted")
    module.exit_json(changed=False, owners=owners)


if __name__ == "__main__":
    main()
