#!/usr/bin/python3
"""Release files that the controller serves: fetched, checked, and installed or unpacked."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_archives import UnsafeArchive, take, unpack
from ansible.module_utils.gpucluster_package_files import Package, Packages, manager
from ansible.module_utils.gpucluster_releases import Refused, Store, fetch

DOCUMENTATION = """
module: gpucluster_software
short_description: Packages and archives of releases, from the controller
description:
  - Fetches those of the files that are for this host (its package format, its machine) from the controller, checks
    them, and keeps them in C(/var/cache/gpucluster/software). A file that is there already is not fetched again.
  - With C(packages) these are installed from the files, at exactly the version that the files have, and whatever else
    they need comes from the distribution. A file may also be an archive of packages. With C(unpack) the content of the
    one archive lies in a directory. Without either the files are only kept.
options:
  server: {description: Where the controller serves files. Not needed with C(absent) and C(forget)., type: str}
  files:
    description: As the inventory's C(software_files), of one component.
    type: list
    elements: dict
    default: []
    suboptions:
      component: {description: Of which release., type: str, required: true}
      version: {description: Of the release., type: str, required: true}
      file: {description: Its name., type: str, required: true}
      sha256: {description: Its checksum., type: str, required: true}
      format: {description: For which package manager., type: str, choices: [deb, rpm, any], required: true}
      architecture: {description: "For which machine, or C(any).", type: str, required: true}
  packages:
    description: Names of packages that must be installed from these files. All of them go in one call.
    type: list
    elements: str
    default: []
  unpack: {description: A directory that holds exactly what the one archive holds., type: path}
  absent:
    description: Packages that must not be there. Files that held nothing else go as well.
    type: list
    elements: str
    default: []
  forget:
    description: Components of which no file is kept any more. Goes with C(absent) or alone.
    type: list
    elements: str
    default: []
  timeout: {description: Seconds to wait for a controller that is busy or away., type: int, default: 300}
  cache: {description: Where files are kept., type: path, default: /var/cache/gpucluster/software}
author: gpucluster
"""

EXAMPLES = """
- name: Install Enroot
  gpucluster_software:
    server: "{{ software_server }}"
    files: "{{ software_files | selectattr('component', 'equalto', 'enroot') | list }}"
    packages: [enroot, enroot+caps]

- name: Take it away
  gpucluster_software:
    absent: [enroot+caps, enroot]
    forget: [enroot]
"""

RETURN = """
paths: {description: Where each file lies on the host., returned: always, type: dict}
installed:
  description: Packages that were installed, as C(name=version); in check mode some as their names alone.
  returned: always
  type: list
