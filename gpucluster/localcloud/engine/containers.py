"""Instances of the local cloud as Podman containers that boot systemd and run real cloud-init.

All calls block. An error of Podman is raised as CloudError with its text. This module keeps no state: Podman's own
store has the containers, and labels name the home that they belong to. Containers continue to run without this process;
after a reboot of the host they are "stopped" and `start` boots them again.
"""

from __future__ import annotations

import functools
import json
import secrets
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpucluster import process
from gpucluster.errors import CloudError
from gpucluster.localcloud.engine import volumes
from gpucluster.localcloud.engine.protocol import LABEL_OCID, LaunchRequest, RunState, mac_address
from gpucluster.localcloud.engine.seed import Seed
from gpucluster.localcloud.podman.command import DEVICES_LABEL, LOOK_S, error_text, exists, podman, probe
from gpucluster.localcloud.podman.host import settings
from gpucluster.waiting import wait_until

# On each container: the folder of this host that is removed with the instance.
_FOLDER_LABEL = "gpucluster.folder"
# linux/netdevice.h, NET_ADDR_SET
_SET_BY_USER = "3"
_SEED_TARGET = "/var/lib/cloud/seed/nocloud"
_EXPORTS_TARGET = "/run/localcloud/exports"
_CA_TARGET = "/run/localcloud/ca.pem"
# Files that an image must not pass on to the instances made from it.
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


# What a shell and Podman add to the number of the signal that has ended a program.
_OF_A_SIGNAL = 128
# What Podman reports when the processes of a container that it has killed are not gone after five seconds, and for how
# long it is asked again (podman issue 17142).
_DYING = "did not die within timeout"
_DEATH_S = 120.0
_POLL_S = 1.0


@dataclass(frozen=True)
class ContainerLaunch(LaunchRequest):
    """One instance to boot, and the local cloud's home: the seed is written to `instances/<name>` in it."""

    home: Path


@dataclass(frozen=True)
class Container:
    """A container in Podman's list."""

    name: str
    state: RunState
    labels: Mapping[str, str]


def create_network(name: str, cidr: str, labels: Mapping[str, str]) -> None:
    """Create a bridge network; the bridge gets the first address. Accepts an existing one with this name and range."""
    options = [f"--label={key}={value}" for key, value in labels.items()]
    # The local cloud has a name server of its own.
    result = podman("network", "create", f"--subnet={cidr}", "--disable-dns", *options, name, check=False)
    if result.returncode == 0 or cidr in _subnets(name):
        return
    raise CloudError(
        f"the network {name} ({cidr}) could not be created: {error_text(result)}",
        where="podman network create",
        hint="If the range is in use on this host (`ip route`, `podman network ls`), choose another one",
    )


def remove_network(name: str) -> None:
    """Remove a network without instances. Does nothing if there is no such network."""
    result = podman("network", "rm", name, check=False)
    if result.returncode != 0 and "not found" not in result.stderr:
        raise CloudError(
            f"the network {name} was not removed: {error_text(result)}", hint="Terminate its instances first"
        )


def networks(label: str) -> list[str]:
    """Names of the networks with a label, "key" or "key=value"."""
    result = podman("network", "ls", "--filter", f"label={label}", "--format", "{{.Name}}")
    return sorted(result.stdout.split())


