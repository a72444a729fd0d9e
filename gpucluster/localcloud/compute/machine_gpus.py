"""Which instance has which GPUs of this machine, for clusters with `cloud.local.gpus: real`.

`<home>/gpus.json` names these clusters: {"clusters": ["demo"]}. gpucluster writes it. An instance belongs to a cluster
by its free-form tag, so instances that the controller of a cluster launches get GPUs, too. `kind` in it is the kind of
the CDI specification, NVIDIA's by default.

The row of an instance names its GPUs from the launch request to its termination. Containers name them in a label: so
two homes on one machine don't hand out the same GPU.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gpucluster import shapes
from gpucluster.errors import EnvironmentFault, InputError
from gpucluster.localcloud.podman import cdi
from gpucluster.localcloud.podman.command import devices_in_containers
from gpucluster.localcloud.state.cloud import CloudState
from gpucluster.localcloud.state.faults import OUT_OF_CAPACITY
from gpucluster.localcloud.state.store import Json, Resource
from gpucluster.localcloud.state.wire import ApiError, invalid
from gpucluster.oci import tags
from gpucluster.paths import write_private

CONFIG = "gpus.json"
#: The member of an instance's hidden row: the names of its GPUs for the engine.
MEMBER = "devices"


@dataclass(frozen=True)
class MachineGpuSettings:
    """The content of `<home>/gpus.json`.

    Args:
        clusters: whose instances get GPUs of this machine.
        kind: of the CDI specification that names them.
    """

    clusters: tuple[str, ...] = ()
    kind: str = cdi.KIND


def settings(home: Path) -> MachineGpuSettings:
    """Those of a home; without the file no cluster gets GPUs.

    Raises:
        InputError: the file is not what it should be.
    """
    file = home / CONFIG
    try:
        read = json.loads(file.read_text())
        clusters, kind = read["clusters"], read.get("kind", cdi.KIND)
        if (
            not isinstance(kind, str)
            or not isinstance(clusters, list)
            or not all(isinstance(name, str) for name in clusters)
        ):
            raise TypeError("clusters must be a list of names, and kind a text")
    except (FileNotFoundError, NotADirectoryError):  # what makes the home reports what is wrong with it
        return MachineGpuSettings()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = (error.strerror or "") if isinstance(error, OSError) else str(error)
        raise InputError(
            f"it does not name the clusters that get GPUs: {why}",
            where=str(file),
            hint='Write {"clusters": ["name"]} into it, or remove it and run gpucluster apply again',
        ) from error
    return MachineGpuSettings(tuple(clusters), kind)


def hand_out(home: Path, cluster: str, *, real: bool) -> None:
    """Say whether instances of a cluster that are launched from now on get GPUs of this machine."""
    known = settings(home)
    if (cluster in known.clusters) != real:
        clusters = sorted({*known.clusters, cluster} if real else {*known.clusters} - {cluster})
        write_private(home / CONFIG, json.dumps({"clusters": clusters, "kind": known.kind}) + "\n")


@dataclass(frozen=True)
class Offer:
    """The GPUs of this machine: all, and those that no instance has."""

    every: tuple[cdi.MachineGpu, ...]
    free: tuple[cdi.MachineGpu, ...]


def offer(home: Path) -> Offer:
    """What this machine has for instances of a home. Reads files, and asks Podman; the server need not run.

    Raises:
        EnvironmentFault: Podman knows no GPU of this machine.
        InputError: the settings can't be read.
    """
    return _offer(cdi.machine_gpus(settings(home).kind), {*_of_rows(home / "cloud.db"), *devices_in_containers()})


def assign(cloud: CloudState, body: Json) -> list[str]:
    """The GPUs for an instance, as the engine names them; none where GPUs are emulated. In the caller's transaction.

    Raises:
        ApiError: too few are free: OCI's error for a host that is not free. Or this machine has none for containers.
    """
    shape = shapes.get(body["shape"])
    number = shape.gpus if shape.has_nvidia_gpus else 0
    try:
        of_home = settings(cloud.home)
        if not number or (body.get("freeformTags") or {}).get(tags.CLUSTER) not in of_home.clusters:
            return []
        every = cdi.machine_gpus(of_home.kind)
    except (EnvironmentFault, InputError) as error:
        raise ApiError(500, "InternalError", str(error)) from error
    held = {name for row in cloud.store.find("instance") for name in row.hidden.get(MEMBER, [])}
    free = _offer(every, held | set(cloud.engine.devices_in_use())).free
    if len(free) < number:
        raise ApiError(500, "InternalError", OUT_OF_CAPACITY)
    return [gpu.device for gpu in free[:number]]


def describe(config: Json, devices: Collection[str]) -> Json:
    """The shapeConfig of an instance that has these GPUs: which card they are, the local cloud does not know."""
    return {**config, "gpuDescription": f"{len(devices)} x GPU of this machine"} if devices else config


def check_shape(instance: Resource, shape: str) -> None:
    """Raise 400 where another shape would need another number of GPUs than the instance was launched with."""
    held = len(instance.hidden.get(MEMBER, []))
    if held and shapes.get(shape).gpus != held:
        raise invalid(f"Instance {instance.id} has {held} GPUs of this machine, and shape {shape} another number")


def _offer(every: tuple[cdi.MachineGpu, ...], held: Collection[str]) -> Offer:
    return Offer(every, tuple(gpu for gpu in every if gpu.names.isdisjoint(held)))


def _of_rows(database: Path) -> list[str]:
    """The GPUs of all instances of a home, also of those whose container is yet to be made."""
    if not database.exists():
        return []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as connection:
        rows = connection.execute("SELECT hidden FROM resource WHERE kind = 'instance' AND gone_at IS NULL").fetchall()
    members: list[Mapping[str, list[str]]] = [json.loads(row[0]) for row in rows]
    return [name for hidden in members for name in hidden.get(MEMBER, [])]
