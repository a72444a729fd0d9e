#!/usr/bin/python
"""The plugin that starts containers for Slurm's steps: copied from another host, or built for the Slurm of this one.

Instead of plain tasks: the key of a build, its comparison and the build itself in one place; `command` with `creates`
would keep a plugin of another release of Slurm, with which slurmd does not start.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import re
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_archives import UnsafeArchive, unpack

DOCUMENTATION = """
module: gpucluster_pyxis
short_description: Pyxis, built for the installed Slurm
description:
  - A plugin works with one release of Slurm, one system, one architecture and one source; these are its key, which is
    stored beside it. If the installed plugin has the right key and is unchanged, nothing is done.
  - Otherwise it is copied from C(ready), if that has the right key, or built from C(archive), if it is given. With
    neither, C(must_build) is true, and nothing is done.
  - In check mode nothing is built.
options:
  path: {description: Path of the plugin., type: path, required: true}
  source: {description: SHA-256 of the archive. Not needed with C(state=read) and C(state=absent)., type: str}
  archive: {description: The archive of the source on this host., type: path}
  ready:
    description: A plugin that another host has built, as returned in C(plugin).
    type: dict
    suboptions:
      key: {description: Key of the plugin., type: str, required: true}
      content: {description: "The file, in base64.", type: str, required: true}
  state:
    description: C(read) changes nothing, and returns the installed plugin.
    type: str
    choices: [present, absent, read]
    default: present
author: gpucluster
"""

EXAMPLES = """
- name: Install the container plugin
  gpucluster_pyxis:
    path: /usr/local/lib/slurm/spank_pyxis.so
    source: 5d54b4f7a7a6f1f7ff2d2dd9a9a5a9b9e9c4be2dd0e14df7cf5d6d9bd7ac3c3e
    archive: /var/cache/gpucluster/software/pyxis-0.24.0.tar.gz
"""

RETURN = """
differs:
  description: Whether there was none before, or one with another key.
  returned: with C(state=present)
  type: bool
must_build: {description: Whether it must be built on this host., returned: with C(state=present), type: bool}
plugin: {description: "Key and content of the installed plugin, or nothing.", returned: with C(state=read), type: dict}
"""

HEADERS = Path("/usr/include/slurm/slurm_version.h")
BUILT = "spank_pyxis.so"
# Only the last lines of a compiler's output describe the error.
WORDS_LINES = 12


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: Slurm's daemons have the old one open."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def release(text: str) -> tuple[int, int, int]:
    """The release of Slurm's headers, zeros if it is unknown."""
    found = re.search(r"^#define\s+SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]+)", text, re.MULTILINE)
    number = int(found.group(1), 16) if found else 0
    return number >> 16, number >> 8 & 255, number & 255


