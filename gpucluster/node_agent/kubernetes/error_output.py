"""How a command of `gpucluster-agent kubernetes` ends that failed: a line on standard error, and its exit status."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

from gpucluster.node_agent.errors import AgentError, of_system


def prints_errors(command: Callable[..., int]) -> Callable[..., int]:
    """Make a command that raises AgentError or OSError print why, and what to do next, and return its exit status."""

    @functools.wraps(command)
    def run(*args: Any, **named: Any) -> int:
        try:
            return command(*args, **named)
        except (AgentError, OSError) as error:
            failure = of_system(error) if isinstance(error, OSError) else error
            sys.stderr.write(f"gpucluster-agent kubernetes: {failure.message}. {failure.hint}\n")
            return failure.status

    return run
