"""`--debug`: the commands that are run, the output of Terraform and Ansible, and tracebacks, all on standard error.

Secrets never appear: programs get them by their environment or their standard input, and neither is written anywhere.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import click


@contextlib.contextmanager
def debugging(wanted: bool) -> Iterator[None]:
    """Show what is logged in this block, and the traceback of an unexpected exception, if `wanted`."""
    if not wanted:
        yield
        return
    import logging  # it costs a tenth of what Python's start costs

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("debug: %(asctime)s %(name)s: %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("gpucluster")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception:
        show_traceback()
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def show_traceback() -> None:
    """Write the traceback of the exception that is being handled."""
    import traceback

    traceback.print_exc(file=sys.stderr)
