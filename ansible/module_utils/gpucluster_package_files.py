"""Packages from files, by apt and dnf: what a file holds, what is installed, and how one becomes the other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule

LOCK_SECONDS = 300
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "NEEDRESTART_SUSPEND": "1"}
APT = ["apt-get", "--yes", "--quiet", "--option", f"DPkg::Lock::Timeout={LOCK_SECONDS}", "--option=Dpkg::Use-Pty=0"]
# A file of the configuration that we changed stays as it is.
APT += ["--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold"]
DNF = ["dnf", "--assumeyes", "--quiet"]
# What apt says when its lists are empty or old.
NOT_KNOWN = (
    "unmet dependencies",
    "Unable to locate",
    "no installation candidate",
    "Unable to fetch",
    "Failed to fetch",
)
RPM_FORMAT = "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\t%{ARCH}\n"


class Package(NamedTuple):
    """One package: in a file, or on the host."""

    name: str
    version: str
    architecture: str


class Packages:
    """What both package managers must do."""

    format = ""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module

    def run(self, argv: list[str], what: str = "") -> str:
        """Run a program; a failure ends the task if `what` says what it was for."""
        code, out, err = self.module.run_command(argv, environ_update=ENVIRONMENT)
        if code != 0 and what:
            self.module.fail_json(msg=f"{what}: {last_words(out, err)}")
        return str(out)

    def machine(self) -> str:
        """The architecture of packages for this host."""
        return os.uname().machine

    def of_file(self, file: Path) -> Package:
        """What a file holds."""
        raise NotImplementedError

    def installed(self, names: list[str]) -> dict[str, str]:
        """The versions of those that are installed, in full, by name."""
        raise NotImplementedError

    def left(self, names: list[str]) -> list[str]:
        """Those of which something is on the host."""
        return sorted(self.installed(names))

    def install(self, files: list[str], older: bool) -> None:
        """Install files; their dependencies come from the distribution. `older`: a newer version is there."""
        raise NotImplementedError

    def remove(self, names: list[str]) -> None:
        """Remove packages."""
        raise NotImplementedError

    def is_older(self, one: str, other: str) -> bool:
        """Whether a version is older than another."""
        raise NotImplementedError


class Debian(Packages):
    """dpkg and apt."""

    format = "deb"

    def machine(self) -> str:
        """As dpkg spells it."""
        return self.run(["dpkg", "--print-architecture"], "dpkg does not run").strip()

    def of_file(self, file: Path) -> Package:
        """Its control fields."""
        argv = ["dpkg-deb", "--show", "--showformat=${Package}\t${Version}\t${Architecture}", str(file)]
        return Package(*self.run(argv, f"{file} is no package").strip().split("\t"))

    def _states(self, names: list[str]) -> dict[str, tuple[str, str]]:
        out = self.run(["dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Status}\n", *names])
        rows = (line.split("\t") for line in out.splitlines())
        return {name: (version, state) for name, version, state in rows if state != "not-installed"}

    def installed(self, names: list[str]) -> dict[str, str]:
        """Unpacked and configured."""
        return {name: version for name, (version, state) in self._states(names).items() if state == "installed"}

    def left(self, names: list[str]) -> list[str]:
        """Files of the configuration count."""
        return sorted(self._states(names))

    def install(self, files: list[str], older: bool) -> None:
        """In one call."""
        argv = [*APT, "--no-install-recommends", "--allow-downgrades", "--reinstall", "install", *files]
        what = f"can't install {', '.join(os.path.basename(file) for file in files)}"
        # Somebody was killed half-way: apt takes no file for a package that is unpacked and not configured.
        if self.run(["dpkg", "--audit"]).strip() or os.listdir("/var/lib/dpkg/updates"):
            self.run(["dpkg", "--configure", "-a"])
        code, out, err = self.module.run_command(argv, environ_update=ENVIRONMENT)
        if code != 0 and any(words in out + err for words in NOT_KNOWN):
            self.update()
            code, out, err = self.module.run_command(argv, environ_update=ENVIRONMENT)
        if code != 0:
            self.module.fail_json(msg=f"{what}: {last_words(out, err)}")

    def update(self) -> None:
        """Read the lists of the distribution's packages anew. apt does not wait for this lock by itself."""
        until = time.monotonic() + LOCK_SECONDS
        while True:
            code, out, err = self.module.run_command([*APT, "update"], environ_update=ENVIRONMENT)
            if code == 0 or "Could not get lock" not in out + err or time.monotonic() > until:
                break
            time.sleep(2)
        if code != 0:
            self.module.fail_json(msg=f"a package needs others, and apt can't list them: {last_words(out, err)}")

    def remove(self, names: list[str]) -> None:
        """With their configuration."""
        what = f"can't remove {', '.join(names)}"
        self.run([*APT, "--option=APT::Get::AutomaticRemove=false", "purge", *names], what)

    def is_older(self, one: str, other: str) -> bool:
        """As its package manager sees it."""
        code, _out, _err = self.module.run_command(["dpkg", "--compare-versions", one, "lt", other])
        return bool(code == 0)


class RedHat(Packages):
    """rpm and dnf. Not proven on a running system yet."""

    format = "rpm"

    def of_file(self, file: Path) -> Package:
        """Its control fields."""
        argv = ["rpm", "--query", "--package", "--nosignature", "--queryformat", RPM_FORMAT, str(file)]
        return Package(*self.run(argv, f"{file} is no package").strip().split("\t"))

    def installed(self, names: list[str]) -> dict[str, str]:
        """Unpacked and configured."""
        out = self.run(["rpm", "--query", "--queryformat", RPM_FORMAT, *names])
        rows = (line.split("\t") for line in out.splitlines())
        return {row[0]: row[1] for row in rows if len(row) == len(Package._fields)}

    def install(self, files: list[str], older: bool) -> None:
        """In one call."""
        what = f"can't install {', '.join(os.path.basename(file) for file in files)}"
        self.run([*DNF, "downgrade" if older else "install", *files], what)

    def remove(self, names: list[str]) -> None:
        """What they needed stays."""
        what = f"can't remove {', '.join(names)}"
        self.run([*DNF, "--setopt=clean_requirements_on_remove=False", "remove", *names], what)

    def is_older(self, one: str, other: str) -> bool:
        """As its package manager sees it."""
        return self.run(["rpm", "--eval", f"%{{lua:print(rpm.vercmp('{one}', '{other}'))}}"]).strip() == "-1"


def manager(module: AnsibleModule) -> Packages:
    """That of this host."""
    return Debian(module) if os.path.exists("/var/lib/dpkg/status") else RedHat(module)


def last_words(out: Any, err: Any) -> str:
    """What a program said that matters, in one line."""
    lines = [line.strip() for line in (str(err) + "\n" + str(out)).splitlines() if line.strip()]
    loud = [line for line in lines if line.startswith(("E:", "Error", "dpkg: error")) or "Depends:" in line]
    return " | ".join(loud or lines[-5:])[:2000] or "it said nothing"
