"""`gpucluster-agent journal`: the lines of this host's journal after those that the controller has. It changes nothing.

The request on standard input, and the answer, are JSON objects:

    {"cursor": "...", "since": 1764468000.0}    without a cursor from `since` on, in seconds since 1970
    {"cursor": "...", "lines": ["..."], "cut": false}

Lines are those of journalctl's form short-iso-precise in UTC, the oldest first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from gpucluster.node_agent import bounded, programs
from gpucluster.node_agent.errors import AgentError, Failed, Refused, report

#: Lines of one answer. A host that writes more between two questions keeps the last ones.
MOST_LINES = 50_000
_SECONDS = 60.0
_LARGEST_REQUEST = 1 << 16
_CURSOR = "-- cursor: "


def lines_after(cursor: str, since: float) -> dict[str, Any]:
    """The answer to a request.

    Args:
        cursor: of the last line that is known; empty if none is.
        since: from when on, in seconds since 1970, where there is no such cursor: a new boot volume has another
            journal.

    Raises:
        Failed: journalctl gives no answer.
    """
    begin = [f"--after-cursor={cursor}"] if cursor else [f"--since=@{since:.0f}"]
    done = _journalctl(begin)
    if done.returncode != 0 and cursor:
        done = _journalctl([f"--since=@{since:.0f}"])
    if done.returncode != 0 and done.stderr.strip():
        raise Failed(f"journalctl: {done.stderr.strip()[-200:]}", "Run: systemctl status systemd-journald")
    lines = done.stdout.splitlines()
    last = lines.pop()[len(_CURSOR) :] if lines and lines[-1].startswith(_CURSOR) else cursor
    kept = [line for line in lines if line and not line.startswith("-- ")]
    return {"cursor": last, "lines": kept, "cut": len(lines) >= MOST_LINES}


def _journalctl(begin: Sequence[str]) -> programs.Completed[str]:
    form = ("--no-pager", "--quiet", "--utc", "--output=short-iso-precise", "--show-cursor", f"--lines={MOST_LINES}")
    return programs.call(["journalctl", *form, *begin], seconds=_SECONDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="gpucluster-agent journal", description=(__doc__ or "").partition("\n")[0])
    parser.parse_args(argv)
    try:
        sys.stdout.write(json.dumps(_answer(sys.stdin.read(_LARGEST_REQUEST))) + "\n")
    except AgentError as error:
        return report(error)
    return 0


def _answer(text: str) -> dict[str, Any]:
    try:
        asked = bounded.loads(text)
        cursor, since = str(asked["cursor"]), float(asked["since"])
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"the request can't be read: {error}") from error
    return lines_after(cursor, since)


if __name__ == "__main__":
    sys.exit(main())
