"""Sections `containers`, `nvidia` and `software`: what is installed, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from gpucluster.spec.sections.fields import (
    BRANCH_PATTERN,
    FINGERPRINT_PATTERN,
    PYTHON_PATTERN,
    TIMEZONE_PATTERN,
    URL_PATTERN,
    FileName,
    ImageName,
    KernelModule,
    NoProxy,
    Resolved,
    Sha256,
    SpecPart,
    Version,
    located,
)

#: The systems that hosts may have, by the names of their files in ansible/vars/os (`systems.matrix`).
SystemName = Literal["Debian-12", "Debian-13", "OracleLinux-8", "OracleLinux-9", "Ubuntu-22", "Ubuntu-24"]
Runtime = Literal["enroot", "docker", "containerd"]
#: A mirror with one of these prefixes is a URL; any other is a directory.
REMOTE = ("http://", "https://")


class Repository(SpecPart):
    """A package repository, and the key that signs its packages."""

    url: str = Field(
        pattern=URL_PATTERN,
        max_length=1024,
        description="URL. For dnf `$basearch` and `$releasever` may be in it; for apt it is that of a flat repository.",
        examples=["https://mirror.example/docker/9/$basearch"],
    )
    key_url: str = Field(
        pattern=URL_PATTERN,
        max_length=1024,
        description="URL of its public key.",
        examples=["https://mirror.example/docker/gpg"],
    )
    key_fingerprint: str = Field(
        pattern=FINGERPRINT_PATTERN,
        description="Fingerprint of that key: 40 hexadecimal digits. Another key is refused.",
        examples=["060A61C51B558A7F742B77AAC52FEB6B621E9F35"],
    )


class SystemRepository(Repository):
    """A repository for the hosts with one system."""

    system: SystemName = Field(description="The operating system of these hosts.")


class Containers(SpecPart):
    """Container runtimes on the nodes."""

    runtimes: tuple[Runtime, ...] = Field(
        default=(),
        description="Any of `enroot` (with Pyxis, for Slurm jobs), `docker`, `containerd` (nerdctl, rootless).",
        examples=[["enroot"]],
    )
    compression: Literal["zstd", "lzo", "none"] = Field(
        default="zstd",
        description="Compression of Enroot's squashfs images. Importing 400 MB took 3 s with `zstd`, 36 s with `lzo` "
        "and 1.7 s with `none`, which needs the most space.",
    )
    container_scope: Literal["job", "global"] = Field(
        default="job",
        description="Lifetime of a named container: `job` removes it on every node after its job, `global` keeps it.",
    )
    squashfuse: bool = Field(
        default=True,
        description="Whether job steps mount an image, where all nodes can do so, instead of unpacking it first: 0.3 s "
        "instead of 3 s.",
    )
    pull: tuple[ImageName, ...] = Field(
        default=(),
        max_length=100,
        description="Images that nodes with `docker` or `containerd` pull in advance.",
        examples=[["registry.example/horovod:0.28.1"]],
    )
    docker_repository: Repository | None = Field(
        default=None,
        description="Repository with Docker's packages for nodes with Oracle Linux, which has none of its own. `null`: "
        "download.docker.com. Debian and Ubuntu have a package.",
    )


class Nvidia(SpecPart):
    """The NVIDIA driver and its services. No effect on a host without an NVIDIA GPU."""

    driver: Literal["keep", "install"] = Field(
        default="keep", description="`keep`: the driver of the image. `install`: that of `driver_branch`."
    )
    driver_branch: str = Field(
        default="580", pattern=BRANCH_PATTERN, description="Branch of the driver that `install` installs."
    )
    replace_driver: bool = Field(
        default=False,
        description="Whether `install` may replace a driver that is installed. No job may run on the node then.",
    )
    dcgm: bool = Field(default=True, description="Whether the Data Center GPU Manager runs.")
    repositories: tuple[SystemRepository, ...] = Field(
        default=(),
        max_length=10,
        description="Repositories with NVIDIA's packages, one for each system of hosts with GPUs. For a system without "
        "one, the repositories of the image are used.",
    )


class Software(SpecPart):
    """Software and settings of every machine."""

    timezone: str = Field(default="UTC", pattern=TIMEZONE_PATTERN, description="Time zone.", examples=["Europe/Berlin"])
    wheels: FileName | None = Field(
        default=None,
        description="Directory with the Python packages (wheels) that the controller of elastic pools needs, for "
        "networks without a package index; relative to this file. `null`: they are downloaded once.",
        examples=["wheels"],
    )
    controller_python: str | None = Field(
        default=None,
        pattern=PYTHON_PATTERN,
        description="Version of Python on the controller of elastic pools, 3.11 or newer. `null`: that of its image, "
        "if it is known.",
        examples=["3.12"],
    )
    mirror: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Where release files (Enroot, Pyxis, nerdctl) come from: a directory, relative to this file, or an "
        "http(s) URL. `null`: the release pages of their projects.",
        examples=["mirror"],
    )
    versions: dict[str, Version] = Field(
        default_factory=dict,
        max_length=20,
        description="Versions of releases, such as `enroot: 4.1.2`, instead of those that gpucluster pins.",
        examples=[{"enroot": "4.1.2"}],
    )
    checksums: dict[str, Sha256] = Field(
        default_factory=dict,
        max_length=200,
        description="SHA-256 checksums of release files; they override those that gpucluster pins.",
        examples=[{"pyxis-0.24.0.tar.gz": "0" * 64}],
    )
    trusted_ca_files: tuple[FileName, ...] = Field(
        default=(),
        max_length=20,
        description="Files with certificates (PEM) of CAs that every host trusts, relative to this "
        "file: of a private registry, a mirror of packages, a proxy.",
        examples=[["site-ca.pem"]],
    )
    proxy: str | None = Field(
        default=None,
        min_length=1,
        max_length=255,
        description="URL of an HTTP proxy through which hosts reach the internet: the package manager, Enroot, Docker, "
        "users' programs. `null`: none.",
        examples=["http://proxy.example:3128"],
    )
    no_proxy: tuple[NoProxy, ...] = Field(
        default=(),
        max_length=50,
        description="Hosts, domains (`.example`) and networks that are reached without `proxy`. The cluster's own "
        "hosts and network always are.",
        examples=[[".corp.example"]],
    )
    denied_modules: tuple[KernelModule, ...] = Field(
        default=(),
        max_length=50,
        description="Kernel modules that no host loads, and that are unloaded where they are not in use: for the time "
        "between an advisory and a fixed kernel ([exposure](../how-to/exposure.md)).",
        examples=[["algif_aead"]],
    )
    _directory: Path | None = PrivateAttr(default=None)
    _certificates: Mapping[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        """Take the directory of the file from the validation context."""
        if isinstance(context, Resolved):
            self._directory = context.directory
            self._certificates = context.certificates

    @property
    def trusted_certificates(self) -> tuple[str, ...]:
        """The certificates (PEM) in `trusted_ca_files`, each once."""
        return tuple(dict.fromkeys(each for name in self.trusted_ca_files for each in self._certificates.get(name, ())))

    @property
    def wheels_directory(self) -> Path | None:
        """The absolute path of `wheels`; None if it is not set."""
        return None if self.wheels is None else located(self.wheels, self._directory or Path()).absolute()

    @property
    def mirror_location(self) -> str | None:
        """The mirror as a URL or an absolute path; None if it is not set."""
        if self.mirror is None or self.mirror.startswith(REMOTE):
            return self.mirror
        return str(located(self.mirror, self._directory or Path()).absolute())
