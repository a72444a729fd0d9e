"""What programs of a host answer: its own checks, ssh, Slurm's commands, Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.facts.system import read
from gpucluster.node_agent.programs import Completed

#: The agent that is installed: it runs the host's own checks.
AGENT = "/usr/local/bin/gpucluster-agent"
_SSH_SECONDS = 10
_SLURM_SECONDS = 20
# A report of checks has a few hundred bytes a check. What is longer is cut off, and with it no report.
REPORT_BYTES = 1 << 20
_ERROR_BYTES = 1 << 12
# A program that does not end in time is told to, and killed after so many seconds.
KILL_SECONDS = 5
# Prometheus may just have been started, and then reads its records first.
_PROMETHEUS_TRIES, _PROMETHEUS_AGAIN_SECONDS, _PROMETHEUS_SECONDS = 9, 1.0, 20


def _call(argv: list[str], seconds: float) -> Completed[str]:
    """Run a program; one that hangs has the status of `timeout`."""
    try:
        return programs.call(argv, seconds=seconds)
    except Failed as error:
        return Completed(argv, programs.OUT_OF_TIME, "", error.message)
    except OSError as error:
        return Completed(argv, programs.MISSING, "", f"{argv[0]}: {error.strerror}")


def hop(mesh: Mapping[str, str]) -> dict[str, str]:
    """The host that responds when a user logs in to the next one."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_SSH_SECONDS}"]
    argv = ["runuser", "-u", mesh["user"], "--", "ssh", *options, mesh["next"], "hostname"]
    done = _call(argv, 3.0 * _SSH_SECONDS)
    return {"next": mesh["next"], "reached": done.stdout.strip(), "error": done.stderr.strip()}


def ssh_groups() -> list[str] | None:
    """The groups whose members the ssh server lets in; empty if it lets in all, None if it does not report it."""
    done = _call([shutil.which("sshd") or "/usr/sbin/sshd", "-T"], _SLURM_SECONDS)
    lines = (line.split() for line in done.stdout.splitlines())
    names = [name for words in lines if words[:1] == ["allowgroups"] for name in words[1:]]
    return names if done.returncode == 0 else None


def slurm_error() -> str:
    """Why Slurm's commands get no answer here; empty if they get one."""
    done = _call(["sinfo", "--noheader"], _SLURM_SECONDS)
    return "" if done.returncode == 0 else done.stderr.strip() or f"sinfo ended with {done.returncode}"


def runs_jobs() -> bool:
    """Whether a step of a Slurm job runs here."""
    return any(read(file).strip() == "slurmstepd" for file in Path("/proc").glob("[0-9]*/comm"))


def agent_check(checks: Mapping[str, Any], program: str = AGENT) -> dict[str, Any]:
    """What the host's own checks have written, and this host's clocks around them.

    Args:
        checks: the `profile`, for how many `seconds`; with `alone` not while a step of a job runs.
    """
    if checks["alone"] and runs_jobs():
        return {"busy": True}
    seconds = int(checks["seconds"])
    limit = ["timeout", f"--kill-after={KILL_SECONDS}", str(seconds)]
    argv = [*limit, program, "check", "--profile", checks["profile"], "--output", "json"]
    began, since = time.time(), time.monotonic()
    done = _call(argv, seconds + 2.0 * KILL_SECONDS)
    return {
        "output": done.stdout[:REPORT_BYTES],
        "error": done.stderr[-_ERROR_BYTES:],
        "exit_status": done.returncode,
        "began": began,
        "ended": time.time(),
        "took": time.monotonic() - since,
    }


def monitoring(asked: Mapping[str, Any], program: str = AGENT) -> Any:
    """What Prometheus on this host scrapes; `error` has why there is no answer.

    Args:
        asked: how many seconds to `wait` for what was just restarted.
    """
    seconds = _PROMETHEUS_SECONDS + int(asked["wait"])
    argv = ["timeout", str(seconds), program, "monitor", "status", "--problems", f"--wait={asked['wait']}"]
    for left in reversed(range(_PROMETHEUS_TRIES)):
        done = _call(argv, seconds + 2.0 * KILL_SECONDS)
        if re.search(r'"prometheus":\s*true', done.stdout) or not left or done.returncode == programs.OUT_OF_TIME:
            break
        time.sleep(_PROMETHEUS_AGAIN_SECONDS)
    return document(done) or {"error": said(done) or "no answer within the time limit"}


def document(done: Completed[str]) -> Any:
    """The JSON object that a program has printed; None for anything else."""
    try:
        value = json.loads(done.stdout)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def said(done: Completed[str]) -> str:
    """What a program printed in place of an answer."""
    return (done.stderr or done.stdout).strip()
