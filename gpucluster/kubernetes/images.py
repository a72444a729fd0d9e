"""The images that a cluster's own software needs, read once from images.toml, and how an archive of them is made."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

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


def archive_script(images: Iterable[str], release: str, architecture: str, *, calico: bool) -> str:
    """The shell script that makes the archive of images on a machine that reaches their registries.

    podman's docker-archive keeps the whole name of each image, by which `ctr images import` registers it.

    Args:
        images: those of the cluster's own software, beside those of kubeadm and of the network of pods.
        architecture: of the hosts, x86_64 or aarch64.
        calico: whether the folder has calico's manifest, which names its images.
    """
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[architecture]
    archive = f"kubernetes-images-{release}-{architecture}.tar"
    lines = [
        f"kubeadm config images list --kubernetes-version {release} > images",
        *(["awk '$1 == \"image:\" {print $2}' calico-*.yaml | sort -u >> images"] if calico else []),
        *(f"echo {shlex.quote(image)} >> images" for image in sorted(set(images))),
        f"xargs -n 1 podman pull --platform=linux/{machine} < images",
        f"podman save --multi-image-archive --format=docker-archive --output={archive} $(cat images)",
        f"sha256sum {archive} >> SHA256SUMS",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class OperatorChart:
    """A chart that an administrator installs.

    Args:
        command: what installs it, from the folder with its file of values, NAME.yaml.
        values: what that file has.
    """

    name: str
    command: str
    values: Mapping[str, Any]


def operator_chart(name: str, namespace: str, values: Mapping[str, Any]) -> OperatorChart:
    """The chart of an entry of images.toml that has one.

    Args:
        namespace: where it is installed.
    """
    chart = software()[name].chart
    assert chart is not None
    words = ["helm", "upgrade", "--install", chart.name, chart.name, f"--repo={chart.repository}"]
    words += [f"--version={chart.version}", f"--namespace={namespace}", "--create-namespace", f"--values={name}.yaml"]
    return OperatorChart(name, shlex.join(words), values)
