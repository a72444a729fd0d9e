"""Lists of checksums, `SHA256SUMS`: reading, writing, and looking up a file. Pure, except `write_sums`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpucluster.artifacts.catalogue import Artifact

SUMS = "SHA256SUMS"
_SUM = "(?P<checksum>[0-9a-f]{64})"
_LINE = re.compile(rf"{_SUM}\s+\*?(?P<name>.+)", re.IGNORECASE)
# `SHA256 (name) = sum` of BSD's programs and `sha256sum --tag`, `SHA256(name)= sum` of OpenSSL's.
_TAGGED = re.compile(rf"SHA(?:2-)?256\s*\((?P<name>.+)\)\s*=\s*{_SUM}", re.IGNORECASE)


@dataclass(frozen=True)
class ChecksumClaim:
    """The checksum that the lists of a source have for a file.

    Args:
        sha256: None if they have none, or several.
        why: the end of a message about a missing checksum: which lists were read; empty if the source has no list.
        contradictory: a list has more than one checksum for the file.
    """

    sha256: str | None
    why: str = ""
    contradictory: bool = False


NO_CLAIM = ChecksumClaim(None)


def parse_sums(text: str) -> dict[str, set[str]]:
    """The checksums by file name, in the output of `sha256sum` or a similar program. Other lines are ignored."""
    checksums: dict[str, set[str]] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        match = _LINE.fullmatch(line.strip()) or _TAGGED.fullmatch(line.strip())
        if match:
            # PurePosixPath removes a leading `./`.
            checksums.setdefault(str(PurePosixPath(match["name"])), set()).add(match["checksum"].lower())
    return checksums


def checksums_of(names: Sequence[str], known: Mapping[str, set[str]]) -> set[str]:
    """The checksums that a list has for a file with one of these names: none, one, or several that contradict.

    A list may have been made in another folder. So if the list has none of the names exactly, the last parts of the
    names are compared.
    """
    for name in names:
        if name in known:
            return known[name]
    for last in dict.fromkeys(PurePosixPath(name).name for name in names):
        matches = {
            checksum for listed, sums in known.items() if PurePosixPath(listed).name == last for checksum in sums
        }
        if matches:
            return matches
    return set()


def contradiction(listed: str, checksums: Iterable[str]) -> str:
    """The message about a list with several checksums for one file."""
    return f"{listed} has more than one checksum for it: {', '.join(sorted(checksums))}"


def write_sums(file: Path, known: Mapping[str, Iterable[str]]) -> None:
    """Write such a list, atomically."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".new-") as scratch:
        new = Path(scratch) / file.name
        lines = (f"{checksum}  {name}\n" for name, sums in sorted(known.items()) for checksum in sorted(sums))
        new.write_text("".join(lines))
        new.replace(file)


class ChecksumLists:
    """The lists of a source: the SHA256SUMS at its root and beside a file, or others by name. Each is read once.

    Args:
        read: the text at a path; None if there is none.
        shown: a path as a user would type it.
    """

    def __init__(self, read: Callable[[str], str | None], shown: Callable[[str], str]) -> None:
        self._read, self._shown = read, shown
        self._known: dict[str, dict[str, set[str]] | None] = {}

    def of(self, artifact: Artifact, place: str) -> ChecksumClaim:
        """The checksum that the lists have for a file.

        Args:
            place: its path, relative to the root of the source.
        """
        without = ""
        for at in dict.fromkeys([str(PurePosixPath(place).parent), "."]):
            where = SUMS if at == "." else f"{at}/{SUMS}"
            claim = self.in_list(artifact, where, [str(PurePosixPath(place).relative_to(at))])
            if claim.sha256 or claim.contradictory:
                return claim
            without += claim.why
        return ChecksumClaim(None, without)

    def in_list(self, artifact: Artifact, where: str, names: Sequence[str] = ()) -> ChecksumClaim:
        """The checksum that one list has for a file.

        Args:
            where: the place of the list.
            names: of the file, besides its own.
        """
        known = self._list(where)
        if known is None:
            return NO_CLAIM
        claimed = checksums_of([*names, *artifact.names], known)
        if len(claimed) > 1:
            return ChecksumClaim(None, contradiction(self._shown(where), claimed), contradictory=True)
        if claimed:
            return ChecksumClaim(next(iter(claimed)))
        return ChecksumClaim(None, f"; {self._shown(where)} was read, and does not name it")

    def _list(self, where: str) -> dict[str, set[str]] | None:
        if where not in self._known:
            text = self._read(where)
            self._known[where] = None if text is None else parse_sums(text)
        return self._known[where]
