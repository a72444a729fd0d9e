"""Tokens for Slurm's REST API: `gpucluster-agent rest-token` makes one, for the operator's machine.

The request is one line of JSON on standard input, the answer one on standard output: a token is on no command line and
in no log. slurmctld makes it, with the key that only its own user reads, and lets root name the user.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpucluster.controller import admin_log, rest_key
from gpucluster.controller.rules.names import NAME_PATTERN
from gpucluster.node_agent import bounded, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, of_system

#: Seconds that a token may be valid. A shorter one would end before it is used; Slurm has the same limit for tokens
#: that users make themselves (`max_token_lifespan`, role slurm).
SHORTEST, LONGEST = 60, 7 * 86400
# Accounts of the system have lower ids.
_FIRST_UID, _NOBODY = 1000, 65534
_MOST_BYTES = 4096
_TOKEN = re.compile(r"SLURM_JWT=([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)\s*")

UserIds = Callable[[str], int]


def _uid(name: str) -> int:
    return pwd.getpwnam(name).pw_uid


def check(user: str, seconds: int, slurm: int, uid_of: UserIds = _uid) -> None:
    """Whether this user may have a token for so long.

    Args:
        slurm: the uid of Slurm's own user, which is above those of other accounts of the system.

    Raises:
        Refused: there is no such user, it is an account of the system, or the time is not reasonable.
    """
    if not SHORTEST <= seconds <= LONGEST:
        message = f"a token is valid for {SHORTEST} s at least, and for {LONGEST // 86400} days at most"
        raise Refused(message, "Choose another --lifespan. A program that runs for longer asks for another token")
    try:
        uid = uid_of(user) if re.fullmatch(NAME_PATTERN, user) else -1
    except KeyError:
        uid = -1
    if uid == -1:
        raise Refused(f"this cluster has no user {user[:64]!r}", "Run: gpucluster user list")
    if uid < _FIRST_UID or uid in (_NOBODY, slurm):
        message = f"{user} is an account of the system: a token of root or of Slurm's user could act as every user"
        raise Refused(message, "Name a user of the cluster. Run: gpucluster user list")


def make(user: str, seconds: int) -> dict[str, Any]:
    """A token of this user, and when it ends (seconds since 1970, by this host's clock).

    Raises:
        Refused: this cluster has no REST API, or see `check`.
        Failed: slurmctld makes none.
    """
    if not rest_key.KEY.is_file():
        raise Refused("this cluster has no REST API", "Set slurm.rest in cluster.yml, then run: gpucluster apply")
    check(user, seconds, rest_key.KEY.stat().st_uid)
    ends = int(time.time()) + seconds
    done = programs.call(["scontrol", "token", f"username={user}", f"lifespan={seconds}"])
    token = _TOKEN.fullmatch(done.stdout)
    if done.returncode != 0 or token is None:
        # Standard output is not quoted: it may have a token.
        reason = done.stderr.strip()[-300:] or f"scontrol has ended with status {done.returncode}"
        raise Failed(f"slurmctld makes no token: {reason}", "Run: gpucluster verify")
    admin_log.to_stderr(f"gpucluster-agent rest-token: a token for {user}, valid for {seconds} s")
    return {"user": user, "token": token.group(1), "ends": ends}


def request(text: str) -> dict[str, Any]:
    """Answer one request: {"operation": "token", "arguments": {"user", "seconds"}}.

    Raises:
        AgentError: see `make`.
    """
    try:
        raw = bounded.loads(text)
        operation, arguments = raw["operation"], raw["arguments"]
        user, seconds = str(arguments["user"]), int(arguments["seconds"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused("the request can't be read", "Run: gpucluster apply") from None
    if operation != "token":
        raise Refused("the request names no operation", "Run: gpucluster apply")
    return make(user, seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Answer the request on standard input; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent rest-token", description=(__doc__ or "").splitlines()[0])
    parser.parse_args(argv)
    os.umask(0o077)
    try:
        answer: dict[str, Any] = {"result": request(sys.stdin.read(_MOST_BYTES))}
        status = 0
    except (AgentError, OSError) as problem:
        error = problem if isinstance(problem, AgentError) else of_system(problem)
        answer, status = {"error": {"message": error.message, "hint": error.hint}}, error.status
    sys.stdout.write(json.dumps(answer) + "\n")
    return status
