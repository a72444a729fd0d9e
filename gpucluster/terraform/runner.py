"""The commands of Terraform on one cluster's root module, driven through python-terraform.

python-terraform 0.10.1 builds command lines well and runs them badly (no streaming, a broken destroy, an output() that
raises). `_program_class` keeps the first and replaces the second. docs/adr/0004 has the details.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from gpucluster import process
from gpucluster.errors import EnvironmentFault, GpuClusterError, InputError, LockedError, TerraformError
from gpucluster.events import Sink, info, warn
from gpucluster.node_agent import bounded
from gpucluster.paths import ClusterPaths, read_saved, terraform_dir, write_private
from gpucluster.terraform import diagnosis, messages, provider_lock, summary
from gpucluster.terraform.backends import BackendConfig
from gpucluster.terraform.diagnosis import Cause, Diagnosis, Lock, since_when
from gpucluster.terraform.lock import WAIT, StateLock, holder
from gpucluster.terraform.plan import Attributes, PlanReader, ResourceDrift, TerraformPlan, attributes_of, drift_of
from gpucluster.terraform.program import START_TIMEOUT, environment, version_of
from gpucluster.terraform.state import INIT, StateContents, TerraformState

# How long Terraform waits for the state lock: the terraform of a run that was killed may still write its state.
STATE_LOCK_TIMEOUT = "120s"
IMPORT_FILE = "import.tf.json"
# Terraform merges files of this name into the resources of the same module.
_OVERRIDE_FILE = "adopt_override.tf"
_RESOURCE = re.compile(r'^resource "(oci_\w+)" "(\w+)"', re.MULTILINE)
SAVED_LOGS = 20
# The raw output of commands. Terraform does not print sensitive values in it.
SAVED_OUTPUTS = 20

_log = logging.getLogger(__name__)  # `--debug` shows it


class Terraform:
    """The root module `terraform/cluster` in the working copy of one cluster.

    Args:
        program: the path that `find_program` returns.
        env: what is added to the environment: credentials, the CLI configuration of the provider.
        backend: where the state is; by default a file in this cluster's folder.
        lock_timeout: how long to wait for another run that holds the state, in Terraform's notation ("120s").
        lock_wait: seconds that `hold_state` waits for another run.
        state_lock: the lock that a run holds, shared by all of its Terraform.
    """

    def __init__(
        self,
        paths: ClusterPaths,
        program: Path,
        env: Mapping[str, str],
        on_event: Sink,
        *,
        backend: BackendConfig | None = None,
        lock_timeout: str = STATE_LOCK_TIMEOUT,
        lock_wait: float = WAIT,
        state_lock: StateLock | None = None,
        kept_lock: Path | None = None,
    ) -> None:
        self._paths = paths
        self._root = paths.terraform / "cluster"
        self._backend = backend or BackendConfig("local", {"path": str(paths.terraform_state)})
        ours = {"TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1", **self._backend.environment()}
        self._env = {**environment(), **ours, **env}
        self._program = program
        self._on_event = on_event
        self._lock_timeout = lock_timeout
        self._lock_wait = lock_wait
        self._lock = state_lock or StateLock()
        self._kept_lock = kept_lock
        self._state = TerraformState(paths, self._backend, self._output_of, self._check_backend, self._lock, on_event)

    @contextmanager
    def hold_state(self) -> Iterator[None]:
        """Hold the state's lock until the block ends, so that no other machine works on the cluster. A state in a local
        file has no lock beside that of the cluster's folder, which a run holds.

        Raises:
            LockedError: another run holds it.
            TerraformError: the backend refused.
        """
        if not self._backend.locks:
            yield
            return
        folder = self._state.open_desired()
        with self._lock.hold(self._program, folder, self._env, self._backend, self._lock_failure, self._lock_wait):
            yield

    def unlock_state(self, lock_id: str) -> str:
        """Remove the lock that a run has left in a remote backend. Returns which run it was.

        Raises:
            InputError: no run holds the state, or another one.
            TerraformError: the backend refused.
        """
        try:
            with self.hold_state():
                pass
        except LockedError as error:
            if not error.what.endswith(f"(lock {lock_id})"):
                raise InputError(
                    f"this is not the lock that is held: {error.what}",
                    where=lock_id,
                    hint="Look again who holds the state, and name the lock of the run that does not run any more",
                ) from error
            # Terraform compares the ID once more: a run that came in between keeps its lock.
            self._output_of(self._state.open_desired(), ("force-unlock", "-force", lock_id))
            return error.what
        raise InputError(
            "no run holds Terraform's state", where=str(self._backend), hint="Run the command that was refused again"
        )

    def _lock_failure(self, printed: str) -> GpuClusterError:
        diagnostics = messages.plain_diagnostics(process.without_colour(printed))
        return self._failed(
            "console", [diagnosis.diagnose(each, _retry_command(destroy=False)) for each in diagnostics]
        )

    def prepare(self) -> None:
        """Update the working copy: our files and the backend.

        Raises:
            EnvironmentFault: the folder can't be written.
        """
        try:
            self._copy_root()
        except OSError as error:
            raise EnvironmentFault(
                f"can't write the working copy of Terraform's files: {error.strerror}",
                where=str(self._paths.terraform),
                hint="Make the folder writable for you, or free some space, and run the same command again",
            ) from error
        self._state.write_backend(self._root)

    @property
    def has_variables(self) -> bool:
        """Whether an earlier run has written the variables. A destroy must use those of the apply."""
        return bool(self.variables)

    @property
    def _variables_file(self) -> Path:
        return self._root / "terraform.tfvars.json"

    def set_variables(self, variables: Mapping[str, Any]) -> bool:
        """Write the variables. Returns whether they differ from those of the file before."""
        text = json.dumps(variables, indent=2, sort_keys=True) + "\n"
        if self._variables_file.is_file() and read_saved(self._variables_file) == text:
            return False
        write_private(self._variables_file, text)
        return True

    @property
    def variables(self) -> Mapping[str, Any]:
        """The variables that were written last; empty if none were, or if the file is damaged."""
        try:
            read = bounded.load(self._variables_file)
        except (OSError, ValueError):
            return {}
        return read if isinstance(read, Mapping) else {}

    @contextmanager
    def importing(self, ids: Mapping[str, str], *, unchanged: bool = False) -> Iterator[None]:
        """Let the plans in this block adopt resources that exist in the cloud and are in no state.

        Args:
            ids: what the provider imports, by address.
            unchanged: adopt them as they are, instead of as the configuration has them. Holds for all resources.
        """
        files = [self._root / IMPORT_FILE]
        blocks = [{"to": address, "id": ocid} for address, ocid in sorted(ids.items())]
        if blocks:
            write_private(files[0], json.dumps({"import": blocks}, indent=2) + "\n")
        if unchanged:
            files += self._write_overrides()
        try:
            yield
        finally:
            for file in files:
                file.unlink(missing_ok=True)

    def _write_overrides(self) -> list[Path]:
        """In each module, a file by which Terraform ignores all differences of its resources."""
        written = []
        for folder in sorted({file.parent for file in self._sources()}):
            resources = [match for file in sorted(folder.glob("*.tf")) for match in _RESOURCE.findall(file.read_text())]
            blocks = [
                f'resource "{kind}" "{name}" {{\n  lifecycle {{\n    ignore_changes = all\n  }}\n}}\n'
                for kind, name in resources
            ]
            write_private(folder / _OVERRIDE_FILE, "\n".join(blocks))
            written.append(folder / _OVERRIDE_FILE)
        return written

    def _sources(self) -> list[Path]:
        """The files of the working copy that Terraform reads, without those that it has downloaded itself."""
        return [
            file
            for pattern in ("*/**/*.tf", f"*/{IMPORT_FILE}")
            for file in self._paths.terraform.glob(pattern)
            if ".terraform" not in file.relative_to(self._paths.terraform).parts
        ]

    def _copy_root(self) -> None:
        for old in self._sources():
            old.unlink()
        shutil.copytree(
            terraform_dir(),
            self._paths.terraform,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*", "*.tfvars*", "backend.tf.json"),
        )

    def provider_address(self) -> str:
        """The full address of the provider `oracle/oci`. Its host differs between terraform and tofu.

        Terraform only prints it for a folder that has no uninitialized backend and no modules to fetch.
        """
        scratch = self._paths.root / "provider-address"
        scratch.mkdir(exist_ok=True)
        shutil.copy(self._root / "versions.tf", scratch)
        result = process.run([str(self._program), "providers"], env=self._env, cwd=scratch, timeout=START_TIMEOUT)
        shutil.rmtree(scratch)
        for line in result.stdout.splitlines():
            address = line.partition("provider[")[2].partition("]")[0]
            if address.endswith("/oracle/oci"):
                return address
        raise TerraformError(
            "the root module does not require the provider oracle/oci",
            where=str(self._root),
            hint="Install gpucluster again: its Terraform files are damaged",
        )

    def init(self) -> None:
        """`terraform init`: the backend and the provider. Upgrades nothing that is locked.

        A state in another backend than the one in cluster.yml is moved there first, and a copy of it is saved.

        Raises:
            EnvironmentFault: this terraform does not have the backend.
            InputError: the state can't be moved, or the one found belongs to another cluster.
            LockedError: another run holds the state.
            TerraformError: Terraform refused.
        """
        self._state.move_to_desired_backend()
        locked = provider_lock.use(self._root, self._kept_lock) if self._kept_lock else ()
        try:
            _log.debug("%s", self._output_of(self._root, (*INIT, *locked)))
        except TerraformError as error:
            if locked and "lock" in str(error):
                # Its other advice is right for a lock that is a cache: to download the provider again.
                error.hint = (
                    f"Terraform finds another provider than {self._kept_lock} has. If that is meant, delete it and "
                    f"{self._root / provider_lock.WORKING}. Then: gpucluster plan, gpucluster software lock-provider"
                )
            raise
        self._state.save_location()
        self._state.push_unsaved(self._root)

    def keep_provider_lock(self) -> bool:
        """Keep what the last `init` recorded of the provider beside cluster.yml. Returns whether that file changed.

        Raises:
            EnvironmentFault: it can't be written.
            InputError: nothing was recorded yet, or the provider is a part of gpucluster.
        """
        if self._kept_lock is None:
            raise InputError(
                "the local cloud's provider is a part of gpucluster: there is nothing to lock",
                hint="For the real one, pass --provider registry",
            )
        return provider_lock.keep(self._root, self._kept_lock)

    def plan(
        self,
        *,
        destroy: bool = False,
        only: Sequence[str] = (),
        recreate: Sequence[str] = (),
        with_values: bool = False,
    ) -> TerraformPlan:
        """Compare the configuration with the cloud. Nothing in the cloud is changed.

        Args:
            destroy: plan to remove everything.
            only: plan for these addresses, and for what they need (a destroy: what needs them). Empty: for everything.
            recreate: delete and create the resources with these addresses, although nothing has changed.
            with_values: also read the values of attributes where nothing is replaced or updated.

        Raises:
            LockedError: another run holds the state.
            TerraformError: Terraform refused.
        """
        file = self._paths.root / "plan.tfplan"
        reader = PlanReader()
        extra: dict[str, Any] = {"destroy": _flag()} if destroy else {}
        extra |= {"target": list(only)} if only else {}
        extra |= {"replace": list(recreate)} if recreate else {}
        retry = _retry_command(destroy)
        locking = self._lock.options(self._lock_timeout)
        self._stream("plan", reader, retry, input=False, out=str(file), **locking, **extra)
        file.chmod(0o600)
        needed = reader.needs_attributes or (with_values and reader.has_changes)
        return reader.plan(file, destroy=destroy, attributes=self._attributes(file) if needed else {})

    def drift(self) -> tuple[ResourceDrift, ...]:
        """What is in the cloud not as the state has it. Neither of both is changed.

        Raises:
            LockedError: another run holds the state.
            TerraformError: Terraform refused.
        """
        file = self._paths.root / "drift.tfplan"
        options = self._lock.options(self._lock_timeout)
        try:
            self._stream(
                "plan",
                lambda _message: None,
                "gpucluster drift",
                input=False,
                out=str(file),
                **options,
                refresh_only=_flag(),
            )
            file.chmod(0o600)
            return drift_of(bounded.loads(self._output_of(self._root, ("show", "-json", "-no-color", str(file)))))
        finally:
            file.unlink(missing_ok=True)

    def _attributes(self, file: Path) -> dict[str, Attributes]:
        return attributes_of(bounded.loads(self._output_of(self._root, ("show", "-json", "-no-color", str(file)))))

    def apply(self, plan: TerraformPlan) -> None:
        """Apply a plan. Each resource is announced when its change begins and ends.

        Raises:
            LockedError: another run holds the state.
            TerraformError: Terraform refused; what was created stays, and is in the state.
        """
        try:
            self._stream(
                "apply",
                self._announce,
                _retry_command(plan.destroy),
                str(plan.file),
                input=False,
                **self._lock.options(self._lock_timeout),
            )
        finally:
            self._lock.forget()
            plan.file.unlink(missing_ok=True)
            self._state.protect()

    def outputs(self) -> Mapping[str, Any]:
        """The output values by name; empty if nothing was applied yet."""
        return self._state.contents().outputs

    def set_output(self, name: str, value: Any, new_type: Sequence[str] | None = None) -> None:
        """Write the value of an output into the state, after `init`. Its type must stay the same.

        Args:
            new_type: the type of an output that an earlier release did not have; None: it must be there.

        Raises:
            LockedError: another run holds the state.
            TerraformError: Terraform refused.
        """
        self._state.set_output(self._root, name, value, new_type)
        self._state.protect()

    def contents(self, *, damaged_is_empty: bool = False) -> StateContents:
        """The outputs and the ids of the resources in the state, read at once.

        Args:
            damaged_is_empty: for who compares it with the cloud: a damaged one knows no resource.

        Raises:
            TerraformError: the state can't be read.
        """
        return self._state.contents(damaged_is_empty=damaged_is_empty)

    def addresses(self) -> tuple[str, ...]:
        """The addresses of everything in the state, data sources left out."""
        return self._state.contents().addresses

    @property
    def state_is_damaged(self) -> bool:
        """Whether the state is a local file that is not a state. Everything that reads it is refused then."""
        return self._state.damaged is not None

    def restore_state(self) -> bool:
        """Use Terraform's own copy instead of a damaged state, as after a kill. Returns whether it is sound now."""
        return self._state.restore()

    def set_damaged_state_aside(self) -> None:
        """Go on without a damaged state: nothing of the cluster exists, or it is found by its tags."""
        self._state.set_aside()

    def remove_from_state(self, addresses: Sequence[str]) -> None:
        """Take these out of the state. Nothing in the cloud is changed."""
        self._state.remove(addresses)

    @property
    def backend(self) -> BackendConfig:
        """Where the state should be."""
        return self._backend

    def forget(self) -> None:
        """Remove the state and the working copy from this machine: the cluster does not exist any more."""
        self._state.forget()
        shutil.rmtree(self._paths.terraform, ignore_errors=True)

    def _announce(self, message: Mapping[str, Any]) -> None:
        event = messages.resource_event(message)
        if event is not None:
            self._on_event(event)

    def _check_backend(self, backend: BackendConfig) -> None:
        if backend.kind in ("oci", "s3"):
            backend.check_program(self._program, version_of(self._program))

    def _output_of(self, folder: Path, arguments: Sequence[str], *, expected: str = "") -> str:
        """Run a command that has no stream of JSON messages, and return its standard output.

        It may be the state with its secrets, so it is written to no disk.

        Args:
            expected: a part of the text of an error with which the command is content.
        """
        argv = [str(self._program), *arguments]
        with process.in_memory("terraform") as output, process.in_memory("terraform-errors") as errors:
            result = self._follow(argv, output, errors, lambda _line: None, folder)
        if result.returncode != 0 and not (expected and expected in result.stderr):
            diagnostics = messages.plain_diagnostics(
                process.without_colour(result.stderr.strip() or result.stdout.strip())
            )
            raise self._failed(
                arguments[0], [diagnosis.diagnose(each, _retry_command(destroy=False)) for each in diagnostics]
            )
        return result.stdout.rstrip("\n")

    def _stream(
        self, command: str, on_message: Callable[[Mapping[str, Any]], None], retry: str, *args: str, **options: Any
    ) -> None:
        """Run a command with -json, and pass on each of its messages.

        Args:
            retry: the command that a message about a failure names.
        """
        errors = messages.ErrorReader()

        def on_line(line: str) -> None:
            message = messages.parse(line)
            errors(message)
            warning = messages.warning_of(message)
            if warning:
                warn(self._on_event, "terraform", warning)
            on_message(message)

        result = self._run(command, on_line, *args, json=_flag(), **options)
        if result.returncode != 0:
            diagnostics = diagnosis.located(errors.diagnostics, errors.failed) or [
                {"summary": _ended_without_reason(result)}
            ]
            raise self._failed(command, list(dict.fromkeys(diagnosis.diagnose(each, retry) for each in diagnostics)))

    def _failed(self, command: str, diagnoses: Sequence[Diagnosis]) -> GpuClusterError:
        """The error for a command that failed. The full text of the errors is written to a log."""
        log = self._log(command, diagnoses)
        locked = next((each for each in diagnoses if each.cause is Cause.STATE_LOCK), None)
        lock = diagnosis.lock_of(locked.detail) if locked else None
        if lock is not None:
            return self._locked(lock)
        what, where, hint = summary.of(diagnoses, f"terraform {command}")
        error = TerraformError(what, where=where, hint=f"{hint}. The full text of the errors: {log}")
        error.diagnoses = tuple(diagnoses)
        return error

    def _locked(self, lock: Lock) -> LockedError:
        lock = holder(self._backend, lock)
        who = f" by {lock.who}" if lock.who else " by a run (this backend does not report whose)"
        unlock_hint = (
            f"If you are sure that it does not run any more, remove its lock: gpucluster state unlock {lock.id}"
            if self._backend.remote
            else ""
        )
        return LockedError(
            f"Terraform's state is held{who}{since_when(lock.since, datetime.now(UTC))} (lock {lock.id})",
            where=str(self._backend),
            hint=f"Wait until it ends. {unlock_hint or 'The lock ends with the process that holds it'}",
        )

    def _log(self, command: str, diagnoses: Sequence[Diagnosis]) -> Path:
        file = self._new_file(command, "log", SAVED_LOGS)
        write_private(file, "\n\n".join(each.detail for each in diagnoses) + "\n")
        return file

    def _new_file(self, command: str, kind: str, saved: int) -> Path:
        """The path of a new file in the log of the runs. Of its kind, only the newest are kept."""
        for old in sorted(self._paths.runs.glob(f"*-terraform-*.{kind}"))[: -saved + 1]:
            old.unlink(missing_ok=True)
        return self._paths.runs / f"{datetime.now(UTC):%Y%m%dT%H%M%S-%f}-terraform-{command}.{kind}"

    def _run(self, command: str, on_line: Any, *args: str, **options: Any) -> process.Completed:
        program = _program_class()(working_dir=str(self._root), terraform_bin_path=str(self._program))
        argv = program.generate_cmd_string(command, *args, **options)

        def log_and_pass_on(line: str) -> None:
            _log.debug("%s", messages.plain(line))
            on_line(line)

        with self._output_file(command) as output:
            return self._follow(argv, output, output, log_and_pass_on, self._root)

    def _output_file(self, command: str) -> IO[bytes]:
        file = self._new_file(command, "jsonl", SAVED_OUTPUTS)
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Appended to: Terraform and its providers share it.
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except OSError as error:
            raise EnvironmentFault(f"can't write: {error.strerror}", where=str(file)) from error
        return os.fdopen(descriptor, "r+b", buffering=0)

    def _follow(
        self, argv: Sequence[str], output: IO[bytes], errors: IO[bytes], on_line: Callable[[str], None], folder: Path
    ) -> process.Completed:
        return process.follow(
            argv,
            output=output,
            errors=errors,
            on_line=on_line,
            on_stop=self._announce_stop,
            interrupts_file=self._paths.interrupts,
            env=self._env,
            cwd=folder,
            inherited=self._lock.descriptors,
        )

    def _announce_stop(self, number: int) -> None:
        if number == 1:
            info(self._on_event, "terraform", "stopping: Terraform finishes what it has begun, and saves its state")
        else:
            warn(self._on_event, "terraform", "still waiting until Terraform has saved its state; it is not killed")


def _retry_command(destroy: bool) -> str:
    """The command that continues after a failure."""
    return "gpucluster destroy" if destroy else "gpucluster apply"


def _ended_without_reason(result: process.Completed) -> str:
    """The reason of a terraform that ended without a diagnostic: it was killed, or it crashed."""
    lines = [line for line in result.stdout.splitlines() if not messages.parse(line)]
    printed = process.without_colour("\n".join(lines).strip())[-2000:]
    if result.returncode < 0:
        return f"it was ended by signal {-result.returncode}. {printed}".strip()
    return printed or "it gave no reason"


def _flag() -> Any:
    from python_terraform import IsFlagged

    return IsFlagged


def _program_class() -> Any:
    """python-terraform's class, changed so that it does not read a state file (and fail on it) at every command."""
    from python_terraform import Terraform as PythonTerraform

    class _Program(PythonTerraform):  # type: ignore[misc]
        def read_state_file(self, file_path: str | None = None) -> None:
            """Do nothing: only terraform reads the state. A damaged file must not keep us from running it."""

    return _Program
