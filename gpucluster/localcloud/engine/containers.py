"""Instances of the local cloud as Podman containers that boot systemd and run real cloud-init.

Blocking calls; what Podman refuses is raised as CloudError with its words. Nothing is remembered here: Podman's own
store says what exists, and labels say whose it is. Containers outlive this process; after a reboot of the host they are
"stopped" and `start` boots them again.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucluster import process
from gpucluster.errors import CloudError
from gpucluster.localcloud.engine.protocol import LaunchRequest, mac_address
from gpucluster.localcloud.engine.seed import Seed
from gpucluster.localcloud.podman.command import podman, probe, said
from gpucluster.localcloud.podman.host import settings

# On each container: the directory of this host that goes when the instance goes.
_FOLDER_LABEL = "gpucluster.folder"
# linux/netdevice.h, NET_ADDR_SET
_SET_BY_USER = "3"
_SEED_TARGET = "/var/lib/cloud/seed/nocloud"
_EXPORTS_TARGET = "/run/localcloud/exports"
# What a disk must not carry over to the instances that are made from its image.
_INSTANCE_TRACES = (
    "etc/hosts",
    "etc/ssh/ssh_host_*",
    "var/lib/cloud/data",
    "var/lib/cloud/handlers",
    "var/lib/cloud/instance",
    "var/lib/cloud/instances",
    "var/lib/cloud/scripts",
    "var/lib/cloud/sem",
    "var/lib/dbus/machine-id",
    "var/lib/systemd/random-seed",
    "var/log/cloud-init*.log",
    "var/log/journal/*",
)


@dataclass(frozen=True)
class ContainerLaunch(LaunchRequest):
    """One instance to boot, and the local cloud's home: the seed is written below its `instances/<name>`."""

    home: Path


@dataclass(frozen=True)
class Container:
    """A container as Podman lists it. `state` is "running" or "stopped"."""

    name: str
    state: str
    labels: Mapping[str, str]


def create_network(name: str, cidr: str, labels: Mapping[str, str]) -> None:
    """Make a bridge network; the bridge has the first address. One of this name and range that exists is fine."""
    options = [f"--label={key}={value}" for key, value in labels.items()]
    done = podman("network", "create", f"--subnet={cidr}", *options, name, check=False)
    if done.returncode == 0 or cidr in _subnets(name):
        return
    raise CloudError(
        f"the network {name} ({cidr}) could not be made: {said(done)}",
        where="podman network create",
        hint="If the range is in use on this host (`ip route`, `podman network ls`), choose another one",
    )


def remove_network(name: str) -> None:
    """Remove a network without instances; one that is gone is fine."""
    done = podman("network", "rm", name, check=False)
    if done.returncode != 0 and "not found" not in done.stderr:
        raise CloudError(f"the network {name} was not removed: {said(done)}", hint="Terminate its instances first")


def networks(label: str) -> list[str]:
    """Names of the networks with a label, "key" or "key=value"."""
    done = podman("network", "ls", "--filter", f"label={label}", "--format", "{{.Name}}")
    return sorted(done.stdout.split())


def launch(request: ContainerLaunch) -> None:
    """Create and boot an instance. Returns when its init runs; ssh answers about a second later.

    A leftover of the same name is replaced.
    """
    folder = request.home / "instances" / request.name
    seed = Seed(
        instance_id=request.labels.get("gpucluster.ocid", request.name),
        hostname=request.hostname,
        address=request.ip,
        user_data=request.user_data,
        public_keys=request.ssh_authorized_keys,
        login_user=request.login_user,
        metadata=request.metadata,
    )
    seed.write(folder / "seed")
    request.exports_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    done = podman("--runtime", settings().runtime, "run", *_run_options(request, folder), request.image, check=False)
    if done.returncode != 0:
        words = said(done)
        terminate(request.name, request.home)
        raise CloudError(
            f"the instance {request.name} did not start: {words}",
            where=f"podman run {request.image}",
            hint="; ".join(probe()),
        )
    _pin_gateway(request.network)


def start(name: str) -> None:
    """Boot a stopped instance; one that runs is fine."""
    podman("start", name)


def stop(name: str, timeout: int = 10) -> None:
    """Shut an instance down, its disk stays; one that is stopped is fine. After `timeout` seconds it is cut off."""
    podman("stop", "--time", str(timeout), name)


def terminate(name: str, home: Path | None = None) -> None:
    """Remove an instance, its disk and its seed at once; one that is gone is fine.

    Args:
        home: the local cloud's home. With it, the seed of a launch that never came to a container goes as well.
    """
    folders = [home / "instances" / name] if home is not None else []
    folder_format = f'{{{{index .Config.Labels "{_FOLDER_LABEL}"}}}}'
    done = podman("container", "inspect", "--format", folder_format, name, check=False)
    if done.returncode == 0:
        folders += [Path(done.stdout.strip())] if done.stdout.strip().startswith("/") else []
        gone = podman("rm", "--force", "--volumes", "--time=0", name, check=False)
        if gone.returncode != 0 and state(name) != "absent":
            raise CloudError(f"the instance {name} was not removed: {said(gone)}", where="podman rm")
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def state(name: str) -> str:
    """One of "running", "stopped" and "absent"."""
    done = podman("container", "inspect", "--format", "{{.State.Status}}", name, check=False)
    return _state(done.stdout.strip()) if done.returncode == 0 else "absent"


def listing(label: str) -> list[Container]:
    """The instances with a label, "key" or "key=value", in one call of Podman."""
    done = podman("ps", "--all", "--filter", f"label={label}", "--format", "json")
    found = [
        Container(entry["Names"][0], _state(entry["State"]), entry["Labels"] or {}) for entry in json.loads(done.stdout)
    ]
    return sorted(found, key=lambda machine: machine.name)


