"""How a program is started and how it has ended, what of it is logged, and which environment programs get."""

from __future__ import annotations

import logging
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpucluster import environment
from gpucluster.errors import EnvironmentFault, ProcessError

_TAIL = 2000
#: Of the programs that we start, whatever the caller's is: the local cloud and its images need files that others can
#: read. What is private is made so explicitly.
UMASK = 0o022
# By program: its packages on Debian and on Red Hat.
_PACKAGES = {
    "ssh": ("openssh-client", "openssh-clients"),
    "scp": ("openssh-client", "openssh-clients"),
    "ssh-keygen": ("openssh-client", "openssh-clients"),
    "ip": ("iproute2", "iproute"),
}
_SSH = ("ssh", "scp", "ssh-keygen", "ssh-add")
_CREDENTIALS = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: Shown by `--debug`. It must not contain an environment or an input, which may hold secrets.
logger = logging.getLogger("gpucluster.process")


@dataclass(frozen=True)
class Completed:
    """A program that has ended. `stdout` and `stderr` are decoded as UTF-8; invalid bytes are replaced."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def without_colour(text: str) -> str:
    """The text without the escape sequences for colours of a terminal."""
    return _COLOURS.sub("", text)


def shown(text: str) -> str:
    """The text for the log: without colour, and without the password in a URL that a user may have configured."""
    return _CREDENTIALS.sub(r"\1:***@", without_colour(text))


def start(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program, and log its command line.

    Args:
        options: of `subprocess.Popen`.

    Raises:
        EnvironmentFault: it is not installed, or can't be started.
    """
    logger.debug("run: %s", shown(shlex.join(argv)))
    try:
        return subprocess.Popen(list(argv), **options)
    except OSError as error:
        raise not_started(argv, error) from error


def not_started(argv: Sequence[str], error: OSError) -> EnvironmentFault:
    """Why a program could not be started."""
    if isinstance(error, FileNotFoundError) and error.filename in (argv[0], None):
        return EnvironmentFault(f"the program {argv[0]} was not found", hint=_install(Path(argv[0]).name))
    return EnvironmentFault(
        f"the program {argv[0]} can't be started: {error.strerror}",
        where=str(error.filename or argv[0]),
        hint=f"Try it by hand: {argv[0]}",
    )


def _install(program: str) -> str:
    if program not in _PACKAGES:
        return "Install it, or put it on PATH"
    debian, redhat = _PACKAGES[program]
    return f"Install it: apt install {debian}, or dnf install {redhat}"


def environment_of(argv: Sequence[str], env: Mapping[str, str] | None, *, terminal: bool = False) -> dict[str, str]:
    """The environment of a program: what is given, else what of ours such a program needs.

    Args:
        terminal: it has our terminal, and a user in front of it.
    """
    if env is not None:
        return dict(env)
    if terminal:
        return environment_for(environment.Program.TERMINAL)
    ssh = Path(argv[0]).name in _SSH
    return environment_for(environment.Program.SSH if ssh else environment.Program.TOOLS)


def environment_for(program: environment.Program) -> dict[str, str]:
    """What of our environment a program gets; see `gpucluster.environment`."""
    home = os.path.expanduser("~")
    return environment.child(os.environ, program, home=home if home.startswith("/") else "/")


def raise_unless_ok(result: Completed) -> None:
    """Raise ProcessError for a status other than zero."""
    if result.returncode != 0:
        output = (result.stderr.strip() or result.stdout.strip())[-_TAIL:]
        raise ProcessError(
            f"{result.argv[0]} ended with status {result.returncode}: {output or 'it printed nothing'}",
            where=" ".join(result.argv[:3]),
            returncode=result.returncode,
            stdout=result.stdout,
            stderr=result.stderr,
        )


def log_end(result: Completed) -> None:
    """The status and the program's standard error; its standard output is data, and may be a whole backup."""
    for line in result.stderr.splitlines():
        logger.debug("%s: %s", result.argv[0], shown(line))
    logger.debug("%s ended with status %d", result.argv[0], result.returncode)
