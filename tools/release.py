"""A release: its section of CHANGELOG.md and its version. CONTRIBUTING.md has the steps of a release.

    python -m tools.release cut 0.2.0       move what is under Unreleased into a section, and set the version
    python -m tools.release open 0.3.0      after the release: the tree becomes 0.3.0.dev0
    python -m tools.release notes [0.2.0]   print the section of a release; without a version what is under Unreleased

It writes two files, and neither commits nor tags: it prints the commands. Exit code 2: it refuses, and changed nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGELOG, VERSION_FILE = "CHANGELOG.md", "gpucluster/__init__.py"
UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_RELEASE = re.compile(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})")
_NUMBER = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)


class RefusedError(Exception):
    """The release can't be made like this; the text names the reason and what to do."""


@dataclass(frozen=True)
class Section:
    """A section of the changelog.

    Args:
        version: of a release; UNRELEASED for what has none yet.
        day: of the release; None for what has none.
        body: the text below the heading.
    """

    version: str
    day: date | None
    body: str

    @property
    def empty(self) -> bool:
        """Whether it names no change."""
        return not re.search(r"^[-*] ", self.body, re.MULTILINE)


def sections(changelog: str) -> list[Section]:
    """The sections, the newest first.

    Raises:
        RefusedError: a heading is neither Unreleased nor a release with its day, or the order is wrong.
    """
    parts = _HEADING.split(changelog)
    found = []
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        release = _RELEASE.fullmatch(heading.strip())
        if heading.strip() != UNRELEASED and release is None:
            raise RefusedError(f"{CHANGELOG}: `## {heading}` is neither `## {UNRELEASED}` nor `## 1.2.3 - 2026-01-31`")
        day = date.fromisoformat(release[2]) if release else None
        found.append(Section(release[1] if release else UNRELEASED, day, body.strip()))
    if [section.version for section in found].count(UNRELEASED) != 1 or found[0].version != UNRELEASED:
        raise RefusedError(f"{CHANGELOG}: the first section has to be `## {UNRELEASED}`, and no other one")
    numbers = [number(section.version) for section in found[1:]]
    days = [section.day for section in found[1:] if section.day]
    if numbers != sorted(set(numbers), reverse=True) or days != sorted(days, reverse=True):
        raise RefusedError(f"{CHANGELOG}: releases have to stand in their order, the newest first, each once")
    return found


def number(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared.

    Raises:
        RefusedError: it is not of the form 1.2.3.
    """
    match = _NUMBER.fullmatch(version)
    if match is None:
        raise RefusedError(f"a release has a version like 1.2.3, and not {version}")
    return tuple(map(int, match.groups()))


def cut(changelog: str, version: str, day: date) -> str:
    """The changelog in which what was under Unreleased is the section of a release.

    Raises:
        RefusedError: nothing is under Unreleased, or the version does not follow the last one.
    """
    first, *released = sections(changelog)
    if first.empty:
        raise RefusedError(f"{CHANGELOG}: nothing is under `## {UNRELEASED}`")
    if released and number(version) <= number(released[0].version):
        raise RefusedError(f"{version} does not follow {released[0].version}, the last release of {CHANGELOG}")
    number(version)
    return changelog.replace(f"## {UNRELEASED}\n", f"## {UNRELEASED}\n\n## {version} - {day:%Y-%m-%d}\n", 1)


def version_of(text: str) -> str:
    """The version that the package's file states.

    Raises:
        RefusedError: it states none.
    """
    match = _VERSION.search(text)
    if match is None:
        raise RefusedError(f'{VERSION_FILE} has no line `__version__ = "..."`')
    return match[1]


def with_version(text: str, version: str) -> str:
    """The package's file with another version."""
    version_of(text)
    return _VERSION.sub(f'__version__ = "{version}"', text, count=1)


def git(root: Path, *words: str) -> str:
    """The output of a command of git.

    Raises:
        RefusedError: it failed.
    """
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def require_clean(root: Path) -> None:
    """Refuse a tree that differs from its commit.

    Raises:
        RefusedError: with the files.
    """
    if changed := git(root, "status", "--porcelain"):
        raise RefusedError(f"the tree has changes that are not committed: commit or remove them first\n{changed}")


def make(root: Path, version: str, day: date) -> str:
    """Cut a release in a tree. Returns what to do next.

    Raises:
        RefusedError: nothing was changed.
    """
    require_clean(root)
    tag = f"v{version}"
    if git(root, "tag", "--list", tag):
        raise RefusedError(f"the tag {tag} exists: a release is never made twice")
    changelog = cut((root / CHANGELOG).read_text(), version, day)
    package = with_version((root / VERSION_FILE).read_text(), version)
    (root / CHANGELOG).write_text(changelog)
    (root / VERSION_FILE).write_text(package)
    following = ".".join(map(str, (*number(version)[:1], number(version)[1] + 1, 0)))
    return f"""\
{CHANGELOG} and {VERSION_FILE} are those of {version}. What follows:

python -m tests.lifecycle.recorded_release tests/lifecycle/releases/{version}
git add --all && git commit --message "Release: {version}"
make release
git tag --annotate {tag} --message "gpucluster {version}"
python -m tools.release open {following}
git commit --all --message "Release: begin {following}"
"""


def begin(root: Path, version: str) -> None:
    """Let the tree be on the way to the next release.

    Raises:
        RefusedError: the version does not follow the present one; nothing was changed.
    """
    text = (root / VERSION_FILE).read_text()
    if number(version) <= number(version_of(text)):
        raise RefusedError(f"{version} does not follow {version_of(text)}")
    (root / VERSION_FILE).write_text(with_version(text, f"{version}.dev0"))


def notes(changelog: str, version: str) -> str:
    """What a section states.

    Raises:
        RefusedError: there is no such section.
    """
    found = {section.version: section.body for section in sections(changelog)}
    if version not in found:
        raise RefusedError(f"{CHANGELOG} has no section of {version}; it has {', '.join(found)}")
    return found[version] + "\n"


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run one command, and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("cut").add_argument("version")
    commands.add_parser("open").add_argument("version")
    commands.add_parser("notes").add_argument("version", nargs="?", default=UNRELEASED)
    asked = parser.parse_args(argv)
    try:
        match asked.command:
            case "cut":
                print(make(root, asked.version, datetime.now(UTC).date()), end="")
            case "open":
                begin(root, asked.version)
            case _:
                print(notes((root / CHANGELOG).read_text(), asked.version), end="")
    except RefusedError as error:
        print(f"tools.release: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