def launch(request: ContainerLaunch) -> None:
    """Create and boot an instance. Returns when its init runs; ssh answers about a second later.

    Replaces a leftover container of the same name.
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
        hosts=request.hosts,
    )
    seed.write(folder / "seed")
    request.exports_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    result = podman("--runtime", settings().runtime, "run", *_run_options(request, folder), request.image, check=False)
    if result.returncode != 0:
        reason = error_text(result)
        terminate(request.name, request.home)
        raise CloudError(
            f"the instance {request.name} did not start: {reason}",
            where=f"podman run {request.image}",
            hint="; ".join(probe()),
        )
    _pin_gateway(request.network)


def start(name: str) -> None:
    """Boot a stopped instance. Does nothing if it runs."""
    podman("start", name)


def rebooted(event: str) -> str:
    """The OCID of the instance whose init has asked the kernel to restart, by a line of `podman events`; empty if none.

    In a container the kernel ends init with SIGHUP for a restart, and with SIGINT for a power-off (reboot(2)).
    """
    try:
        document = json.loads(event)
        restarted = document["ContainerExitCode"] == _OF_A_SIGNAL + signal.SIGHUP
        return str(document["Attributes"].get(LABEL_OCID, "")) if restarted else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""


def stop(name: str, timeout: int = 10) -> None:
    """Shut an instance down and keep its disk. After `timeout` seconds it is killed. Does nothing if it is stopped."""
    result = _end("stop", "--time", str(timeout), name)
    if result.returncode != 0:
        raise CloudError(f"the instance {name} was not stopped: {error_text(result)}", where="podman stop")


def _end(*arguments: str) -> process.Completed:
    """Call Podman to end a container, again while its killed processes still wait for a turn on a busy host."""
    results: list[process.Completed] = []

    def ended() -> bool:
        results[:] = [podman(*arguments, check=False)]
        return results[0].returncode == 0 or _DYING not in results[0].stderr

    wait_until(ended, _DEATH_S, _POLL_S)
    return results[0]


def terminate(name: str, home: Path | None = None) -> None:
    """Remove an instance, its disk and its seed at once. Does nothing if it is gone.

    Args:
        home: the local cloud's home. If given, also removes the seed of a launch that failed before the container.
    """
    folders = [home / "instances" / name] if home is not None else []
    folder_format = f'{{{{index .Config.Labels "{_FOLDER_LABEL}"}}}}'
    folder_of = _inspected(name, folder_format)
    if folder_of is not None:
        folders += [Path(folder_of)] if folder_of.startswith("/") else []
        gone = _end("rm", "--force", "--volumes", "--time=0", name)
        if gone.returncode != 0 and state(name) != RunState.ABSENT:
            raise CloudError(f"the instance {name} was not removed: {error_text(gone)}", where="podman rm")
    volumes.release(name)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def state(name: str) -> RunState:
    """The state of a container.

    Raises:
        CloudError: Podman does not tell it. It is not ABSENT then: its instance would be shown as TERMINATED.
    """
    word = _inspected(name, "{{.State.Status}}")
    return RunState.ABSENT if word is None else _state(word)


def _inspected(name: str, template: str) -> str | None:
    """What `podman container inspect` shows of a container; None if there is none.

    Raises:
        CloudError: Podman fails for another reason.
    """
    results: list[process.Completed] = []

    def answered() -> bool:
        results[:] = [podman("container", "inspect", "--format", template, name, check=False)]
        return results[0].returncode == 0 or not exists("container", name)

    if not wait_until(answered, LOOK_S, _POLL_S):
        raise CloudError(f"the container {name} can't be read: {error_text(results[0])}", where="podman inspect")
    return results[0].stdout.strip() if results[0].returncode == 0 else None


def listing(label: str) -> list[Container]:
    """The instances with a label, "key" or "key=value", in one call of Podman."""
    result = podman("ps", "--all", "--filter", f"label={label}", "--format", "json")
    instances = [
        Container(entry["Names"][0], _state(entry["State"]), entry["Labels"] or {})
        for entry in json.loads(result.stdout)
    ]
    return sorted(instances, key=lambda machine: machine.name)


def commit(name: str, image: str) -> None:
    """Make an image of an instance's disk, running or not, without the instance's identity.

    The image does not show the machine id, ssh host keys, cloud-init's state, logs of the boot and /etc/hosts. A lower
    layer still contains them, so the image must not leave this machine. Nor does it have what is in the volumes.
    """
    raw = f"{image.rpartition(':')[0] or image}:raw-{secrets.token_hex(4)}"
    scratch = f"{name}-commit-{secrets.token_hex(4)}"
    podman("commit", "--quiet", name, raw)
    try:
        podman("create", f"--name={scratch}", "--network=none", "--pull=never", *_blank_labels(name), raw)
        _remove_instance_traces(Path(podman("mount", scratch).stdout.strip()))
        podman("unmount", scratch)
        podman("commit", "--quiet", scratch, image)
    finally:
        podman("rm", "--force", "--volumes", "--time=0", scratch, check=False)
        podman("rmi", raw, check=False)


_JOURNAL = """\
journalctl --boot --no-pager --lines=2000
echo '-----BEGIN SSH HOST KEY KEYS-----'
cat /etc/ssh/ssh_host_*_key.pub
echo '-----END SSH HOST KEY KEYS-----'
"""


def console(name: str) -> bytes:
    """The console output of an instance's init, and the last 2,000 lines of its journal if it runs, with the host keys
    as cloud-init writes them to the console of a machine at its first boot. (Here they are those of now.)"""
    init_output = podman("logs", "--tail=1000", name, check=False)
    journal = podman("exec", name, "sh", "-c", _JOURNAL, check=False)
    parts = [result.stdout for result in (init_output, journal) if result.returncode == 0]
    return "".join(parts).encode()


def remove_image(image: str) -> None:
    """Remove an image. One that instances use is removed with the last of them. Does nothing if it is gone."""
    # Without --force, which would also remove the instances.
    podman("rmi", image, check=False)
    if exists("image", image):
        podman("untag", image, image)


def _run_options(request: ContainerLaunch, folder: Path) -> list[str]:
    labels = {**request.labels, _FOLDER_LABEL: str(folder)}
    if request.devices:
        labels[DEVICES_LABEL] = " ".join(request.devices)
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
        *([f"--dns={request.name_server}"] if request.name_server else []),
        *([f"--dns-search={request.domain}"] if request.domain else []),
        f"--mount=type=bind,source={folder / 'seed'},destination={_SEED_TARGET},ro",
        f"--mount=type=bind,source={request.exports_dir},destination={_EXPORTS_TARGET}",
        *([f"--mount=type=bind,source={request.trusted_ca},destination={_CA_TARGET},ro"] if request.trusted_ca else []),
        *(f"--mount=type=bind,source={place},destination={at},ro" for at, place in request.folders.items()),
        *(f"--mount=type=bind,source={place},destination={at}" for at, place in request.writable_folders.items()),
        *(f"--device={device}" for device in request.devices),
        *volumes.rules(request.name),
        "--restart=no",
        "--log-driver=k8s-file",
        "--log-opt=max-size=1mb",
        *(f"--label={key}={value}" for key, value in labels.items()),
        *settings().boot_options(),
    ]


def _blank_labels(name: str) -> list[str]:
    """Options that remove the labels: an image inherits them, and would count as an instance of this home."""
    result = podman("container", "inspect", "--format", "{{json .Config.Labels}}", name)
    return [f"--label={key}=" for key in json.loads(result.stdout) or {}]


def bridge(network: str) -> str:
    """The interface of this host that a network's instances are connected to."""
    return _bridge(network)[0]