def os_release(text: str) -> dict[str, str]:
    """The pairs of /etc/os-release."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value.strip("\"'") for key, equals, value in pairs if equals}


class Plugin:
    """The plugin of one host."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.path = Path(module.params["path"])
        self.note = self.path.with_suffix(".json")

    def fail(self, why: str) -> NoReturn:
        """End the task."""
        self.module.fail_json(msg=why)
        raise AssertionError

    def record(self) -> dict[str, str]:
        """The record that was written when the plugin was installed."""
        try:
            known = json.loads(self.note.read_text(encoding="utf-8"))
            return {"key": known["key"], "sha256": known["sha256"]}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def valid_record(self) -> dict[str, str]:
        """The same, empty if the plugin has changed since."""
        known = self.record()
        try:
            same = bool(known) and known["sha256"] == hashlib.sha256(self.path.read_bytes()).hexdigest()
        except OSError:
            return {}
        return known if same else {}

    def slurm(self) -> str:
        """The version of Slurm's daemon; empty if it is not installed yet, which only check mode accepts."""
        program = next((path for path in map(shutil.which, ("slurmctld", "slurmd")) if path), None)
        if not program:
            if self.module.check_mode:
                return ""
            self.fail("Slurm is not installed on this host, so there is nothing to build its container plugin for")
        _code, out, _err = self.module.run_command([program, "-V"])
        return out.split()[-1] if out.split() else ""

    def key(self) -> str:
        """The key that the plugin must have."""
        system_release = os_release(Path("/etc/os-release").read_text(encoding="utf-8"))
        system = f"{system_release.get('ID', '')}-{system_release.get('VERSION_ID', '')}"
        return f"slurm {self.slurm()} {system} {platform.machine()} {self.module.params['source']}"

    def present(self) -> dict[str, Any]:
        """Install it: copied, or built."""
        params = self.module.params
        if not params["source"]:
            self.fail("source is missing: the checksum of the archive that the plugin is built from")
        key = self.key()
        differs = self.record().get("key") != key
        if self.valid_record().get("key") == key:
            return {"changed": False, "differs": differs, "must_build": False}
        ready, archive = params["ready"], params["archive"]
        must_build = not (ready and ready["key"] == key)
        if not self.module.check_mode:
            if not must_build:
                self.put(key, base64.b64decode(ready["content"]))
            elif archive:
                self.put(key, self.build(Path(archive)))
        return {"changed": not must_build or bool(archive), "differs": differs, "must_build": must_build}

    def put(self, key: str, content: bytes) -> None:
        """The record is written last: a plugin without it is not used."""
        write(self.path, content)
        write(self.note, json.dumps({"key": key, "sha256": hashlib.sha256(content).hexdigest()}).encode())

    def build(self, archive: Path) -> bytes:
        """Build it in a temporary folder."""
        self.check_headers()
        with tempfile.TemporaryDirectory(prefix="gpucluster-pyxis-", dir="/var/tmp") as scratch:
            try:
                unpack(archive, Path(scratch))
            except (UnsafeArchive, OSError, tarfile.TarError, EOFError) as error:
                self.fail(f"{archive} could not be unpacked: {error}; put the correct file into the mirror")
            # The archive of a release has everything in one folder.
            folder = min(
                (file.parent for file in Path(scratch).rglob("Makefile")),
                key=lambda parent: len(parent.parts),
                default=None,
            )
            if folder is None:
                self.fail(
                    f"there is no Makefile in {archive}: it is not Pyxis's source; put the correct file into the mirror"
                )
            code, out, err = self.module.run_command(["make", f"--jobs={os.cpu_count() or 1}"], cwd=str(folder))
            made = folder / BUILT
            if code != 0 or not made.is_file():
                words = " | ".join((out + err).strip().splitlines()[-WORDS_LINES:])
                self.fail(f"make did not build {BUILT} from {archive.name} for Slurm {self.slurm()}: {words}")
            return made.read_bytes()

    def check_headers(self) -> None:
        """Refuse headers of another release: Slurm would reject the plugin, and slurmd would not start."""
        if not HEADERS.exists():
            return  # elsewhere; the compiler finds them, or reports that they are missing
        headers, daemon = release(HEADERS.read_text(encoding="utf-8")), self.slurm()
        if [str(number) for number in headers[:2]] != [part.lstrip("0") for part in daemon.split(".")[:2]]:
            version = "{}.{:02}.{}".format(*headers)
            self.fail(
                f"this host has Slurm {daemon} and the headers of Slurm {version}; install the headers of {daemon}, of "
                "which the plugin for containers is built"
            )

    def absent(self) -> dict[str, Any]:
        """Remove it, and the folder if it is empty."""
        present = [path for path in (self.path, self.note) if path.exists()]
        if not self.module.check_mode:
            for path in present:
                path.unlink()
            if present and not any(self.path.parent.iterdir()):
                self.path.parent.rmdir()
        return {"changed": bool(present)}

    def read(self) -> dict[str, Any]:
        """Return the plugin for other hosts."""
        known = self.valid_record()
        if not known:
            return {"changed": False, "plugin": None}
        content = base64.b64encode(self.path.read_bytes()).decode()
        return {"changed": False, "plugin": {"key": known["key"], "content": content}}


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "source": {"type": "str"},
            "archive": {"type": "path"},
            "ready": {
                "type": "dict",
                "no_log": False,
                "options": {
                    "key": {"type": "str", "required": True, "no_log": False},
                    # Not a secret, but too long for an output.
                    "content": {"type": "str", "required": True, "no_log": True},
                },
            },
            "state": {"type": "str", "choices": ["present", "absent", "read"], "default": "present"},
        },
        supports_check_mode=True,
    )
    plugin = Plugin(module)
    module.exit_json(
        **{"present": plugin.present, "absent": plugin.absent, "read": plugin.read}[module.params["state"]]()
    )


if __name__ == "__main__":
    main()
