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


class KubernetesSoftware(BaseModel):
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
def software() -> Mapping[str, KubernetesSoftware]:
    """Every entry of images.toml by its name."""
    text = resources.files("gpucluster.kubernetes").joinpath("images.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {name: KubernetesSoftware.model_validate(facts) for name, facts in tomllib.loads(text).items()}
    )


def reference(name: str) -> str:
    """The image of an entry of images.toml, with its tag."""
    return software()[name].reference


def archive_script(
    images: Iterable[str], release: str, architecture: str, *, calico: bool, control_plane: bool = True
) -> str:
    """The shell script that makes the archive of images, in a mirror and on a machine that reaches their registries.

    The mirror has the release's kubeadm. On a machine of another kind than the hosts one on the PATH takes its place:
    which images a release has is the same for all. podman's docker-archive keeps the whole name of each image, by which
    `ctr images import` registers it. It ends at the first failure, before there is an archive.

    Args:
        images: those of the cluster's own software, beside those of kubeadm and of the network of pods.
        architecture: of the hosts, x86_64 or aarch64.
        calico: whether the folder has calico's manifest, which names its images.
        control_plane: whether a host runs the control plane: with Kubernetes Engine none does.
    """
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[architecture]
    parts = "" if control_plane else " | grep -vE '/(etcd|kube-(apiserver|controller-manager|scheduler)):'"
    archive = f"kubernetes-images-{release}-{architecture}.tar"
    lines = [
        "set -eu",
        f"kubeadm=./kubeadm-{release}-linux-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')",
        '[ ! -f "$kubeadm" ] || chmod +x "$kubeadm"',
        '[ -f "$kubeadm" ] || kubeadm=kubeadm',
        # First into a file: a shell does not see that the first program of a pipe has failed.
        f'"$kubeadm" config images list --kubernetes-version {release} > images.all',
        f"cat images.all{parts} > images",
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
