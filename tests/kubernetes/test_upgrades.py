"""Steps from one release of Kubernetes to another."""

from __future__ import annotations

import pytest

from gpucluster.kubernetes import upgrades
from gpucluster.kubernetes.upgrades import KubernetesRelease, UpgradeRefusal, release_of


def _plan(server: str, kubelets: dict[str, str], wanted: str) -> list[str] | UpgradeRefusal:
    of = {name: release_of(text) or KubernetesRelease(0, 0) for name, text in kubelets.items()}
    found = upgrades.plan(
        release_of(server) or KubernetesRelease(0, 0), of, release_of(wanted) or KubernetesRelease(0, 0)
    )
    return found if isinstance(found, UpgradeRefusal) else [str(step) for step in found]


@pytest.mark.parametrize(
    ("text", "release"),
    [("v1.20.2", (20, 2)), ("1.34.10", (34, 10)), ("v1.30.1-oke.1", (30, 1)), ("", None), ("v2.0.0", None)],
)
def test_releases(text: str, release: tuple[int, int] | None) -> None:
    assert release_of(text) == (KubernetesRelease(*release) if release else None)


@pytest.mark.parametrize(
    ("server", "kubelet", "allowed"),
    [
        ("1.27.1", "1.25.9", True), ("1.27.1", "1.24.9", False), ("1.28.0", "1.25.0", True),
        ("1.28.0", "1.24.0", False), ("1.30.0", "1.31.0", False), ("1.30.0", "1.30.5", True),
    ],
)  # fmt: skip
def test_how_far_a_kubelet_may_be_behind(server: str, kubelet: str, allowed: bool) -> None:
    fault = upgrades.skew_fault(
        release_of(server) or KubernetesRelease(0, 0), release_of(kubelet) or KubernetesRelease(0, 0)
    )
    assert (fault == "") is allowed
    assert not upgrades.faults(release_of("1.30.0") or KubernetesRelease(0, 0), {"n1": KubernetesRelease(30, 0)})


def test_the_control_plane_is_first_then_node_by_node() -> None:
    assert _plan("1.33.1", {"b": "1.33.1", "a": "1.33.1"}, "1.34.2") == [
        "control plane: 1.33.1 to 1.34.2", "a: 1.33.1 to 1.34.2", "b: 1.33.1 to 1.34.2",
    ]  # fmt: skip


def test_the_controller_is_the_first_of_the_nodes() -> None:
    old, new = KubernetesRelease(33, 1), KubernetesRelease(34, 0)
    found = upgrades.plan(old, {"a": old, "c": old}, new, first=["c"])
    assert not isinstance(found, UpgradeRefusal)
    assert [step.host for step in found] == ["", "c", "a"]


def test_an_interrupted_upgrade_goes_on_with_what_is_left() -> None:
    assert _plan("1.34.2", {"a": "1.34.2", "b": "1.33.1"}, "1.34.2") == ["b: 1.33.1 to 1.34.2"]
    assert _plan("1.34.2", {"a": "1.34.2"}, "1.34.2") == []


def test_a_node_that_the_new_control_plane_would_not_take_is_upgraded_before() -> None:
    assert _plan("1.26.4", {"old": "1.24.1", "new": "1.26.4"}, "1.27.3") == [
        "old: 1.24.1 to 1.26.4", "control plane: 1.26.4 to 1.27.3", "new: 1.26.4 to 1.27.3", "old: 1.26.4 to 1.27.3",
    ]  # fmt: skip
    assert _plan("1.27.3", {"old": "1.25.1"}, "1.28.0") == [
        "control plane: 1.27.3 to 1.28.0", "old: 1.25.1 to 1.28.0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("server", "kubelets", "wanted", "message", "hint"),
    [
        ("1.34.2", {}, "1.33.9", "does not go back to 1.33.9", "backup"),
        ("1.34.2", {}, "1.34.1", "does not go back", "backup"),
        ("1.30.1", {}, "1.33.0", "by way of 1.31, 1.32", "--to 1.31.N"),
        ("1.33.1", {"n1": "1.35.0"}, "1.34.0", "kubelet of n1 is 1.35.0, newer than 1.34.0", "gpucluster replace n1"),
    ],
)
def test_what_is_refused(server: str, kubelets: dict[str, str], wanted: str, message: str, hint: str) -> None:
    found = _plan(server, kubelets, wanted)
    assert isinstance(found, UpgradeRefusal)
    assert message in found.message
    assert hint in found.hint
