"""requirements.lock: every Python package that gpucluster installs, with its version and the hashes of its files.

    python tools/lock.py show SECTION...    print the packages of some sections, as pip reads them (needs no package)
    python tools/lock.py write UV           resolve again with the program uv: the newest versions that are allowed

A package is in one section only: that of the first who needs it. `checkov`, `audit` and `docs` have environments of
their own, with versions that fit to nothing else.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LOCK = REPOSITORY / "requirements.lock"
OLDEST_PYTHON = "3.11"
# Their sections have all that their environments need.
SEPARATE = {
    "checkov": ("checkov==3.3.30",),
    "audit": ("cyclonedx-bom", "pip-audit", "uv"),
    "docs": ("furo", "myst-parser", "sphinx", "sphinx-copybutton"),
}
_HEADER = """\
# Every Python package that gpucluster installs, written by `make lock`. See docs/explanation/security.md.
"""
_SECTION = re.compile(r"^# -- (\S+)$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """The text of each section, by its name."""
    parts = _SECTION.split(text)
    return dict(zip(parts[1::2], (part.strip() + "\n" for part in parts[2::2]), strict=True))


def entries(text: str) -> dict[str, str]:
    """The entries of a text of requirements, with their markers and hashes, by name==version."""
    joined = re.sub(r"\\\n\s*", "\0", text)
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return {re.split(r"[ ;\0]", line)[0]: line.replace("\0", "\\\n    ") for line in lines}


def _resolved(uv: str, needed: Iterable[str], pinned: str = "") -> dict[str, str]:
    """What is to be installed for some requirements on each system and Python, with hashes."""
    argv = [
        str(Path(uv).absolute()),
        "pip",
        "compile",
        "--quiet",
        "--universal",
        f"--python-version={OLDEST_PYTHON}",
        "--generate-hashes",
    ]
    argv += ["--no-annotate", "--no-header", "--no-emit-index-url", "--no-emit-find-links"]
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch, "constraints.txt")
        constraints.write_text(pinned)
        argv += [f"--constraint={constraints}", "-"]
        done = subprocess.run(argv, input="\n".join(needed), capture_output=True, text=True, check=False, cwd=scratch)
    if done.returncode:
        raise SystemExit(done.stderr)
    return entries(done.stdout)


def write(uv: str) -> None:
    """Resolve all sections again."""
    from packaging.requirements import Requirement

    from gpucluster.artifacts import wheels

    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project, extras = declared["project"], declared["project"]["optional-dependencies"]
    build = [*declared["build-system"]["requires"], "editables", "setuptools"]
    run = [*build, *project["dependencies"], *extras["local"]]
    dev = [*run, *(line for line in extras["dev"] if Requirement(line).name != project["name"])]
    controller = [line for line in project["dependencies"] if wheels.is_imported(Requirement(line))]
    everything = _resolved(uv, dev)
    pins = "\n".join(entry.partition("\\\n")[0] for entry in everything.values())
    written: dict[str, dict[str, str]] = {}
    for name, needed in (("controller", controller), ("build", build), ("run", run), ("dev", dev)):
        found = _resolved(uv, needed, pins)
        written[name] = {
            pin: everything[pin] for pin in found if not any(pin in earlier for earlier in written.values())
        }
    written |= {name: _resolved(uv, needed) for name, needed in SEPARATE.items()}
    parts = (f"\n# -- {name}\n" + "\n".join(packages.values()) + "\n" for name, packages in written.items())
    LOCK.write_text(_HEADER + "".join(parts))


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    match arguments:
        case ["show", *names] if names:
            found = sections(LOCK.read_text())
            sys.stdout.write("".join(found[name] for name in names))
        case ["write", uv]:
            write(uv)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
