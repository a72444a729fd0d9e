"""`gpucluster status`, once; with --watch on the whole screen, again and again until Ctrl-C or q.

What the screen shows is computed by `screen`, from a status and the size of the terminal.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpucluster.cli.base import Context, cluster_of, command
from gpucluster.cli.summaries import place, status_text
from gpucluster.errors import InputError
from gpucluster.slurm import states
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from rich.text import Text

    from gpucluster.cluster import Cluster

#: Seconds between two looks, where the user gives none.
INTERVAL = 5.0
_COLOURS = {"free": "green", "busy": "blue", "out of service": "red", "unknown": "yellow"}
_BAR = 40  # characters
_KUBERNETES_READY = "Ready"


@command("status", short_help="Show what exists, Slurm's nodes, and the last runs.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), metavar="SECONDS",
    help="How long to wait for the answers of the cloud, the state and the controller. Default: 4 seconds.",
)  # fmt: skip
@click.option(
    "--watch", "watched", is_flag=True, help="Show it on the whole terminal, and ask again, until q or Ctrl-C."
)
@click.option(
    "--every",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="With --watch: seconds between two looks. Default: 5.",
)
def status(context: Context, timeout: float | None, watched: bool, every: float | None) -> None:
    """Ask the cloud and Slurm: what exists, what is pending, the last runs."""
    if every is not None and not watched:
        raise click.UsageError("--every needs --watch")
    if watched and context.output == "json":
        raise click.UsageError("--watch is for a terminal; for programs, run status again")
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.operations.status import TIMEOUT

        def ask() -> Mapping[str, Any]:
            return cluster.status(timeout=TIMEOUT if timeout is None else timeout).to_dict()

        current = watch(ask, every or INTERVAL) if watched else ask()
        reporter.result({"command": "status", **current}, f"{status_text(current)}\n\n{_which(cluster)}")


def _which(cluster: Cluster) -> str:
    """Where the cluster is, and its identity as `gpucluster list` has it: another one may have the same name."""
    from gpucluster.paths import ClusterPaths
    from gpucluster.workspace.saved_state import SavedState

    saved = SavedState(ClusterPaths.of(cluster.spec.file)).identity
    known = f", identity {saved.id}" if saved and saved.name == cluster.spec.name else ""
    return f"in {place(cluster)}{known}"


def screen(status: Mapping[str, Any], *, width: int, height: int, note: str) -> Text:
    """What a terminal shows of a status: a bar for each partition or pool, and below it what `status` prints.

    Args:
        status: a `ClusterStatus` as JSON object.
        width, height: of the terminal, in characters and lines.
        note: the last line.
    """
    from rich.text import Text

    from gpucluster.cli.output import wrapped

    shown = Text(no_wrap=True, overflow="crop")
    bars = list(_bars(status, width))
    first, *rest = status_text({**status, "slurm": [], "kubernetes": []}).splitlines()
    head = [Text(line, "bold") for line in wrapped(first, width).splitlines()]
    fits = [_line(line, part) for line in rest for part in wrapped(line, width).split("\n")]
    lines = [*head, *([Text(), *bars] if bars else []), *fits]
    room = max(height - 1, 1)
    if len(lines) > room:
        hidden = len(lines) - room + 1
        lines = [*lines[: room - 1], Text(f"... {count(hidden, 'more line')}: gpucluster status", "dim")]
    shown.append_text(Text("\n").join([*lines, Text(note, "dim")]))
    return shown


def _line(whole: str, part: str) -> Text:
    """A part of a line, in the colour of the line."""
    from rich.text import Text

    return Text(part, "yellow" if whole.startswith("!") else "")


def _bars(status: Mapping[str, Any], width: int) -> Iterator[Text]:
    """A line for each partition of Slurm, and for each pool of Kubernetes; more where it does not fit."""
    from rich.text import Text

    from gpucluster.cli.output import wrapped

    groups: dict[str, list[str]] = {}
    for row in status["slurm"]:
        if not row["state"].endswith("~"):  # a possible node, without an instance
            groups.setdefault(row["partition"], []).append(row["state"])
    meanings: dict[str, Callable[[str], str]] = dict.fromkeys(groups, _of_slurm)
    for row in status["kubernetes"]:
        name = row["pool"] or "-"
        groups.setdefault(name, []).append(row["state"])
        meanings.setdefault(name, _of_kubernetes)
    column = max(map(len, groups), default=0)
    for name, of_group in groups.items():
        meaning = Counter(map(meanings[name], of_group))
        line = Text(f"{printable(name):{column}}  {count(len(of_group), 'node'):>10}  ")
        for kind, cells in _cells(meaning, min(_BAR, max(width - column - 30, 5))):
            line.append("█" * cells, _COLOURS[kind])
        words = ", ".join(f"{printable(state)} {number}" for state, number in sorted(Counter(of_group).items()))
        if line.cell_len + len(words) < width:
            yield line.append(f"  {words}")
        else:
            yield line
            yield from map(Text, wrapped(f"  {words}", width).split("\n"))


def _cells(meaning: Mapping[str, int], width: int) -> list[tuple[str, int]]:
    """How many characters of a bar each kind has: at least one if there is a node of it."""
    total = sum(meaning.values())
    return [(kind, max(round(meaning[kind] * width / total), 1)) for kind in _COLOURS if meaning.get(kind)]


def _of_slurm(state: str) -> str:
    health = states.node_health(state)
    if health is not states.NodeHealth.GOOD:
        return "out of service" if health is states.NodeHealth.BAD else "unknown"
    return "busy" if states.sinfo_word(state) in states.SINFO_BUSY else "free"


def _of_kubernetes(state: str) -> str:
    return "free" if state == _KUBERNETES_READY else "out of service"


def watch(ask: Callable[[], Mapping[str, Any]], seconds: float) -> Mapping[str, Any]:
    """Show the status until the user ends it with Ctrl-C or q. Returns the last one.

    Args:
        ask: asks for the status.
        seconds: between two looks.

    Raises:
        InputError: standard output is not a terminal.
    """
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise InputError(
            "--watch shows the status on a terminal, and this is none",
            hint="Without it, gpucluster status prints the status once; --output json is for programs",
        )
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    status: Mapping[str, Any] | None = None
    with contextlib.suppress(KeyboardInterrupt), _single_keys(), Live(console=console, screen=True) as live:
        live.update(Text("asking the cloud, the state and the controller ...", "dim"), refresh=True)
        while True:
            began = time.monotonic()
            status = ask()
            while (left := began + seconds - time.monotonic()) > 0:
                note = f"next look in {left:.0f} s; q or Ctrl-C ends it"
                # The size may have changed.
                live.update(screen(status, width=console.width, height=console.height, note=note), refresh=True)
                if _pressed(min(left, 1.0)) in ("q", "Q"):
                    return status
    if status is None:
        raise KeyboardInterrupt
    return status


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """The terminal gives each key at once, and shows none of them. Ctrl-C stays what it is."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setcbreak(file)
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> str:
    """The key that is pressed within this time; empty if none is."""
    readable: Sequence[Any] = select.select([sys.stdin.fileno()], [], [], seconds)[0]
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if readable else ""
