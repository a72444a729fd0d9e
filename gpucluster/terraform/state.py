"""Terraform's state of one cluster: where it is, what is in it, and how it moves to another backend.

A state in a local file is read directly. For a remote one, Terraform runs in a folder that holds nothing but the
backend's settings: another machine needs no working copy.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from gpucluster.errors import InputError, TerraformError
from gpucluster.events import Sink, warn
from gpucluster.node_agent import bounded
from gpucluster.paths import ClusterPaths, read_saved, write_private
from gpucluster.terraform import backends
from gpucluster.terraform.backends import BackendConfig, StateLocation
from gpucluster.terraform.lock import StateLock
from gpucluster.text import count

BACKEND_FILE = "backend.tf.json"
LOCATION_FILE = "backend.json"
# Where Terraform writes a state that it could not write to the backend.
UNSAVED_FILE = "errored.tfstate"
# Seconds after which no command works in a folder any more that it has prepared.
_UNUSED = 24 * 3600
INIT = ("init", "-input=false", "-no-color", "-reconfigure")


class Runner(Protocol):
    """Runs terraform."""

    def __call__(self, folder: Path, arguments: Sequence[str], *, expected: str = "") -> str:
        """Run it with arguments in a folder, and return its standard output. An error with the text `expected` is
        none."""


@dataclass(frozen=True)
class _Contents:
    """A state as `terraform state pull` prints it.

    Args:
        body: two states are the same if this is equal. Lineage and serial are not: a state that moves to another
            backend gets new ones there.
    """

    text: str
    lineage: str
    serial: int
    resources: int
    body: str

    @classmethod
    def of(cls, text: str) -> _Contents:
        state: Mapping[str, Any] = bounded.loads(text) if text.strip() else {}
        resources = [resource for resource in state.get("resources") or () if resource.get("mode") != "data"]
        body = json.dumps([state.get("resources"), state.get("outputs")], sort_keys=True)
        return cls(text, str(state.get("lineage", "")), int(state.get("serial", 0)), len(resources), body)


@dataclass(frozen=True)
class StateEntry:
    """A resource in the state.

    Args:
        address: such as `module.pool["gpu"].oci_core_cluster_network.this[0]`.
        id: as the provider has it: for almost every resource of OCI its OCID; empty if there is none.
        deposed: it was replaced, and its removal was not finished: another entry has this address.
        tags: its free-form tags.
    """

    address: str
    id: str
    deposed: bool = False
    tags: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class StateContents:
    """The content of a state.

    Args:
        outputs: the output values by name.
        entries: the resources, data sources left out.
        version: lineage and serial; empty for a state without resources.
    """

    outputs: Mapping[str, Any]
    entries: tuple[StateEntry, ...] = ()
    version: str = field(default="", compare=False)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the resources, each once."""
        return tuple(dict.fromkeys(entry.address for entry in self.entries))

    @property
    def ids(self) -> frozenset[str]:
        """The ids of the resources."""
        return frozenset(entry.id for entry in self.entries if entry.id)

    @classmethod
    def parse(cls, text: str) -> StateContents:
        """Read a state, as Terraform stores it (format 4); an empty text is an empty state.

        Raises:
            ValueError: it is none, or of another format.
        """
        state: Mapping[str, Any] = bounded.loads(text) if text.strip() else {"version": 4}
        try:
            if state["version"] != 4:  # noqa: PLR2004
                raise ValueError(f"it has the format {state['version']}")
            outputs = {name: output["value"] for name, output in (state.get("outputs") or {}).items()}
            entries = tuple(
                StateEntry(
                    _address(resource, instance),
                    str((instance.get("attributes") or {}).get("id") or ""),
                    deposed="deposed" in instance,
                    tags=dict((instance.get("attributes") or {}).get("freeform_tags") or {}),
                )
                for resource in state.get("resources") or ()
                if resource["mode"] == "managed"
                for instance in resource["instances"]
            )
        except LookupError as error:
            raise ValueError(f"it lacks {error}") from error
        except (TypeError, AttributeError) as error:
            raise ValueError("it has another form than Terraform's states have") from error
        # Terraform shows a remote backend without a state as one of serial 0; a destroyed cluster leaves its serial.
        version = f"{state.get('lineage', '')} {state['serial']}" if entries and "serial" in state else ""
        return cls(outputs, entries, version)


def on_this_machine(paths: ClusterPaths) -> StateContents | None:
    """The content of the state in a cluster's folder, without Terraform; empty without one, or if it is damaged. None
    if the last run has left the state in a remote backend.
    """
    with suppress(OSError, ValueError):
        if StateLocation.parse(read_saved(paths.root / LOCATION_FILE)).backend.remote:
            return None
    try:
        return StateContents.parse(read_saved(paths.terraform_state))
    except (OSError, ValueError):
        return StateContents({})


