"""Rotation of the secrets that the controller has made: each is one call of a program there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic.dataclasses import dataclass as checked

from gpucluster.errors import InputError
from gpucluster.events import Sink, info
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.rpc import RemoteProgram
from gpucluster.operations.schedulers import require_slurm
from gpucluster.spec import ClusterSpec

#: What can be rotated, in the order of `all`.
SECRETS = ("munge",)
ALL = "all"
_PROGRAM = RemoteProgram(
    "sudo -n /usr/local/bin/gpucluster-agent rotate request",
    absent="the controller has no program for this yet",
    silent=("the controller does not answer", "Run the same command again: it goes on where this one has ended"),
)
_TIMEOUT = 60.0
RotationState = Literal["complete", "prepared", "switching", "unconfirmed"]


@checked(frozen=True)
class RotatableSecret:
    """A secret that can be rotated.

    Args:
        changed: when it was made or last changed, by the controller's clock (UTC, ISO 8601).
        state: of its rotation. `prepared`: hosts have the next one beside the present one; `switching`: the controller
            goes on by itself; `unconfirmed`: hosts have not confirmed that they use it.
        unconfirmed: the names of these hosts.
    """

    name: str
    changed: str
    state: RotationState
    unconfirmed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "unconfirmed": list(self.unconfirmed)}


@checked(frozen=True)
class _State:
    secrets: tuple[RotatableSecret, ...]


@checked(frozen=True)
class RotatedSecret:
    """A secret that was rotated.

    Args:
        new: whether this call has begun it; False where it has only asked hosts again that had not confirmed an earlier
            one.
        hosts: the number of hosts that use it.
        away: hosts that serve nobody now; they ask for it when they boot.
        unconfirmed: hosts that should use it and have not confirmed it.
    """

    name: str
    new: bool
    hosts: int
    away: tuple[str, ...]
    unconfirmed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {**asdict(self), "away": list(self.away), "unconfirmed": list(self.unconfirmed)}


@dataclass(frozen=True)
class Rotation:
    """What `rotate` has done."""

    secrets: tuple[RotatedSecret, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"secrets": [each.to_dict() for each in self.secrets]}


@checked(frozen=True)
class _Munge:
    new: bool
    hosts: int
    away: tuple[str, ...]
    unconfirmed: tuple[str, ...]


@checked(frozen=True)
class _Rotated:
    munge: _Munge


def chosen(what: Sequence[str]) -> tuple[str, ...]:
    """The secrets of a request, in the order in which they are rotated.

    Raises:
        InputError: one of them is none, or there is none.
    """
    unknown = [name for name in what if name not in (*SECRETS, ALL)]
    if unknown or not what:
        message = f"{unknown[0]} can't be rotated" if unknown else "nothing is named that is to be rotated"
        raise InputError(message, hint=f"One or more of: {', '.join((*SECRETS, ALL))}")
    return SECRETS if ALL in what else tuple(name for name in SECRETS if name in what)


class Rotations:
    """The secrets of one cluster."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection, on_event: Sink) -> None:
        self._spec = spec
        self._controller = controller
        self._on_event = on_event

    def present(self) -> tuple[RotatableSecret, ...]:
        """What can be rotated, when it was changed, and what an interrupted rotation has left.

        Raises:
            InputError: the cluster has no Slurm.
            ToolError: the controller does not answer.
        """
        self._require_slurm()
        return _PROGRAM.call(self._argv, _State, "state", {}, timeout=_TIMEOUT).secrets

    def require(self, what: Sequence[str]) -> tuple[str, ...]:
        """Check a request; returns the secrets that it names.

        Raises:
            InputError: one of them can't be rotated, or the cluster has no Slurm.
        """
        names = chosen(what)
        self._require_slurm()
        return names

    def rotate(self, what: Sequence[str]) -> Rotation:
        """Rotate secrets, or complete a rotation that was interrupted.

        Raises:
            InputError: one of them can't be rotated.
            UnconfirmedError: the secret is changed, and hosts have not confirmed it.
            ToolError: it failed, or the controller does not answer. The same call goes on.
        """
        names = self.require(what)
        rotated = []
        for name in names:
            done = _PROGRAM.call(
                self._argv,
                _Rotated,
                "rotate",
                {"what": [name]},
                on_progress=lambda line: info(self._on_event, "controller", line),
            )
            rotated.append(RotatedSecret(name, **asdict(done.munge)))
        return Rotation(tuple(rotated))

    def _require_slurm(self) -> None:
        hint = "It has no munge key, the only secret that is rotated so far"
        require_slurm(self._spec, "rotate", kubernetes=hint, otherwise=hint)

    def _argv(self, command: Sequence[str]) -> list[str]:
        return self._controller.ssh_argv(None, command)
