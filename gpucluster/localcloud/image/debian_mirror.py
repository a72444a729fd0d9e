"""The source of Debian's packages: the mirror, keys and proxies that apt uses on this host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpucluster import process
from gpucluster.errors import EnvironmentFault

# Names of the suites of Debian itself; Ubuntu and others have different names.
_RELEASES = frozenset({"bullseye", "bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"})
_KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.*)$")
_FIELD = re.compile(r"^(\S+?):(.*(?:\n[ \t]+.*)*)", re.MULTILINE)
# Settings of apt about the connection to the mirror; an instance does not get the others.
_APT_SETTINGS = re.compile(r"^Acquire::(https?::|Check-Valid-Until |Check-Date |Retries |ForceIPv[46] )", re.IGNORECASE)


@dataclass(frozen=True)
class AptSource:
    """One archive in apt's configuration."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str
    file: Path


@dataclass(frozen=True)
class DebianMirror:
    """The input of a bootstrap of Debian.

    Args:
        uri: the main archive.
        security_uri: the archive of security updates; None if this host has none configured.
        keyring: a file with the archive's public keys; None for apt's default.
        apt_options: lines of apt.conf.
        file: where the main archive was found.
    """

    uri: str
    security_uri: str | None
    keyring: Path | None
    apt_options: tuple[str, ...]
    file: Path

    def lines(self, suite: str) -> list[str]:
        """sources.list for a release."""
        lines = [f"deb {self.uri} {suite} main", f"deb {self.uri} {suite}-updates main"]
        return lines if self.security_uri is None else [*lines, f"deb {self.security_uri} {suite}-security main"]


def find(own: Path, apt: Path = Path("/etc/apt")) -> DebianMirror:
    """The Debian mirror of this host.

    Args:
        own: a file in the format of sources.list(5), "deb822" or one-line, that is read before apt's configuration;
            for hosts that are not Debian or have a nearer mirror.
    """
    found = [source for source in read_sources([own, *_source_files(apt)]) if "main" in source.components]
    main = next((source for source in found if _RELEASES & set(source.suites)), None)
    if main is None:
        raise EnvironmentFault(
            "no Debian mirror is configured on this host, so the base image can't be made",
            where=str(apt),
            hint=f"Write one into {own}: deb <address of a Debian mirror> trixie main",
        )
    security = next((source for source in found if any(_is_security(suite) for suite in source.suites)), None)
    return DebianMirror(
        uri=_resolve(main.uri),
        security_uri=_resolve(security.uri) if security else None,
        keyring=_keyring(main),
        apt_options=tuple(_apt_options()),
        file=main.file,
    )


def read_sources(files: list[Path]) -> Iterator[AptSource]:
    """The enabled binary archives in these files, in order; missing files are skipped."""
    for file in files:
        if file.is_file():
            text = file.read_text(errors="replace")
            yield from _deb822(text, file) if re.search(r"(?mi)^types:", text) else _one_line(text, file)


def _source_files(apt: Path) -> list[Path]:
    parts = apt / "sources.list.d"
    return [apt / "sources.list", *sorted([*parts.glob("*.sources"), *parts.glob("*.list")])]


def _deb822(text: str, file: Path) -> Iterator[AptSource]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n[ \t]*\n", "\n".join(lines)):
        fields = {key.lower(): value.split() for key, value in _FIELD.findall(stanza)}
        if "deb" not in fields.get("types", []) or fields.get("enabled", ["yes"])[0].lower() in ("no", "false", "0"):
            continue
        signed_by = " ".join(fields.get("signed-by", []))
        for uri in fields.get("uris", []):
            suites, components = fields.get("suites", []), fields.get("components", [])
            yield AptSource(uri, tuple(suites), tuple(components), signed_by, file)


def _one_line(text: str, file: Path) -> Iterator[AptSource]:
    for line in text.splitlines():
        if match := _ONE_LINE.match(line.partition("#")[0].strip()):
            options = dict(option.partition("=")[::2] for option in (match["options"] or "").split())
            signed_by = options.get("signed-by", "")
            yield AptSource(match["uri"], (match["suite"],), tuple(match["components"].split()), signed_by, file)


def _is_security(suite: str) -> bool:
    return suite.endswith("-security") and suite.removesuffix("-security") in _RELEASES


def _resolve(uri: str) -> str:
    """Replace a list of mirrors by its first entry: an instance does not have the file with the list."""
    scheme, _, path = uri.partition(":")
    if scheme != "mirror+file":
        return uri
    listing = Path("/" + path.lstrip("/"))
    lines = listing.read_text().splitlines() if listing.is_file() else []
    for line in lines:
        if line.strip() and not line.startswith("#"):
            return line.split()[0]
    raise EnvironmentFault(f"the list of mirrors {listing} is empty or missing", hint="Put a mirror's address into it")


def _keyring(source: AptSource) -> Path | None:
    candidates = [source.signed_by] if source.signed_by.startswith("/") else []
    return next((Path(file) for file in (*candidates, *_KEYRINGS) if Path(file).is_file()), None)


def _apt_options() -> list[str]:
    done = process.run(["apt-config", "dump"], check=False, timeout=30)
    return [line for line in done.stdout.splitlines() if _APT_SETTINGS.match(line)]
