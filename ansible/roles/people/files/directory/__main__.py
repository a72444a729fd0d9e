"""Entry point of `cluster`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from directory import lookup, requests, terminal
from directory.config import FILE, Config
from directory.service import Service

_INTERRUPTED = 130


def make() -> Service:
    """The people of the cluster whose controller this is."""
    config = Config.load(Path(FILE))
    return Service(config, lookup.surroundings(config))


def main(argv: Sequence[str] | None = None) -> int:
    """Do what was typed; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = terminal.parser().parse_args(words)
    if os.geteuid() != 0:
        return _as_root(words)
    try:
        if options.kind == "request":
            return requests.serve(make, sys.stdin, sys.stdout)
        return terminal.run(make, options, terminal.Ask())
    except (KeyboardInterrupt, EOFError):
        sys.stderr.write("\ncluster: interrupted; do the same again to complete it\n")
        return _INTERRUPTED


def _as_root(words: Sequence[str]) -> int:
    """Become root, if whoever asks may."""
    try:
        os.execvp("sudo", ["sudo", "--", os.path.abspath(sys.argv[0]), *words])  # noqa: S606
    except OSError:
        sys.stderr.write("cluster: only root can do that, and there is no sudo here\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
