"""The command line: options in, one call on `Cluster`, an exit code out.

Only here: environment variables as options, questions to the user, `sys.exit`. `base` has what commands share; each
other module registers the commands of one subject when it is imported, which the root group does when one is used. May
import everything.
"""

from __future__ import annotations

import io
import os
import sys

from gpucluster import __version__
from gpucluster.cli.base import DEFAULT_FILES, cli, wants_json
from gpucluster.errors import EXIT_FAILED, EXIT_INTERRUPTED, GpuClusterError
from gpucluster.process import signals

__all__ = ["DEFAULT_FILES", "cli", "main"]


def _leave_questions_behind(end: SystemExit) -> None:
    """Leave at once if a service has not answered: Python would wait for the threads that ask it."""
    inquiry = sys.modules.get("gpucluster.operations.inquiry")
    if inquiry is not None and inquiry.unanswered():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else EXIT_FAILED if end.code else 0)


def main() -> None:
    """Run the command line. An unexpected exception is our bug: its traceback goes to a file to report."""
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def leave_terminal() -> None:
        """The terminal is gone: each write to it would fail, and what is left to do must be done."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in terminals:
            os.dup2(nowhere, descriptor)

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 must not end a run
    try:
        with signals.as_ctrl_c(on_hangup=leave_terminal):
            try:
                _run()
            finally:
                signals.end()
    except KeyboardInterrupt:  # in the last instructions, when the command has reported its own end
        signals.end()
        sys.exit(EXIT_INTERRUPTED)


def _run() -> None:
    try:
        cli.main(prog_name="gpucluster")
    except SystemExit as end:
        _leave_questions_behind(end)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception:  # a bug of ours: no user gets a traceback; it is in the file that the message names
        import tempfile
        import traceback

        with tempfile.NamedTemporaryFile("w", prefix="gpucluster-bug-", suffix=".log", delete=False) as file:
            file.write(f"gpucluster {__version__}, Python {sys.version}\n\n{traceback.format_exc()}")
        what = "this is a bug in gpucluster, not in what you did"
        bug = GpuClusterError(what, hint=f"Please report it with {file.name}")
        from gpucluster.cli.output import JsonLines, failure_text, say

        say(failure_text(bug), err=True)
        if wants_json(sys.argv[1:]):
            JsonLines().error(bug)
        sys.exit(EXIT_FAILED)
