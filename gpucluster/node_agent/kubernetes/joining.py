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


class Found(NamedTuple):
    """A host before it joins.

    Attributes:
        clock: its time, in seconds since 1970.
        controller_clock: that of the controller at the same moment.
        sockets: the sockets of runtimes that exist here.
        configured: the socket that kubelet is configured for; "" if it is not yet.
        wanted: images that the release needs.
        images: those in containerd's store.
    """

    clock: float
    controller_clock: float
    sockets: Sequence[str]
    configured: str
    wanted: Sequence[str] = ()
    images: Sequence[str] = ()


def judged(host: str, found: Found) -> list[dict[str, str]]:
    """What is wrong: [{message, hint}]."""
    said = [*_of_clock(host, found), *_of_runtime(host, found), *_of_images(host, found)]
    return [{"message": message, "hint": hint} for message, hint in said]


def _of_clock(host: str, found: Found) -> Iterable[tuple[str, str]]:
    behind = found.controller_clock - found.clock
    if abs(behind) > MOST_SKEW_S:
        way = "behind" if behind > 0 else "ahead of"
        yield (
            f"the clock of {host} is {abs(behind):.0f} s {way} that of the controller: certificates would not be valid",
            f"See: gpucluster ssh {host} -- chronyc tracking; then run: gpucluster apply",
        )


def _of_runtime(host: str, found: Found) -> Iterable[tuple[str, str]]:
    if found.configured and found.configured != SOCKET:
        yield (
            f"kubelet of {host} is configured for another runtime ({found.configured}), not for {SOCKET}",
            f"Take the node out and let apply configure it again: gpucluster replace {host}",
        )
    if SOCKET not in found.sockets:
        others = [f"{_OTHERS[each]} at {each}" for each in found.sockets if each in _OTHERS]
        yield (
            f"containerd does not answer on {host}: there is no {SOCKET}"
            + (f", but there is {', '.join(others)}" if others else ""),
            f"See: gpucluster ssh {host} -- sudo systemctl status containerd",
        )


def _of_images(host: str, found: Found) -> Iterable[tuple[str, str]]:
    present = {normal(each) for each in found.images}
    missing = [each for each in found.wanted if normal(each) not in present]
    if missing:
        yield (
            f"{len(missing)} of {len(found.wanted)} images are missing on {host}: {', '.join(missing)}",
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


def look(given: Mapping[str, Any]) -> list[dict[str, str]]:
    """What is wrong with this host.

    Args:
        given: {host, controller_clock, images}.

    Raises:
        Refused: it is something else.
    """
    host, clock, wanted = given.get("host"), given.get("controller_clock"), given.get("images", [])
    if not isinstance(host, str) or not isinstance(clock, (int, float)) or not isinstance(wanted, list):
        raise Refused("a host, the time of the controller and a list of images are wanted")
    now = time.time()
    done = programs.call(["ctr", "--namespace=k8s.io", "images", "list", "--quiet"]) if wanted else None
    sockets = [each for each in (SOCKET, *_OTHERS) if Path(each).is_socket()]
    images = done.stdout.split() if done else []
    return judged(host, Found(now, float(clock), sockets, _configured(), [str(each) for each in wanted], images))


def _configured() -> str:
    """The socket in kubelet's files: an option before 1.27, and a setting since."""
    for file in ("/var/lib/kubelet/kubeadm-flags.env", "/var/lib/kubelet/config.yaml"):
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError:
            continue
        found = socket_in(text)
        if found:
            return found
    return ""


def socket_in(text: str) -> str:
    """The path of the runtime's socket in a file of kubelet; "" if it names none."""
    for mark in ("--container-runtime-endpoint=", "containerRuntimeEndpoint:"):
        _, found, rest = text.partition(mark)
        if found:
            words = rest.strip().replace('"', " ").replace("'", " ").split()
            path = words[0].partition("://")[2] or words[0] if words else ""
            # /var/run is /run on every system that we support.
            return path.replace("/var/run/containerd/", "/run/containerd/")
    return ""
