"""The images that a cluster's own software needs, read once from images.toml, and how an archive of them is made."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict


class Chart(BaseModel):
    """A Helm chart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    version: str
    repository: str


class Software(BaseModel):
    """One program that runs in the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str
    tag: str
    source: str
    chart: Chart | None = None

    @property
    def reference(self) -> str:
        """The name by which a pod asks for it."""
        return f"{self.image}:{self.tag}"


@lru_cache(maxsize=1)
def software() -> Mapping[str, Software]:
    """Every entry of images.toml by its name."""
    text = resources.files("gpucluster.kubernetes").joinpath("images.toml").read_text(encoding="utf-8")
    return MappingProxyType({name: Software.model_validate(facts) for name, facts in tomllib.loads(text).items()})


def reference(name: str) -> str:
    """The image of an entry of images.toml, with its tag."""
    return software()[name].reference


def archive_commands(images: Iterable[str], archive: str, architecture: str) -> list[str]:
    """The commands that make an archive of images on a machine that reaches their registries.

    podman's docker-archive keeps the whole name of each image, by which `ctr images import` registers it.

    Args:
        archive: the file, in the folder of the mirror.
        architecture: of the hosts, x86_64 or aarch64.
    """
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[architecture]
    every = sorted(set(images))
    save = ["podman", "save", "--multi-image-archive", "--format=docker-archive", f"--output={archive}", *every]
    return [
        *(shlex.join(["podman", "pull", f"--platform=linux/{machine}", image]) for image in every),
        shlex.join(save),
    ]
