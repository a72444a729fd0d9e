"""The terraform program: found, checked, and driven through python-terraform.

python-terraform 0.10.1 builds the command line well and runs it badly (no streaming, a broken destroy, an output()
that raises): `_Program` below keeps the first and replaces the second. docs/adr/0004 says what was wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster import process
from gpucluster.errors import EnvironmentFault, TerraformError
from gpucluster.events import Event, Sink
from gpucluster.paths import ClusterPaths, terraform_dir, write_private

MINIMUM_VERSION = (1, 5)
# The release that is downloaded where there is none on PATH, and the SHA-256 of the program inside its archive.
PINNED_VERSION = "1.11.4"
PINNED_PROGRAM_SHA256 = {
    ("Linux", "x86_64"): "268000fca5c61021c6396893d9483007ba589ad9d0aaccbd7dfa8c78bf7dbe23",
}
DOWNLOAD_TIMEOUT = 60.0
# How long Terraform waits for its own state lock: the terraform of an earlier run that was killed may still be saving.
STATE_LOCK_TIMEOUT = "120s"

_ACTIONS = {
    "create": ("creating", "created"),
    "update": ("updating", "updated"),
    "delete": ("deleting", "deleted"),
    "replace": ("replacing", "replaced"),
    "read": ("reading", "read"),
}


@dataclass(frozen=True)
class Change:
    """One planned change: the resource's address and what would happen (create, update, delete, replace)."""

    address: str
    action: str


@dataclass(frozen=True)
class Plan:
    """What an apply would do. `file` can be applied once."""

    changes: tuple[Change, ...]
    file: Path

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


def _check_version(program: Path) -> None:
    said = process.run([str(program), "version", "-json"], env=_environment(), timeout=30).stdout
    try:
        version = str(json.loads(said)["terraform_version"])
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:2])
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentFault("terraform did not tell its version", where=str(program)) from error
    if numbers < MINIMUM_VERSION:
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
    return {key: value for key, value in os.environ.items() if not (missing and key == "TF_CLI_CONFIG_FILE")}


class Terraform:
    """The root `terraform/cluster` in the working copy of one cluster.

    Args:
        env: what is added to the environment: credentials, the CLI configuration of the provider.
    """

    def __init__(self, paths: ClusterPaths, program: Path, env: Mapping[str, str], on_event: Sink) -> None:
        self._paths = paths
        self._root = paths.terraform / "cluster"
        self._env = {**_environment(), "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1", **env}
        self._program = program
        self._on_event = on_event

    def prepare(self) -> None:
        """Bring the working copy up to date: our files and the backend."""
        try:
            self._copy_root()
        except OSError as error:
            raise EnvironmentFault(
                f"can't write the working copy of Terraform's files: {error.strerror}", where=str(self._paths.terraform)
            ) from error
        backend = {"terraform": {"backend": {"local": {"path": str(self._paths.terraform_state)}}}}
        write_private(self._root / "backend.tf.json", json.dumps(backend, indent=2) + "\n")

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
        """`terraform init`: the backend and the provider. Upgrades nothing that is locked."""
        self._quiet("init", input=False, no_color=_flag())

    def plan(self, *, destroy: bool = False) -> Plan:
        """Compare the wish with the cloud. The cloud is only read."""
        file = self._paths.root / "plan.tfplan"
        changes: list[Change] = []

        def on_message(message: Mapping[str, Any]) -> None:
            if message.get("type") == "planned_change":
                change = message["change"]
                if change["action"] not in ("noop", "read"):
                    changes.append(Change(change["resource"]["addr"], change["action"]))

        extra = {"destroy": _flag()} if destroy else {}
        self._stream("plan", on_message, input=False, out=str(file), lock_timeout=STATE_LOCK_TIMEOUT, **extra)
        file.chmod(0o600)
        return Plan(tuple(changes), file)

    def apply(self, plan: Plan) -> None:
        """Carry a plan out; each resource is announced as it begins and ends."""
        try:
            self._stream("apply", self._announce, str(plan.file), input=False, lock_timeout=STATE_LOCK_TIMEOUT)
        finally:
            plan.file.unlink(missing_ok=True)
            self._protect_state()

    def outputs(self) -> Mapping[str, Any]:
        """The output values by name; empty where nothing was applied yet."""
        if not self._paths.terraform_state.exists():
            return {}
        said = self._quiet("output", json=_flag(), no_color=_flag())
        return {name: output["value"] for name, output in json.loads(said or "{}").items()}

    def addresses(self) -> tuple[str, ...]:
        """The addresses of everything in the state, data sources left out."""
        if not self._paths.terraform_state.exists():
            return ()
        return tuple(line for line in self._quiet("state list").splitlines() if line and not _is_data(line))

    def _protect_state(self) -> None:
        for file in self._paths.root.glob("terraform.tfstate*"):
            file.chmod(0o600)

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

    def _quiet(self, command: str, *args: str, **options: Any) -> str:
        lines: list[str] = []
        done = self._run(command, lines.append, *args, **options)
        if done.returncode != 0:
            text = process.without_colour(done.stderr.strip() or "\n".join(lines).strip())[-4000:]
            raise TerraformError(f"terraform {command} failed:\n{text}", where=str(self._root))
        return "\n".join(lines)

    def _stream(self, command: str, on_message: Any, *args: str, **options: Any) -> None:
        diagnostics: list[str] = []

        def on_line(line: str) -> None:
            message = _message(line)
            diagnostic = message.get("diagnostic") if message.get("type") == "diagnostic" else None
            if diagnostic and diagnostic.get("severity") == "error":
                diagnostics.append(_diagnostic_text(diagnostic))
            elif diagnostic:
                self._on_event(Event("log", "terraform", "warning", _diagnostic_text(diagnostic)))
            on_message(message)

        done = self._run(command, on_line, *args, json=_flag(), **options)
        if done.returncode != 0:
            text = "\n".join(dict.fromkeys(diagnostics)) or done.stderr.strip() or "it gave no reason"
            raise TerraformError(
                f"terraform {command} failed:\n{text}",
                hint="Mend the cause and run the same command again; what was made is in the state",
            )

    def _run(self, command: str, on_line: Any, *args: str, **options: Any) -> process.Completed:
        program = _program_class()(working_dir=str(self._root), terraform_bin_path=str(self._program))
        argv = program.generate_cmd_string(command, *args, **options)
        return process.stream(argv, on_line=on_line, env=self._env, cwd=self._root, private=True)


def _is_data(address: str) -> bool:
    return address.startswith("data.") or ".data." in address


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
