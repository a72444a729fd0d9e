#!/usr/bin/python
"""A Python environment from a set of wheels, without an index, without pip, and without files of an earlier set.

Instead of plain tasks: `pip` takes three times as long, and adds to an environment in place: a run that is stopped
leaves a daemon with half of its packages.
"""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: gpucluster_venv
short_description: A Python environment of exactly these wheels
description:
  - Creates an environment from a set of wheels, or does nothing if this set is installed already. It resolves,
    downloads and builds nothing; it unpacks every wheel of the set. That takes a third of the time of pip, and needs no
    pip.
  - The environment is a link to a directory with the name of the set. The link is replaced when the directory is
    complete; the previous directory stays until the set after the next one, for programs that still run from it.
  - An action plugin of the same name sends the wheels, in one stream and only where they are not installed.
options:
  path: {description: Path of the link., type: path, required: true}
  interpreter: {description: The Python of the environment., type: path, required: true}
  version: {description: "The version that the wheels are for, as C(3.13).", type: str, required: true}
  hash: {description: The name of the set., type: str, required: true}
  compile_except:
    description: A regular expression of paths that are not compiled. The rest is compiled in the background, at low
      priority.
    type: str
    default: ""
  wheels:
    description:
      - For the action plugin the directory on the operator's machine, with a file C(wheels.json); the other options of
        the set come from there. For the module itself a directory of the host, which is removed; without it the module
        only checks.
    type: path
author: gpucluster
"""

EXAMPLES = """
- name: Install the autoscaler
  gpucluster_venv:
    path: /opt/gpucluster/venv
    interpreter: /usr/bin/python3
    wheels: /home/me/.cache/gpucluster/wheels/3.13
"""

RETURN = """
installed: {description: Whether the set is installed now., returned: always, type: bool}
"""

MANIFEST = "wheels.json"
SCRIPT = """#!{python}
import sys
from {module} import {name}
sys.exit({function}())
"""


class Environment:
    """One environment on one host."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.link = Path(module.params["path"])
        self.interpreter: str = module.params["interpreter"]
        self.version: str = module.params["version"]
        self.hash: str = module.params["hash"]
        self.all = self.link.with_name(f"{self.link.name}s")
        self.place = self.all / self.hash

    def fail(self, why: str) -> NoReturn:
        """End the task."""
        self.module.fail_json(msg=f"{self.link}: {why}")
        raise AssertionError

    def check_interpreter(self) -> None:
        """Fail unless its version is that of the wheels: compiled modules work with one version only."""
        code, out, err = self.module.run_command(
            [self.interpreter, "-IS", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        )
        if code != 0:
            self.fail(f"{self.interpreter} does not run: {err.strip() or out.strip()}")
        if out.strip() != self.version:
            self.fail(
                f"the wheels are for Python {self.version}, and {self.interpreter} is {out.strip()}; choose an image "
                f"that has Python {self.version}"
            )

    def is_installed(self) -> bool:
        """Whether the link points to this set, for this interpreter."""
        try:
            known = json.loads((self.link / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        same = known.get("hash") == self.hash and known.get("interpreter") == os.path.realpath(self.interpreter)
        return same and os.access(self.link / "bin" / "python", os.X_OK)

    def install(self, wheels: Path) -> None:
        """Create the directory beside the others, then point the link to it."""
        part = self.all / f".{self.hash}.part"
        shutil.rmtree(part, ignore_errors=True)
        self.all.mkdir(parents=True, exist_ok=True)
        # Without pip, Debian needs no additional package.
        argv = [self.interpreter, "-m", "venv", "--without-pip", str(part)]
        self.module.run_command(argv, check_rc=True)
        for name in part.glob("bin/[Aa]ctivate*"):
            name.unlink()  # they contain the temporary name of the directory
        site = part / "lib" / f"python{self.version}" / "site-packages"
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        for data in site.glob("*.data"):
            self._spread(data, site, part)
        for entry_points in site.glob("*.dist-info/entry_points.txt"):
            self._scripts(entry_points, part / "bin")
        manifest = {"hash": self.hash, "interpreter": os.path.realpath(self.interpreter)}
        (part / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        before = Path(os.path.realpath(self.link))
        shutil.rmtree(self.place, ignore_errors=True)
        part.rename(self.place)
        self._replace_link()
        self._compile()
        for old in self.all.iterdir():
            if old not in (self.place, before):
                shutil.rmtree(old, ignore_errors=True)

    def _spread(self, data: Path, site: Path, prefix: Path) -> None:
        """Move the parts of a wheel that do not belong into site-packages."""
        targets = {"purelib": site, "platlib": site, "scripts": prefix / "bin", "data": prefix}
        for kind, target in targets.items():
            if (data / kind).is_dir():
                shutil.copytree(data / kind, target, dirs_exist_ok=True)
        for name in (data / "scripts").glob("*"):
            script = prefix / "bin" / name.name
            text = script.read_bytes()
            if text.startswith(b"#!python"):
                first, _newline, rest = text.partition(b"\n")
                script.write_bytes(first.replace(b"#!python", f"#!{self.place}/bin/python".encode(), 1) + b"\n" + rest)
            script.chmod(0o755)
        shutil.rmtree(data)

    def _scripts(self, entry_points: Path, target: Path) -> None:
        found = configparser.ConfigParser(delimiters=("=",), interpolation=None)
        found.optionxform = str  # type: ignore[assignment]
        found.read(entry_points, encoding="utf-8")
        for script, point in found["console_scripts"].items() if found.has_section("console_scripts") else ():
            module, _colon, function = point.partition("[")[0].strip().partition(":")
            text = SCRIPT.format(
                python=self.place / "bin" / "python", module=module, name=function.partition(".")[0], function=function
            )
            (target / script).write_text(text, encoding="utf-8")
            (target / script).chmod(0o755)

    def _compile(self) -> None:
        """In the background: programs that can't write here would compile their modules at each start."""
        words = ["-m", "compileall", "-q"]
        if self.module.params["compile_except"]:
            words += ["-x", self.module.params["compile_except"]]
        unit = ["systemd-run", "--quiet", "--collect", "--nice=19"]
        self.module.run_command([*unit, str(self.place / "bin" / "python"), *words, str(self.place / "lib")])

    def _replace_link(self) -> None:
        new = self.link.with_name(f".{self.link.name}.new")
        new.unlink(missing_ok=True)
        new.symlink_to(self.place)
        new.replace(self.link)


def main() -> None:
    """Entry point."""
    spec: dict[str, Any] = {
        "path": {"type": "path", "required": True},
        "interpreter": {"type": "path", "required": True},
        "version": {"type": "str", "required": True},
        "hash": {"type": "str", "required": True},
        "compile_except": {"type": "str", "default": ""},
        "wheels": {"type": "path"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    os.umask(0o022)
    environment = Environment(module)
    wheels = module.params["wheels"]
    installed = environment.is_installed()
    if installed or not wheels or module.check_mode:
        if not installed and not module.check_mode:
            environment.check_interpreter()  # before megabytes are sent for nothing
        module.exit_json(changed=not installed, installed=installed)
    try:
        environment.install(Path(wheels))
    except (OSError, zipfile.BadZipFile, configparser.Error, subprocess.SubprocessError) as error:
        environment.fail(f"{error}; fix the cause and run again, the environment in use has not changed")
    finally:
        shutil.rmtree(wheels, ignore_errors=True)
    module.exit_json(changed=True, installed=True)


if __name__ == "__main__":
    main()
