"""Where release files are taken from: a directory, a mirror by HTTP, or the projects' own pages.

A source finds a file, says what its own SHA256SUMS says of it, and gives its bytes. It decides nothing: whether the
bytes are right is for software.py.
"""

from __future__ import annotations

import http.client
import ipaddress
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol
from urllib.parse import quote, unquote, urlsplit

from gpucluster.artifacts.catalogue import Artifact
from gpucluster.errors import EnvironmentFault, InputError

SUMS = "SHA256SUMS"
#: Seconds without a byte, of a look and of a download; and seconds between one attempt and the next.
SILENCE, PAUSES = {"HEAD": 10.0, "GET": 30.0}, (1.0, 3.0)
_SUMS_LIMIT = 1024 * 1024
_SUM = "(?P<checksum>[0-9a-f]{64})"
_LINE = re.compile(rf"{_SUM}\s+\*?(?P<name>.+)", re.IGNORECASE)
# `SHA256 (name) = sum` of BSD's programs and `sha256sum --tag`, `SHA256(name)= sum` of OpenSSL's.
_TAGGED = re.compile(rf"SHA(?:2-)?256\s*\((?P<name>.+)\)\s*=\s*{_SUM}", re.IGNORECASE)
_REDIRECTS = 5
_NO_HEAD = frozenset({400, 403, 405, 501})
_NOT_THERE = frozenset({403, 404, 410})
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_HINT = (
    "Run it again when the network is there, or set software.mirror in cluster.yml to a directory or URL that has the "
    "files (docs/how-to/mirror.md)"
)


@dataclass(frozen=True)
class Word:
    """What a source says of a file's checksum.

    Args:
        sha256: None where it says none that counts.
        why: what its lists were found to say, then; empty where it has no list.
        disputed: its list says more than one.
    """

    sha256: str | None
    why: str = ""
    disputed: bool = False


SILENT = Word(None)


class Source(Protocol):
    """Where files come from."""

    @property
    def name(self) -> str:
        """For messages: the directory or the URL."""

    @property
    def forgeable(self) -> bool:
        """Whether somebody on the way could change what it says: a file and its checksum at once."""

    def places(self, artifact: Artifact) -> tuple[str, ...]:
        """Where it would look for a file, as a person would type it."""

    def find(self, artifact: Artifact) -> str | None:
        """Which of these places has the file; None if none has."""

    def sum_of(self, artifact: Artifact, place: str) -> Word:
        """What the source's own SHA256SUMS says of the file."""

    def reading(self, place: str) -> Any:
        """A context that gives (a stream, its size in bytes or None)."""


def source(mirror: str | None) -> Source:
    """The source that `mirror` names: an absolute path, a URL, or None for the projects' pages."""
    if mirror is None:
        return Pages()
    return Web(mirror) if mirror.startswith(("http://", "https://")) else Directory(Path(mirror))


def parse_sums(text: str) -> dict[str, set[str]]:
    """File name to checksums, of what `sha256sum` and its like print; lines of another form are left out."""
    found: dict[str, set[str]] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        said = _LINE.fullmatch(line.strip()) or _TAGGED.fullmatch(line.strip())
        if said:
            # A path drops what means nothing in it, such as `./`.
            found.setdefault(str(PurePosixPath(said["name"])), set()).add(said["checksum"].lower())
    return found


def checksums_of(names: Sequence[str], known: Mapping[str, set[str]]) -> set[str]:
    """What a list says of a file with one of these names: nothing, one checksum, or several that can't all be right.

    A list may have been made elsewhere, with other folders in its names. So where none of the names stands there as it
    is, what counts is the last part of it.
    """
    for name in names:
        if name in known:
            return known[name]
    for last in dict.fromkeys(PurePosixPath(name).name for name in names):
        found = {one for listed, sums in known.items() if PurePosixPath(listed).name == last for one in sums}
        if found:
            return found
    return set()


def dispute(listed: str, checksums: Iterable[str]) -> str:
    """What is said of a list that says more than one thing of a file."""
    return f"{listed} says more than one checksum for it: {', '.join(sorted(checksums))}"


