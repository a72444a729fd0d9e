"""Container images that all nodes share: imported once, by a job, to a squashfs file beside the homes.

The program on the controller (role pyxis) does the work and knows which names and addresses are good. Nothing here is a
run of the cluster: images are imported, by several people, while jobs run and while others apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

from gpucluster.errors import InputError
from gpucluster.events import Event
from gpucluster.lifecycle.toolbox import Toolbox
from gpucluster.operations.accounts import printable
from gpucluster.operations.controller import Controller
from gpucluster.operations.rpc import Program

_PROGRAM = Program(
    "sudo -n /usr/local/sbin/gpucluster-image request",
    absent="the controller has no program for container images yet",
    silent=("the controller's program for images gives no answer", "Look there: gpucluster ssh -- squeue"),
)
# For what needs no job. An import takes as long as the registry, and the node that has to come first.
_PATIENCE = 60.0

T = TypeVar("T")


@dataclass(frozen=True)
class ContainerImage:
    """An image that jobs name by its path: `srun --container-image=PATH`.

    Args:
        size: bytes.
        uri: where it came from; empty where nobody wrote it down.
        user: by whose job, and with whose rights in the registry.
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
    """What an import came to: the image, and whether it was not there before."""

    image: ContainerImage
    changed: bool

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"image": self.image.to_dict(), "changed": self.changed}


@dataclass(frozen=True)
class _All:
    images: tuple[ContainerImage, ...]


@dataclass(frozen=True)
class _Removed:
    name: str


class ContainerImages:
    """The images of a cluster. What each method raises: InputError where it is refused, else ToolError."""

    def __init__(self, tools: Toolbox, controller: Controller) -> None:
        self._tools = tools
        self._controller = controller

    @property
    def possible(self) -> bool:
        """Whether this cluster has such images at all: it needs Slurm and Enroot."""
        spec = self._tools.spec
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

        Whoever interrupts it cancels the job, and leaves nothing behind.

        Args:
            uri: `docker://[USER@]REGISTRY#NAME[:TAG][@sha256:DIGEST]`, as Enroot and Pyxis write it.
            pool: where the job runs. Default: the first pool of the default partition.
            user: whose job it is, and whose credentials the registry is shown. Default: the first of users.people.
            name: of the image. Default: made of the URI's name, its tag and the first digits of its digest.
            force: import it anew where there is one of this name.
        """
        self._check()
        spec = self._tools.spec
        if pool is not None and pool not in spec.pools:
            hint = f"The pools are {', '.join(spec.pools)}"
            raise InputError(f"there is no pool {printable(pool)}", where=str(spec.file), hint=hint)
        if user is None:
            if not spec.users.people:
                hint = "Name one: --user NAME. The job is theirs, and so are the registry's credentials"
                raise InputError("nobody is named under users.people", where=str(spec.file), hint=hint)
            user = spec.users.people[0].name
        wish = {"uri": uri, "pool": pool, "user": user, "name": name}
        arguments = {key: value for key, value in wish.items() if value is not None}
        return self._ask(ImageImport, "image.import", {**arguments, "force": force}, on_progress=self._tell)

    def list(self) -> tuple[ContainerImage, ...]:
        """Every image, by name; none of a cluster that does not stand."""
        self._check()
        if not self._tools.kept.hosts():
            return ()
        return self._ask(_All, "image.list", {}).images

    def remove(self, name: str) -> None:
        """Remove an image. Steps that have it mounted lose it."""
        self._check()
        self._ask(_Removed, "image.remove", {"name": name})

    def _check(self) -> None:
        """Raises InputError where there can be no such images."""
        if self.possible:
            return
        spec = self._tools.spec
        if not spec.slurm.enabled:
            what, hint = "slurm.enabled is false, and images are imported by a job", "Use containers.pull for docker"
        else:
            what, hint = "enroot is not among containers.runtimes", "Add it there, and apply"
        raise InputError(f"this cluster has no images for jobs: {what}", where=str(spec.file), hint=hint)

    def _tell(self, line: str) -> None:
        if line.strip():
            self._tools.on_event(Event("resource", "container image", "working", printable(line.strip())))

    def _ask(
        self,
        kind: type[T],
        operation: str,
        arguments: Mapping[str, Any],
        on_progress: Callable[[str], None] | None = None,
    ) -> T:
        return _PROGRAM.ask(
            lambda command: self._controller.ssh_argv(None, command),
            kind,
            operation,
            arguments,
            timeout=None if on_progress else _PATIENCE,
            on_progress=on_progress,
        )
