"""Where release files come from: a folder, a mirror by http, or the projects' own pages.

A source finds a file, reads its checksum from the SHA256SUMS of the source, and opens it. It decides nothing: `store`
checks the bytes.
"""

from __future__ import annotations

import ipaddress
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import quote, urlsplit

from gpucluster.artifacts.catalogue import Artifact
from gpucluster.artifacts.checksums import NO_CLAIM, ChecksumClaim, ChecksumLists
from gpucluster.artifacts.http_client import HttpClient, content_length
from gpucluster.errors import InputError

_SUMS_LIMIT = 1024 * 1024  # bytes of a SHA256SUMS that are read


class ReleaseSource(Protocol):
    """A place that has release files."""

    @property
    def name(self) -> str:
        """The folder or the URL, for messages."""

    @property
    def forgeable(self) -> bool:
        """Whether an attacker in the network could change a file and its checksum together."""

    def places(self, artifact: Artifact) -> tuple[str, ...]:
        """The places where a file may be, as a user would type them."""

    def find(self, artifact: Artifact) -> str | None:
        """The path of the file in this source; None if it does not have the file.

        Raises:
            InputError: the source does not exist.
            EnvironmentFault: it does not answer.
        """

    def claim(self, artifact: Artifact, place: str) -> ChecksumClaim:
        """The checksum that the SHA256SUMS of the source has for the file.

        Args:
            place: as `find` returned it.
        """

    def reading(self, place: str) -> Any:
        """A context manager that gives (a stream, its size in bytes or None)."""


def source(mirror: str | None) -> ReleaseSource:
    """The source of release files.

    Args:
        mirror: an absolute path, an http(s) URL, or None for the projects' own pages.

    Raises:
        InputError: the URL has a name or a password in it.
    """
    if mirror is None:
        return ProjectPages()
    return HttpMirror(mirror) if mirror.startswith(("http://", "https://")) else DirectoryMirror(Path(mirror))


def is_loopback(host: str | None) -> bool:
    """Whether the host in a URL is this machine: then nothing goes over a network."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


class DirectoryMirror:
    """A folder on this machine."""

    forgeable = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sums = ChecksumLists(self._text, lambda place: str(folder / place))

    @property
    def name(self) -> str:
        """The path."""
        return str(self._folder)

    def places(self, artifact: Artifact) -> tuple[str, ...]:
        """Below the folder."""
        return tuple(str(self._folder / place) for place in artifact.places)

    def find(self, artifact: Artifact) -> str | None:
        """By its name, or by the quoted name under which some programs save a download."""
        if not self._folder.is_dir():
            raise InputError("software.mirror is not a directory", where=self.name, hint="Fix it in cluster.yml")
        spelled = [name for place in artifact.places for name in (place, quote(place))]
        return next((place for place in spelled if (self._folder / place).is_file()), None)

    def claim(self, artifact: Artifact, place: str) -> ChecksumClaim:
        """By SHA256SUMS in the folder or beside the file."""
        return self._sums.of(artifact, place)

    @contextmanager
    def reading(self, place: str) -> Iterator[tuple[IO[bytes], int | None]]:
        """Open the file."""
        try:
            stream = (self._folder / place).open("rb")
        except OSError as error:
            raise _unreadable(self._folder / place, error) from error
        with stream:
            yield stream, (self._folder / place).stat().st_size

    def _text(self, place: str) -> str | None:
        try:
            return (self._folder / place).read_text(encoding="utf-8", errors="replace")[:_SUMS_LIMIT]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(self._folder / place, error) from error


class HttpMirror:
    """A mirror by http or https."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise InputError("software.mirror must not have a name or a password in it", hint="Fix it in cluster.yml")
        self._url = url.rstrip("/")
        self._forgeable = parts.scheme == "http" and not is_loopback(parts.hostname)
        self._http = HttpClient(("http", "https") if parts.scheme == "http" else ("https",))
        self._sums = ChecksumLists(self._text, self._at)

    @property
    def name(self) -> str:
        """The URL."""
        return self._url

    @property
    def forgeable(self) -> bool:
        """With plain http, unless it is this machine."""
        return self._forgeable

    def places(self, artifact: Artifact) -> tuple[str, ...]:
        """Below the URL."""
        return tuple(self._at(place) for place in artifact.places)

    def find(self, artifact: Artifact) -> str | None:
        """Request each place in turn."""
        return next((place for place in artifact.places if self._http.has(self._at(place))), None)

    def claim(self, artifact: Artifact, place: str) -> ChecksumClaim:
        """By SHA256SUMS at the URL or beside the file."""
        return self._sums.of(artifact, place)

    @contextmanager
    def reading(self, place: str) -> Iterator[tuple[IO[bytes], int | None]]:
        """GET it."""
        with self._http.opened("GET", self._at(place)) as answer:
            yield answer, content_length(answer.headers)

    def _at(self, place: str) -> str:
        # Some servers read a plus sign as a space.
        return f"{self._url}/{quote(place)}"

    def _text(self, place: str) -> str | None:
        return _text(self._http, self._at(place))


class ProjectPages:
    """The projects' own pages, only by https."""

    name = "the projects' own pages"
    forgeable = False

    def __init__(self) -> None:
        self._http = HttpClient(("https",))
        self._sums = ChecksumLists(lambda url: _text(self._http, url), str)

    def places(self, artifact: Artifact) -> tuple[str, ...]:
        """The public URL."""
        return (artifact.url or "no page has it",)

    def find(self, artifact: Artifact) -> str | None:
        """Request its URL."""
        return artifact.url if artifact.url and self._http.has(artifact.url) else None

    def claim(self, artifact: Artifact, place: str) -> ChecksumClaim:
        """By the list of its project, where catalogue.toml names one."""
        del place
        return NO_CLAIM if artifact.checksums_url is None else self._sums.in_list(artifact, artifact.checksums_url)

    @contextmanager
    def reading(self, place: str) -> Iterator[tuple[IO[bytes], int | None]]:
        """GET it."""
        with self._http.opened("GET", place) as answer:
            yield answer, content_length(answer.headers)


def _text(client: HttpClient, url: str) -> str | None:
    """A list of checksums; None if there is none."""
    try:
        with client.opened("GET", url) as answer:
            data: bytes = answer.read(_SUMS_LIMIT)
            return data.decode(errors="replace")
    except urllib.error.HTTPError:
        return None


def _unreadable(file: Path, error: OSError) -> InputError:
    return InputError(
        f"a file of the mirror can't be read: {error.strerror}", where=str(file), hint="Make it readable for you"
    )
