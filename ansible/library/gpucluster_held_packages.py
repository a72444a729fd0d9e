#!/usr/bin/python
"""Packages of the driver and the kernel, held at their versions.

Instead of plain tasks: `dpkg_selections` and `lineinfile` for each package, which know no difference between a hold
of ours and one that an administrator made, and so can end none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_held import blacklist, to_hold, with_excluded
from ansible.module_utils.gpucluster_package_files import Packages, manager

DOCUMENTATION = """
module: gpucluster_held_packages
short_description: Hold the packages of the GPUs' driver and of the kernel
description:
  - The installed packages of NVIDIA's driver, of MLNX_OFED and of the kernel are held; so no upgrade changes them below
    a driver that is loaded.
  - With apt they have dpkg's selection C(hold), as C(apt-mark hold) gives it, and unattended-upgrades leaves out all
    packages with such names. With dnf their names are in C(excludepkgs) of C(/etc/dnf/dnf.conf), which dnf-automatic
    reads as well. That needs no further package, as the plugin versionlock does. What else is excluded there stays.
  - What others hold is not changed. A package that is not installed any more is not held either.
options:
  root: {description: Where the configuration files of the host are., type: path, default: /}
author: gpucluster
"""

EXAMPLES = """
- name: Hold the packages of the driver and of the kernel
  gpucluster_held_packages:
    root: /
"""

RETURN = """
held: {description: Packages that are held from now on., returned: always, type: list}
released: {description: Packages that are no longer held., returned: always, type: list}
"""

# The packages that this module holds: those that others hold are not in it.
RECORD = "etc/gpucluster/held-packages"
UNATTENDED = "etc/apt/apt.conf.d/60gpucluster-held-packages"
DNF_CONFIG = "etc/dnf/dnf.conf"


class Holder:
    """Holds packages with the package manager of the host."""

    def __init__(self, module: AnsibleModule, manage: Packages, root: Path) -> None:
        self.module, self.manage, self.root = module, manage, root
        self.recorded = _read(root / RECORD).split()
        self.held: list[str] = []
        self.released: list[str] = []
        self.changed = False

    def run(self) -> None:
        """Hold what must be held, and release what this module has held and is there no more."""
        if self.manage.format == "deb":
            self._apt()
        else:
            self._dnf()

    def _apt(self) -> None:
        form = "${binary:Package}\t${db:Status-Want}\t${db:Status-Status}\n"
        rows = self.manage.run(
            ["dpkg-query", "--show", f"--showformat={form}"], "the installed packages can't be listed"
        )
        states = {name: (want, status) for name, want, status in (row.split("\t") for row in rows.splitlines())}
        wanted = to_hold(name for name, (_want, status) in states.items() if status == "installed")
        on_hold = {name for name, (want, _status) in states.items() if want == "hold"}
        self.held = [name for name in wanted if name not in on_hold]
        self.released = [name for name in self.recorded if name in on_hold and name not in wanted]
        if self.held or self.released:
            lines = [f"{name}\thold" for name in self.held]
            lines += [f"{name}\t{_usual(states[name][1])}" for name in self.released]
            self._select("\n".join(lines) + "\n")
        self._write(UNATTENDED, blacklist())
        self._record([name for name in wanted if name in self.recorded or name in self.held])

    def _select(self, lines: str) -> None:
        self.changed = True
        if self.module.check_mode:
            return
        code, _out, err = self.module.run_command(["dpkg", "--set-selections"], data=lines)
        if code != 0:
            self.module.fail_json(msg=f"dpkg can't hold packages: {' '.join(err.split())[:500]}")

    def _dnf(self) -> None:
        names = self.manage.run(
            ["rpm", "--query", "--all", "--queryformat", "%{NAME}\n"], "the packages can't be listed"
        )
        wanted = to_hold(sorted(set(names.split())))
        text = _read(self.root / DNF_CONFIG)
        new = with_excluded(text, self.recorded, wanted)
        added = [name for name in wanted if with_excluded(text, (), [name]) != text]
        self.held = added
        self.released = [name for name in self.recorded if name not in wanted]
        if new != text:
            self._write(DNF_CONFIG, new)
        self._record([name for name in wanted if name in self.recorded or name in added])

    def _record(self, names: Iterable[str]) -> None:
        self._write(RECORD, "".join(f"{name}\n" for name in names))

    def _write(self, path: str, text: str) -> None:
        """Replace a file at once, so that no package manager reads a half of it."""
        file = self.root / path
        if file.is_file() and _read(file) == text:
            return
        self.changed = True
        if self.module.check_mode:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}.new")
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        os.replace(str(new), str(file))


def _usual(status: str) -> str:
    """The selection of a package without a hold."""
    return "install" if status == "installed" else "deinstall"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def main() -> None:
    """Entry point."""
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    holder = Holder(module, manager(module), Path(module.params["root"]))
    holder.run()
    module.exit_json(changed=holder.changed, held=holder.held, released=holder.released)


if __name__ == "__main__":
    main()
