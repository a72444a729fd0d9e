"""`--debug`: the commands that are run, the output of Terraform and Ansible, and tracebacks, all on standard error.

Secrets never appear: programs get them by their environment or their standard input, and neither is logged.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click

from gpucluster.text import terminal


@contextlib.contextmanager
def debugging(enabled: bool) -> Iterator[None]:
    """Show what is logged in this block, and the traceback of an unexpected exception, if `enabled`."""
    if not enabled:
        yield
        return
    import logging  # importing it takes a tenth of the time that starting Python takes

    class ToStandardError(logging.Handler):
        """Writes to what `sys.stderr` is at that time: a test may have replaced it."""

        def emit(self, record: logging.LogRecord) -> None:
            """Write one record."""
            sys.stderr.write(terminal(self.format(record)) + "\n")

    handler = ToStandardError()
    handler.setFormatter(logging.Formatter("debug: {asctime} {name}: {message}", "%H:%M:%S", style="{"))
    logger = logging.getLogger("gpucluster")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception:  # of any kind: it is shown, and raised again
        show_traceback()
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def show_traceback() -> None:
    """Write the traceback of the exception that is being handled."""
    import traceback

    sys.stderr.write(terminal(traceback.format_exc()))
