#!/usr/bin/python
"""ssh key pairs that are created once, and then only read.

Instead of plain tasks: four tasks (`file`, `command` and twice `slurp`) for one pair, and one of `command` could
leave a private key without its public one. They take 3.5 times the processor time (benchmarks/modules.py).
"""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_mesh_keys
short_description: Create ssh key pairs once
description:
  - Creates an ed25519 key pair for each name that is missing, in a directory that only root can read, and returns all
    pairs, during a rotation with the public keys of it. The result is secret. If none is missing, nothing is written,
    so a process with read access can call it.
options:
  directory: {description: Directory of the keys., type: path, required: true}
  names: {description: File names of the private keys., type: list, elements: str, required: true}
  comment: {description: Comment of the keys., type: str, default: ""}
author: gpucluster
"""

EXAMPLES = """
- name: Create the keys
  gpucluster_mesh_keys:
    directory: /etc/gpucluster/mesh
    names: [id_ed25519]
  no_log: true
"""

RETURN = """
pairs:
  description: "By name: C(private), C(public), and C(accepted), the public keys that are accepted now, one in a line."
  returned: always
  type: dict
"""

MODE = 0o700


def make(module: AnsibleModule, target: Path) -> None:
    """Create a pair. The private key gets its name last, so that the next run repeats an interrupted one."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        new = Path(scratch) / "key"
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", module.params["comment"], "-f", str(new)]
        module.run_command(argv, check_rc=True)
        new.with_suffix(".pub").replace(f"{target}.pub")
        new.replace(target)


def complete(module: AnsibleModule, folder: Path, missing: list[str]) -> bool:
    """Create the missing pairs, in a directory of root; returns whether something changed."""
    closed = folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) == MODE
    if closed and not missing:
        return False
    if not module.check_mode:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(MODE)
            for name in missing:
                make(module, folder / name)
        except OSError as error:
            module.fail_json(msg=f"keys are missing in {folder} and can't be created ({error.strerror}): run apply")
    return True


def accepted(folder: Path, name: str) -> str:
    """The public keys that are accepted: the present one, and the next or the former one while it is rotated."""
    files = [folder / f"{name}{stage}.pub" for stage in ("", ".next", ".former")]
    keys = [file.read_text("utf-8").strip() for file in files if file.exists()]
    return "".join(f"{key}\n" for key in dict.fromkeys(keys))


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "directory": {"type": "path", "required": True},
        "names": {"type": "list", "elements": "str", "required": True},
        "comment": {"type": "str", "default": ""},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    folder = Path(module.params["directory"])
    missing = [name for name in module.params["names"] if not (folder / name).exists()]
    pairs: dict[str, dict[str, str]] = {}
    changed = complete(module, folder, missing)
    for name in module.params["names"]:
        files = {"private": folder / name, "public": folder / f"{name}.pub"}
        # Check mode on a host without keys: they are empty.
        pairs[name] = {half: file.read_text("utf-8") if file.exists() else "" for half, file in files.items()}
        pairs[name]["accepted"] = accepted(folder, name)
    module.exit_json(changed=changed, pairs=pairs)


if __name__ == "__main__":
    main()
