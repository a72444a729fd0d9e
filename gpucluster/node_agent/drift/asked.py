"""What the operator's machine sends to a host: it reads the request, and prints what differs.

{"cluster": true}       on the controller: its installed agent looks at Slurm and the directory, too
{"host": {"recorded", "findings"} or {"error"}, "cluster": {area: ...}}
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpucluster.node_agent import bounded, programs
from gpucluster.node_agent.drift.__main__ import of_host
from gpucluster.node_agent.errors import Failed
from gpucluster.node_agent.facts.__main__ import at_once, prepare

#: The installed agent: Slurm and the directory are looked at by the programs that change them.
AGENT = "/usr/local/bin/gpucluster-agent"
_SECONDS = 90.0
_MOST = 1 << 16


def of_cluster() -> dict[str, Any]:
    """What the controller's agent sees; an agent that does not know the question is older."""
    done = programs.call([AGENT, "drift", "cluster"], seconds=_SECONDS)
    try:
        answer = bounded.loads(done.stdout) if done.returncode == 0 else None
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        said = done.stderr.strip().rpartition("\n")[2][-200:]
        raise Failed(f"the controller's agent does not answer (Run: gpucluster apply): {said}")
    return answer


def main() -> int:
    """Entry point."""
    try:
        asked = bounded.loads(sys.stdin.read(_MOST))
        cluster = bool(asked["cluster"])
    except (ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"the request can't be read: {error}\n")
        return 2
    prepare()
    found = at_once({"host": of_host, **({"cluster": of_cluster} if cluster else {})})
    sys.stdout.write(json.dumps(found) + "\n")
    return 0
