"""The source of a suite's packages: a mirror that the operator names, or the one that apt uses on this host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpucluster import process
from gpucluster.errors import EnvironmentFault
from gpucluster.localcloud.image.suites import SUITES, Suite

# Other names of Debian's suites in apt's configuration. By name it is a mirror of Debian, which has all suites.
_DEBIAN_NAMES = frozenset({"sid", "oldstable", "stable", "testing", "unstable"})
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
class Mirror:
    """The input of a bootstrap.

    Args:
        uri: the main archive.
        security_uri: the archive of security updates; None if none is configured.
        keyring: a file with the archive's public keys; None for apt's default.
        apt_options: lines of apt.conf.
        file: where the main archive was found.
    """

    uri: str
    security_uri: str | None
    keyring: Path | None
    apt_options: tuple[str, ...]
    file: Path

    def lines(self, suite: Suite) -> list[str]:
        """sources.list for a suite."""
        archives = [(self.uri, suite.name), (self.uri, f"{suite.name}-updates")]
        if self.security_uri is not None:
            archives.append((self.security_uri, f"{suite.name}-security"))
        return [f"deb {uri} {name} {suite.components}" for uri, name in archives]


def own_file(suite: Suite, folder: Path) -> Path:
    """The operator's file with a mirror, in the format of sources.list(5), "deb822" or one-line."""
    return folder / f"{suite.distribution.lower()}.sources"


def named_suites(suite: Suite, folder: Path) -> set[str]:
    """The suites of this distribution that the operator's own file names."""
    return {name for source in read_sources([own_file(suite, folder)]) for name in source.suites}


def find(suite: Suite, folder: Path, apt: Path = Path("/etc/apt")) -> Mirror:
    """The mirror that has a suite.

    Args:
        folder: with the operator's `debian.sources` or `ubuntu.sources`, which is read before apt's configuration: for
            hosts that have another distribution or a nearer mirror. Suites of Ubuntu come from there only.
    """
    own = own_file(suite, folder)
    debian = suite.distribution == "Debian"
    names = _names_of(suite.distribution) | (_DEBIAN_NAMES if debian else set())
    sources = list(read_sources([own, *(_source_files(apt) if debian else ())]))
    candidates = [source for source in sources if "main" in source.components]
    main = next((source for source in candidates if names & set(source.suites)), None)
    if main is None:
        where = "is configured on this host" if debian else "is named"
        raise EnvironmentFault(
            f"no mirror of {suite.distribution} {where}, so the base image of {suite.system} can't be made",
            where=str(apt if debian else own),
            hint=f"Write one into {own}: deb [signed-by=<keyring>] <address> {suite.name} {suite.components}",
        )
    security = next((source for source in candidates if any(_is_security(name, names) for name in source.suites)), None)
    return Mirror(
        uri=_resolve(main.uri),
        security_uri=_resolve(security.uri) if security else None if debian else _resolve(main.uri),
        keyring=_keyring(main, suite),
        apt_options=tuple(_apt_options()),
        file=main.file,
    )


def _names_of(distribution: str) -> set[str]:
    return {suite.name for suite in SUITES.values() if suite.distribution == distribution}


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


def _is_security(name: str, names: set[str]) -> bool:
    return name.endswith("-security") and name.removesuffix("-security") in names


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


def _keyring(source: AptSource, suite: Suite) -> Path | None:
    """The keyring that the source names, else that of the distribution's package, if it is installed here."""
    if source.signed_by.startswith("/") and source.file == own_file(suite, source.file.parent):
        if not Path(source.signed_by).is_file():
            raise EnvironmentFault(
                f"the keyring {source.signed_by} does not exist", where=str(source.file), hint="Correct Signed-By"
            )
        return Path(source.signed_by)
    installed = [f"/usr/share/keyrings/{suite.distribution.lower()}-archive-keyring.{end}" for end in ("gpg", "pgp")]
    named = [source.signed_by] if source.signed_by.startswith("/") else []
    return next((Path(file) for file in (*named, *installed) if Path(file).is_file()), None)


def _apt_options() -> list[str]:
    result = process.run(["apt-config", "dump"], check=False, timeout=30)
    return [line for line in result.stdout.splitlines() if _APT_SETTINGS.match(line)]
