"""`gpucluster-agent check --profile P`: checks this host and prints what is wrong.

The exit status is 0 where all is well, 1 with warnings, 2 where something is bad, 3 where something is not known.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpucluster.node_agent.checks import expected, registry
from gpucluster.node_agent.checks.collect.place import STATE, MeasuredHost
from gpucluster.node_agent.checks.model import EXIT_CODES, HostReport, Profile, Status
from gpucluster.node_agent.checks.run import run

_UNKNOWN = EXIT_CODES[Status.UNKNOWN]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks of a profile. Returns the exit status; 3 for bad arguments and a damaged file, too."""
    options = _parser().parse_args(argv)
    unknown = sorted(set(options.off) - set(registry.BY_NAME))
    if unknown:
        sys.stderr.write(f"no check {', '.join(unknown)}. There are: {', '.join(sorted(registry.BY_NAME))}\n")
        return _UNKNOWN
    try:
        expectation = expected.parse(options.expected.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, expected.Damaged) as error:
        why = getattr(error, "strerror", None) or error
        sys.stderr.write(
            f"{options.expected} does not state what this host should have: {why}\nRun: gpucluster apply\n"
        )
        return _UNKNOWN
    # The program that started us may ignore the end of children; then this one could not wait for its own.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    host = MeasuredHost(expectation, options.root, options.state, time.monotonic, time.time)
    report = run(host, Profile(options.profile), options.off, options.name)
    sys.stdout.write(json.dumps(report.to_dict()) + "\n" if options.output == "json" else text(report))
    return EXIT_CODES[report.status]


class _Parser(argparse.ArgumentParser):
    """Bad arguments end with the status of "unknown": 2 would mean that the host is bad."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(_UNKNOWN, f"{self.prog}: error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gpucluster-agent check", description=(__doc__ or "").replace("\n\n", " "))
    add = parser.add_argument
    add("--profile", required=True, choices=[profile.value for profile in Profile], help="which checks run")
    add("--output", choices=("text", "json"), default="text")
    add("--expected", type=Path, default=Path(expected.PATH), help="what the host should have (%(default)s)")
    add("--off", action="append", default=[], metavar="NAME", help="a check that does not run; may be repeated")
    add("--name", default="", help="the host's name in the report; by default the system's")
    add("--state", type=Path, default=STATE, help="where samples of counters are kept (%(default)s)")
    add("--root", type=Path, default=Path("/"), help="where the host's /proc, /sys and /dev are (%(default)s)")
    return parser


def text(report: HostReport) -> str:
    """The report as text: one line for each check, the skipped ones in one line, and what to do about the bad ones."""
    shown = [finding for finding in report.findings if finding.status is not Status.SKIP]
    width = max((len(finding.check) for finding in shown), default=0)
    lines = []
    for finding in shown:
        lines.append(f"{finding.status.value:<8}{finding.check:<{width}}  {finding.message}")
        if finding.status in (Status.FAIL, Status.WARN):
            lines.append(f"{'':<8}{'':<{width}}  {registry.BY_NAME[finding.check].remedy}")
    skipped = [finding.check for finding in report.findings if finding.status is Status.SKIP]
    if skipped:
        lines.append(f"{'skip':<8}{', '.join(skipped)}")
    lines.append(f"{report.host}: {report.status.value}, profile {report.profile.value}, {report.duration_s:.2f} s")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
