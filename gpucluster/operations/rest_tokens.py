"""Tokens for Slurm's REST API: the controller makes one, and it is written to a file that only its owner may read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass as checked

from gpucluster.controller.rules.names import NAME_PATTERN
from gpucluster.errors import InputError, ToolError
from gpucluster.operations.controller import ControllerConnection
from gpucluster.operations.rpc import RemoteProgram
from gpucluster.operations.schedulers import require_slurm
from gpucluster.paths import write_private
from gpucluster.spec import ClusterSpec
from gpucluster.text import printable

#: The port of the controller; the role slurm has the same one.
PORT = 6820
#: How long a token is valid if nothing else is asked for, and at most: seconds. The controller has the same limit.
LIFESPAN, LONGEST = 3600, 7 * 86400
_SHORTEST = 60
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\s*")
_MOST_BYTES = 4096
_TIMEOUT = 60.0
_PROGRAM = RemoteProgram(
    "sudo -n /usr/local/bin/gpucluster-agent rest-token",
    absent="the controller has no program for this yet",
    silent=("the controller does not answer", "Run: gpucluster status"),
)


@checked(frozen=True)
class _Answer:
    user: str
    token: str
    ends: int


@dataclass(frozen=True)
class RestToken:
    """A token of one user for Slurm's REST API.

    Args:
        token: the secret. Who has it acts as the user.
        expires: when it ends (UTC, ISO 8601), by the controller's clock.
        server: the address of the API, which hosts of the cluster reach.
    """

    user: str
    expires: str
    server: str
    token: str = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object, without the token."""
        return {"user": self.user, "expires": self.expires, "server": self.server}


def seconds_of(text: str) -> int:
    """The seconds of `90s`, `30m`, `1h`, `7d` or `3600`.

    Raises:
        InputError: it is not a time, or not one that a token may be valid.
    """
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    if found is None:
        raise InputError(f"not a time: {printable(text)}", hint="Write a number and a unit: 90s, 30m, 1h or 7d")
    seconds = int(found[1]) * _UNITS[found[2]]
    if not _SHORTEST <= seconds <= LONGEST:
        message = f"a token is valid for a minute at least, and for {LONGEST // 86400} days at most; got {text}"
        raise InputError(message, hint="A program that runs for longer asks for another token")
    return seconds


def require_rest(spec: ClusterSpec) -> None:
    """Check that a cluster has the REST API.

    Raises:
        InputError: it has none.
    """
    require_slurm(
        spec, "The REST API", kubernetes="For the API of Kubernetes, run: gpucluster kubeconfig --user NAME FILE"
    )
    if not spec.slurm.rest:
        message = "this cluster has no REST API: slurm.rest is off"
        raise InputError(message, where=str(spec.file), hint="Set slurm.rest to true, then run: gpucluster apply")


class RestTokens:
    """Makes tokens for one cluster."""

    def __init__(self, spec: ClusterSpec, controller: ControllerConnection) -> None:
        self._spec, self._controller = spec, controller

    def make(self, user: str, seconds: int = LIFESPAN) -> RestToken:
        """A new token. Earlier ones stay valid until they end.

        Raises:
            InputError: the cluster has no REST API or no such user, or the time is not reasonable.
            ToolError: the controller gives no answer.
        """
        require_rest(self._spec)
        if not re.fullmatch(NAME_PATTERN, user):
            raise InputError(f"not a user name: {printable(user)}", hint="Run: gpucluster user list")
        self._controller.require_own()  # it gives access to the cluster
        answer = _PROGRAM.call(self._argv, _Answer, "token", {"user": user, "seconds": seconds}, timeout=_TIMEOUT)
        if answer.user != user or not _TOKEN.fullmatch(answer.token):
            raise ToolError("the controller's answer has no token of this user", hint="Run: gpucluster apply")
        ends = datetime.fromtimestamp(answer.ends, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return RestToken(user, ends, f"https://{self._spec.name}-controller:{PORT}", answer.token)

    def _argv(self, command: Sequence[str]) -> list[str]:
        return self._controller.ssh_argv(None, command)


def write(token: RestToken, file: Path) -> None:
    """Write a token to a file that only its owner may read. Only another token is replaced.

    Raises:
        InputError: something else is there.
        EnvironmentFault: the file can't be written.
    """
    write_private(file.resolve(), f"{token.token}\n")


def check_file(file: Path) -> None:
    """Refuse a place for a token before one is made.

    Raises:
        InputError: it is a folder, is in none, or has something else than a token.
    """
    if file.is_dir():
        raise InputError("this is a folder", where=str(file), hint=f"Name a file in it: {file / 'token.jwt'}")
    if not file.absolute().parent.is_dir():
        raise InputError("there is no such folder", where=str(file.parent), hint=f"Run: mkdir -p {file.parent}")
    if not file.exists():
        return
    try:
        with file.open("rb") as stream:
            text = stream.read(_MOST_BYTES).decode("ascii", errors="replace") if file.is_file() else "no file"
    except OSError:
        text = "not readable"
    if text.strip() and not _TOKEN.fullmatch(text):
        message = "there is a file already, and it is not a token"
        raise InputError(message, where=str(file), hint="Name another file, or move that one away")
