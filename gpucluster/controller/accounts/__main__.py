"""Accounts, QOS and limits of cluster.yml in Slurm's accounting.

    gpucluster-agent accounts apply < WANTED     make Slurm's accounting as cluster.yml has it, and print what changed
    gpucluster-agent accounts plan < WANTED      print what that would change, and change nothing
    gpucluster-agent accounts hosts|usage        what the cluster was made of, and what ran on it: see `usage`

WANTED is one JSON object: `cluster`, `default_account`, and what `plan.Accounts` has. What the last run wanted is in a
file of the controller's state, so that what leaves cluster.yml is told from what an administrator has made.

The answer is one line of JSON: {"changed", "commands", "kept"}; an error is one on standard error. Exit status: 0 done,
1 failed, 2 refused.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from gpucluster.controller.accounts import usage
from gpucluster.controller.accounts.slurm import REMEMBERED, run
from gpucluster.node_agent import bounded
from gpucluster.node_agent.errors import AgentError, Failed, of_system


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent accounts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["apply", "plan", "hosts", "usage"])
    parser.add_argument("--since", type=float, default=0.0, help="with usage: seconds of the epoch")
    parser.add_argument("--until", type=float, default=time.time(), help="with usage: seconds of the epoch")
    options = parser.parse_args(argv)
    os.umask(0o077)
    try:
        if options.what == "usage":
            answer = usage.usage(options.since, options.until)
        elif options.what == "hosts":
            answer = {"changed": usage.record_hosts(bounded.loads(sys.stdin.read())["hosts"])}
        else:
            answer = run(bounded.loads(sys.stdin.read()), REMEMBERED, change=options.what == "apply")
    except AgentError as error:
        return _refuse(error)
    except OSError as error:
        return _refuse(of_system(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return _refuse(Failed(f"the accounts of cluster.yml can't be read: {error!r}", "Run: gpucluster apply"))
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def _refuse(error: AgentError) -> int:
    sys.stderr.write(json.dumps({"error": {"message": error.message, "hint": error.hint}}) + "\n")
    return error.status


if __name__ == "__main__":
    sys.exit(main())
