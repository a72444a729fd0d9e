"""The command line: options in, one call on `Cluster`, an exit code out.

Only here: environment variables as options, questions to the user, `sys.exit`. `base` has what commands share; each
other module registers the commands of one subject when it is imported. May import everything.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import click

from gpucluster import __version__
from gpucluster.cli import autoscaling, backup, clusters, groups, images, local, software, state, users
from gpucluster.cli.base import DEFAULT_FILES, cli
from gpucluster.errors import EXIT_FAILED, EXIT_INTERRUPTED

__all__ = [
    "DEFAULT_FILES",
    "autoscaling",
    "backup",
    "cli",
    "clusters",
    "groups",
    "images",
    "local",
    "main",
    "software",
    "state",
    "users",
]


def _stop(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line. An unexpected exception is our bug: its traceback goes to a file to report."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        cli.main(prog_name="gpucluster")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception:
        import tempfile
        import traceback

        with tempfile.NamedTemporaryFile("w", prefix="gpucluster-bug-", suffix=".log", delete=False) as file:
            file.write(f"gpucluster {__version__}, Python {sys.version}\n\n{traceback.format_exc()}")
        click.echo(
            f"gpucluster: this is a bug in gpucluster, not in what you did. Please report it with {file.name}", err=True
        )
        sys.exit(EXIT_FAILED)
