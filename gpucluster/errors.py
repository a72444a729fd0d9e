"""The errors of gpucluster, and the exit code of each.

All codes are listed here, so that each has one meaning::

    0    success
    1    GpuClusterError         failed
         |- ToolError            a program or a service that we use refused or failed
         |  |- ProcessError
         |  |- PartlyDone
         |  |- TerraformError
         |  |- AnsibleError
         |  `- CloudError
         `- VerifyError          the cluster is built, but a check failed or could not run
    2    InputError              the input is wrong; nothing was created
         `- OtherClusterError    it would act on a cluster that is not the one of this folder; nothing was changed
         PreflightError          the cloud would refuse it; nothing was created
    3    (no error)              --detailed-exitcode: plan has changes, or migrate orm leaves something to decide
    4    LockedError             another run holds this cluster
    5    EnvironmentFault        this machine lacks something that is needed
    6    DataGuardError          users' data would be lost; pass --delete-data to continue
    7    ReplacementError        nodes would be replaced; pass --replace-nodes to continue
    8    UnconfirmedError        (a PartlyDone) users, groups or a key are changed, but not every host has confirmed
    9    MovedError              the saved plan does not hold any more; nothing was changed
    10   (none)                  drift: something differs; what could not be compared is in the report
    11   (none)                  drift: nothing differs of what was compared, but not everything was
    130  Interrupted             Ctrl-C, SIGTERM or SIGHUP; of a library's call: `Cancellation.cancel`

The library raises; only the command line turns an error into text and an exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from gpucluster.node_agent.errors import UNCONFIRMED

EXIT_SUCCESS = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_CHANGES = 3
EXIT_LOCKED = 4
EXIT_ENVIRONMENT = 5
EXIT_DATA_GUARD = 6
EXIT_REPLACEMENT = 7
EXIT_UNCONFIRMED = UNCONFIRMED
EXIT_MOVED = 9
EXIT_DRIFT = 10
EXIT_UNSEEN = 11
EXIT_INTERRUPTED = 130


def with_hint(text: str, hint: str) -> str:
    """A message and what to do about it, as sentences."""
    if not hint:
        return text
    return f"{text} {hint}" if text.endswith(("?", "!", ".")) else f"{text}. {hint}"


class GpuClusterError(Exception):
    """What went wrong, where, and what to do next."""

    exit_code = EXIT_FAILED

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what.rstrip().rstrip(".")
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.what} ({self.where})" if self.where else self.what
        return with_hint(text, self.hint)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object: its class, what, where, hint and exit code; and what only some errors have."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "hint": self.hint,
            "exit_code": self.exit_code,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which would call the constructor with the message alone."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[GpuClusterError], args: tuple[Any, ...], state: Mapping[str, Any]) -> GpuClusterError:
    """An error that was pickled."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


@dataclass(frozen=True)
class InputFinding:
    """One error in an input file. `line` and `column` count from 1; 0 means the file as a whole."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        subject = f"{self.path}: " if self.path else ""
        text = f"{place}: {subject}{self.message}"
        return with_hint(text, self.hint)


class InputError(GpuClusterError):
    """The input is wrong. `findings` holds all errors, in the order of the file."""

    exit_code = EXIT_INPUT

    def __init__(self, what: str, *, where: str = "", hint: str = "", findings: Iterable[InputFinding] = ()) -> None:
        super().__init__(what, where=where, hint=hint)
        self.findings = tuple(findings)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {finding}" for finding in self.findings)])

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**super().to_dict(), "findings": [vars(finding) for finding in self.findings]}


class OtherClusterError(InputError):
    """A command would act on a cluster that is not known to be the one of this folder. Nothing was changed.

    `what` may have further lines with what is known of that cluster. `cluster_id` is what the option `--cluster-id`
    takes to work on it nevertheless; empty if there is no such way.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "", cluster_id: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.cluster_id = cluster_id

    def __str__(self) -> str:
        text = f"{self.what} ({self.where})" if self.where else self.what
        return f"{text}\n{self.hint}" if self.hint and "\n" in self.what else with_hint(text, self.hint)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**super().to_dict(), "cluster_id": self.cluster_id}