def commit(name: str, image: str) -> None:
    """Make an image of an instance's disk, running or not, without what makes the instance itself.

    Its machine id, ssh host keys, cloud-init's memory, logs of the boot and /etc/hosts stay behind. They are still in a
    lower layer of the image, so it is for this machine only.
    """
    raw = f"{image.rpartition(':')[0] or image}:raw-{secrets.token_hex(4)}"
    scratch = f"{name}-commit-{secrets.token_hex(4)}"
    podman("commit", "--quiet", name, raw)
    try:
        podman("create", f"--name={scratch}", "--network=none", "--pull=never", *_blank_labels(name), raw)
        _forget_instance(Path(podman("mount", scratch).stdout.strip()))
        podman("unmount", scratch)
        podman("commit", "--quiet", scratch, image)
    finally:
        podman("rm", "--force", "--time=0", scratch, check=False)
        podman("rmi", raw, check=False)


def console(name: str) -> bytes:
    """What an instance's init wrote to its console, and the last 2,000 lines of its journal while it runs."""
    said_by_init = podman("logs", "--tail=1000", name, check=False)
    journal = podman("exec", name, "journalctl", "--boot", "--no-pager", "--lines=2000", check=False)
    parts = [done.stdout for done in (said_by_init, journal) if done.returncode == 0]
    return "".join(parts).encode()


def remove_image(image: str) -> None:
    """Remove an image; one that is gone is fine, and one that instances use goes with the last of them."""
    # Without --force: that would remove the instances as well.
    podman("rmi", image, check=False)
    if podman("image", "exists", image, check=False).returncode == 0:
        podman("untag", image, image)


def write_exports(exports_dir: Path, exports: Mapping[str, Mapping[str, str]]) -> None:
    """Say which shares the instances of a network can mount; running instances see the change at once.

    Args:
        exports_dir: the directory of LaunchRequest.exports_dir.
        exports: server address -> export path -> name of a directory in `exports_dir`.
    """
    exports_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = exports_dir / f".index.json.{secrets.token_hex(4)}"
    part.write_text(json.dumps({address: dict(paths) for address, paths in exports.items()}, indent=1, sort_keys=True))
    os.replace(part, exports_dir / "index.json")


def _run_options(request: ContainerLaunch, folder: Path) -> list[str]:
    labels = {**request.labels, _FOLDER_LABEL: str(folder)}
    return [
        "--detach",
        "--replace",
        "--pull=never",
        f"--name={request.name}",
        f"--hostname={request.hostname}",
        "--no-hosts",
        f"--network={request.network}",
        f"--ip={request.ip}",
        f"--mac-address={mac_address(request.ip)}",
        f"--network-alias={request.hostname}",
        f"--mount=type=bind,source={folder / 'seed'},destination={_SEED_TARGET},ro",
        f"--mount=type=bind,source={request.exports_dir},destination={_EXPORTS_TARGET}",
        "--restart=no",
        "--log-driver=k8s-file",
        "--log-opt=max-size=1mb",
        *(f"--label={key}={value}" for key, value in labels.items()),
        *settings().run_options(),
    ]


def _blank_labels(name: str) -> list[str]:
    """An image inherits the labels of its container, and would pass for an instance of this home."""
    done = podman("container", "inspect", "--format", "{{json .Config.Labels}}", name)
    return [f"--label={key}=" for key in json.loads(done.stdout) or {}]


@functools.cache
def _bridge(network: str) -> tuple[str, str]:
    """The bridge of a network and its address, the gateway. A network keeps both for as long as it exists."""
    settings = json.loads(podman("network", "inspect", network).stdout)[0]
    return settings["network_interface"], settings["subnets"][0]["gateway"]


def _pin_gateway(network: str) -> None:
    """Give the gateway a hardware address that stays.

    A bridge takes the lowest one of its ports, so it would change with the instances that come and go; whoever talked
    to the API at the gateway would then not reach it for some seconds (seen with 16 launches at once).
    """
    bridge, gateway = _bridge(network)
    kind = Path("/sys/class/net", bridge, "addr_assign_type")
    if kind.exists() and kind.read_text().strip() != _SET_BY_USER:
        process.run(["ip", "link", "set", "dev", bridge, "address", mac_address(gateway)], check=False)


def _state(word: str) -> str:
    """Podman knows more states than a cloud does; a paused container still holds its memory."""
    return "running" if word in ("running", "paused", "stopping") else "stopped"


def network_ranges() -> list[str]:
    """The address ranges of all networks of this host's Podman, whoever made them, such as "10.88.0.0/16"."""
    listed = json.loads(podman("network", "ls", "--format", "json").stdout or "[]")
    return [subnet["subnet"] for network in listed for subnet in network.get("subnets") or []]


def _subnets(network: str) -> list[str]:
    done = podman("network", "inspect", network, check=False)
    if done.returncode != 0:
        return []
    return [subnet["subnet"] for entry in json.loads(done.stdout) for subnet in entry.get("subnets", [])]


def _forget_instance(root: Path) -> None:
    """Remove the traces of an instance from its disk, never following a link out of it."""
    real = root.resolve()
    for pattern in _INSTANCE_TRACES:
        for path in root.glob(pattern):
            if not path.parent.resolve().is_relative_to(real):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for name, text, mode in (("machine-id", "", 0o444), ("hostname", "localhost\n", 0o644)):
        path = root / "etc" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(mode)
