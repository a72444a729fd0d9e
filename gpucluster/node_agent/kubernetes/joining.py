"""What is wrong with a host before kubeadm makes it a part of the cluster. kubeadm would fail late, or with words that
name no cause. Pure, but for `look`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Refused

SOCKET = "/run/containerd/containerd.sock"
#: Sockets of runtimes, the first of each line is that of the distribution's containerd.
_OTHERS = {"/var/run/crio/crio.sock": "CRI-O", "/run/crio/crio.sock": "CRI-O", "/run/cri-dockerd.sock": "cri-dockerd",
           "/run/k3s/containerd/containerd.sock": "k3s", "/var/run/dockershim.sock": "dockershim"}  # fmt: skip
#: Seconds that clocks may differ: a certificate that was just made is not valid yet on a host that is behind.
MOST_SKEW_S = 30.0


class HostFacts(NamedTuple):
    """A host before it joins.

    Attributes:
        clock: its time, in seconds since 1970.
        controller_clock: that of the controller at the same moment.
        sockets: the sockets of runtimes that exist here.
        configured: the socket that kubelet is configured for; "" if it is not yet.
        required_images: those that the release needs.
        images: those in containerd's store.
    """

    clock: float
    controller_clock: float
    sockets: Sequence[str]
    configured: str
    required_images: Sequence[str] = ()
    images: Sequence[str] = ()


def judged(host: str, facts: HostFacts) -> list[dict[str, str]]:
    """What is wrong: [{message, hint}]."""
    problems = [*_of_clock(host, facts), *_of_runtime(host, facts), *_of_images(host, facts)]
    return [{"message": message, "hint": hint} for message, hint in problems]


def _of_clock(host: str, facts: HostFacts) -> Iterable[tuple[str, str]]:
    behind = facts.controller_clock - facts.clock
    if abs(behind) > MOST_SKEW_S:
        way = "behind" if behind > 0 else "ahead of"
        yield (
            f"the clock of {host} is {abs(behind):.0f} s {way} that of the controller: certificates would not be valid",
            f"See: gpucluster ssh {host} -- chronyc tracking; then run: gpucluster apply",
        )


def _of_runtime(host: str, facts: HostFacts) -> Iterable[tuple[str, str]]:
    if facts.configured and facts.configured != SOCKET:
        yield (
            f"kubelet of {host} is configured for another runtime ({facts.configured}), not for {SOCKET}",
            f"Take the node out and let apply configure it again: gpucluster replace {host}",
        )
    if SOCKET not in facts.sockets:
        others = [f"{_OTHERS[each]} at {each}" for each in facts.sockets if each in _OTHERS]
        yield (
            f"containerd does not answer on {host}: there is no {SOCKET}"
            + (f", but there is {', '.join(others)}" if others else ""),
            f"See: gpucluster ssh {host} -- sudo systemctl status containerd",
        )


def _of_images(host: str, facts: HostFacts) -> Iterable[tuple[str, str]]:
    present = {normal(each) for each in facts.images}
    missing = [each for each in facts.required_images if normal(each) not in present]
    if missing:
        yield (
            f"{len(missing)} of {len(facts.required_images)} images are missing on {host}: {', '.join(missing)}",
            "The image archive in the mirror lacks them: add them to it, then run: gpucluster apply",
        )


def normal(image: str) -> str:
    """A name of an image with its registry, as containerd stores it: `busybox` is docker.io/library/busybox:latest."""
    name, _, digest = image.partition("@")
    first, slash, rest = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not any(sign in first for sign in ".:") and first != "localhost":
        name = f"docker.io/{first}/{rest}"
    if digest:
        return f"{name}@{digest}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def look(request: Mapping[str, Any]) -> list[dict[str, str]]:
    """What is wrong with this host.

    Args:
        request: {host, controller_clock, images}.

    Raises:
        Refused: it is something else.
    """
    host, clock, image_names = request.get("host"), request.get("controller_clock"), request.get("images", [])
    if not isinstance(host, str) or not isinstance(clock, (int, float)) or not isinstance(image_names, list):
        raise Refused("the request needs a host, the time of the controller and a list of images")
    now = time.time()
    result = programs.call(["ctr", "--namespace=k8s.io", "images", "list", "--quiet"]) if image_names else None
    sockets = [each for each in (SOCKET, *_OTHERS) if Path(each).is_socket()]
    images = result.stdout.split() if result else []
    return judged(
        host, HostFacts(now, float(clock), sockets, _configured(), [str(each) for each in image_names], images)
    )


def _configured() -> str:
    """The socket in kubelet's files: an option before 1.27, and a setting since."""
    for file in ("/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/config.yaml"):
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError:
            continue
        path = socket_in(text)
        if path:
            return path
    return ""


def socket_in(text: str) -> str:
    """The path of the runtime's socket in a file of kubelet; "" if it names none."""
    for mark in ("--container-runtime-endpoint=", "containerRuntimeEndpoint:"):
        _, separator, rest = text.partition(mark)
        if separator:
            words = rest.strip().replace('"', " ").replace("'", " ").split()
            path = words[0].partition("://")[2] or words[0] if words else ""
            # /var/run is /run on every system that we support.
            return path.replace("/var/run/containerd/", "/run/containerd/")
    return ""
