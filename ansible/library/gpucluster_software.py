#!/usr/bin/python
"""Release files that the controller serves: downloaded, checked, and installed or unpacked.

Instead of plain tasks: `get_url`, `unarchive` and `apt` with `deb`: three tasks for each release file, and an archive
may write outside of its folder. Here each file is checked, and its content is too.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_archives import UnsafeArchive, take, unpack
from ansible.module_utils.gpucluster_package_files import Package, Packages, manager, nothing_starts
from ansible.module_utils.gpucluster_releases import Refused, Store, fetch

DOCUMENTATION = """
module: gpucluster_software
short_description: Packages and archives of releases, from the controller
description:
  - Downloads the files for this host (its package format and architecture) from the controller, checks them, and caches
    them in C(/var/cache/gpucluster/software). A cached file is not downloaded again.
  - With C(packages) these packages are installed from the files, at exactly the version of the files; their
    dependencies come from the distribution. A file may also be an archive of packages. With C(unpack) the one archive
    is unpacked into a directory. Without either the files are only cached.
options:
  server: {description: URL of the controller's file server. Not needed with C(absent) and C(forget)., type: str}
  files:
    description: Entries of C(software_files) of one component.
    type: list
    elements: dict
    default: []
    suboptions:
      component: {description: Name of the component., type: str, required: true}
      version: {description: Version of the release., type: str, required: true}
      file: {description: Name of the file., type: str, required: true}
      sha256: {description: Checksum of the file., type: str, required: true}
      format: {description: Package format., type: str, choices: [deb, rpm, any], required: true}
      architecture: {description: "Architecture, or C(any).", type: str, required: true}
  packages:
    description: Packages that must be installed from these files, all of them in one call.
    type: list
    elements: str
    default: []
  unpack: {description: A directory with exactly the contents of the one archive., type: path}
  absent:
    description: Packages that must not be installed. Files that contain nothing else are removed as well.
    type: list
    elements: str
    default: []
  forget:
    description: Components whose cached files are removed. With C(absent) or alone.
    type: list
    elements: str
    default: []
  timeout: {description: Seconds to wait for a controller that is busy or does not respond., type: int, default: 300}
  cache: {description: Directory of cached files., type: path, default: /var/cache/gpucluster/software}
author: gpucluster
"""

EXAMPLES = """
- name: Install Enroot
  gpucluster_software:
    server: "{{ software_server }}"
    files: "{{ software_files | selectattr('component', 'equalto', 'enroot') | list }}"
    packages: [enroot, enroot+caps]

- name: Remove Enroot
  gpucluster_software:
    absent: [enroot+caps, enroot]
    forget: [enroot]
"""

RETURN = """
paths: {description: Path of each file on the host., returned: always, type: dict}
installed:
  description: Packages that were installed, as C(name=version); in check mode some without a version.
  returned: always
  type: list
removed: {description: Packages that were removed., returned: always, type: list}
forgotten: {description: Files that were removed from the cache., returned: always, type: list}
unpacked: {description: Whether the archive was unpacked., returned: always, type: bool}
"""

FILE_SPEC: dict[str, dict[str, Any]] = {
    "component": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "file": {"type": "str", "required": True},
    "sha256": {"type": "str", "required": True},
    "format": {"type": "str", "required": True, "choices": ["deb", "rpm", "any"]},
    "architecture": {"type": "str", "required": True},
}
MARKER = ".gpucluster-sha256"
EVERY_MACHINE = ("all", "noarch")


class Task:
    """One call of the module."""

    def __init__(self, module: AnsibleModule, manage: Packages) -> None:
        self.module, self.manage = module, manage
        self.check: bool = module.check_mode
        self.store = Store(Path(module.params["cache"]), check=self.check)
        self.result: dict[str, Any] = {
            "changed": False, "paths": {}, "installed": [], "removed": [], "forgotten": [], "unpacked": False,
        }  # fmt: skip

    def fail(self, why: str) -> NoReturn:
        """End the task."""
        self.module.fail_json(msg=why)
        raise AssertionError

    def run(self) -> dict[str, Any]:
        """Carry out the request."""
        params = self.module.params
        if params["absent"] or params["forget"]:
            self.remove(params["absent"], params["forget"])
        else:
            files = self.for_this_host(params["files"])
            missing = [file for file in files if not self.store.has(file)]
            if not self.check:
                for file in missing:
                    self.download(file)
            self.result["changed"] = bool(missing)
            self.result["paths"] = {file["file"]: str(self.store.folder / file["file"]) for file in files}
            if params["packages"]:
                self.install(params["packages"], files, certain=not missing)
            if params["unpack"]:
                self.unpack(Path(params["unpack"]), files)
            if not self.check:
                self.forget_others(files)
        return self.result

    def for_this_host(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The files for this package format and architecture."""
        machine = os.uname().machine
        formats, machines = (self.manage.format, "any"), (machine, "any")
        fit = [file for file in files if file["format"] in formats and file["architecture"] in machines]
        if not fit:
            names = ", ".join(file["file"] for file in files) or "there are no files"
            self.fail(
                f"no release file is for this host ({self.manage.format}, {machine}): {names}. Put one into the mirror "
                "that software.mirror names, and run apply again"
            )
        return fit

    def download(self, file: dict[str, Any]) -> None:
        """Download from the controller into the store."""
        self.store.folder.mkdir(parents=True, exist_ok=True)
        target = self.store.folder / file["file"]
        if target.name != file["file"]:
            self.fail(f"{file['file']} is not a file name")
        if not self.module.params["server"]:
            self.fail("`server` must be the URL of the controller's file server")
        fetch(self.module.params["server"], target.name, file["sha256"], target, self.module.params["timeout"])
        self.store.learn(file)

    # --- packages -----

    def install(self, names: list[str], files: list[dict[str, Any]], certain: bool) -> None:
        """Install the packages at the versions of the files, in one call: some change files of others."""
        present = self.manage.installed(names)
        if not certain and self.check:
            self.result["installed"] = sorted(names)
            return
        held = self.held(names, files)
        versions = {name: held[name][0] for name in names}
        differing = {name for name, version in versions.items() if present.get(name) != version}
        if not differing:
            return
        self.result["changed"] = True
        self.result["installed"] = [f"{name}={versions[name]}" for name in sorted(differing)]
        if not self.check:
            older = any(name in present and self.manage.is_older(versions[name], present[name]) for name in differing)
            # The roles start services when they are configured.
            with nothing_starts():
                self.manage.install([held[name][1] for name in names], older)
            now = self.manage.installed(names)
            wrong = [f"{name} is {now.get(name, 'missing')}" for name in names if now.get(name) != versions[name]]
            if wrong:
                self.fail(f"the installation resulted in other versions than requested: {', '.join(wrong)}")

    def held(self, names: list[str], files: list[dict[str, Any]]) -> dict[str, list[str]]:
        """For each package its version in the files, and the path of its file."""
        held: dict[str, list[str]] = {}
        for file in files:
            known = self.store.known[file["file"]]
            # A package that was not found in one file is in another file of the call.
            if not set(names) <= set(known["sought"]) or not all(
                Path(known["packages"][name][1]).exists() for name in names if name in known["packages"]
            ):
                found = self.read_packages(file, names)
                self.store.learn(file, {**known["packages"], **found}, {*known["sought"], *names})
            held.update(self.store.known[file["file"]]["packages"])
        absent = [name for name in names if name not in held]
        if absent:
            self.fail(f"{', '.join(file['file'] for file in files)} do not contain the package {', '.join(absent)}")
        return held

    def read_packages(self, file: dict[str, Any], names: list[str]) -> dict[str, list[str]]:
        """The packages of a file: one, or the requested ones of an archive."""
        path = self.store.folder / file["file"]
        if path.name.endswith((".deb", ".rpm")):
            return self.identified([path], [])
        separator = "_" if self.manage.format == "deb" else "-"
        prefixes = tuple(f"{name}{separator}" for name in names)
        with tempfile.TemporaryDirectory() as scratch:
            # Reading the packages needs their files; check mode does not keep them.
            folder = Path(scratch) if self.check else path.with_name(f"{path.name}.d")
            return self.identified(list(take(path, folder, prefixes, f".{self.manage.format}")), names)

    def identified(self, paths: list[Path], names: list[str]) -> dict[str, list[str]]:
        """Version and path of each package that is one of `names`; of all without names."""
        machine, found = self.manage.machine(), {}
        for path in paths:
            package: Package = self.manage.of_file(path)
            if package.architecture not in (machine, *EVERY_MACHINE):
                self.fail(f"{path.name} is for {package.architecture}, and this host is {machine}")
            if package.name in names or not names:
                found[package.name] = [package.version, str(path)]
        return found

    def remove(self, names: list[str], components: list[str]) -> None:
        """Remove packages, the files that contain them, and all files of components."""
        left = self.manage.left(names) if names else []
        forgotten = sorted(
            name
            for name, known in self.store.known.items()
            if known["component"] in components or (known["packages"] and set(known["packages"]) <= set(names))
        )
        # Files of a run that was killed before it recorded them.
        forgotten += self.store.strays() if components else []
        self.result.update(removed=left, forgotten=forgotten, changed=bool(left or forgotten))
        if self.check:
            return
        if left:
            self.manage.remove(left)
        for name in forgotten:
            self.store.forget(name)

    # --- archives -----

    def unpack(self, target: Path, files: list[dict[str, Any]]) -> None:
        """Unpack beside the directory, and replace it when the new one is complete."""
        if len(files) != 1:
            self.fail(f"one archive can be unpacked into {target}, not {', '.join(file['file'] for file in files)}")
        (file,) = files
        try:
            if (target / MARKER).read_text(encoding="utf-8").strip() == file["sha256"]:
                return
        except OSError:
            pass
        self.result["changed"] = self.result["unpacked"] = True
        if self.check:
            return
        new, old = target.with_name(f".{target.name}.new"), target.with_name(f".{target.name}.old")
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
        new.mkdir(mode=0o755, parents=True)
        try:
            unpack(self.store.folder / file["file"], new)
            (new / MARKER).write_text(f"{file['sha256']}\n", encoding="utf-8")
            if target.exists():
                target.rename(old)
            new.rename(target)
        finally:
            for left in (new, old):
                shutil.rmtree(left, ignore_errors=True)

    def forget_others(self, files: list[dict[str, Any]]) -> None:
        """Remove files of the same components that are not listed: older versions."""
        kept = {file["file"] for file in files}
        components = {file["component"] for file in files}
        for name, known in list(self.store.known.items()):
            if known["component"] in components and name not in kept:
                self.store.forget(name)


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "server": {"type": "str"},
        "files": {"type": "list", "elements": "dict", "default": [], "options": FILE_SPEC},
        "packages": {"type": "list", "elements": "str", "default": []},
        "unpack": {"type": "path"},
        "absent": {"type": "list", "elements": "str", "default": []},
        "forget": {"type": "list", "elements": "str", "default": []},
        "timeout": {"type": "int", "default": 300},
        "cache": {"type": "path", "default": "/var/cache/gpucluster/software"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    os.umask(0o022)
    task = Task(module, manager(module))
    try:
        module.exit_json(**task.run())
    except (Refused, UnsafeArchive) as error:
        task.fail(str(error))
    except (tarfile.TarError, EOFError) as error:
        task.fail(f"an archive is broken: {error}")
    except OSError as error:
        task.fail(f"{error.filename or task.store.folder}: {error.strerror or error}")


if __name__ == "__main__":
    main()
