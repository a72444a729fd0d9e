"""Running other programs: an argument list in, never a shell. Nothing else in the package starts a program.

`running` runs a program to its end, `conversing` talks with one, `outliving` starts those that must live on if we are
killed, `processes` finds and stops processes by their pid, `signals` defines what Ctrl-C, SIGTERM and SIGHUP do to us.
Imports only `cancellation`, `environment`, `errors`, `paths` and `waiting`. The names are imported when first used:
every command line needs `signals`, and few of them start a program.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpucluster.process.completed import Completed, environment_for, without_colour
    from gpucluster.process.conversing import ProcessConversation
    from gpucluster.process.outliving import InputProgram, follow, in_memory, spawn_daemon
    from gpucluster.process.processes import identity, interrupt_once, pids_with_variable
    from gpucluster.process.running import call, run, stream, transfer

__all__ = [
    "Completed",
    "InputProgram",
    "ProcessConversation",
    "call",
    "environment_for",
    "follow",
    "identity",
    "in_memory",
    "interrupt_once",
    "pids_with_variable",
    "run",
    "spawn_daemon",
    "stream",
    "transfer",
    "without_colour",
]

_HOMES = {
    "completed": ("Completed", "environment_for", "without_colour"),
    "conversing": ("ProcessConversation",),
    "outliving": ("InputProgram", "follow", "in_memory", "spawn_daemon"),
    "processes": ("identity", "interrupt_once", "pids_with_variable"),
    "running": ("call", "run", "stream", "transfer"),
}


def __getattr__(name: str) -> Any:
    """Import a name of `__all__`."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
