#!/usr/bin/python
"""What Slurm has stored on the controller, copied before another release changes it.

Instead of plain tasks: `command` and `archive` leave a part of a copy behind when they are stopped, which looks like
a whole one. Here a copy has its name when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_slurm_aside
short_description: A copy of the accounting, of Slurm's state and of its configuration
description:
  - Daemons of a later release convert the database and the saved state, and no earlier one can read them any more. The
    copy is the only way back. It is taken while slurmctld and slurmdbd are stopped; only root can read it.
  - An incomplete copy has a name that ends in C(.part), and the next one replaces it.
options:
  folder: {description: Where copies are kept., type: path, required: true}
  version: {description: The version that wrote the data., type: str, required: true}
  directories: {description: Directories to copy., type: list, elements: path, required: true}
  dumper: {description: Program that writes a database as SQL. Without it there is no accounting., type: path}
  settings: {description: "Configuration of slurmdbd, which names its database.", type: path}
author: gpucluster
"""

EXAMPLES = """
- name: Copy what Slurm has stored
  gpucluster_slurm_aside:
    folder: /var/backups/gpucluster
    version: 24.11.5
    directories: [/etc/slurm, /var/lib/slurm/slurmctld]
    dumper: /usr/bin/mariadb-dump
    settings: /etc/slurm/slurmdbd.conf
"""

RETURN = """
path: {description: The folder of this copy., returned: always, type: str}
"""

DUMP_SECONDS = 3600


class Aside:
    """One copy."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module

    def fail(self, why: str) -> NoReturn:
        """End the task. Nothing of Slurm was changed."""
        self.module.fail_json(msg=f"{why}. Slurm's data is as it was; its daemons are stopped until the next apply")
        raise AssertionError

    def run(self) -> dict[str, Any]:
        """Copy everything."""
        params = self.module.params
        parent, version = Path(params["folder"]), params["version"]
        target = parent / f"slurm-{version}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        if self.module.check_mode:
            return {"changed": True, "path": str(target)}
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = parent / f"slurm-{version}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        if params["dumper"]:
            self.dump(part / "accounting.sql")
        for directory in map(Path, params["directories"]):
            with tarfile.open(part / f"{str(directory).strip('/').replace('/', '-')}.tar.gz", "w:gz") as tar:
                tar.add(directory, arcname=str(directory).lstrip("/"))
        (part / "copy.json").write_text(json.dumps({"version": version, "directories": params["directories"]}))
        os.sync()
        part.rename(target)
        return {"changed": True, "path": str(target)}

    def dump(self, file: Path) -> None:
        """The whole database of slurmdbd, which is stopped."""
        settings = Path(self.module.params["settings"]).read_text(encoding="utf-8")
        found = re.search(r"^StorageLoc\s*=\s*(\w+)\s*$", settings, re.MULTILINE | re.IGNORECASE)
        if not found:
            self.fail(f"{self.module.params['settings']} does not name a database (StorageLoc)")
        # All in one: a restore by hand needs no database to be made first.
        argv = [self.module.params["dumper"], "--single-transaction", "--quick", "--routines", "--hex-blob"]
        argv += ["--default-character-set=utf8mb4", "--databases", found.group(1)]
        with file.open("wb") as out:
            done = subprocess.run(argv, stdout=out, stderr=subprocess.PIPE, timeout=DUMP_SECONDS, check=False)
        if done.returncode != 0:
            self.fail(f"the accounting could not be copied: {done.stderr.decode(errors='replace').strip()}")


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "directories": {"type": "list", "elements": "path", "required": True},
            "dumper": {"type": "path"},
            "settings": {"type": "path"},
        },
        supports_check_mode=True,
    )
    os.umask(0o077)
    aside = Aside(module)
    try:
        module.exit_json(**aside.run())
    except subprocess.TimeoutExpired:
        aside.fail(f"the accounting could not be copied within {DUMP_SECONDS} s")
    except OSError as error:
        aside.fail(f"{error.filename or module.params['folder']}: {error.strerror or error}")


if __name__ == "__main__":
    main()
