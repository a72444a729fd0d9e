"""The base image's double of Oracle's program `oke`, without an instance: its options, and what kubelet gets."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gpucluster.localcloud.image
from gpucluster.errors import InputError
from gpucluster.node_agent.rules import labels
from gpucluster.systems import units
from tests.security.test_text_languages import HOSTILE, TEMPLATES

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
    words = oke.options("1.20.2", "10.0.0.7", INSTANCE, "a=1,b=1", extra)
    [labels] = [word.partition("=")[2].split(",") for word in words if word.startswith("--node-labels=")]
    assert {"a=1", "b=2", "c=3", "internal_addr=10.0.0.7", "topology.kubernetes.io/zone=LOCAL-1-AD-1"} <= set(labels)
    assert "b=1" not in labels
    assert {"--hostname-override=10.0.0.7", "--provider-id=ocid1.instance.local..one"} <= set(words)
    assert words[-1] == "--register-with-taints=a=b:NoSchedule"


@pytest.mark.parametrize(
    ("release", "present", "absent"),
    [
        ("1.20.2", "--container-runtime=remote", ""),
        ("1.26.1", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock", "--container-runtime=remote"),
        ("1.35.0", "--node-ip=10.0.0.7", "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"),
    ],
)
def test_kubelet_gets_the_options_that_its_release_has(oke: Any, release: str, present: str, absent: str) -> None:
    words = oke.options(release, "10.0.0.7", INSTANCE, "", [])
    assert present in words
    assert absent not in words


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("")
def test_an_argument_of_kubelet_is_quoted_as_in_all_units(oke: Any, text: str) -> None:
    try:
        expected = units.argument(text)
    except InputError:
        with pytest.raises(SystemExit, match="control character"):
            oke.argument(text)
    else:
        assert oke.argument(text) == expected


@pytest.mark.parametrize("text", [*HOSTILE, *TEMPLATES])
def test_a_label_is_one_that_kubelet_accepts_or_is_refused(oke: Any, text: str) -> None:
    """Those of a pool, and those that the user data give."""
    given_labels = f"good=1,a={text}"
    accepted = labels.is_label("a", text)
    for pool, extra in ((given_labels, []), ("", [f"--node-labels={given_labels}"])):
        if accepted:
            assert f"a={text}" in _labels(oke.options("1.35.0", "10.0.0.7", INSTANCE, pool, extra))
        else:
            with pytest.raises(SystemExit, match="not a label of a node"):
                oke.options("1.35.0", "10.0.0.7", INSTANCE, pool, extra)


@pytest.mark.parametrize("text", [*HOSTILE, *TEMPLATES])
def test_the_name_of_an_instance_is_not_an_option_of_kubelet(oke: Any, text: str) -> None:
    for member in ("displayName", "hostname", "shape"):
        given_words = oke.options("1.35.0", "10.0.0.7", INSTANCE | {member: text}, "", [])
        assert all(labels.is_label(*label.split("=", 1)) for label in _labels(given_words))


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("a", True), ("gpucluster.io/pool", True), ("a.b-c.d/E_f.g", True), ("x" * 63, True), ("x" * 64, False),
        ("a/" + "x" * 63, True), ("a" * 253 + "/x", True), ("a" * 254 + "/x", False), ("/x", False), ("a/", False),
        ("a//b", False), ("a/b/c", False), ("A/b", False), ("a..b/c", False), ("a_b/c", False), ("", False),
        ("-a", False), ("a-", False), ("a b", False), ("a\n", False), ("é", False),
    ],
)  # fmt: skip
def test_names_of_labels(oke: Any, name: str, accepted: bool) -> None:
    assert labels.is_label(name, "v") is accepted
    if accepted:
        assert oke.pairs(f"{name}=v") == {name: "v"}
    else:
        with pytest.raises(SystemExit):
            oke.pairs(f"{name}=v")


def _labels(words: list[str]) -> list[str]:
    [found] = [word.partition("=")[2].split(",") for word in words if word.startswith("--node-labels=")]
    return found
