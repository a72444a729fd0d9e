"""Which release files a cluster needs, by catalogue.toml and cluster.yml. Pure: nothing here searches for files."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field

from gpucluster import shapes
from gpucluster.errors import InputError
from gpucluster.slurm.releases import release_of
from gpucluster.spec import PROVIDERS, ClusterSpec
from gpucluster.spec.defaults import systems_of
from gpucluster.text import did_you_mean

Format = Literal["deb", "rpm", "any"]
Architecture = Literal["x86_64", "aarch64", "any"]


class ChecksumOrigin(StrEnum):
    """Where the checksum of a file comes from. The values are those of the JSON output."""

    #: cluster.yml.
    CONFIGURED = "software.checksums"
    #: catalogue.toml.
    PINNED = "pinned"
    #: The lock file beside cluster.yml.
    LOCKED = "software.lock"
    UNKNOWN = "unknown"


TOOLKIT = "nvidia-container-toolkit"
SLURM = "slurm"
KUBERNETES = "kubernetes"
#: Components of which each release of Kubernetes has its own.
OF_KUBERNETES = (KUBERNETES, "kubernetes-images")
_DATASET = "dataset-"
# By container runtime. Nodes with GPUs need the toolkit as well, also those of Kubernetes.
_COMPONENTS: Mapping[str, tuple[str, ...]] = {"enroot": ("enroot", "pyxis"), "containerd": ("nerdctl",), "docker": ()}


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    page: str | None = None
    format: Format
    architecture: Architecture
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")


class _Others(BaseModel):
    """Where the one file of a version is that is not the pinned one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(pattern="^https://")
    name: str


