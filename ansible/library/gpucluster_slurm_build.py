#!/usr/bin/python
"""Slurm's packages, built on this host from the source of a release with the recipe in it, and kept.

Instead of plain tasks: a build within a time limit that ends the whole group of its processes, under a lock, with a
record that makes it found again. `async` and `command` have neither lock nor record.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import signal
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpucluster_package_files import APT, DNF, ENVIRONMENT, Packages, manager

DOCUMENTATION = """
module: gpucluster_slurm_build
short_description: Slurm's packages, built from the source of a release
description:
  - The source has recipes for the packages of Debian and of Oracle Linux; they are used as they are. The packages of
    one build are stored in one archive, with a record of it. Its name has the key of the build, a hash of everything
    that it depends on - source, system, architecture and this module's recipe - so a build is never repeated.
  - Packages that only the build needs are removed afterwards.
  - Without C(archive) nothing is built; C(must_build) states whether it is needed.
options:
  folder: {description: Where archives are kept., type: path, required: true}
  source:
    description: The entry of C(software_files) of the source.
    type: dict
    required: true
  archive: {description: The source on this host., type: path}
  take:
    description:
      - An archive that another host has built. C(command) prints it, C(entry) has its checksum, C(host) and C(key) are
        those that the other host returned.
    type: dict
  system: {description: "Name of the system, such as C(Debian-13).", type: str, required: true}
  repositories:
    description: Repositories to enable for the packages that a build needs (dnf).
    type: list
    elements: str
    default: []
  packages:
    description: Packages that a build needs and the recipe does not name.
    type: list
    elements: str
    default: []
  options: {description: Options of the recipe for rpm., type: list, elements: str, default: []}
  profile:
    description: Words of DEB_BUILD_OPTIONS in addition to those of the module. C(noopt) saves time in tests.
    type: list
    elements: str
    default: []
  timeout: {description: Most seconds that a build may take., type: int, default: 3600}
  log: {description: What the programs print., type: path, default: /var/log/gpucluster-slurm-build.log}
author: gpucluster
"""

EXAMPLES = """
- name: Build Slurm
  gpucluster_slurm_build:
    folder: /var/lib/gpucluster-software
    source: "{{ slurm_source }}"
    archive: /var/cache/gpucluster/software/slurm-wlm_26.05.5.orig.tar.gz
    system: Debian-13
