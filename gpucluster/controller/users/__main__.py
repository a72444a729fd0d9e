"""Entry point of `cluster`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gpucluster.controller.users import cli, nss, requests
from gpucluster.controller.users.config import COMMAND, FILE, Config
from gpucluster.controller.users.service import UserService

_INTERRUPTED = 130


def make() -> UserService:
    """The users of the cluster whose controller this is."""
    config = Config.load(Path(FILE))
    return UserService(config, nss.local_accounts(config))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = cli.parser().parse_args(words)
    if os.geteuid() != 0:
        return _as_root(words)
    try:
        if options.kind == "request":
            return requests.serve(make, sys.stdin, sys.stdout)
        return cli.run(make, options, cli.InputTerminal())
    except (KeyboardInterrupt, EOFError):
        sys.stderr.write("\ncluster: interrupted; run the same command again to complete it\n")
        return _INTERRUPTED


def _as_root(words: Sequence[str]) -> int:
    """Start again as root, if the user may."""
    try:
        os.execvp("sudo", ["sudo", "--", COMMAND, *words])  # noqa: S606
    except OSError:
        sys.stderr.write("cluster: only root can run this, and sudo is not installed\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
