"""Sections that say what is installed: container runtimes, the GPUs' driver, and where their releases come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from gpucluster.spec.fields import (
    BRANCH_PATTERN,
    PYTHON_PATTERN,
    TIMEZONE_PATTERN,
    FileName,
    ImageName,
    Part,
    Resolved,
    Sha256,
    Version,
    located,
)

Runtime = Literal["enroot", "docker", "containerd"]
#: A mirror that is reached by http; everything else is a directory.
REMOTE = ("http://", "https://")


class Containers(Part):
    """Container runtimes on the nodes."""

    runtimes: tuple[Runtime, ...] = Field(
        default=(),
        description="Any of `enroot` (with Pyxis, for Slurm's jobs), `docker`, `containerd` (nerdctl, without root).",
        examples=[["enroot"]],
    )
    compression: Literal["zstd", "lzo", "none"] = Field(
        default="zstd",
        description="Of the squashfs images that Enroot makes. Importing 400 MB took 3 s with `zstd`, 36 s with `lzo` "
        "and 1.7 s with `none`, which needs the most space.",
    )
    container_scope: Literal["job", "global"] = Field(
        default="job",
        description="How long a named container lives: `job` removes it on every node when its job ends, `global` "
        "leaves it.",
    )
    squashfuse: bool = Field(
        default=True,
        description="Whether steps mount an image where all nodes can, instead of unpacking it first: 0.3 s instead of "
        "3.",
    )
    pull: tuple[ImageName, ...] = Field(
        default=(),
        max_length=100,
        description="Images that nodes with `docker` or `containerd` have before anybody asks for them.",
        examples=[["registry.example/horovod:0.28.1"]],
    )


class Nvidia(Part):
    """The GPUs' driver and what belongs to it. Without effect on a host without an NVIDIA GPU."""

    driver: Literal["keep", "install"] = Field(
        default="keep", description="`keep`: the driver that the image brought. `install`: that of `driver_branch`."
    )
    driver_branch: str = Field(
        default="580", pattern=BRANCH_PATTERN, description="Branch of the driver that `install` installs."
    )
    replace_driver: bool = Field(
        default=False,
        description="Whether `install` may replace a driver that is there. Jobs on the node must be over.",
    )
    dcgm: bool = Field(default=True, description="Whether the Data Center GPU Manager runs.")


class Software(Part):
    """What is on every machine."""

    timezone: str = Field(default="UTC", pattern=TIMEZONE_PATTERN, description="Time zone.", examples=["Europe/Berlin"])
    wheels: FileName | None = Field(
        default=None,
        description="Directory with the Python packages (wheels) that the controller of elastic pools needs, for "
        "places without a package index; relative to this file. `null`: they are downloaded, once.",
        examples=["wheels"],
    )
    controller_python: str | None = Field(
        default=None,
        pattern=PYTHON_PATTERN,
        description="Version of Python on the controller of elastic pools, 3.11 or newer. `null`: that of its image, "
        "where it is known.",
        examples=["3.12"],
    )
    mirror: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Where release files (Enroot, Pyxis, nerdctl) come from: a directory, relative to this file, or an "
        "http(s) URL. `null`: their projects' own pages.",
        examples=["mirror"],
    )
    versions: dict[str, Version] = Field(
        default_factory=dict,
        max_length=20,
        description="Version by release, such as `enroot: 4.1.2`, instead of the one that gpucluster names.",
        examples=[{"enroot": "4.1.2"}],
    )
    checksums: dict[str, Sha256] = Field(
        default_factory=dict,
        max_length=200,
        description="SHA-256 by name of a release file, over what gpucluster knows.",
        examples=[{"pyxis-0.24.0.tar.gz": "0" * 64}],
    )
    _directory: Path | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Remember where the file lies."""
        if isinstance(context, Resolved):
            self._directory = context.directory

    @property
    def wheels_directory(self) -> Path | None:
        """Where `wheels` is; None if it was not said."""
        return None if self.wheels is None else located(self.wheels, self._directory or Path()).absolute()

    @property
    def mirror_location(self) -> str | None:
        """The mirror as a URL or an absolute path; None if there is none."""
        if self.mirror is None or self.mirror.startswith(REMOTE):
            return self.mirror
        return str(located(self.mirror, self._directory or Path()).absolute())
