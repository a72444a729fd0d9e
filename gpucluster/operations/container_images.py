"""Container images that all nodes share: imported once, by a job, to a squashfs file beside the homes.

The program on the controller (`gpucluster.controller.images`) does the work and knows which names and addresses are
valid. Nothing here takes the cluster's lock: several users may import images at the same time, also during an apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

from gpucluster.errors import InputError
from gpucluster.events import Event, EventKind, Sink
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.rpc import RemoteProgram
from gpucluster.operations.schedulers import require_slurm
from gpucluster.spec import ClusterSpec
from gpucluster.text import printable

_PROGRAM = RemoteProgram(
    "sudo -n /usr/local/sbin/gpucluster-image request",
    absent="the controller has no program for container images yet",
    silent=("the controller's program for images gives no answer", "See its jobs: gpucluster ssh -- squeue"),
)
# Seconds for operations without a job. An import has no limit: it waits for the registry, and for a node to start.
_TIMEOUT = 60.0

T = TypeVar("T")


@dataclass(frozen=True)
class ContainerImage:
    """An image that jobs name by its path: `srun --container-image=PATH`.

    Args:
        size: bytes.
        uri: the address that it was imported from; empty if that was not recorded.
        user: whose job imported it, with their credentials for the registry.
    """

    name: str
    path: str
    size: int
    created_at: datetime
    uri: str = ""
    user: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "created_at": self.created_at.isoformat()}


@dataclass(frozen=True)
class ImageImport:
    """The result of an import: the image, and whether it is new."""

    image: ContainerImage
    changed: bool

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"image": self.image.to_dict(), "changed": self.changed}


@dataclass(frozen=True)
class _ImageList:
    images: tuple[ContainerImage, ...]


@dataclass(frozen=True)
class _RemovedImage:
    name: str


class ContainerImages:
    """The container images of a cluster. Each method raises InputError if it is refused, and else ToolError."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection, on_event: Sink) -> None:
        self._spec = spec
        self._controller = controller
        self._on_event = on_event

    @property
    def supported(self) -> bool:
        """Whether this cluster can have such images: they need Slurm and Enroot."""
        spec = self._spec
        return spec.slurm.enabled and "enroot" in spec.containers.runtimes

    def import_uri(
        self,
        uri: str,
        *,
        pool: str | None = None,
        user: str | None = None,
        name: str | None = None,
        force: bool = False,
    ) -> ImageImport:
        """Import an image by a job, and wait for it: for a free node, or for one that has to be launched.

        An interruption cancels the job and leaves nothing behind.

        Args:
            uri: `docker://[USER@]REGISTRY#NAME[:TAG][@sha256:DIGEST]`, as Enroot and Pyxis write it.
            pool: where the job runs. Default: the first pool of the default partition.
            user: owner of the job, whose credentials for the registry are used. Default: the first of users.people.
            name: of the image. Default: made of the URI's name, its tag and the first digits of its digest.
            force: import it again if there is an image of this name.
        """
        self._require_support()
        spec = self._spec
        if pool is not None and pool not in spec.pools:
            hint = f"The pools are {', '.join(spec.pools)}"
            raise InputError(f"there is no pool {printable(pool)}", where=str(spec.file), hint=hint)
        if user is None:
            if not spec.users.people:
                hint = "Name one: --user NAME. The job runs as this user, with their credentials for the registry"
                raise InputError("there is no user under users.people", where=str(spec.file), hint=hint)
            user = spec.users.people[0].name
        options = {"uri": uri, "pool": pool, "user": user, "name": name}
        arguments = {key: value for key, value in options.items() if value is not None}
        return self._call(ImageImport, "image.import", {**arguments, "force": force}, on_progress=self._report)

    def list(self) -> tuple[ContainerImage, ...]:
        """Every image, by name; empty if the cluster does not exist."""
        self._require_support()
        if not self._controller.hosts():
            return ()
        return self._call(_ImageList, "image.list", {}).images

    def remove(self, name: str) -> None:
        """Remove an image. Job steps that have it mounted lose it."""
        self._require_support()
        self._call(_RemovedImage, "image.remove", {"name": name})

    def _require_support(self) -> None:
        """Raise InputError if this cluster can have no such images."""
        if self.supported:
            return
        spec = self._spec
        require_slurm(
            spec,
            "an image for jobs of Enroot",
            kubernetes="Name the image in a pod: kubelet pulls it. Or use containers.pull for docker",
            otherwise="Use containers.pull for docker",
        )
        what, hint = "enroot is not among containers.runtimes", "Add it there, then run: gpucluster apply"
        raise InputError(f"this cluster has no images for jobs: {what}", where=str(spec.file), hint=hint)

    def _report(self, line: str) -> None:
        if line.strip():
            self._on_event(Event(EventKind.RESOURCE, "container image", "working", printable(line.strip())))

    def _call(
        self,
        kind: type[T],
        operation: str,
        arguments: Mapping[str, Any],
        on_progress: Callable[[str], None] | None = None,
    ) -> T:
        if operation != "image.list":
            self._controller.require_own()
        return _PROGRAM.call(
            lambda command: self._controller.ssh_argv(None, command),
            kind,
            operation,
            arguments,
            timeout=None if on_progress else _TIMEOUT,
            on_progress=on_progress,
            relocate=self._controller.relocate,
        )