def write_sums(file: Path, known: Mapping[str, Iterable[str]]) -> None:
    """Write such a list, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".new-") as scratch:
        new = Path(scratch) / file.name
        new.write_text("".join(f"{one}  {name}\n" for name, sums in sorted(known.items()) for one in sorted(sums)))
        new.replace(file)


def is_loopback(host: str | None) -> bool:
    """Whether a host's name in a URL means this machine: then nobody is on the way."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


class _Sums:
    """The SHA256SUMS of a source, each read once: at its root, and beside the file.

    Args:
        read: the text at a place; None if nothing is there.
        shown: a place as a person would type it.
    """

    def __init__(self, read: Callable[[str], str | None], shown: Callable[[str], str]) -> None:
        self._read, self._shown = read, shown
        self._known: dict[str, dict[str, set[str]] | None] = {}

    def of(self, artifact: Artifact, place: str) -> Word:
        """`place` is relative to the root of the source."""
        silent = []
        for at in dict.fromkeys([str(PurePosixPath(place).parent), "."]):
            where = SUMS if at == "." else f"{at}/{SUMS}"
            known = self._list(where)
            if known is None:
                continue
            said = checksums_of([str(PurePosixPath(place).relative_to(at)), *artifact.names], known)
            if len(said) > 1:
                return Word(None, dispute(self._shown(where), said), disputed=True)
            if said:
                return Word(next(iter(said)))
            silent.append(self._shown(where))
        return Word(None, "".join(f"; {where} was read, and does not name it" for where in silent))

    def _list(self, where: str) -> dict[str, set[str]] | None:
        if where not in self._known:
            text = self._read(where)
            self._known[where] = None if text is None else parse_sums(text)
        return self._known[where]


class Directory:
    """Files on this machine."""

    forgeable = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sums = _Sums(self._text, lambda place: str(folder / place))

    @property
    def name(self) -> str:
        """The path."""
        return str(self._folder)

    def places(self, artifact: Artifact) -> tuple[str, ...]:
        """Below the folder."""
        return tuple(str(self._folder / place) for place in artifact.places)

    def find(self, artifact: Artifact) -> str | None:
        """As it is called, or as a program may have saved it that took the name from a URL."""
        if not self._folder.is_dir():
            raise InputError("software.mirror is no directory", where=self.name, hint="Mend it in cluster.yml")
        spelled = [name for place in artifact.places for name in (place, quote(place))]
        return next((place for place in spelled if (self._folder / place).is_file()), None)

    def sum_of(self, artifact: Artifact, place: str) -> Word:
        """Of SHA256SUMS in the folder, or beside the file."""
        return self._sums.of(artifact, place)

    @contextmanager
    def reading(self, place: str) -> Iterator[tuple[IO[bytes], int | None]]:
        """Open the file."""
        try:
            stream = (self._folder / place).open("rb")
        except OSError as error:
            raise InputError(f"can't read it: {error.strerror}", where=str(self._folder / place)) from error
        with stream:
            yield stream, (self._folder / place).stat().st_size

    def _text(self, place: str) -> str | None:
        try:
            return (self._folder / place).read_text(encoding="utf-8", errors="replace")[:_SUMS_LIMIT]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"can't read it: {error.strerror}", where=str(self._folder / place)) from error