@dataclass(frozen=True)
class PreflightFinding:
    """One finding of a preflight: how serious it is, which check it was, the reason, and what to do about it."""

    level: Literal["error", "warning", "note"]
    check: str
    reason: str
    action: str = ""

    def __str__(self) -> str:
        text = f"{self.level}: {self.check}: {self.reason}"
        return with_hint(text, self.action)


class PreflightError(GpuClusterError):
    """The cloud would refuse the spec. `findings` holds everything that was found, errors first."""

    exit_code = EXIT_INPUT

    def __init__(
        self, what: str, *, where: str = "", hint: str = "", findings: Iterable[PreflightFinding] = ()
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.findings = tuple(findings)

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {finding}" for finding in self.findings)])

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**super().to_dict(), "findings": [vars(finding) for finding in self.findings]}


class LockedError(GpuClusterError):
    """Another run holds the lock of this cluster."""

    exit_code = EXIT_LOCKED


class EnvironmentFault(GpuClusterError):
    """This machine lacks something that is needed; the hint states how to get it."""

    exit_code = EXIT_ENVIRONMENT


class DataGuardError(GpuClusterError):
    """A share that holds users' files would be deleted."""

    exit_code = EXIT_DATA_GUARD


class ReplacementError(GpuClusterError):
    """Nodes that cluster.yml still asks for, or the controller, would be deleted or recreated."""

    exit_code = EXIT_REPLACEMENT


class MovedError(GpuClusterError):
    """What a saved plan was made of is different now: the file, the state, the cloud, the hosts or gpucluster."""

    exit_code = EXIT_MOVED


class Interrupted(GpuClusterError):
    """Ctrl-C, SIGTERM or SIGHUP (a lost terminal) stopped the command, or `Cancellation.cancel` the call."""

    exit_code = EXIT_INTERRUPTED


class ToolError(GpuClusterError):
    """A program or a service that we use refused or failed."""


class ProcessError(ToolError):
    """A program ended with a status other than zero. `stderr` and `stdout` are its output."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        returncode: int = 1,
        stdout: str = "",
        stderr: str = "",
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


class PartlyDone(ToolError):
    """A part of an operation failed. `done` is the result of the rest: the record that would have been returned.

    `done_text` is the same as text, lines under the message; empty unless the command line has set it.
    """

    def __init__(self, what: str, *, done: Any, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.done = done
        self.done_text = ""

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  {line}" for line in self.done_text.splitlines())])

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**super().to_dict(), "done": self.done.to_dict()}


class UnconfirmedError(PartlyDone):
    """Users or groups are changed, and hosts did not answer or have another state yet: `done` names them.

    The same command again asks all hosts again.
    """

    exit_code = EXIT_UNCONFIRMED


class TerraformError(ToolError):
    """Terraform failed; the text names resource, cause and request id. `diagnoses` has one
    `terraform.diagnosis.Diagnosis` for each error; it is empty if Terraform itself was not run."""

    diagnoses: tuple[Any, ...] = ()


class AnsibleError(ToolError):
    """A playbook failed; the text names the host, the role and the task. `reasons` has why, by the host that failed or
    did not answer; it is empty if none has."""

    reasons: Mapping[str, str] = MappingProxyType({})


class CloudError(ToolError):
    """The cloud's API refused; the text carries its status, code and request id.

    `status` is that of HTTP, 0 without an answer; `date` is the answer's Date header, empty without one.
    """

    def __init__(
        self, what: str, *, where: str = "", hint: str = "", status: int = 0, code: str = "", date: str = ""
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.status = status
        self.code = code
        self.date = date


class VerifyError(GpuClusterError):
    """The cluster is built, but one of the checks at the end failed or could not run.

    `verdict` is the whole of it: a `gpucluster.Verdict`.
    """

    def __init__(self, what: str, *, verdict: Any, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.verdict = verdict

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        checks = [result.to_dict() for result in self.verdict.results]
        return {**super().to_dict(), "checks": checks, "verdict": self.verdict.to_dict()}
