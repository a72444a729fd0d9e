"""The terraform program: found, checked, and driven through python-terraform.

python-terraform 0.10.1 builds the command line well and runs it badly (no streaming, a broken destroy, an output()
that raises): `_Program` below keeps the first and replaces the second. docs/adr/0004 says what was wrong.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpucluster import process
from gpucluster.errors import EnvironmentFault, GpuClusterError, LockedError, TerraformError
from gpucluster.events import Event, Sink
from gpucluster.paths import ClusterPaths, terraform_dir, write_private
from gpucluster.terraform import diagnosis
from gpucluster.terraform.backends import Backend
from gpucluster.terraform.diagnosis import Cause, Lock, Trouble
from gpucluster.terraform.state import State

MINIMUM_VERSION = (1, 5)
# The release that is downloaded where there is none on PATH, and the SHA-256 of the program inside its archive.
PINNED_VERSION = "1.11.4"
PINNED_PROGRAM_SHA256 = {
    ("Linux", "x86_64"): "268000fca5c61021c6396893d9483007ba589ad9d0aaccbd7dfa8c78bf7dbe23",
}
DOWNLOAD_TIMEOUT = 60.0
# How long Terraform waits for its own state lock: the terraform of an earlier run that was killed may still be saving.
STATE_LOCK_TIMEOUT = "120s"
KEPT_LOGS = 20
_log = logging.getLogger(__name__)  # `--debug` shows it
# Settings of an operator's own Terraform that would lead ours to another state.
_NOT_OURS = ("TF_DATA_DIR", "TF_WORKSPACE")
# The frame that Terraform draws around an error.
_FRAME = str.maketrans("", "", "╷│╵")

_ACTIONS = {
    "create": ("creating", "created"),
    "update": ("updating", "updated"),
    "delete": ("deleting", "deleted"),
    "replace": ("replacing", "replaced"),
    "read": ("reading", "read"),
}


@dataclass(frozen=True)
class Change:
    """One planned change: the resource's address and what would happen (create, update, delete, replace).

    Args:
        reason: why it is deleted or replaced, in Terraform's word: `tainted`, `cannot_update`,
            `delete_because_each_key`; empty where it says nothing.
        forced_by: the attributes for which it can't stay, such as `source_details.source_id`.
    """

    address: str
    action: str
    reason: str = ""
    forced_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What an apply would do. `file` can be applied once. `destroy`: it takes everything away.

    `changes_outputs`: the state would say something else of what stands, as it does for outputs of a later release.
    """

    changes: tuple[Change, ...]
    file: Path
    destroy: bool = False
    changes_outputs: bool = False

    def lost(self, resource_type: str) -> tuple[str, ...]:
        """Addresses of this resource type that the plan deletes or replaces."""
        return tuple(
            change.address
            for change in self.changes
            if change.action in ("delete", "replace") and f"{resource_type}." in change.address
        )


def find_program(cache: Path) -> Path:
    """The terraform (or tofu) to use: from PATH, else the pinned release, downloaded once and checked.

    Raises:
        EnvironmentFault: there is none, it is too old, or the download failed or is not what we pinned.
    """
    for name in ("terraform", "tofu"):
        found = shutil.which(name)
        if found:
            _check_version(Path(found))
            return Path(found)
    return _pinned_program(cache)


def version_of(program: Path) -> str:
    """What the program says its version is, such as "1.11.4".

    Raises:
        EnvironmentFault: it does not say.
    """
    said = process.run([str(program), "version", "-json"], env=_environment(), timeout=30).stdout
    try:
        version = str(json.loads(said)["terraform_version"])
        _numbers(version)
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentFault("terraform did not tell its version", where=str(program)) from error
    return version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("-")[0].split(".")[:2])


def _check_version(program: Path) -> None:
    version = version_of(program)
    if _numbers(version) < MINIMUM_VERSION:
        wanted = ".".join(map(str, MINIMUM_VERSION))
        raise EnvironmentFault(
            f"terraform {version} is too old",
            where=str(program),
            hint=f"Install terraform or tofu {wanted} or newer and put it first on PATH",
        )


