"""The packages of the roles in each system's repositories: package_names.toml, and how Debian's part of it is made.

    python -m tests.ansible.package_names [MIRROR]     # asks Debian's archive, and writes its part again

The other parts are written by hand, each entry with its source. Their archives are out of reach here.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpucluster.systems import matrix
from tests.ansible.loading import read

SNAPSHOT = Path(__file__).with_suffix(".toml")
SUITES = {"Debian-12": "bookworm", "Debian-13": "trixie"}
#: Purposes of lists that only a controller reads.
OF_CONTROLLERS = (
    "directory_server", "accounting_database", "slurm_controller", "autoscaler", "container_check", "rest_proxy",
)  # fmt: skip
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MARK = "# --- made by `python -m tests.ansible.package_names`"


def lists(system: str) -> dict[str, list[str]]:
    """The lists of packages of a system, by purpose; with those of the role docker."""
    found = dict(read("group_vars/all/packages.yml")["packages"][system])
    manager = read(f"vars/os/{system}.yml")["os_package_manager"]
    docker = ["docker.io", "iptables", *(["docker-cli"] if system == "Debian-13" else [])]
    return {**found, "docker": docker if manager == "apt" else ["containerd.io", "docker-ce", "docker-ce-cli"]}


def names(system: str) -> set[str]:
    """Every package that the roles install on a system."""
    return {name for each in lists(system).values() for name in each}


def snapshot() -> dict[str, Any]:
    """The file."""
    return tomllib.loads(SNAPSHOT.read_text(encoding="utf-8"))


def is_controller(system: str) -> bool:
    """Whether the support matrix has controllers of this system."""
    return any(row.vars_file == system and row.controller for row in matrix.SYSTEMS)


def _archive(mirror: str, suite: str) -> dict[str, str]:
    """The packages of Debian's archive and their versions, asked with apt: it checks the archive's signature."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "list").write_text(f"deb [signed-by={_KEYRING}] {mirror} {suite} main\n")
        for name in ("state/lists/partial", "cache/archives/partial"):
            Path(folder, name).mkdir(parents=True)
        settings = {
            "Dir::State": f"{folder}/state", "Dir::State::status": "/dev/null", "Dir::Cache": f"{folder}/cache",
            "Dir::Etc::sourcelist": f"{folder}/list", "Dir::Etc::sourceparts": "-", "APT::Architecture": "amd64",
            "APT::Sandbox::User": "root",
        }  # fmt: skip
        options = [f"--option={name}={value}" for name, value in settings.items()]
        subprocess.run(["apt-get", *options, "--quiet", "update"], check=True, stdout=subprocess.DEVNULL)
        text = subprocess.run(["apt-cache", *options, "dumpavail"], check=True, capture_output=True, text=True).stdout
    paragraphs = (dict(_fields(paragraph)) for paragraph in text.split("\n\n") if paragraph.strip())
    return {fields["Package"]: fields["Version"] for fields in paragraphs}


def _fields(paragraph: str) -> Iterator[tuple[str, str]]:
    for line in paragraph.splitlines():
        name, colon, value = line.partition(": ")
        if colon and not line.startswith(" "):
            yield name, value


def main(mirror: str = "http://deb.debian.org/debian") -> None:
    """Write Debian's part again."""
    by_hand = SNAPSHOT.read_text(encoding="utf-8").partition(_MARK)[0]
    parts = [f"{by_hand}{_MARK}\n"]
    for system, suite in SUITES.items():
        there = _archive(mirror, suite)
        today = datetime.datetime.now(tz=datetime.UTC).date()
        parts.append(f'\n[{system}]\ndate = {today}\nsource = "dists/{suite}/main/binary-amd64 of the archive"\n\n')
        parts.append(f"[{system}.packages]\n")
        parts += [f'"{name}" = "{there[name]}"\n' for name in sorted(names(system)) if name in there]
    SNAPSHOT.write_text("".join(parts), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