def _is_sound(file: Path) -> bool:
    """Whether a file is a state at all."""
    try:
        return isinstance(bounded.load(file).get("version"), int)
    except (OSError, ValueError, AttributeError):
        return False


class TerraformState:
    """The state of one cluster.

    Args:
        backend: where the state should be, by cluster.yml.
        run: runs terraform; raises TerraformError or LockedError.
        check: raises EnvironmentFault if the program does not have a backend.
        lock: that of the desired backend.
    """

    def __init__(
        self,
        paths: ClusterPaths,
        backend: BackendConfig,
        run: Runner,
        check: Callable[[BackendConfig], None],
        lock: StateLock,
        on_event: Sink,
    ) -> None:
        self._paths = paths
        self._desired = backend
        self._run = run
        self._check = check
        self._lock = lock
        self._on_event = on_event

    @property
    def _location_file(self) -> Path:
        return self._paths.root / LOCATION_FILE

    def contents(self, *, damaged_is_empty: bool = False) -> StateContents:
        """Its outputs and the ids of its resources. A state in a local file needs no terraform. One in a remote backend
        is read once for as long as this run holds its lock and does not write it.

        Args:
            damaged_is_empty: for who compares it with the cloud: a damaged one knows no resource.

        Raises:
            TerraformError: it can't be read.
        """
        location = self._location()
        backend = location.backend if location else self._desired
        if damaged_is_empty and self.damaged is not None:
            return StateContents.parse("")
        self._require_sound()
        known: StateContents | None = self._lock.known(backend)
        return known or self._lock.remember(backend, self._read_contents(backend))

    def _read_contents(self, backend: BackendConfig) -> StateContents:
        try:
            return StateContents.parse(self._text(backend))
        except (OSError, ValueError) as error:
            raise _unreadable(backend, error) from error

    def _text(self, backend: BackendConfig) -> str:
        """The state as it is stored; empty if there is none."""
        if not backend.remote:
            file = Path(backend.config["path"])
            return read_saved(file) if file.exists() else ""
        return self._run(self._opened(backend), ("state", "pull"))

    def set_output(self, root: Path, name: str, value: Any, new_type: Sequence[str] | None = None) -> None:
        """Write the value of an output that is there, without a plan: that would ask the cloud about every resource.
        The type of the value must stay the same, and the next plan must come to this value.

        Args:
            root: the root module, initialized for the desired backend.
            new_type: the type of an output that an earlier release did not have, as the state writes it; None: the
                output must be there.

        Raises:
            LockedError: another run holds the state.
            TerraformError: Terraform refused: another run has written the state meanwhile.
        """
        try:
            state = bounded.loads(self._text(self._desired))
            if new_type is not None:
                state["outputs"].setdefault(name, {"type": list(new_type)})
            state["outputs"][name]["value"] = value
            state["serial"] += 1
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _unreadable(self._desired, error) from error
        file = self._paths.root / "terraform.tfstate.next"
        write_private(file, json.dumps(state))
        try:
            self._run(root, ("state", "push", *self._lock.arguments, str(file)))
        finally:
            self._lock.forget()
            file.unlink(missing_ok=True)

    @property
    def damaged(self) -> Path | None:
        """The local file with the state, if it is not a state: empty after a full disk, or overwritten. A remote
        backend's service takes care of its own."""
        location = self._location()
        if location is None or location.backend.remote:
            return None
        file = Path(location.backend.config["path"])
        return None if not file.exists() or _is_sound(file) else file

    def set_aside(self) -> None:
        """Rename a damaged file: the next command begins without a state."""
        file = self.damaged
        if file is not None:
            copy = file.with_name(f"{file.name}.damaged-{_now()}")
            file.replace(copy)
            warn(self._on_event, "terraform", f"the state was damaged, and is not used any more; copy: {copy}")

    def restore(self) -> bool:
        """Put Terraform's own copy, of before its last command, in the place of a damaged file.

        Terraform writes a local state over the old one. If it is killed at that moment, a part of it is left. What the
        killed command has created is not in the copy: it is found by its tags.

        Returns:
            whether the state is sound now.
        """
        file = self.damaged
        if file is None:
            return True
        copy = file.with_name(f"{file.name}.backup")
        if not _is_sound(copy):
            return False
        self.set_aside()
        write_private(file, read_saved(copy))
        warn(self._on_event, "terraform", f"the state of before Terraform's last command is used: {copy}")
        return True

    def remove(self, addresses: Sequence[str]) -> None:
        """Take these out of the state. Nothing in the cloud is changed.

        Raises:
            LockedError: another run holds the state.
            TerraformError: Terraform refused.
        """
        location = self._location()
        backend = location.backend if location else self._desired
        command = ("state", "rm", *self._lock.arguments)
        try:
            if backend.remote:
                self._run(self._opened(self._lock.writable(backend)), (*command, *addresses))
            else:
                # In a folder without configuration: an init would require the provider of the resources in the state.
                self._run(self._paths.root, (*command, f"-state={backend.config['path']}", *addresses))
        finally:
            self._lock.forget()

    def write_backend(self, root: Path) -> None:
        """Write the backend into a root module, so that the state can be written there."""
        write_private(root / BACKEND_FILE, self._lock.writable(self._desired).text())

    def move_to_desired_backend(self) -> None:
        """Move the state to the backend that cluster.yml names, if it is in another one. A copy stays on this machine.

        Raises:
            EnvironmentFault: the program does not have one of the two backends.
            InputError: the new place has another state already, or a newer one; nothing was changed.
            LockedError: another run holds the state.
            TerraformError: the state can't be read or written.
        """
        self._check(self._desired)
        location = self._location()
        if location is None:
            return
        present = location.backend
        if present == self._desired and location.secret_address == self._desired.secret_address():
            return
        if location.secret_address != present.secret_address():
            raise InputError(
                f"the state is at the address that {backends.ADDRESS_VARIABLE} had at the last run, "
                "and the variable has another value now",
                where=str(self._location_file),
                hint=f"Set {backends.ADDRESS_VARIABLE} as it was. To move the state, first set it as it was and "
                "`backend: local` under `state:` in cluster.yml, run: gpucluster apply, and then set the new backend",
            )
        self._check(present)
        old, new = self._pull(present), self._pull(self._desired)
        if old.resources and old.body != new.body:
            self._refuse_to_overwrite(old, new, location)
            self._move(present, old)
        left = {**location.left, old.lineage: old.serial} if present.remote and old.resources else location.left
        self._write_location(left)
        if old.resources and not present.remote:
            for file in (Path(present.config["path"]), Path(f"{present.config['path']}.backup")):
                file.unlink(missing_ok=True)

    def save_location(self) -> None:
        """Save where the state is now, after checking that it belongs to this cluster.

        Raises:
            InputError: it belongs to another cluster.
        """
        if self._desired.remote:
            cluster = self.contents().outputs.get("cluster")
            name = cluster.get("name") if isinstance(cluster, Mapping) else None
            if name and self._desired.cluster and name != self._desired.cluster:
                raise InputError(
                    f"the state in this backend belongs to the cluster {name}, and not to {self._desired.cluster}",
                    where=str(self._desired),
                    hint="Set another `key` (or `address`) under `state.config` in cluster.yml",
                )
        location = self._location()
        if location is None or self._saved_location() is None or location.backend.config != self._desired.config:
            self._write_location(location.left if location else {})

    def push_unsaved(self, root: Path) -> None:
        """Write the state that an apply could not write. Terraform leaves it in the root module and never reads it.

        Raises:
            LockedError: another run holds the state.
            TerraformError: the state has changed since.
        """
        unsaved = root / UNSAVED_FILE
        if not unsaved.exists():
            return
        copy = self._paths.root / f"terraform.tfstate.unsaved-{_now()}"
        self._run(root, ("state", "push", *self._lock.arguments, str(unsaved)))
        self._lock.forget()
        unsaved.chmod(0o600)
        unsaved.replace(copy)
        message = f"the state that the last apply could not save is saved now; copy: {copy}"
        warn(self._on_event, "terraform", message)

    def protect(self) -> None:
        """Make its files readable for the owner only."""
        for file in self._paths.root.glob("terraform.tfstate*"):
            file.chmod(0o600)

    def forget(self) -> None:
        """Remove the state's files from this machine: the cluster does not exist any more."""
        self._location_file.unlink(missing_ok=True)
        for file in self._paths.root.glob("terraform.tfstate*"):
            file.unlink()
        shutil.rmtree(self._folders, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """The folder with the settings of the backend that cluster.yml names, and nothing else."""
        return self._folder_of(self._desired)

    def _folder_of(self, backend: BackendConfig) -> Path:
        return self._folders / hashlib.sha256(backend.text().encode()).hexdigest()[:16]

    @property
    def _folders(self) -> Path:
        return self._paths.terraform / "state"

    def _remove_old_folders(self) -> None:
        """Remove what earlier settings and commands that were killed have left."""
        for each in self._folders.glob("*"):
            with suppress(OSError):  # a command that ends removes its own
                if each != self.folder and time.time() - each.stat().st_mtime > _UNUSED:
                    shutil.rmtree(each, ignore_errors=True)

    def _location(self) -> StateLocation | None:
        """Where the state is, as far as this machine knows. A damaged file counts as missing."""
        saved = self._saved_location()
        if saved is None and self._paths.terraform_state.exists():
            return StateLocation(BackendConfig("local", {"path": str(self._paths.terraform_state)}))
        if saved is not None and saved.backend == self._desired:
            # The same place. Who asks there may have changed: an operator, a runner.
            return replace(saved, backend=self._desired)
        return saved

    def _saved_location(self) -> StateLocation | None:
        try:
            return StateLocation.parse(read_saved(self._location_file))
        except (OSError, ValueError):
            return None

    def _write_location(self, left: Mapping[str, int]) -> None:
        write_private(self._location_file, StateLocation(self._desired, self._desired.secret_address(), left).text())

    def _require_sound(self) -> None:
        if self.damaged is not None:
            raise TerraformError(
                "the state of this cluster is damaged: the file is empty or not JSON",
                where=str(self.damaged),
                hint="Put a good copy there, such as terraform.tfstate.backup beside it. Without one, run: gpucluster "
                "state recover",
            )

    @staticmethod
    def _exists(backend: BackendConfig) -> bool:
        """Whether there may be a state."""
        return backend.remote or Path(backend.config["path"]).exists()

    def open_desired(self) -> Path:
        """The folder in which Terraform reads and locks the state at its place in cluster.yml.

        Raises:
            EnvironmentFault: the program does not have this backend.
            TerraformError: Terraform refused the settings.
        """
        self._remove_old_folders()
        return self._opened(self._desired)

    def _opened(self, backend: BackendConfig) -> Path:
        """A folder that is initialized for this backend.

        Any number of commands and threads read at the same time, and init refuses a folder in which another init works.
        So no program changes a folder that has its name: each prepares one of its own, and the first one stays.
        """
        folder = self._folder_of(backend)
        if folder.exists():
            return folder
        self._check(backend)
        with self._prepared(backend) as prepared, suppress(OSError):
            prepared.rename(folder)
        return folder

    @contextmanager
    def _prepared(self, backend: BackendConfig) -> Iterator[Path]:
        """A folder of the caller's own. A provider is not needed to read, and is not looked for."""
        self._folders.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="next-", dir=self._folders, ignore_cleanup_errors=True) as place:
            folder = Path(place, "folder")
            write_private(folder / BACKEND_FILE, backend.text())
            none = folder / "no-providers"
            none.mkdir()
            # Init looks for the providers of the resources in the state when the backend is ready.
            expected = "Failed to query available provider packages"
            self._run(folder, (*INIT, f"-plugin-dir={none}"), expected=expected)
            yield folder

    def _pull(self, backend: BackendConfig) -> _Contents:
        if not self._exists(backend):
            return _Contents.of("")
        self._require_sound()
        try:
            return _Contents.of(self._text(backend))
        except ValueError as error:
            raise _unreadable(backend, error) from error

    def _refuse_to_overwrite(self, old: _Contents, new: _Contents, location: StateLocation) -> None:
        if not new.resources or location.left.get(new.lineage) == new.serial:
            return
        which = "a newer one of this cluster" if new.lineage == old.lineage else "another one"
        raise InputError(
            f"the state can't be moved: the new place has {which} already, with {count(new.resources, 'resource')}",
            where=str(self._desired),
            hint="Set another `key` (or `address`) under `state.config` in cluster.yml. If the state there is right, "
            f"move {self._location_file} and {self._paths.terraform_state} to another folder and run: gpucluster apply",
        )

    def _move(self, present: BackendConfig, old: _Contents) -> None:
        copy = self._paths.root / f"terraform.tfstate.before-{_now()}"
        write_private(copy, old.text)
        with self._prepared(present) as folder:
            write_private(folder / BACKEND_FILE, self._lock.writable(self._desired).text())
            # Terraform holds the locks of both places while it copies, unless this run holds that of the new one.
            arguments = ("init", "-input=false", "-no-color", "-migrate-state", "-force-copy", *self._lock.arguments)
            self._run(folder, arguments)
        if self._pull(self._desired).body != old.body:
            raise TerraformError(
                f"the state was moved from {present}, but is not complete in the new place",
                where=str(self._desired),
                hint=f"A copy is in {copy}. Set the old place under `state:` in cluster.yml again, then run: "
                "gpucluster apply",
            )
        warn(self._on_event, "terraform", f"the state is in {self._desired} now, not in {present}; copy: {copy}")


def _unreadable(backend: BackendConfig, error: Exception) -> TerraformError:
    return TerraformError(f"the state can't be read: {error}", where=str(backend), hint="Restore it from a copy")


def _address(resource: Mapping[str, Any], instance: Mapping[str, Any]) -> str:
    """The address of an instance of a resource, as `terraform state list` prints it."""
    module = f"{resource['module']}." if resource.get("module") else ""
    key = f"[{json.dumps(instance['index_key'])}]" if "index_key" in instance else ""
    return f"{module}{resource['type']}.{resource['name']}{key}"


def _now() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}"