class Web:
    """A mirror by HTTP or HTTPS."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise InputError("software.mirror must not have a name or a password in it", hint="Mend it in cluster.yml")
        self._url = url.rstrip("/")
        self._forgeable = parts.scheme == "http" and not is_loopback(parts.hostname)
        self._http = _Http(("http", "https") if parts.scheme == "http" else ("https",))
        self._sums = _Sums(self._text, self._at)

    @property
    def name(self) -> str:
        """The URL."""
        return self._url

    @property
    def forgeable(self) -> bool:
        """By plain http, unless it is this machine."""
        return self._forgeable

    def places(self, artifact: Artifact) -> tuple[str, ...]:
        """Below the URL."""
        return tuple(self._at(place) for place in artifact.places)

    def find(self, artifact: Artifact) -> str | None:
        """Ask for each place in turn."""
        return next((place for place in artifact.places if self._http.has(self._at(place))), None)

    def sum_of(self, artifact: Artifact, place: str) -> Word:
        """Of SHA256SUMS at the URL, or beside the file."""
        return self._sums.of(artifact, place)

    @contextmanager
    def reading(self, place: str) -> Iterator[tuple[IO[bytes], int | None]]:
        """GET it."""
        with self._http.opened("GET", self._at(place)) as answer:
            yield answer, _length(answer.headers)

    def _at(self, place: str) -> str:
        # Some servers take a plus sign for a blank.
        return f"{self._url}/{quote(place)}"

    def _text(self, place: str) -> str | None:
        try:
            with self._http.opened("GET", self._at(place)) as answer:
                data: bytes = answer.read(_SUMS_LIMIT)
                return data.decode(errors="replace")
        except urllib.error.HTTPError:
            return None


class Pages:
    """The projects' own pages, by HTTPS alone. They have no SHA256SUMS that we would know of."""

    name = "the projects' own pages"
    forgeable = False

    def __init__(self) -> None:
        self._http = _Http(("https",))

    def places(self, artifact: Artifact) -> tuple[str, ...]:
        """The public URL."""
        return (artifact.url,)

    def find(self, artifact: Artifact) -> str | None:
        """Ask for it."""
        return artifact.url if self._http.has(artifact.url) else None

    def sum_of(self, artifact: Artifact, place: str) -> Word:
        """No word."""
        del artifact, place
        return SILENT

    @contextmanager
    def reading(self, place: str) -> Iterator[tuple[IO[bytes], int | None]]:
        """GET it."""
        with self._http.opened("GET", place) as answer:
            yield answer, _length(answer.headers)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Few, and never to a protocol that says less about who answers."""

    max_repeats = max_redirections = _REDIRECTS

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._schemes = schemes

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in self._schemes:
            raise EnvironmentFault(f"it leads to {urlsplit(newurl).scheme}, which is not asked", where=req.full_url)
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None:
            made.method = req.method  # the standard library makes a GET of a HEAD
        return made


class _Http:
    """HTTP with patience: passing faults are tried again, a lasting one is an EnvironmentFault."""

    def __init__(self, schemes: tuple[str, ...]) -> None:
        self._opener = urllib.request.build_opener(_Redirects(schemes))

    def has(self, url: str) -> bool:
        """Whether something is there; the answer's body stays away."""
        for method in ("HEAD", "GET"):
            try:
                with self.opened(method, url):
                    return True
            except urllib.error.HTTPError as error:
                if method == "GET" or error.code not in _NO_HEAD:
                    return False
        return False

    @contextmanager
    def opened(self, method: str, url: str) -> Iterator[Any]:
        """The answer to a request.

        Raises:
            HTTPError: it is not there.
            EnvironmentFault: no answer, or one that says that something is broken.
        """
        with self._patiently(method, url) as answer:
            yield answer

    def _patiently(self, method: str, url: str) -> Any:
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "gpucluster"})  # noqa: S310
        for pause in (*PAUSES, None):
            try:
                return self._opener.open(request, timeout=SILENCE[method])
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in _NOT_THERE or (method == "HEAD" and error.code in _NO_HEAD):
                    raise
                why, passing = f"it answered {error.code} {error.reason}", error.code in _PASSING
            except (OSError, http.client.HTTPException) as error:
                why, passing = f"no answer: {getattr(error, 'reason', error)}", True
            except ValueError as error:
                raise InputError(f"this is no URL: {error}", where=url) from error
            if pause is None or not passing:
                break
            time.sleep(pause)
        raise EnvironmentFault(f"a release can't be fetched: {why}", where=unquote(url), hint=_HINT)


def _length(headers: Message) -> int | None:
    said = headers.get("Content-Length", "")
    return int(said) if said.isdigit() else None
