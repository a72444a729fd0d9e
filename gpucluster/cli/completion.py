"""What a shell offers in place of a name: hosts, pools, users, templates, runs, from the files of this machine.

Nothing is asked of the cloud or of a host: the answer comes while the user types. What this machine does not know, such
as elastic nodes and users that are only in the directory, is not offered, and may be typed all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from gpucluster.cli.base import Context

Names = Callable[[click.Context, click.Parameter, str], list[str]]


def _offered(names: Callable[[Context], Iterable[str]]) -> Names:
    """Names for click. A file that is missing or wrong offers none: an error here would end up in the command line."""

    @wraps(names)
    def offer(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        given = context.params.get(parameter.name or "") or ()
        taken = set(given if isinstance(given, tuple) else (given,))
        try:
            return [name for name in names(_of(context)) if name.startswith(incomplete) and name not in taken]
        except Exception:  # of any kind, see above
            return []

    return offer


def _of(context: click.Context) -> Context:
    """With the cluster file that the words before have named, or the variable of that option."""
    level: click.Context | None = context
    while level is not None and not level.params.get("file"):
        level = level.parent
    return Context(level.params["file"] if level else None, "text")


@_offered
def hosts(context: Context) -> Iterable[str]:
    """The hosts of the last run that found them, and the word for the controller."""
    return ("controller", *_hosts(context))


def copied(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Hosts with a colon; beside them the shell offers the files of this machine."""
    offered = [f"{name}:" for name in hosts(context, _parameter, "")] if ":" not in incomplete else []
    names = [CompletionItem(name) for name in offered if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


@_offered
def nodes(context: Context) -> Iterable[str]:
    """The permanent nodes of the last run that found them."""
    pools = tuple(f"{pool}-" for pool in _section(context, "pools"))
    return (name for name in _hosts(context) if name.startswith(pools))


@_offered
def pools(context: Context) -> Iterable[str]:
    """The pools of the cluster file."""
    return _section(context, "pools")


@_offered
def users(context: Context) -> Iterable[str]:
    """The users of the cluster file."""
    return (str(user["name"]) for user in _section(context, "users").get("people", ()))


@_offered
def templates(_context: Context) -> Iterable[str]:
    """The templates of jobs."""
    from gpucluster.jobs import registry

    return (template.name for template in registry.templates())


@_offered
def launchers(_context: Context) -> Iterable[str]:
    """The launchers of jobs, of all schedulers."""
    from gpucluster.jobs import registry

    return registry.launchers()


@_offered
def runs_and_hosts(context: Context) -> Iterable[str]:
    """The runs of this machine, the newest first, and the hosts."""
    from gpucluster.paths import ClusterPaths
    from gpucluster.workspace import run_history

    past = run_history.past_runs(ClusterPaths.of(context.file))
    return (*(run.id for run in past), "controller", *_hosts(context))


def _hosts(context: Context) -> list[str]:
    from gpucluster.paths import ClusterPaths
    from gpucluster.workspace.saved_state import SavedState

    return [host.name for host in SavedState(ClusterPaths.of(context.file)).hosts()]


def _section(context: Context, name: str) -> dict[str, Any]:
    """A section of the cluster file, which need not be right as a whole."""
    import yaml

    section = yaml.safe_load(Path(context.file).read_text(encoding="utf-8"))[name]
    return section if isinstance(section, dict) else {}
