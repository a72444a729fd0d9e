"""Running other programs: an argument list in, never a shell. Nothing else in the package starts a program.

`running` runs a program to its end, `conversing` talks with one, `outliving` starts those that must live on if we are
killed, `processes` finds and stops processes by their pid, `signals` says what Ctrl-C, SIGTERM and SIGHUP do to us.
Imports only `environment`, `errors` and `paths`.
"""

from gpucluster.process.completed import Completed, environment_for, without_colour
from gpucluster.process.conversing import Conversation
from gpucluster.process.outliving import InputProgram, follow, in_memory, spawn_daemon
from gpucluster.process.processes import identity, interrupt_once, pids_with_variable
from gpucluster.process.running import call, run, stream, transfer

__all__ = [
    "Completed",
    "Conversation",
    "InputProgram",
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
