"""Terraform's state of one cluster: where it lies, what is in it, how it moves to another backend.

A state in a file is read as it is. For one that lies elsewhere a folder is enough that holds nothing but the backend's
settings: another machine needs no working copy.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucluster.errors import InputError, TerraformError
from gpucluster.events import Event, Sink
from gpucluster.paths import ClusterPaths, write_private
from gpucluster.terraform import backends
from gpucluster.terraform.backends import Backend, Memory

BACKEND_FILE = "backend.tf.json"
LEFT_FILE = "errored.tfstate"
INIT = ("init", "-input=false", "-no-color", "-reconfigure")
# Runs terraform in a folder and returns what it said.
Runner = Callable[[Path, Sequence[str]], str]


@dataclass(frozen=True)
class _Contents:
    """A state as `terraform state pull` gives it. `body` is what says whether two are the same: a state that is brought
    to a new place gets a lineage and a serial of its own there."""

    text: str
    lineage: str
    serial: int
    resources: int
    body: str

    @classmethod
    def of(cls, text: str) -> _Contents:
        state: Mapping[str, Any] = json.loads(text) if text.strip() else {}
        resources = [one for one in state.get("resources") or () if one.get("mode") != "data"]
        body = json.dumps([state.get("resources"), state.get("outputs")], sort_keys=True)
        return cls(text, str(state.get("lineage", "")), int(state.get("serial", 0)), len(resources), body)


class State:
    """The state of one cluster.

    Args:
        backend: where it is wished to lie.
        run: runs terraform; raises TerraformError or LockedError.
        check: refuses a program that does not know a backend.
    """

    def __init__(
        self, paths: ClusterPaths, backend: Backend, run: Runner, check: Callable[[Backend], None], on_event: Sink
    ) -> None:
        self._paths = paths
        self._wished = backend
        self._run = run
        self._check = check
        self._on_event = on_event

    @property
    def _memory(self) -> Path:
        return self._paths.root / "backend.json"

    def outputs(self) -> Mapping[str, Any]:
        """The output values by name; empty where nothing was applied yet."""
        said = self._read("output", "-json", "-no-color")
        return {name: output["value"] for name, output in json.loads(said or "{}").items()}

    def addresses(self) -> tuple[str, ...]:
        """The addresses of everything in it, data sources left out."""
        return tuple(line for line in self._read("state", "list").splitlines() if line and not _is_data(line))

    def write_backend(self, root: Path) -> None:
        """Tell a root where its state lies."""
        write_private(root / BACKEND_FILE, self._wished.text())

    def settle(self) -> None:
        """Bring the state to where it is wished to lie. The old one stays, as a file of ours at the least.

        Raises:
            InputError: there is another state already, or a newer one; nothing was changed.
            LockedError: another run uses it.
            TerraformError: it can't be read or written.
        """
        self._check(self._wished)
        memory = self._remembered()
        if memory is None:
            return
        kept = memory.backend
        if kept == self._wished and memory.secret_address == self._wished.secret_address():
            return
        if memory.secret_address != kept.secret_address():
            raise InputError(
                f"the state lies at an address that {backends.ADDRESS_VARIABLE} had, and it has another one now",
                where=str(self._memory),
                hint=f"Set {backends.ADDRESS_VARIABLE} as it was; to move the state, name `backend: local` under "
                "`state:` in cluster.yml first, run gpucluster apply, and then name the new place",
            )
        self._check(kept)
        old, there = self._pull(kept), self._pull(self._wished)
        if old.resources and old.body != there.body:
            self._refuse_to_overwrite(old, there, memory)
            self._move(kept, old)
        left = {**memory.left, old.lineage: old.serial} if kept.remote and old.resources else memory.left
        self._keep(left)
        if old.resources and not kept.remote:
            for file in (Path(kept.config["path"]), Path(f"{kept.config['path']}.backup")):
                file.unlink(missing_ok=True)

    def remember(self) -> None:
        """Keep in mind where the state lies now, and that it is this cluster's.

        Raises:
            InputError: it is another cluster's.
        """
        if self._wished.remote:
            found = self.outputs().get("cluster")
            name = found.get("name") if isinstance(found, Mapping) else None
            if name and self._wished.cluster and name != self._wished.cluster:
                raise InputError(
                    f"the state there is that of the cluster {name}, and not of {self._wished.cluster}",
                    where=str(self._wished),
                    hint="Name another key (or address) under `state.config` in cluster.yml",
                )
        memory = self._remembered()
        if memory is None or not self._memory.exists() or memory.backend != self._wished:
            self._keep(memory.left if memory else {})

    def save_what_was_left(self, root: Path) -> None:
        """Bring in what an apply could not save: Terraform leaves it in the root, and never looks at it again.

        Raises:
            LockedError: another run holds the state.
            TerraformError: the state has changed since.
        """
        left = root / LEFT_FILE
        if not left.exists():
            return
        kept = self._paths.root / f"terraform.tfstate.unsaved-{_now()}"
        self._run(root, ("state", "push", str(left)))
        left.chmod(0o600)
        left.replace(kept)
        message = f"the state that the last apply could not save is saved now; copy: {kept}"
        self._on_event(Event("log", "terraform", "warning", message))

    def protect(self) -> None:
        """Let only the owner read it."""
        for file in self._paths.root.glob("terraform.tfstate*"):
            file.chmod(0o600)

    def forget(self) -> None:
        """Forget where it lies, and remove what of it lies here: the cluster is gone."""
        self._memory.unlink(missing_ok=True)
        for file in self._paths.root.glob("terraform.tfstate*"):
            file.unlink()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _folder(self) -> Path:
        """The folder with the backend's settings alone."""
        return self._paths.terraform / "state"

    def _remembered(self) -> Memory | None:
        """Where the state lies, as far as this machine knows."""
        if self._memory.exists():
            try:
                return Memory.parse(self._memory.read_text())
            except ValueError as error:
                raise TerraformError(
                    f"can't understand where the state lies: {error}",
                    where=str(self._memory),
                    hint="If `state:` in cluster.yml is as it was at the last apply, remove this file. "
                    "Then: gpucluster apply",
                ) from error
        if self._paths.terraform_state.exists():
            return Memory(Backend("local", {"path": str(self._paths.terraform_state)}))
        return None

    def _keep(self, left: Mapping[str, int]) -> None:
        write_private(self._memory, Memory(self._wished, self._wished.secret_address(), left).text())

    def _read(self, *words: str) -> str:
        memory = self._remembered()
        backend = memory.backend if memory else self._wished
        if not self._exists(backend):
            return ""
        if not backend.remote:
            # From a folder without configuration: an init would ask for the provider of what is in the state.
            return self._run(self._paths.root, (*words, f"-state={backend.config['path']}"))
        self._open(backend)
        return self._run(self._folder, words)

    @staticmethod
    def _exists(backend: Backend) -> bool:
        """Whether it is worth asking Terraform."""
        return backend.remote or Path(backend.config["path"]).exists()

    def _open(self, backend: Backend) -> None:
        """Make the folder one of this backend."""
        file, data = self._folder / BACKEND_FILE, self._folder / ".terraform"
        if (data / "terraform.tfstate").exists() and file.read_text() == backend.text():
            return
        self._check(backend)
        shutil.rmtree(data, ignore_errors=True)
        write_private(file, backend.text())
        self._run(self._folder, INIT)

    def _pull(self, backend: Backend) -> _Contents:
        if not self._exists(backend):
            return _Contents.of("")
        self._open(backend)
        try:
            return _Contents.of(self._run(self._folder, ("state", "pull")))
        except ValueError as error:
            raise TerraformError(
                f"the state can't be read: {error}", where=str(backend), hint="Put a copy of it back in its place"
            ) from error

    def _refuse_to_overwrite(self, old: _Contents, there: _Contents, memory: Memory) -> None:
        if not there.resources or memory.left.get(there.lineage) == there.serial:
            return
        which = "a newer one of this cluster" if there.lineage == old.lineage else "another one"
        raise InputError(
            f"the state can't move: where it is to lie is {which} already, with {there.resources} resources",
            where=str(self._wished),
            hint="Name another key (or address) under `state.config` in cluster.yml. If the one there is right, move "
            f"{self._memory} and {self._paths.terraform_state} out of the way and run: gpucluster apply",
        )

    def _move(self, kept: Backend, old: _Contents) -> None:
        copy = self._paths.root / f"terraform.tfstate.before-{_now()}"
        write_private(copy, old.text)
        self._open(kept)
        write_private(self._folder / BACKEND_FILE, self._wished.text())
        try:
            # Terraform holds both places while it copies.
            self._run(self._folder, ("init", "-input=false", "-no-color", "-migrate-state", "-force-copy"))
        finally:
            # After a copy that failed the folder is neither the one's nor the other's.
            shutil.rmtree(self._folder)
        if self._pull(self._wished).body != old.body:
            raise TerraformError(
                f"the state was moved from {kept}, but is not whole there",
                where=str(self._wished),
                hint=f"A copy is in {copy}. Name the old place under `state:` in cluster.yml again",
            )
        self._on_event(
            Event("log", "terraform", "warning", f"the state lies in {self._wished} now, not in {kept}; copy: {copy}")
        )


def _now() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}"


def _is_data(address: str) -> bool:
    return address.startswith("data.") or ".data." in address
