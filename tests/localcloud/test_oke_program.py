"""The base image's double of Oracle's program `oke`, without an instance: its options, and what kubelet gets."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpucluster.localcloud.image

FILE = Path(gpucluster.localcloud.image.__file__).parent / "image_files" / "rootfs" / "usr" / "bin" / "oke"
INSTANCE = {
    "id": "ocid1.instance.local..one", "displayName": "oke-c1", "hostname": "oke-c1", "shape": "VM.Standard.E5.Flex",
    "faultDomain": "FAULT-DOMAIN-1", "region": "local-1", "availabilityDomain": "local:LOCAL-1-AD-1",
}  # fmt: skip


def load_oke() -> Any:
    """The program as a module. The import system would write into the files of the image."""
    module = ModuleType("oke_program")
    exec(compile(FILE.read_text(), str(FILE), "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def oke() -> Any:
    return load_oke()


def test_a_value_that_begins_with_a_dash_belongs_to_its_option(oke: Any) -> None:
    words = ["bootstrap", "--kubelet-extra-args", "--v=2 --max-pods=9", "--ca", "LS0t", "--cluster-dns=10.0.0.10"]
    assert oke.joined(words) == [
        "bootstrap", "--kubelet-extra-args=--v=2 --max-pods=9", "--ca=LS0t", "--cluster-dns=10.0.0.10",
    ]  # fmt: skip
    assert oke.joined(["bootstrap", "--ca"]) == ["bootstrap", "--ca"], "argparse refuses it in its own words"


def test_labels_of_the_pool_and_of_the_extra_arguments_are_one_option_of_kubelet(oke: Any) -> None:
    extra = ["--node-labels=b=2,c=3", "--register-with-taints=a=b:NoSchedule"]
    given = oke.options("1.20.2", "10.0.0.7", INSTANCE, "a=1,b=1", extra)
    [labels] = [word.partition("=")[2].split(",") for word in given if word.startswith("--node-labels=")]
    assert {"a=1", "b=2", "c=3", "internal_addr=10.0.0.7", "topology.kubernetes.io/zone=LOCAL-1-AD-1"} <= set(labels)
    assert "b=1" not in labels
    assert {"--hostname-override=10.0.0.7", "--provider-id=ocid1.instance.local..one"} <= set(given)
    assert given[-1] == "--register-with-taints=a=b:NoSchedule"


@pytest.mark.parametrize(
    ("release", "present", "absent"),
    [
        ("1.20.2", "--container-runtime=remote", ""),
        ("1.26.1", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock", "--container-runtime=remote"),
        ("1.35.0", "--node-ip=10.0.0.7", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"),
    ],
)
def test_kubelet_gets_the_options_that_its_release_has(oke: Any, release: str, present: str, absent: str) -> None:
    given = oke.options(release, "10.0.0.7", INSTANCE, "", [])
    assert present in given
    assert absent not in given