def _pinned_program(cache: Path) -> Path:
    manual = f"Install terraform {PINNED_VERSION} (or tofu) and put it on PATH"
    machine = (platform.system(), platform.machine())
    wanted = PINNED_PROGRAM_SHA256.get(machine)
    if wanted is None:
        raise EnvironmentFault(
            f"terraform is not on PATH, and no release is pinned for {' '.join(machine)}", hint=manual
        )
    target = cache / f"terraform-{PINNED_VERSION}"
    if target.is_file() and _sha256(target) == wanted:
        return target
    archive = f"terraform_{PINNED_VERSION}_linux_amd64.zip"
    url = f"https://releases.hashicorp.com/terraform/{PINNED_VERSION}/{archive}"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        try:
            with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT) as answer:
                (Path(scratch) / archive).write_bytes(answer.read())
            with zipfile.ZipFile(Path(scratch) / archive) as opened:
                program = Path(opened.extract("terraform", scratch))
        except (OSError, urllib.error.URLError, zipfile.BadZipFile, KeyError) as error:
            raise EnvironmentFault(
                f"terraform is not on PATH and could not be downloaded: {error}", where=url, hint=manual
            ) from error
        if _sha256(program) != wanted:
            raise EnvironmentFault(
                "the terraform that was downloaded is not the pinned one: its SHA-256 differs", where=url, hint=manual
            )
        program.chmod(0o755)
        os.replace(program, target)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _environment() -> dict[str, str]:
    """Our environment; a TF_CLI_CONFIG_FILE that names no file is left out, for Terraform would grumble each time."""
    config = os.environ.get("TF_CLI_CONFIG_FILE")
    missing = config is not None and not Path(config).exists()
    unwanted = {*_NOT_OURS, *(["TF_CLI_CONFIG_FILE"] if missing else [])}
    return {key: value for key, value in os.environ.items() if key not in unwanted}


