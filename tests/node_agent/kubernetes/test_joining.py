"""What is found wrong with a host before it joins."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.errors import Refused
from gpucluster.node_agent.kubernetes import joining
from gpucluster.node_agent.kubernetes.joining import SOCKET, HostFacts

_GOOD = HostFacts(1000.0, 1005.0, [SOCKET], SOCKET, ["registry.k8s.io/pause:3.2"], ["registry.k8s.io/pause:3.2"])


def test_a_good_host_has_no_problem() -> None:
    assert joining.judged("n1", _GOOD) == []
    assert joining.judged("n1", _GOOD._replace(configured="")) == []


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"clock": 0.0}, "the clock of n1 is 1005 s behind that of the controller", "chronyc tracking"),
        ({"clock": 2000.0}, "the clock of n1 is 995 s ahead of that of the controller", "gpucluster apply"),
        ({"configured": "/var/run/crio/crio.sock"}, "configured for another runtime (/var/run/crio/crio.sock)",
         "gpucluster replace n1"),
        ({"sockets": ["/var/run/crio/crio.sock"]}, "but there is CRI-O at /var/run/crio/crio.sock", "systemctl status"),
        ({"sockets": []}, f"there is no {SOCKET}", "systemctl status"),
        ({"images": []}, "1 of 1 images are missing on n1: registry.k8s.io/pause:3.2", "image archive"),
    ],
)  # fmt: skip
def test_each_fault_has_its_message_and_the_next_command(change: dict[str, object], message: str, hint: str) -> None:
    (found,) = joining.judged("n1", _GOOD._replace(**change))  # type: ignore[arg-type]
    assert message in found["message"]
    assert hint in found["hint"]


@pytest.mark.parametrize(
    ("image", "whole"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("calico/node:v3.20", "docker.io/calico/node:v3.20"),
        ("localhost/x:1", "localhost/x:1"),
        ("registry:5000/a/b", "registry:5000/a/b:latest"),
        ("quay.io/a@sha256:12", "quay.io/a@sha256:12"),
    ],
)
def test_names_of_images(image: str, whole: str) -> None:
    assert joining.normal(image) == whole


@pytest.mark.parametrize(
    ("text", "socket"),
    [
        (f'ARGS="--container-runtime=remote --container-runtime-endpoint={SOCKET}"', SOCKET),
        ('ARGS="--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock --x=y"', SOCKET),
        ("a: b\ncontainerRuntimeEndpoint: unix:///var/run/crio/crio.sock\n", "/var/run/crio/crio.sock"),
        ("a: b\n", ""),
    ],
)  # fmt: skip
def test_the_socket_that_kubelet_is_configured_for(text: str, socket: str) -> None:
    assert joining.socket_in(text) == socket


def test_what_is_asked_is_checked() -> None:
    with pytest.raises(Refused):
        joining.look({"host": "n1"})
    assert any("s behind" in each["message"] for each in joining.look({"host": "n1", "controller_clock": 9e9}))