@functools.cache
def _bridge(network: str) -> tuple[str, str]:
    """The bridge of a network and its address, the gateway. Both stay the same while the network exists."""
    settings = json.loads(podman("network", "inspect", network).stdout)[0]
    return settings["network_interface"], settings["subnets"][0]["gateway"]


def _pin_gateway(network: str) -> None:
    """Give the gateway a fixed hardware address.

    By default a bridge takes the lowest address of its ports, which changes when instances start and end. A client of
    the API at the gateway then can't reach it for some seconds (seen with 16 launches at once).
    """
    interface, gateway = _bridge(network)
    kind = Path("/sys/class/net", interface, "addr_assign_type")
    if kind.exists() and kind.read_text().strip() != _SET_BY_USER:
        process.run(["ip", "link", "set", "dev", interface, "address", mac_address(gateway)], check=False)


def _state(word: str) -> RunState:
    """The `RunState` of a state of Podman. A paused container counts as running: it still holds its memory."""
    return RunState.RUNNING if word in ("running", "paused", "stopping") else RunState.STOPPED


def network_ranges() -> list[str]:
    """The address ranges of all networks of this host's Podman, such as "10.88.0.0/16", also of other programs."""
    listed = json.loads(podman("network", "ls", "--format", "json").stdout or "[]")
    return [subnet["subnet"] for network in listed for subnet in network.get("subnets") or []]


def _subnets(network: str) -> list[str]:
    result = podman("network", "inspect", network, check=False)
    if result.returncode != 0:
        return []
    return [subnet["subnet"] for entry in json.loads(result.stdout) for subnet in entry.get("subnets", [])]


def _remove_instance_traces(root: Path) -> None:
    """Remove the identity of an instance from its disk. Never follows a link that leads out of it."""
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
