"""What is known against the versions that hosts run. Pure: the caller passes the day."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any

from gpucluster.advisories.table import Advisory, advisories
from gpucluster.advisories.versions import is_older, of_project
from gpucluster.slurm.releases import RELEASES, release_of
from gpucluster.text import count, printable

_SLURM = "slurm"


@dataclass(frozen=True)
class InstalledVersion:
    """A version as a host reports it.

    Args:
        product: see `table.PRODUCTS`.
        version: of the program, or of the package with epoch and revision.
        package: the distribution's package that it is from; empty for one of the project itself, or built from it.
    """

    product: str
    version: str
    package: str = ""


class Standing(StrEnum):
    """How sure a finding is.

    KNOWN: the version has it. ASK: the project's version has it, and a distribution has changed its package: only the
    distribution knows.
    """

    KNOWN = "known"
    ASK = "ask"


@dataclass(frozen=True)
class KnownFault:
    """What is known against one version.

    Args:
        names: the numbers of the vulnerabilities; empty where the project's support has ended.
        what: in a few words.
        published: the month of the advisory, or that in which the support ended.
        severity: as the source rates it; empty if it rates none.
        fixed: the first version of the same line, or the first package, without it; empty if none is known.
        action: what to do.
        source: the page of it.
    """

    product: str
    version: str
    package: str
    standing: Standing
    names: tuple[str, ...]
    what: str
    published: str
    severity: str
    fixed: str
    action: str
    source: str

    @property
    def title(self) -> str:
        """The first number and how many others there are, or that the support has ended."""
        if not self.names:
            return "end of support"
        others = len(self.names) - 1
        return f"{self.names[0]} and {count(others, 'other')}" if others else self.names[0]


@dataclass(frozen=True)
class HostVersions:
    """What one host runs.

    Args:
        system: the distribution of its packages, such as debian-12; empty where it is not known.
        denied: kernel modules that it does not load.
    """

    system: str
    installed: Sequence[InstalledVersion]
    denied: frozenset[str] = frozenset()

    def faults(self, today: date) -> Iterator[KnownFault]:
        """What is known against it, version by version. Support ends with a month."""
        for each in self.installed:
            yield from faults(each, self.system, today, self.denied)


def host_versions(answer: Any) -> HostVersions:
    """What a host has said: the JSON object of `gpucluster-agent versions`.

    Raises:
        ValueError: it has another form.
    """
    try:
        rows = [[printable(str(row[key])) for key in ("product", "version", "package")] for row in answer["installed"]]
        denied = frozenset(str(name) for name in answer.get("denied", ()))
        return HostVersions(printable(str(answer["system"])), [InstalledVersion(*row) for row in rows], denied)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"this is not a list of versions: {error}") from None


def evaluate(hosts: Mapping[str, HostVersions], today: date) -> dict[str, tuple[KnownFault, ...]]:
    """What is known against each host, what is sure first; nothing for a host without findings.

    Args:
        today: support ends with a month.
    """
    return {
        name: tuple(
            sorted(
                host.faults(today),
                key=lambda fault: fault.standing is Standing.ASK,
            )
        )
        for name, host in hosts.items()
    }


def faults(installed: InstalledVersion, system: str, today: date, denied: Collection[str] = ()) -> Iterator[KnownFault]:
    """What is known against one version, the newest first. Nothing of a version that can't be read."""
    own = of_project(installed.version)
    if not own:
        return
    if installed.product == _SLURM and not installed.package:
        yield from _ended(installed, own, today)
    for advisory in advisories(installed.product):
        if not advisory.concerns(own) or (advisory.modules and set(advisory.modules) <= set(denied)):
            continue
        patched = advisory.packages.get(system, "") if installed.package else ""
        if patched and not is_older(installed.version, patched):
            continue
        yield _fault(advisory, installed, own, patched)


def warnings(product: str, version: str, today: date) -> tuple[str, ...]:
    """What is known of a version that the project has published, and what to do: one sentence for each.

    Args:
        version: such as 25.11.7. "" is one that is not known, such as that of a distribution: it has none.
    """
    return tuple(sentence(fault) for fault in faults(InstalledVersion(product, version), "", today))


def sentence(fault: KnownFault) -> str:
    """A finding with what to do, for people."""
    name = f"{_TITLES.get(fault.product, fault.product)} {fault.version}"
    if not fault.names:
        return f"{name}: {fault.what}. {fault.action}"
    rated = f", {fault.severity}" if fault.severity else ""
    has = "may have" if fault.standing is Standing.ASK else "has"
    begin = f"{name} {has} known vulnerabilities of {fault.published} ({fault.title}{rated}): {fault.what}"
    return f"{begin}. {fault.action}"


_TITLES = {
    _SLURM: "Slurm",
    "enroot": "Enroot",
    "pyxis": "Pyxis",
    "nvidia-container-toolkit": "NVIDIA's container toolkit",
    "nvidia-driver": "NVIDIA's driver",
    "kubernetes": "Kubernetes",
    "kernel": "The kernel",
}
#: Products whose version cluster.yml decides, and its key.
_KEYS = {
    _SLURM: "software: {{versions: {{slurm: {fixed}}}}}",
    "enroot": "software: {{versions: {{enroot: {fixed}}}}}",
    "pyxis": "software: {{versions: {{pyxis: {fixed}}}}}",
    "nvidia-container-toolkit": "software: {{versions: {{nvidia-container-toolkit: {fixed}}}}}",
    "kubernetes": 'kubernetes: {{release: "{fixed}"}}',
}


def _ended(installed: InstalledVersion, own: str, today: date) -> Iterator[KnownFault]:
    release = RELEASES.get(release_of(own.partition("~")[0]))
    if release is None or f"{today:%Y-%m}" <= release.ends:
        return
    yield KnownFault(
        product=_SLURM,
        version=installed.version,
        package="",
        standing=Standing.KNOWN,
        names=(),
        what=f"SchedMD's support of {release.number} ended in {release.ends}: what is found from now on is not fixed",
        published=release.ends,
        severity="",
        fixed="",
        action="Choose a newer `slurm.release`, then: gpucluster slurm upgrade",
        source="https://slurm.schedmd.com/upgrades.html",
    )


def _fault(advisory: Advisory, installed: InstalledVersion, own: str, patched: str) -> KnownFault:
    asks = bool(installed.package and not patched)
    fixed = patched or advisory.fixed_for(own)
    if asks:
        action = f"Ask the distribution whether {installed.package} {installed.version} has the fix"
    elif patched:
        action = f"Install {installed.package} {patched} or later"
    else:
        action = _install(advisory, fixed, own)
    return KnownFault(
        product=advisory.product,
        version=installed.version,
        package=installed.package,
        standing=Standing.ASK if asks else Standing.KNOWN,
        names=advisory.names,
        what=advisory.what,
        published=advisory.published,
        severity=advisory.severity,
        fixed=fixed,
        action=f"{action}. {advisory.action}" if advisory.action else action,
        source=advisory.source,
    )


def _install(advisory: Advisory, fixed: str, own: str) -> str:
    """What to do about a version of the project itself."""
    key = _KEYS.get(advisory.product, "")
    if advisory.product == _SLURM:
        if fixed:
            return f"Set `{key.format(fixed=fixed)}`, which has none of them, or a newer `slurm.release`"
        return f"{release_of(own)} gets no fix: choose a newer `slurm.release`"
    if not fixed:
        newer = next(each for each in advisory.fixed.values() if is_older(own, each))
        return f"No fixed version of this release line is known: install {newer} or later"
    return f"Set `{key.format(fixed=fixed)}` or later" if key else f"Install {fixed} or later"