removed: {description: Packages that were removed., returned: always, type: list}
forgotten: {description: Files that are not kept any more., returned: always, type: list}
unpacked: {description: Whether the directory was made anew., returned: always, type: bool}
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
        """Do what the arguments say."""
        wish = self.module.params
        if wish["absent"] or wish["forget"]:
            self.remove(wish["absent"], wish["forget"])
        else:
            files = self.for_this_host(wish["files"])
            missing = [file for file in files if not self.store.has(file)]
            if not self.check:
                for file in missing:
                    self.bring(file)
            self.result["changed"] = bool(missing)
            self.result["paths"] = {file["file"]: str(self.store.folder / file["file"]) for file in files}
            if wish["packages"]:
                self.install(wish["packages"], files, certain=not missing)
            if wish["unpack"]:
                self.unpack(Path(wish["unpack"]), files)
            if not self.check:
                self.forget_others(files)
        return self.result

    def for_this_host(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of this package format and machine."""
        machine = os.uname().machine
        formats, machines = (self.manage.format, "any"), (machine, "any")
        fit = [file for file in files if file["format"] in formats and file["architecture"] in machines]
        if not fit:
            names = ", ".join(file["file"] for file in files) or "there are none at all"
            self.fail(
                f"no release file is for this host ({self.manage.format}, {machine}): {names}. Put one into the mirror "
                "that software.mirror names, and run apply again"
            )
        return fit

    def bring(self, file: dict[str, Any]) -> None:
        """From the controller into the store."""
        self.store.folder.mkdir(parents=True, exist_ok=True)
        target = self.store.folder / file["file"]
        if target.name != file["file"]:
            self.fail(f"{file['file']} is no name of a file")
        if not self.module.params["server"]:
            self.fail("`server` must say where the controller serves its files")
        fetch(self.module.params["server"], target.name, file["sha256"], target, self.module.params["timeout"])
        self.store.learn(file)

    # --- packages -----

    def install(self, names: list[str], files: list[dict[str, Any]], certain: bool) -> None:
        """Bring the packages to the versions of the files. All of them at once: some change files of others."""
        there = self.manage.installed(names)
        if not certain and self.check:
            self.result["installed"] = sorted(names)
            return
        held = self.held(names, files)
        versions = {name: held[name][0] for name in names}
        differing = {name for name, version in versions.items() if there.get(name) != version}
        if not differing:
            return
        self.result["changed"] = True
        self.result["installed"] = [f"{name}={versions[name]}" for name in sorted(differing)]
        if not self.check:
            older = any(name in there and self.manage.is_older(versions[name], there[name]) for name in differing)
            self.manage.install([held[name][1] for name in names], older)
            now = self.manage.installed(names)
            wrong = [f"{name} is {now.get(name, 'not there')}" for name in names if now.get(name) != versions[name]]
            if wrong:
                self.fail(f"the installation left something else than was asked for: {', '.join(wrong)}")

    def held(self, names: list[str], files: list[dict[str, Any]]) -> dict[str, list[str]]:
        """For each package its version in the files, and the path of the one that holds it."""
        held: dict[str, list[str]] = {}
        for file in files:
            known = self.store.known[file["file"]]
            # A package that was looked for in a file, and is not in it, is in another one of the call.
            if not set(names) <= set(known["sought"]) or not all(
                Path(known["packages"][name][1]).exists() for name in names if name in known["packages"]
            ):
                found = self.look_into(file, names)
                self.store.learn(file, {**known["packages"], **found}, {*known["sought"], *names})
            held.update(self.store.known[file["file"]]["packages"])
        absent = [name for name in names if name not in held]
        if absent:
            self.fail(f"{', '.join(file['file'] for file in files)} do not hold the package {', '.join(absent)}")
        return held

    def look_into(self, file: dict[str, Any], names: list[str]) -> dict[str, list[str]]:
        """The packages of a file: one, or those of an archive that are asked for."""
        path = self.store.folder / file["file"]
        if path.name.endswith((".deb", ".rpm")):
            return self.identified([path], [])
        separator = "_" if self.manage.format == "deb" else "-"
        prefixes = tuple(f"{name}{separator}" for name in names)
        with tempfile.TemporaryDirectory() as scratch:
            # To look needs the files, too; they are kept only if they may be.
            folder = Path(scratch) if self.check else path.with_name(f"{path.name}.d")
            return self.identified(list(take(path, folder, prefixes, f".{self.manage.format}")), names)

    def identified(self, paths: list[Path], names: list[str]) -> dict[str, list[str]]:
        """Version and path of each package that is one of `names`; of all without names."""
        machine, found = self.manage.machine(), {}
        for one in paths:
            package: Package = self.manage.of_file(one)
            if package.architecture not in (machine, *EVERY_MACHINE):
                self.fail(f"{one.name} is for {package.architecture}, and this host is {machine}")
            if package.name in names or not names:
                found[package.name] = [package.version, str(one)]
        return found

    def remove(self, names: list[str], components: list[str]) -> None:
        """Take packages away, the files that held them, and all files of components."""
        left = self.manage.left(names) if names else []
        forgotten = sorted(
            name
            for name, known in self.store.known.items()
            if known["component"] in components or (known["packages"] and set(known["packages"]) <= set(names))
        )
        # Of a run that was killed before it could note what it had brought.
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
        """Beside the directory first; it takes its place when it is whole."""
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
        """Files of the same release that are not wanted any more: the version before."""
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
