"""A page with the budgets as they were in every commit that changed them: what became slower, and when.

    python benchmarks/budget_page.py [FILE]      default: budgets.html in the current folder

From this repository's history of budget.toml beside this file, and of tests/e2e/budget.toml. The page is one file that
loads nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from gpucluster.pages.frame import Section, page
from gpucluster.pages.markup import element, joined
from gpucluster.pages.plots import time_series
from gpucluster.pages.series import SeriesLine
from gpucluster.pages.units import Unit

ROOT = Path(__file__).resolve().parents[1]
FILES = {"benchmarks/budget.toml": "On a quiet machine", "tests/e2e/budget.toml": "In the suite"}
_UNITS = {
    "tasks": Unit("tasks", whole=True),
    "processes": Unit("processes", whole=True),
    "kilobytes": Unit("kB"),
    "seconds": Unit("s"),
    "ssh": Unit("starts", whole=True),
    "syncs": Unit("calls", whole=True),
    "files": Unit("files", whole=True),
}


class Version(NamedTuple):
    """A file of budgets in one commit: seconds since 1970, and verb -> name of the cost -> cost."""

    time: int
    budgets: Mapping[str, Mapping[str, float]]


def history(repository: Path, file: str) -> list[Version]:
    """The versions of a file, the oldest first."""

    def git(*words: str) -> str:
        return subprocess.run(("git", "-C", repository, *words), check=True, capture_output=True, text=True).stdout

    commits = [line.split() for line in git("log", "--reverse", "--format=%H %ct", "--", file).splitlines()]
    return [Version(int(when), tomllib.loads(git("show", f"{commit}:{file}"))) for commit, when in commits]


def plots(versions: Sequence[Version]) -> Markup:
    """A heading for each verb, and a plot for each kind of its costs."""
    points: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for version in versions:
        for verb, costs in version.budgets.items():
            for name, cost in costs.items():
                kind, _, whose = name.partition("_")
                points[verb, kind][whose or "machine"].append((version.time, cost))
    parts: list[Markup] = []
    for verb in dict.fromkeys(verb for verb, _ in points):
        parts.append(element("h3", verb))
        for kind, unit in _UNITS.items():
            lines = [
                SeriesLine(whose, found, step=float("inf")) for whose, found in points.get((verb, kind), {}).items()
            ]
            if lines:
                parts.append(time_series(kind, lines, unit))
    return joined(parts)


def budget_page(repository: Path) -> str:
    """The page, as HTML."""
    sections = [
        Section(id=f"budgets-{number}", title=title, body=plots(history(repository, file)))
        for number, (file, title) in enumerate(FILES.items())
    ]
    lead = "The costs of commands and of new nodes, in each commit that changed a budget."
    return page("Budgets", sections, kind="budgets", made_at=time.time(), made_by=Path(__file__).name, lead=lead)


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "budgets.html")
    target.write_text(budget_page(ROOT))
    print(f"{target}: written")


if __name__ == "__main__":
    main()