class _Release(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    url: str | None = Field(default=None, pattern="^https://")
    checksums: str | None = Field(default=None, pattern="^https://")
    files: tuple[_File, ...] = Field(min_length=1)
    others: _Others | None = None

    def of(self, version: str) -> _Release:
        """The files of a version."""
        if version == self.version or self.others is None:
            return self
        file = self.files[0].model_copy(update={"name": self.others.name, "sha256": None})
        return self.model_copy(update={"url": self.others.url, "files": (file,)})


@dataclass(frozen=True)
class Artifact:
    """One file of a release.

    Args:
        file: its name in the store.
        url: where its project publishes it; "" where no page has it, but only a mirror.
        sha256: in lower case; None if it is not known.
        checksum: where `sha256` comes from.
        checksums_url: the list of checksums that its project publishes; None if it has none.
    """

    component: str
    version: str
    file: str
    format: Format
    architecture: Architecture
    url: str
    sha256: str | None
    checksum: ChecksumOrigin
    checksums_url: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the file may have: that in the store, and that on the project's page if it differs and states
        the version: `kubeadm` may be that of any release and architecture."""
        on_page = PurePosixPath(unquote(urlsplit(self.url).path)).name
        return tuple(dict.fromkeys([self.file, *([on_page] if self.version in on_page else [])]))

    @property
    def places(self) -> tuple[str, ...]:
        """Its possible paths in a mirror: at the root, in a folder of its component, or as on the project's page."""
        beside = [place for name in self.names for place in (name, f"{self.component}/{name}")]
        as_on_page = unquote(urlsplit(self.url).path).lstrip("/")
        return tuple(dict.fromkeys([*beside, *([as_on_page] if as_on_page else [])]))

    def to_dict(self) -> dict[str, str | None]:
        """As a JSON object."""
        return asdict(self)


def slurm_version(spec: ClusterSpec) -> str:
    """The version of Slurm that is built for a cluster; empty for that of the distribution, and without Slurm."""
    release = spec.slurm.built_release
    return spec.software.versions.get(SLURM, _releases()[f"{SLURM}-{release}"].version) if release else ""


def release_versions(spec: ClusterSpec) -> dict[str, str]:
    """The versions of what a cluster takes from releases, by component, as far as cluster.yml decides them. Without
    those of a spec that no file fits to: `needed_by` says why.
    """
    try:
        return {each.component: each.version for each in needed_by(spec, hardware_emulated=False)}
    except InputError:
        version = slurm_version(spec)
        return {SLURM: version} if version else {}


def needed(
    runtimes: Collection[str],
    architectures: Collection[str],
    *,
    gpus_present: bool,
    versions: Mapping[str, str],
    checksums: Mapping[str, str],
    slurm_release: str | None = None,
    locked: Mapping[str, str] = MappingProxyType({}),
    more: Collection[str] = (),
) -> tuple[Artifact, ...]:
    """The files that these runtimes need, and Slurm's source, in the order of catalogue.toml.

    Args:
        architectures: of the hosts: x86_64, aarch64.
        gpus_present: whether a host has an NVIDIA GPU. Containers of users and pods get it by the container toolkit.
        versions: by component; they replace the pinned ones.
        checksums: by file name; they replace the pinned ones.
        slurm_release: the release of Slurm that is built from its source; None for that of the distribution.
        locked: the checksums of the lock file, by file name; for files that have no other.
        more: further components.

    Raises:
        InputError: a version of a component that is not in the catalogue, or a version of Slurm of another release.
    """
    catalogue = _releases()
    slurm = f"{SLURM}-{slurm_release}"
    catalogue = {(SLURM if name == slurm else name): release for name, release in catalogue.items()}
    known = [name for name in catalogue if not name.startswith((f"{SLURM}-", _DATASET))]
    known += [] if slurm_release else [SLURM]
    for name in versions:
        if name not in known:
            hint = did_you_mean(name, known, most=1) or f"There are {', '.join(known)}"
            raise InputError(f"software.versions names {name}, and there is no such release", hint=hint)
    if slurm_release and release_of(versions.get(SLURM, slurm_release)) != slurm_release:
        what = f"software.versions names Slurm {versions[SLURM]}, and slurm.release is {slurm_release}"
        raise InputError(what, hint=f"Write a version of {slurm_release}, or another slurm.release")
    names = {component for runtime in runtimes for component in _COMPONENTS[runtime]}
    names |= {*more, *([SLURM] if slurm_release else [])}
    names |= {TOOLKIT} if gpus_present and (runtimes or KUBERNETES in more) else set()
    suitable = {*architectures, "any"}
    return tuple(
        artifact
        for name, release in catalogue.items()
        if name in names
        for artifact in _artifacts(name, release, versions.get(name, release.version), checksums, locked)
        if artifact.architecture in suitable
    )


def needed_by(
    spec: ClusterSpec, *, hardware_emulated: bool, locked: Mapping[str, str] = MappingProxyType({})
) -> tuple[Artifact, ...]:
    """The files that the hosts of a cluster need.

    Args:
        hardware_emulated: hosts do not have the GPUs of their shapes (the local cloud).
        locked: the checksums of the lock file, by file name.
    """
    pools = [shapes.get(pool.shape) for pool in spec.pools.values()]
    hosts = [shapes.get(machine.shape) for machine in spec.machines]
    return needed(
        spec.containers.runtimes,
        {shape.architecture for shape in hosts},
        gpus_present=not hardware_emulated and any(shape.has_nvidia_gpus for shape in pools),
        versions=_versions(spec),
        checksums=spec.software.checksums,
        slurm_release=spec.slurm.built_release,
        locked=locked,
        more=[*_of_monitoring(spec), *_of_kubernetes(spec)],
    )


def _versions(spec: ClusterSpec) -> dict[str, str]:
    """The versions of components, by name.

    Raises:
        InputError: cluster.yml sets the release of Kubernetes in a second place.
    """
    overrides = [name for name in OF_KUBERNETES if name in spec.software.versions]
    if overrides:
        what = f"software.versions names {overrides[0]}, and kubernetes.release sets the release of the cluster"
        raise InputError(what, where=str(spec.file), hint="Delete the line in software.versions")
    return {**spec.software.versions, **dict.fromkeys(OF_KUBERNETES, spec.kubernetes.release)}


def _of_kubernetes(spec: ClusterSpec) -> list[str]:
    """What a control plane on the controller and its nodes need. Oracle Linux has no package of containerd."""
    if spec.scheduler != KUBERNETES:
        return []
    bundle = ["nerdctl"] if _without_packages(spec) - {"login"} else []
    return [*OF_KUBERNETES, "cri-tools", *bundle, *(["calico"] if spec.kubernetes.has_calico else [])]


def _of_monitoring(spec: ClusterSpec) -> list[str]:
    """What monitoring needs and a distribution has no package of."""
    if not spec.monitoring.enabled:
        return []
    lacking = _without_packages(spec)
    place = "controller" if spec.monitoring.login_number is None else "login"
    on_host = ["prometheus", *(["alertmanager"] if spec.monitoring.alertmanager_file else [])]
    grafana = ["grafana"] if spec.monitoring.grafana else []
    return [*(["node_exporter"] if lacking else []), *(on_host if place in lacking else []), *grafana]


def _without_packages(spec: ClusterSpec) -> set[str]:
    """The places of hosts whose system has no packages of what is installed from releases there. An image may be of any
    system if nothing states it."""
    systems = systems_of(spec.model_dump(), PROVIDERS[spec.cloud.provider])
    return {place for place, system in systems.items() if not system or system.startswith("OracleLinux")}


def datasets() -> tuple[str, ...]:
    """The names of the data sets in the catalogue."""
    return tuple(name.removeprefix(_DATASET) for name in _releases() if name.startswith(_DATASET))


def dataset(name: str, *, checksums: Mapping[str, str], locked: Mapping[str, str] = MappingProxyType({})) -> Artifact:
    """The file of a data set.

    Args:
        checksums: by file name; they replace the pinned ones.
        locked: as for `needed`.

    Raises:
        InputError: it is not in the catalogue.
    """
    if name not in datasets():
        hint = did_you_mean(name, datasets()) or f"There are {', '.join(datasets())}; name a file of yours with --from"
        raise InputError(f"there is no data set {name} in the catalogue", hint=hint)
    component = f"{_DATASET}{name}"
    release = _releases()[component]
    return next(_artifacts(component, release, release.version, checksums, locked))


def alternatives(artifacts: Iterable[Artifact]) -> dict[tuple[str, str], dict[Format, list[Artifact]]]:
    """The files by component and architecture, and then by format. One of the formats is enough."""
    by_component: dict[tuple[str, str], dict[Format, list[Artifact]]] = {}
    for artifact in artifacts:
        formats = by_component.setdefault((artifact.component, artifact.architecture), {})
        formats.setdefault(artifact.format, []).append(artifact)
    return by_component


@lru_cache
def _releases() -> Mapping[str, _Release]:
    text = resources.files("gpucluster.artifacts").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: _Release.model_validate(table) for name, table in tomllib.loads(text).items()}


def _artifacts(
    component: str, release: _Release, version: str, checksums: Mapping[str, str], locked: Mapping[str, str]
) -> Iterator[Artifact]:
    quoted = quote(version, safe="")
    pinned_version, release = release.version, release.of(version)
    for file in release.files:
        name = file.name.format(version=version)
        sha256, origin = _checksum(
            checksums.get(name), file.sha256 if version == pinned_version else None, locked.get(name)
        )
        yield Artifact(
            component=component,
            version=version,
            file=name,
            format=file.format,
            architecture=file.architecture,
            url=(release.url or "").format(version=quoted, name=file.page or quote(name, safe="+")),
            sha256=sha256,
            checksum=origin,
            checksums_url=release.checksums and release.checksums.format(version=quoted),
        )


def _checksum(configured: str | None, pinned: str | None, locked: str | None) -> tuple[str | None, ChecksumOrigin]:
    """The checksum that counts, and where it is from."""
    if configured:
        return configured.lower(), ChecksumOrigin.CONFIGURED
    if pinned:
        return pinned, ChecksumOrigin.PINNED
    return (locked, ChecksumOrigin.LOCKED) if locked else (None, ChecksumOrigin.UNKNOWN)
