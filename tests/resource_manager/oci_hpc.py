"""The variables of every release of oci-hpc, as facts that the package's table is held against.

`python -m tests.resource_manager.oci_hpc CHECKOUT` prints what differs between the list and a checkout of the stack
with its tags: names, and the releases that have them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("oci_hpc_variables.toml")


def facts() -> Mapping[str, Mapping[str, Any]]:
    """By the name of a variable: `first` and `last` release, `type`, and `default` if it has one."""
    return tomllib.loads(LIST.read_text())


def number(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def of_release(release: str) -> Mapping[str, Mapping[str, Any]]:
    """The variables that a release has."""
    wanted = number(release)
    return {
        name: each for name, each in facts().items() if number(each["first"]) <= wanted <= number(each["last"])
    }  # fmt: skip


def releases() -> list[str]:
    """The releases in which a variable came or went, oldest first."""
    return sorted({each[key] for each in facts().values() for key in ("first", "last")}, key=number)


def _declared(checkout: Path, tag: str) -> set[str]:
    """The variables of a tag: those that Terraform declares, and those of the form alone."""

    def show(file: str) -> str:
        command = ["git", "-C", str(checkout), "show", f"{tag}:{file}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    declared = re.findall(r'^\s*variable\s+"?(\w+)"?\s*\{', show("variables.tf"), re.MULTILINE)
    form = show("schema.yaml").partition("\nvariableGroups:")[2]
    in_groups = re.findall(r"^\s*- \$\{(\w+)\}", form.partition("\nvariables:")[0], re.MULTILINE)
    return {*declared, *in_groups}


def main(checkout: Path) -> int:
    command = ["git", "-C", str(checkout), "tag", "--list", "v[0-9]*"]
    tags = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    differing = 0
    for tag in sorted(tags, key=lambda each: number(each[1:])):
        ours, theirs = set(of_release(tag[1:])), _declared(checkout, tag)
        if ours != theirs:
            differing += 1
            print(f"{tag}: missing {sorted(theirs - ours)}, too many {sorted(ours - theirs)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
