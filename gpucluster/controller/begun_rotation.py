"""The file of a rotation that is not complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, TypeVar

from gpucluster.node_agent import bounded
from gpucluster.node_agent.errors import Failed

_T = TypeVar("_T")


def read(file: Path, name: str, made: Callable[[Any], _T]) -> _T | None:
    """What `made` makes of the document in a file; None if there is no file.

    Args:
        name: of the secret, for the command that begins again.

    Raises:
        Failed: it can't be read.
    """
    try:
        return made(bounded.load(file))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Failed(f"{file} can't be read", f"Remove it, then run: gpucluster rotate {name} ({file})") from None
