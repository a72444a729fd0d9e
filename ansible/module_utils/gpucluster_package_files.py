"""Packages from files, with apt and dnf: contents of a file, installed versions, installation."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule

LOCK_SECONDS = 300
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "NEEDRESTART_SUSPEND": "1"}
APT = ["apt-get", "--yes", "--quiet", "--option", f"DPkg::Lock::Timeout={LOCK_SECONDS}", "--option=Dpkg::Use-Pty=0"]
# A changed configuration file is kept.
APT += ["--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold"]
DNF = ["dnf", "--assumeyes", "--quiet"]
# Messages of apt when its package lists are empty or old.
NOT_KNOWN = (
    "unmet dependencies",
    "Unable to locate",
    "no installation candidate",
    "Unable to fetch",
    "Failed to fetch",
)
RPM_FORMAT = "%{NAME}\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\t%{ARCH}\n"


POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# Of gpucluster, while it installs packages.\nexit 101\n"


class Package(NamedTuple):
    """One package: in a file, or on the host."""

    name: str
    version: str
    architecture: str


class Packages:
    """The interface of both package managers."""

    format = ""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module

    def run(self, argv: list[str], what: str = "") -> str:
        """Run a program; a failure ends the task if `what` describes the step."""
        code, out, err = self.module.run_command(argv, environ_update=ENVIRONMENT)
        if code != 0 and what:
            self.module.fail_json(msg=f"{what}: {last_words(out, err)}")
        return str(out)

    def machine(self) -> str:
        """The architecture of packages for this host."""
        return os.uname().machine

    def of_file(self, file: Path) -> Package:
        """The package in a file."""
        raise NotImplementedError

    def installed(self, names: list[str]) -> dict[str, str]:
        """The full versions of the installed ones, by name."""
        raise NotImplementedError

    def left(self, names: list[str]) -> list[str]:
        """Those of which something is left on the host."""
        return sorted(self.installed(names))

    def install(self, files: list[str], older: bool) -> None:
        """Install files; their dependencies come from the distribution. `older`: a newer version is installed."""
        failure = self.attempt(files, older)
        if failure:
            what = ", ".join(os.path.basename(file) for file in files)
            self.module.fail_json(msg=f"can't install {what}: {failure}")

    def attempt(self, files: list[str], older: bool = False, repositories: Iterable[str] = ()) -> str:
        """Install files or packages of the repositories, in one call. Returns why it failed; empty if it did not.

        Args:
            files: files, or names of packages.
            older: a newer version is installed.
            repositories: those that are enabled for this call only.
        """
        raise NotImplementedError

    def remove(self, names: list[str]) -> None:
        """Remove packages."""
        raise NotImplementedError

    def is_older(self, one: str, other: str) -> bool:
        """Whether a version is older than another."""
        raise NotImplementedError

    def unknown(self, names: list[str], enabled: Iterable[str] = ()) -> list[str]:
        """Those that no repository has; `enabled` are repositories that are enabled for this question only."""
        raise NotImplementedError

    def repositories(self) -> list[str]:
        """The enabled repositories, for messages."""
        raise NotImplementedError


class Debian(Packages):
    """dpkg and apt."""

    format = "deb"

    def machine(self) -> str:
        """The name that dpkg uses."""
        return self.run(["dpkg", "--print-architecture"], "dpkg does not run").strip()

    def of_file(self, file: Path) -> Package:
        """From its control fields."""
        argv = ["dpkg-deb", "--show", "--showformat=${Package}\t${Version}\t${Architecture}", str(file)]
        return Package(*self.run(argv, f"{file} is not a package").strip().split("\t"))

    def _states(self, names: list[str]) -> dict[str, tuple[str, str]]:
        out = self.run(["dpkg-query", "--show", "--showformat=${Package}\t${Version}\t${db:Status-Status}\n", *names])
        rows = (line.split("\t") for line in out.splitlines())
        return {name: (version, state) for name, version, state in rows if state != "not-installed"}

    def installed(self, names: list[str]) -> dict[str, str]:
        """Unpacked and configured."""
        return {name: version for name, (version, state) in self._states(names).items() if state == "installed"}

    def left(self, names: list[str]) -> list[str]:
        """Configuration files count as well."""
        return sorted(self._states(names))

    def attempt(self, files: list[str], older: bool = False, repositories: Iterable[str] = ()) -> str:
        """Once more after an update of the package lists, where they are empty or old."""
        argv = [*APT, "--no-install-recommends", "--allow-downgrades", "--reinstall", "install", *files]
        # After an interrupted installation: apt accepts no file for a package that is unpacked and not configured.
        if self.run(["dpkg", "--audit"]).strip() or os.listdir("/var/lib/dpkg/updates"):
            self.run(["dpkg", "--configure", "-a"])
        code, out, err = self.module.run_command(argv, environ_update=ENVIRONMENT)
        if code != 0 and any(words in out + err for words in NOT_KNOWN):
            failure = self.update()
            if failure:
                return failure
            code, out, err = self.module.run_command(argv, environ_update=ENVIRONMENT)
        return last_words(out, err) if code != 0 else ""

    def update(self) -> str:
        """Update the package lists of the distribution. apt does not wait for this lock itself.

        Returns:
            Why it failed; empty if it did not.
        """
        until = time.monotonic() + LOCK_SECONDS
        while True:
            code, out, err = self.module.run_command([*APT, "update"], environ_update=ENVIRONMENT)
            if code == 0 or "Could not get lock" not in out + err or time.monotonic() > until:
                break
            time.sleep(2)
        return f"apt can't update the package lists: {last_words(out, err)}" if code != 0 else ""

    def remove(self, names: list[str]) -> None:
        """Including their configuration."""
        what = f"can't remove {', '.join(names)}"
        self.run([*APT, "--option=APT::Get::AutomaticRemove=false", "purge", *names], what)

    def is_older(self, one: str, other: str) -> bool:
        """According to the package manager."""
        code, _out, _err = self.module.run_command(["dpkg", "--compare-versions", one, "lt", other])
        return bool(code == 0)

    def unknown(self, names: list[str], enabled: Iterable[str] = ()) -> list[str]:
        """Without a candidate in the package lists."""
        out = self.run(["apt-cache", "policy", *names])
        # A line with the name, then lines that are indented.
        parts = re.split(r"^(\S+):$", out, flags=re.MULTILINE)
        found = dict(zip(parts[1::2], parts[2::2]))
        return [name for name in names if not re.search(r"Candidate: (?!\(none\))", found.get(name, ""))]

    def repositories(self) -> list[str]:
        """Site, suite and component of each."""
        argv = ["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)/$(COMPONENT)", "Created-By: Packages"]
        return sorted(set(self.run(argv).splitlines()))


class RedHat(Packages):
    """rpm and dnf. Not tested on a running system yet."""

    format = "rpm"

    def of_file(self, file: Path) -> Package:
        """From its control fields."""
        argv = ["rpm", "--query", "--package", "--nosignature", "--queryformat", RPM_FORMAT, str(file)]
        return Package(*self.run(argv, f"{file} is not a package").strip().split("\t"))

    def installed(self, names: list[str]) -> dict[str, str]:
        """Unpacked and configured."""
        out = self.run(["rpm", "--query", "--queryformat", RPM_FORMAT, *names])
        rows = (line.split("\t") for line in out.splitlines())
        return {row[0]: row[1] for row in rows if len(row) == len(Package._fields)}

    def attempt(self, files: list[str], older: bool = False, repositories: Iterable[str] = ()) -> str:
        """With repositories of the system that are disabled by default."""
        argv = [*DNF, *map("--enablerepo={}".format, repositories), "downgrade" if older else "install", *files]
        code, out, err = self.module.run_command(argv, environ_update=ENVIRONMENT)
        return last_words(out, err) if code != 0 else ""

    def remove(self, names: list[str]) -> None:
        """Their dependencies stay."""
        what = f"can't remove {', '.join(names)}"
        self.run([*DNF, "--setopt=clean_requirements_on_remove=False", "remove", *names], what)

    def is_older(self, one: str, other: str) -> bool:
        """According to the package manager."""
        return self.run(["rpm", "--eval", f"%{{lua:print(rpm.vercmp('{one}', '{other}'))}}"]).strip() == "-1"

    def unknown(self, names: list[str], enabled: Iterable[str] = ()) -> list[str]:
        """By name; a package that only provides it is enough for dnf as well."""
        argv = [*DNF, *map("--enablerepo={}".format, enabled), "repoquery", "--queryformat", "%{name}\n"]
        return [name for name in names if not self.run([*argv, "--whatprovides", name]).strip()]

    def repositories(self) -> list[str]:
        """Their ids."""
        rows = (line.split() for line in self.run([*DNF, "repolist", "--enabled"]).splitlines())
        return [row[0] for row in rows if row and row[0] not in ("repo", "repo-id")]


def manager(module: AnsibleModule) -> Packages:
    """The package manager of this host."""
    return Debian(module) if os.path.exists("/var/lib/dpkg/status") else RedHat(module)


def policy_is_left() -> bool:
    """Whether a killed run has left it: no package of the host could start its service."""
    return POLICY.is_file() and POLICY.read_text(encoding="utf-8", errors="replace") == POLICY_TEXT


@contextmanager
def nothing_starts() -> Iterator[None]:
    """Prevent Debian's packages from starting their services, which are not configured yet."""
    if policy_is_left():
        POLICY.unlink()
    if POLICY.exists() or not POLICY.parent.is_dir():
        yield
        return
    POLICY.write_text(POLICY_TEXT, encoding="utf-8")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def last_words(out: Any, err: Any) -> str:
    """The relevant output of a program, in one line."""
    lines = [line.strip() for line in (str(err) + "\n" + str(out)).splitlines() if line.strip()]
    loud = [line for line in lines if line.startswith(("E:", "Error", "dpkg: error")) or "Depends:" in line]
    return " | ".join(loud or lines[-5:])[:2000] or "it printed nothing"