class Terraform:
    """The root `terraform/cluster` in the working copy of one cluster.

    Args:
        env: what is added to the environment: credentials, the CLI configuration of the provider.
        backend: where the state lies; by default a file of this cluster's folder.
        lock_timeout: how long to wait for another run that holds the state, as Terraform writes it.
    """

    def __init__(
        self,
        paths: ClusterPaths,
        program: Path,
        env: Mapping[str, str],
        on_event: Sink,
        *,
        backend: Backend | None = None,
        lock_timeout: str = STATE_LOCK_TIMEOUT,
    ) -> None:
        self._paths = paths
        self._root = paths.terraform / "cluster"
        self._backend = backend or Backend("local", {"path": str(paths.terraform_state)})
        ours = {"TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1", **self._backend.environment()}
        self._env = {**_environment(), **ours, **env}
        self._program = program
        self._on_event = on_event
        self._lock_timeout = lock_timeout
        self._state = State(paths, self._backend, self._said, self._check_backend, on_event)

    def prepare(self) -> None:
        """Bring the working copy up to date: our files and the backend."""
        try:
            self._copy_root()
        except OSError as error:
            raise EnvironmentFault(
                f"can't write the working copy of Terraform's files: {error.strerror}", where=str(self._paths.terraform)
            ) from error
        self._state.write_backend(self._root)

    @property
    def has_variables(self) -> bool:
        """Whether those of an earlier run are there; a destroy must see what the apply saw."""
        return self._variables_file.exists()

    @property
    def _variables_file(self) -> Path:
        return self._root / "terraform.tfvars.json"

    def set_variables(self, variables: Mapping[str, Any]) -> bool:
        """Write the variables. Returns whether they differ from those that were there."""
        text = json.dumps(variables, indent=2, sort_keys=True) + "\n"
        if self.has_variables and self._variables_file.read_text() == text:
            return False
        write_private(self._variables_file, text)
        return True

    def _copy_root(self) -> None:
        for old in self._paths.terraform.glob("*/**/*.tf"):
            if ".terraform" not in old.relative_to(self._paths.terraform).parts:
                old.unlink()
        shutil.copytree(
            terraform_dir(),
            self._paths.terraform,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*", "*.tfvars*", "backend.tf.json"),
        )

    def provider_address(self) -> str:
        """The full address of the provider `oracle/oci`, host included: it differs between terraform and tofu.

        Terraform tells it only of a folder without an uninitialized backend and without modules to fetch.
        """
        alone = self._paths.root / "provider-question"
        alone.mkdir(exist_ok=True)
        shutil.copy(self._root / "versions.tf", alone)
        done = process.run([str(self._program), "providers"], env=self._env, cwd=alone, timeout=60)
        shutil.rmtree(alone)
        for line in done.stdout.splitlines():
            address = line.partition("provider[")[2].partition("]")[0]
            if address.endswith("/oracle/oci"):
                return address
        raise TerraformError("the root does not ask for the provider oracle/oci", where=str(self._root))

    def init(self) -> None:
        """`terraform init`: the backend and the provider. Upgrades nothing that is locked.

        A state that lies elsewhere than it is wished to is moved first; a copy of it is kept.

        Raises:
            EnvironmentFault: this terraform does not know the backend.
            InputError: the state can't move, or the one found is another cluster's.
            LockedError: another run holds the state.
            TerraformError: Terraform refused.
        """
        self._state.settle()
        _log.debug("%s", self._said(self._root, ("init", "-input=false", "-no-color", "-reconfigure")))
        self._state.remember()
        self._state.save_what_was_left(self._root)

    def plan(self, *, destroy: bool = False) -> Plan:
        """Compare the wish with the cloud. The cloud is only read."""
        file = self._paths.root / "plan.tfplan"
        changes: list[Change] = []
        outputs: set[str] = set()

        def on_message(message: Mapping[str, Any]) -> None:
            if message.get("type") == "planned_change":
                change = message["change"]
                if change["action"] not in ("noop", "read"):
                    changes.append(Change(change["resource"]["addr"], change["action"], change.get("reason", "")))
            elif message.get("type") == "outputs":
                outputs.update(output.get("action", "noop") for output in message["outputs"].values())

        extra = {"destroy": _flag()} if destroy else {}
        again = _again(destroy)
        self._stream("plan", on_message, again, input=False, out=str(file), lock_timeout=self._lock_timeout, **extra)
        file.chmod(0o600)
        if any(change.action == "replace" for change in changes):
            forced = self._forced_by(file)
            changes = [replace(change, forced_by=forced.get(change.address, ())) for change in changes]
        return Plan(tuple(changes), file, destroy, changes_outputs=bool(outputs - {"noop"}))

    def _forced_by(self, file: Path) -> dict[str, tuple[str, ...]]:
        """The attributes that force replacements, by address; the stream of a plan does not tell them."""
        shown = json.loads(self._said(self._root, ("show", "-json", "-no-color", str(file))))
        return {
            change["address"]: tuple(
                ".".join(step for step in path if isinstance(step, str))
                for path in change["change"].get("replace_paths", ())
            )
            for change in shown.get("resource_changes", ())
        }

    def apply(self, plan: Plan) -> None:
        """Carry a plan out; each resource is announced as it begins and ends."""
        try:
            self._stream(
                "apply",
                self._announce,
                _again(plan.destroy),
                str(plan.file),
                input=False,
                lock_timeout=self._lock_timeout,
            )
        finally:
            plan.file.unlink(missing_ok=True)
            self._state.protect()

    def outputs(self) -> Mapping[str, Any]:
        """The output values by name; empty where nothing was applied yet."""
        return self._state.outputs()

    def addresses(self) -> tuple[str, ...]:
        """The addresses of everything in the state, data sources left out."""
        return self._state.addresses()

    def forget(self) -> None:
        """Remove what of this cluster's state and working copy lies on this machine: the cluster is gone."""
        self._state.forget()
        shutil.rmtree(self._paths.terraform, ignore_errors=True)

    def _announce(self, message: Mapping[str, Any]) -> None:
        kind, hook = str(message.get("type")), message.get("hook") or {}
        address = (hook.get("resource") or {}).get("addr", "")
        begin, end = _ACTIONS.get(str(hook.get("action")), ("working", "done"))
        if kind == "apply_start":
            self._on_event(Event("resource", address, begin))
        elif kind == "apply_progress":
            self._on_event(Event("resource", address, begin, elapsed=float(hook.get("elapsed_seconds", 0))))
        elif kind == "apply_complete":
            data = {"id": hook["id_value"]} if hook.get("id_value") else {}
            self._on_event(Event("resource", address, end, elapsed=float(hook.get("elapsed_seconds", 0)), data=data))
        elif kind == "apply_errored":
            self._on_event(Event("resource", address, "failed", elapsed=float(hook.get("elapsed_seconds", 0))))

    def _check_backend(self, backend: Backend) -> None:
        if backend.kind in ("oci", "s3"):
            backend.check_program(self._program, version_of(self._program))

    def _said(self, folder: Path, words: Sequence[str]) -> str:
        """Run a command that has no -json output, or one of its own, and return what it said."""
        lines: list[str] = []
        argv = [str(self._program), *words]
        done = process.stream(argv, on_line=lines.append, env=self._env, cwd=folder, private=True)
        if done.returncode != 0:
            text = process.without_colour(done.stderr.strip() or "\n".join(lines)).translate(_FRAME)
            found = [_diagnostic(part) for part in text.split("Error: ")[1:]] or [{"summary": text.strip()}]
            raise self._failed(words[0], [diagnosis.diagnose(one, _again(destroy=False)) for one in found])
        return "\n".join(lines)

    def _stream(self, command: str, on_message: Any, again: str, *args: str, **options: Any) -> None:
        diagnostics: list[Mapping[str, Any]] = []
        ids: dict[str, str] = {}
        failed: dict[str, str] = {}

        def on_line(line: str) -> None:
            message = _message(line)
            hook = message.get("hook") or {}
            address = (hook.get("resource") or {}).get("addr", "")
            if message.get("type") == "apply_start":
                ids[address] = str(hook.get("id_value") or "")
            elif message.get("type") == "apply_errored":
                failed[address] = ids.get(address, "")
            diagnostic = message.get("diagnostic") if message.get("type") == "diagnostic" else None
            if diagnostic and diagnostic.get("severity") == "error":
                diagnostics.append(diagnostic)
            elif diagnostic:
                self._on_event(Event("log", "terraform", "warning", _diagnostic_text(diagnostic)))
            on_message(message)

        done = self._run(command, on_line, *args, json=_flag(), **options)
        if done.returncode != 0:
            found = diagnosis.located(diagnostics, failed) or [{"summary": _last_words(done)}]
            raise self._failed(command, list(dict.fromkeys(diagnosis.diagnose(one, again) for one in found)))

    def _failed(self, command: str, troubles: Sequence[Trouble]) -> GpuClusterError:
        """The error for a command that failed; everything that was said is kept in the diary."""
        log = self._log(command, troubles)
        locked = next((one for one in troubles if one.cause is Cause.STATE_LOCK), None)
        lock = diagnosis.lock_of(locked.detail) if locked else None
        if lock is not None:
            return self._locked(lock)
        what, where, hint = diagnosis.summary(troubles, f"terraform {command}")
        error = TerraformError(what, where=where, hint=f"{hint}. Everything that was said: {log}")
        error.troubles = tuple(troubles)
        return error

    def _locked(self, lock: Lock) -> LockedError:
        who = f" by {lock.who}" if lock.who else " by a run that this backend does not name"
        since = f" since {lock.since}" if lock.since else ""
        unlock = f"{self._program} -chdir={self._root} force-unlock {lock.id}"
        dead = f"If it is dead for certain, let the lock go: {unlock}" if self._backend.remote else ""
        return LockedError(
            f"Terraform's state is held{who}{since} (lock {lock.id})",
            where=str(self._backend),
            hint=f"Wait for it to end. {dead or 'The lock goes with the process that holds it'}",
        )

    def _log(self, command: str, troubles: Sequence[Trouble]) -> Path:
        file = self._paths.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}-terraform-{command}.log"
        write_private(file, "\n\n".join(one.detail for one in troubles) + "\n")
        for old in sorted(self._paths.runs.glob("*-terraform-*.log"))[:-KEPT_LOGS]:
            old.unlink(missing_ok=True)
        return file

    def _run(self, command: str, on_line: Any, *args: str, **options: Any) -> process.Completed:
        program = _program_class()(working_dir=str(self._root), terraform_bin_path=str(self._program))
        argv = program.generate_cmd_string(command, *args, **options)

        def show_and_pass_on(line: str) -> None:
            _log_message(line)
            on_line(line)

        return process.stream(argv, on_line=show_and_pass_on, env=self._env, cwd=self._root, private=True)


