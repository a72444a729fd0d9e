"""`gpucluster-agent drift`: what on this host is not as the last complete apply left it. It changes nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from gpucluster.node_agent.drift import recorded
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.facts.__main__ import prepare


def of_host() -> dict[str, Any]:
    """What differs on this host, or why it is not known: see `recorded.compare`."""
    try:
        return recorded.compare()
    except AgentError as error:
        return {"error": error.message}
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent drift", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--request", action="store_true", help="answer the request on standard input (`asked`)")
    if parser.parse_args(argv).request:
        from gpucluster.node_agent.drift import asked  # it imports this module

        return asked.main()
    prepare()
    sys.stdout.write(json.dumps(of_host()) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
