#!/usr/bin/python
"""A folder with exactly these files, identified by their checksums.

Instead of plain tasks: `copy` reads and sends each file on its own and removes none. Here a file that is known by its
size and time is not read again, and all that are missing come as one archive.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_archives import UnsafeArchive, take
from ansible.module_utils.gpucluster_releases import Store, sha256

DOCUMENTATION = """
module: gpucluster_folder
short_description: A folder with exactly these files
description:
  - For large files that rarely change. Files that are present and correct are not sent again; other files are removed.
    A file is read once and then identified by its size and time.
  - An action plugin of the same name sends the missing files, as one archive.
options:
  path: {description: The folder., type: path, required: true}
  files:
    description: The files; C(file), the name, and C(sha256) of each are used.
    type: list
    elements: dict
    required: true
  keep: {description: "Pattern of names of other files that stay: those that the host has built.", type: str}
  source: {description: The folder on the operator's machine; only for the action plugin., type: path}
  archive:
    description: A tar archive on the host with the missing files; it is removed. Without it the module only checks, and
      removes surplus files.
    type: path
author: gpucluster
"""

EXAMPLES = """
- name: Copy the release files
  gpucluster_folder:
    path: /var/lib/gpucluster-software
    files: "{{ software_files }}"
    source: "{{ software_directory }}"
"""

RETURN = """
missing: {description: Files that were missing., returned: always, type: list}
removed: {description: Surplus files that were removed., returned: always, type: list}
"""


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "path": {"type": "path", "required": True},
        "files": {"type": "list", "elements": "dict", "required": True},
        "keep": {"type": "str", "default": ""},
        "archive": {"type": "path"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    os.umask(0o022)
    folder = Path(module.params["path"])
    try:
        params = module.params
        module.exit_json(**keep(folder, params["files"], params["archive"], params["keep"], check=module.check_mode))
    except (UnsafeArchive, tarfile.TarError, EOFError) as error:
        module.fail_json(msg=f"the archive for {folder} is broken: {error}; run apply again")
    except OSError as error:
        module.fail_json(msg=f"{error.filename or folder}: {error.strerror or error}")


def keep(
    folder: Path, files: list[dict[str, Any]], archive: str | None, others: str = "", *, check: bool
) -> dict[str, Any]:
    """Check the files, extract missing ones from the archive, and remove surplus ones that do not match `others`."""
    store = Store(folder, check=check)
    missing = [file for file in files if not store.has(file)]
    names = {file["file"] for file in files}
    present = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    surplus = [name for name in present if name not in names and not name.startswith(".")]
    removed = [name for name in surplus if not fnmatch.fnmatchcase(name, others)]
    if not check:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in removed:
            store.forget(name)
        if archive is not None:
            _take(store, missing, Path(archive))
    return {"changed": bool(missing or removed), "missing": [file["file"] for file in missing], "removed": removed}


def _take(store: Store, missing: list[dict[str, Any]], archive: Path) -> None:
    wanted = {file["file"]: file for file in missing}
    # Written beside the target and renamed, so that a reader of the old file can finish.
    beside = store.folder / ".new"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        for part in take(archive, beside, tuple(wanted), ""):
            file = wanted.get(part.name)
            if file is not None and sha256(part) == file["sha256"]:
                part.chmod(0o644)
                part.replace(store.folder / part.name)
                store.learn(wanted.pop(part.name))
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        archive.unlink()
    if wanted:
        raise UnsafeArchive(f"{', '.join(wanted)} has another checksum than expected")


if __name__ == "__main__":
    main()