"""

RETURN = """
builds: {description: "Entries of this source's archives, by system and architecture.", returned: always, type: dict}
path: {description: The archive of this host., returned: if it is kept, type: str}
key: {description: Hash of everything that the archive of this host depends on., returned: always, type: str}
host: {description: "The key of this host in C(builds), such as C(Debian-13-x86_64).", returned: always, type: str}
must_build: {description: Whether this host's is missing., returned: always, type: bool}
"""

# Raised when a change of this module makes other packages from the same source.
RECIPE = 2
PREFIX = "slurm-packages_"
RECORD = ".json"
# Of other sources, for the way back after an upgrade.
KEPT_VERSIONS = 2
# Not needed by a cluster: manuals in HTML, a program with windows, wrappers of other schedulers.
LEFT_OUT = ("-doc", "-sview", "-openlava", "-torque")
LAST_LINES = 15


class Build:
    """One call of the module."""

    def __init__(self, module: AnsibleModule, manage: Packages) -> None:
        self.module, self.manage = module, manage
        params = module.params
        self.folder = Path(params["folder"])
        self.source: dict[str, str] = params["source"]
        self.system: str = params["system"]
        self.host = f"{self.system}-{platform.machine()}"
        self.log = Path(params["log"])
        self.until = time.monotonic() + params["timeout"]

    def fail(self, why: str) -> NoReturn:
        """End the task."""
        self.module.fail_json(msg=why)
        raise AssertionError

    @property
    def key(self) -> str:
        """A hash of everything that the packages depend on."""
        params = self.module.params
        inputs = [RECIPE, self.source["sha256"], self.host, params["options"], params["profile"]]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The archive of this host."""
        return f"{PREFIX}{self.source['version']}_{self.host}_{self.key}.tar"

    def records(self) -> dict[str, dict[str, Any]]:
        """The records of all archives that are complete, by name."""
        found = {}
        for file in sorted(self.folder.glob(f".{PREFIX}*{RECORD}")):
            record = json.loads(file.read_text(encoding="utf-8"))
            if (self.folder / record["file"]).is_file():
                found[record["file"]] = record
        return found

    def builds(self) -> dict[str, dict[str, str]]:
        """The entries of this source's archives, by host. Of another recipe than this host's none counts as its own."""
        found = {}
        for record in self.records().values():
            if record["source"] == self.source["sha256"] and (record["host"] != self.host or record["key"] == self.key):
                found[record["host"]] = record["entry"]
        return found

    def run(self) -> dict[str, Any]:
        """Look, and build or copy if it is asked for."""
        taken = self.module.params["take"]
        if taken and not self.module.check_mode:
            self.take(taken)
        builds = self.builds()
        must_build = self.host not in builds
        archive = self.module.params["archive"]
        if must_build and archive and not self.module.check_mode:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            with (self.folder / ".slurm-build.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self.host not in self.builds():
                    self.build(Path(archive))
            builds = self.builds()
        return {
            "changed": bool((must_build and archive) or taken),
            "builds": builds,
            "host": self.host,
            "key": self.key,
            **({"path": str(self.folder / self.name)} if self.host in builds else {}),
            "must_build": must_build and not archive,
        }

    def take(self, taken: dict[str, Any]) -> None:
        """Copy the archive of another host."""
        entry = taken["entry"]
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        part = self.folder / f".{Path(entry['file']).name}.part"
        with part.open("wb") as out:
            done = subprocess.run(taken["command"], stdout=out, stderr=subprocess.PIPE, timeout=600, check=False)
        found = hashlib.sha256(part.read_bytes()).hexdigest()
        if done.returncode != 0 or found != entry["sha256"]:
            part.unlink()
            why = done.stderr.decode(errors="replace").strip() or f"its checksum is {found}"
            self.fail(f"{entry['file']} could not be copied from the node that has built it: {why}")
        part.chmod(0o644)
        part.replace(self.folder / entry["file"])
        self.note(
            {
                **{key: taken[key] for key in ("host", "key", "entry")},
                "file": entry["file"],
                "source": self.source["sha256"],
            }
        )
        self.forget_old()

    # --- building -----

    def build(self, archive: Path) -> None:
        """Build the packages, and store them."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("", encoding="utf-8")
        with tempfile.TemporaryDirectory(prefix="gpucluster-slurm-", dir="/var/tmp") as scratch:
            top = self.extract(archive, Path(scratch))
            before = self.all_packages()
            made = self.deb(top) if self.manage.format == "deb" else self.rpm(top)
            self.remove(sorted(self.all_packages() - before))
            self.store(made)
        self.forget_old()

    def extract(self, archive: Path, folder: Path) -> Path:
        """Its one folder. The times of files are kept: by them `make` knows that generated files are up to date."""
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(folder)  # noqa: S202 - its checksum was compared
            return next(folder.iterdir())
        except (OSError, StopIteration, tarfile.TarError, EOFError) as error:
            self.fail(f"{archive} could not be unpacked: {error}; put the correct file into the mirror")

    def deb(self, top: Path) -> list[Path]:
        """With the recipe in debian/."""
        if not (top / "debian" / "control").is_file():
            self.fail(f"Slurm {self.source['version']} has no recipe for Debian's packages: choose 23.11 or later")
        self.call([*APT, "update"], top)
        self.call([*APT, "--no-install-recommends", "install", *self.module.params["packages"]], top)
        self.call([*APT, "--no-install-recommends", "build-dep", f"{top}/"], top)
        words = ["nocheck", "nodoc", "noautodbgsym", *self.module.params["profile"], f"parallel={os.cpu_count() or 1}"]
        # Packing the static libraries as small as possible would take as long as a tenth of the build.
        # Debug information is not kept, and takes a part of the build.
        environment = {
            "DEB_BUILD_OPTIONS": " ".join(words),
            "DEB_CFLAGS_APPEND": "-g0",
            "DPKG_DEB_COMPRESSOR_LEVEL": "1",
        }
        self.call(["dpkg-buildpackage", "-b", "-uc", "-us"], top, environment)
        return sorted(top.parent.glob("*.deb"))

    def rpm(self, top: Path) -> list[Path]:
        """With slurm.spec. Written from its documentation; not tested on a running system yet."""
        # rpmbuild finds the recipe in an archive that has the name and the folder that slurm.spec expects.
        version = self.source["version"]
        renamed = top.rename(top.with_name(f"slurm-{version}"))
        tarball = renamed.with_name(f"slurm-{version}.tar.bz2")
        self.call(["tar", "--create", "--bzip2", f"--file={tarball}", renamed.name], renamed.parent)
        enabled = [f"--enablerepo={name}" for name in self.module.params["repositories"]]
        options = [word for name in self.module.params["options"] for word in ("--with", name)]
        self.call([*DNF, *enabled, "install", *self.module.params["packages"]], renamed)
        self.call([*DNF, *enabled, "builddep", *self.defines(options), str(renamed / "slurm.spec")], renamed)
        made = renamed.parent / "made"
        self.call(["rpmbuild", "-tb", "--define", f"_topdir {made}", *options, str(tarball)], renamed)
        return sorted((made / "RPMS").rglob("*.rpm"))

    @staticmethod
    def defines(options: list[str]) -> list[str]:
        """The same options as macros, for a program that knows no --with."""
        return [word for name in options[1::2] for word in ("--define", f"_with_{name} --with-{name}")]

    def call(self, argv: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
        """Run a program until the time is over; its output goes to the log."""
        left = self.until - time.monotonic()
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"+ {' '.join(argv)}\n")
            log.flush()
            program = subprocess.Popen(
                argv,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ENVIRONMENT, **(environment or {})},
                start_new_session=True,
            )
            try:
                code = program.wait(max(left, 1))
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
                program.wait()
                self.fail(
                    f"building Slurm {self.source['version']} took more than {self.module.params['timeout']} s: see "
                    f"{self.log} on this host. Run apply again on a faster host, or with more processors"
                )
        if code != 0:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            self.fail(
                f"building Slurm {self.source['version']} failed: {argv[0]} ended with {code}; the whole output is in "
                f"{self.log} on this host: {' | '.join(lines[-LAST_LINES:])}"
            )

    def all_packages(self) -> set[str]:
        """Every installed package."""
        if self.manage.format == "deb":
            argv = ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}:${Architecture}\n"]
            lines = self.manage.run(argv, "dpkg-query does not run").splitlines()
            return {name for state, name in (line.split() for line in lines) if state == "installed"}
        return set(self.manage.run(["rpm", "--query", "--all", "--queryformat=%{NAME}.%{ARCH}\n"], "rpm").split())

    def remove(self, names: list[str]) -> None:
        """What only the build needed. What stays, if this fails, does no harm."""
        if names:
            self.manage.run([*(APT if self.manage.format == "deb" else DNF), "remove", *names])

    # --- keeping -----

    def store(self, made: list[Path]) -> None:
        """One archive, and then its record: an archive without it does not count."""
        kept = [file for file in made if not any(part in file.name.split("_")[0] for part in LEFT_OUT)]
        if not kept:
            self.fail(f"the recipe of Slurm {self.source['version']} made no packages; see {self.log} on this host")
        part = self.folder / f".{self.name}.part"
        with tarfile.open(part, "w") as tar:
            for file in kept:
                entry = tarfile.TarInfo(file.name)
                entry.size, entry.mode = file.stat().st_size, 0o644
                with file.open("rb") as content:
                    tar.addfile(entry, content)
        part.chmod(0o644)
        entry_of = {
            "component": "slurm-packages",
            "version": self.source["version"],
            "file": self.name,
            "sha256": hashlib.sha256(part.read_bytes()).hexdigest(),
            "format": self.manage.format,
            "architecture": platform.machine(),
        }
        part.replace(self.folder / self.name)
        self.note(
            {"file": self.name, "source": self.source["sha256"], "host": self.host, "key": self.key, "entry": entry_of}
        )

    def note(self, record: dict[str, Any]) -> None:
        """Write the record of an archive."""
        file = self.folder / f".{record['file']}{RECORD}"
        file.with_suffix(".part").write_text(json.dumps(record), encoding="utf-8")
        file.with_suffix(".part").replace(file)

    def forget_old(self) -> None:
        """Keep this source's archives and those of the last other versions, for the way back."""
        records = self.records()
        others = [record for record in records.values() if record["source"] != self.source["sha256"]]
        others.sort(key=lambda record: (self.folder / record["file"]).stat().st_mtime, reverse=True)
        versions = list(dict.fromkeys(record["entry"]["version"] for record in others))[:KEPT_VERSIONS]
        for record in others:
            if record["entry"]["version"] not in versions:
                (self.folder / record["file"]).unlink()
                (self.folder / f".{record['file']}{RECORD}").unlink()


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "source": {"type": "dict", "required": True},
            "archive": {"type": "path"},
            "take": {"type": "dict", "no_log": False},
            "system": {"type": "str", "required": True},
            "repositories": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "options": {"type": "list", "elements": "str", "default": []},
            "profile": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 3600},
            "log": {"type": "path", "default": "/var/log/gpucluster-slurm-build.log"},
        },
        supports_check_mode=True,
    )
    os.umask(0o022)
    build = Build(module, manager(module))
    try:
        module.exit_json(**build.run())
    except subprocess.TimeoutExpired as error:
        build.fail(f"{error.cmd[0]} did not end within {error.timeout:.0f} s")
    except OSError as error:
        build.fail(f"{error.filename or build.folder}: {error.strerror or error}")


if __name__ == "__main__":
    main()