def _log_message(line: str) -> None:
    """Show `--debug` one line of `-json` output as Terraform prints it for people."""
    message = _message(line)
    detail = (message.get("diagnostic") or {}).get("detail")
    _log.debug("%s", "\n".join(filter(None, [message.get("@message") or line, detail])))


def _again(destroy: bool) -> str:
    """The command that goes on from where this one stopped."""
    return "gpucluster destroy" if destroy else "gpucluster apply"


def _diagnostic(text: str) -> dict[str, str]:
    """An error as Terraform writes it for people, without its "Error: "."""
    summary, _, detail = text.strip().partition("\n")
    return {"summary": summary.strip(), "detail": "\n".join(line.strip() for line in detail.splitlines()).strip()}


def _last_words(done: process.Completed) -> str:
    """Of a terraform that ended without a diagnostic: it was killed, or it crashed."""
    said = process.without_colour(done.stderr.strip())[-2000:]
    if done.returncode < 0:
        return f"it was ended by signal {-done.returncode}. {said}".strip()
    return said or "it gave no reason"


def _flag() -> Any:
    from python_terraform import IsFlagged

    return IsFlagged


def _program_class() -> Any:
    """python-terraform's class, without its habit of reading (and failing on) a state file at every turn."""
    from python_terraform import Terraform as PythonTerraform

    class _Program(PythonTerraform):  # type: ignore[misc]
        def read_state_file(self, file_path: str | None = None) -> None:
            """Leave the state to terraform: a half-written file must not stop us from asking for help."""

    return _Program


def _message(line: str) -> Mapping[str, Any]:
    """One line of `-json` output; a line that is not JSON (a crash report) is no message."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _diagnostic_text(diagnostic: Mapping[str, Any]) -> str:
    place = diagnostic.get("address") or ""
    start = diagnostic.get("range", {}).get("start", {})
    if not place and start:
        place = f"{diagnostic['range'].get('filename', '')}:{start.get('line', '')}"
    text = ": ".join(part for part in (diagnostic.get("summary"), diagnostic.get("detail")) if part)
    return f"{text} ({place})" if place else text
