"""What all commands share: the root group, the options before and after a command's name, the `Cluster` of the file,
and the exit codes of errors.

Everything heavy is imported inside functions, so that `--help` costs little more than Python itself.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpucluster import __version__
from gpucluster.cli.debug import debugging, show_traceback
from gpucluster.errors import EXIT_INTERRUPTED, EXIT_SUCCESS, GpuClusterError, InputError, Interrupted

if TYPE_CHECKING:
    from pathlib import Path

    from gpucluster.cli.output import ResultReporter
    from gpucluster.cluster import Cluster
    from gpucluster.spec import ClusterSpec

DEFAULT_FILES = ("cluster.yml", "inventories/local/cluster.yml")
EXIT_CODES = """\b
Exit codes:
  0    success
  1    failed (also: a check of verify failed or could not run;
       exposure: something is known against a host, or one did not answer)
  2    bad input, or the cloud would refuse it; nothing was created
  3    plan --detailed-exitcode: there are changes
       (migrate orm: something is left to decide)
  4    another run holds this cluster
  5    this machine lacks something that is needed
  6    users' data would be lost; pass --delete-data to continue
  7    nodes would be replaced; pass --replace-nodes to continue
  8    users, groups or a key are changed, and not every host has confirmed it
  9    the saved plan does not hold any more; nothing was changed
  10   drift: something differs
  11   drift: nothing differs of what was compared, but not everything could be
  130  interrupted; run the same command again to continue"""


class Context:
    """The values of the options that all commands share.

    Args:
        interactive: whether questions may be asked and a line of the terminal may move.
        name: of the command, such as "user add".
        cluster_id: see `Cluster`.
    """

    def __init__(
        self,
        file: str | None,
        output: str,
        *,
        debug: bool = False,
        verbose: bool = False,
        interactive: bool = True,
        name: str = "",
        cluster_id: str = "",
    ) -> None:
        self._file = file
        self.output = output
        self.debug = debug
        self.verbose = verbose
        self.interactive = interactive
        self.name = name
        self.cluster_id = cluster_id

    @property
    def can_ask(self) -> bool:
        """Whether a user is there to answer a question: it is asked on standard error."""
        return self.interactive and sys.stdin.isatty() and sys.stderr.isatty()

    @property
    def file(self) -> Path:
        """The cluster file: the one named, else the first default that exists."""
        from pathlib import Path

        if self._file is not None:
            return Path(self._file)
        for candidate in map(Path, DEFAULT_FILES):
            if candidate.exists():
                return candidate
        raise InputError(
            f"there is no {DEFAULT_FILES[0]} here",
            where=str(Path.cwd()),
            hint="Write one with `gpucluster init`, or name one with --file",
        )

    @property
    def has_file(self) -> bool:
        """Whether a cluster file is named, or one of the defaults exists."""
        return self._file is not None or any(map(os.path.exists, DEFAULT_FILES))

    def spec(self) -> ClusterSpec:
        """The validated content of the cluster file."""
        from gpucluster.spec import load

        return load(self.file)


def _options(
    function: Callable[..., Any], *, environment: bool = False, without: Sequence[str] = ()
) -> Callable[..., Any]:
    """The common options, understood before and after the name of a command, and of a group of commands.

    Args:
        environment: take the value from an environment variable if the option is not given. Only the root does: an
            option that is given in any other place must beat the variable.
        without: names that the command has for an option of its own, such as -f.
    """

    def option(*names: str, variable: str | None = None, **settings: Any) -> Callable[..., Any]:
        read = variable if environment else None
        left = [name for name in names if name not in without]
        return click.option(*left, envvar=read, show_envvar=read is not None, default=None, **settings)

    common = (
        option(
            "-f", "--file", type=click.Path(dir_okay=False), variable="GPUCLUSTER_FILE",
            is_eager=environment,  # before --help, which lists what the cluster of this file can use
            help="The cluster file. Default: cluster.yml, else inventories/local/cluster.yml.",
        ),
        option(
            "-o", "--output", type=click.Choice(["auto", "text", "json"]), variable="GPUCLUSTER_OUTPUT",
            help="auto: live on a terminal, lines in a pipe. json: one event a line, the result last.",
        ),
        option("-v", "--verbose", is_flag=True, help="Show every task of Ansible with its host, and what is begun."),
        option(
            "--debug/--no-debug", variable="GPUCLUSTER_DEBUG",
            help="Show the commands that are run, all output of Terraform and Ansible, and tracebacks.",
        ),
        option(
            "--cluster-id", metavar="ID",
            help="Work on the cluster with this identity, although this folder has no state of it (gpucluster list).",
        ),
        option("--non-interactive", is_flag=True, help="Never ask, and show no live line: as without a terminal."),
    )  # fmt: skip
    for decorate in reversed(common):
        function = decorate(function)
    return function


def _common_option(ctx: click.Context, name: str) -> Any:
    """The value of a common option: of the command, else of its group, else of the root or its environment."""
    place: click.Context | None = ctx
    while place is not None:
        if place.params.get(name) is not None:
            return place.params[name]
        place = place.parent
    return None


def context_of(ctx: click.Context) -> Context:
    """The common options of a command, wherever they were given."""
    return Context(
        _common_option(ctx, "file"),
        _common_option(ctx, "output") or "auto",
        debug=bool(_common_option(ctx, "debug")),
        verbose=bool(_common_option(ctx, "verbose")),
        interactive=not _common_option(ctx, "non_interactive"),
        name=ctx.command_path.partition(" ")[2],
        cluster_id=_common_option(ctx, "cluster_id") or "",
    )


_COMMON = ("file", "output", "verbose", "debug", "cluster_id", "non_interactive")


#: A narrower terminal has no room for a description beside a name of usual length: it gets a line of its own.
_NARROW = 60
_NARROW_NAME = 8
_WHOLE = 200  # characters: more than any short help has


class _Formatter(click.HelpFormatter):
    """Help that is also read on a narrow terminal: no word is cut there."""

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names with their descriptions."""
        super().write_dl(rows, _NARROW_NAME if self.width < _NARROW else col_max, col_spacing)

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section."""
        first, *more = textwrap.wrap(f"{heading}:", self.width - self.current_indent) or [":"]
        self.write("".join(f"{' ' * self.current_indent}{line}\n" for line in (first, *more)))

    def write_text(self, text: str) -> None:
        """Write paragraphs; those whose lines are given are broken where they do not fit."""
        if self.width < _NARROW and "\b" in text:
            from gpucluster.cli.output import wrapped

            indent = " " * self.current_indent
            lines = wrapped(text.replace("\b\n", ""), self.width - self.current_indent).splitlines()
            self.write("".join(f"{indent}{line}".rstrip() + "\n" for line in lines))
            return
        super().write_text(text)


class _Context(click.Context):
    """Help is as wide as the terminal; click's own is never narrower than 50 columns."""

    formatter_class = _Formatter

    def make_formatter(self) -> click.HelpFormatter:
        """A formatter of the terminal's width."""
        import shutil

        if self.terminal_width is None and (columns := shutil.get_terminal_size().columns) < _NARROW:
            return self.formatter_class(width=max(columns - 2, _NARROW // 2))
        return super().make_formatter()


class OwnOptions(click.Command):
    """A command whose help explains its own options, and only names the common ones: the root explains those."""

    context_class = _Context

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options into the help."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        own = [option for option in options if option.name not in _COMMON]
        with formatter.section("Options"):
            formatter.write_dl([record for option in own if (record := option.get_help_record(ctx))])
        common = [option.opts[-1] for option in options if option.name in _COMMON]
        with formatter.section("Options of every command, explained by gpucluster --help"):
            formatter.write_text(", ".join(common))


class _NamesCommands(click.Group):
    """A group that answers an unknown command with those of a similar name."""

    context_class = _Context

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the words name."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            from gpucluster.text import did_you_mean

            hint = did_you_mean(name, self.list_commands(ctx)) or f"{ctx.command_path} --help lists them."
            ctx.fail(f"No such command {name!r}. {hint}")
        return super().resolve_command(ctx, args)


class _OwnOptionsGroup(OwnOptions, _NamesCommands):
    """The same for a group of commands."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options and the commands into the help."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def command(name: str, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A command of `gpucluster` that takes the common options and passes a `Context` to its function.

    Args:
        settings: those of click; `without`: short names of common options that are an option of the command here.
    """
    without = settings.pop("without", ())

    def register(function: Callable[..., None]) -> click.Command:
        @click.pass_context
        def call(ctx: click.Context, /, **arguments: Any) -> None:
            context = context_of(ctx)
            with debugging(context.debug):
                function(context, **{key: value for key, value in arguments.items() if key not in _COMMON})

        call.__doc__ = function.__doc__
        call.__click_params__ = list(getattr(function, "__click_params__", ()))  # type: ignore[attr-defined]
        parent = settings.pop("parent", cli)
        registered: click.Command = parent.command(name, **{"cls": OwnOptions, **settings})(
            _options(call, without=without)
        )
        return registered

    return register


def command_group(name: str) -> Callable[[Callable[[], None]], click.Group]:
    """A group of commands, such as `gpucluster user`. It takes the common options, too."""

    def register(function: Callable[[], None]) -> click.Group:
        def call(**_common: Any) -> None:
            function()

        call.__doc__ = function.__doc__
        group: click.Group = cli.group(name, cls=_OwnOptionsGroup)(_options(call))
        return group

    return register


def _at_root(function: Callable[..., Any]) -> Callable[..., Any]:
    return _options(function, environment=True)


#: The commands as `gpucluster --help` lists them, by what one does with them; with the module of this folder that
#: registers each. A module is imported when a command of it is used: all of them together cost as much as click.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Start": {
        **dict.fromkeys(("init", "validate", "preflight", "policies"), "clusters"),
        "migrate": "migrate",
        "export": "migrate",
    },
    "Build": dict.fromkeys(("plan", "apply", "rollout", "replace", "destroy"), "clusters"),
    "Look": {
        "status": "status",
        **dict.fromkeys(("list", "verify", "ssh"), "clusters"),
        "cp": "copying",
        **dict.fromkeys(("inventory", "output"), "clusters"),
        "drift": "drift",
        "exposure": "exposure",
        "cost": "cost",
        "dashboard": "dashboard",
        **dict.fromkeys(("runs", "logs"), "history"),
        "schema": "schema",
    },
    "Users": {
        "user": "users",
        "group": "groups",
        "token": "tokens",
        **dict.fromkeys(("kubeconfig", "kubectl"), "kubeconfig"),
    },
    "Work": {"job": "jobs", "image": "images"},
    "Upkeep": {
        **dict.fromkeys(("backup", "restore"), "backup"),
        "controller": "controller",
        "rotate": "rotation",
        "autoscaler": "autoscaling",
        "slurm": "slurm",
        "kubernetes": "kubernetes",
        "software": "software",
        "state": "state",
        "support-bundle": "support",
    },
    "The local cloud": {"local": "local"},
}

#: The module of this folder that registers a command, by the command's name.
MODULES = {name: module for section in SECTIONS.values() for name, module in section.items()}


#: Commands that only clusters with this scheduler can use, and those that only a cluster of this cloud can use.
_OF_SCHEDULER: Mapping[str, Sequence[str]] = {
    "slurm": ("token", "slurm"),
    "kubernetes": ("kubeconfig", "kubectl", "kubernetes"),
}
_OF_PROVIDER: Mapping[str, Sequence[str]] = {"local": ("local",)}


def not_for(document: object) -> Mapping[str, str]:
    """The commands that a cluster can't use, each with the reason, such as `scheduler: slurm`.

    Args:
        document: the content of the cluster file. It may be wrong: what it does not state is as by default.
    """
    if not isinstance(document, dict):
        return {}
    cloud = document.get("cloud")
    found: dict[str, str] = {}
    for key, value, only in (
        ("scheduler", document.get("scheduler", "slurm"), _OF_SCHEDULER),
        ("cloud.provider", cloud.get("provider") if isinstance(cloud, dict) else None, _OF_PROVIDER),
    ):
        if isinstance(value, str):
            others = (name for of, names in only.items() if of != value for name in names)
            found.update(dict.fromkeys(others, f"{key}: {value}"))
    return found


def _document(ctx: click.Context) -> object:
    """The content of the cluster file; None without one, and for one that can't be read: help is always given."""
    try:
        file = Context(_common_option(ctx, "file") or os.environ.get("GPUCLUSTER_FILE"), "text").file
        import yaml

        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except Exception:  # of any kind, see above
        return None


class Root(_NamesCommands):
    """The program. Its commands are imported when they are used, by their names or to list them.

    A typing error in a command line is reported as any other error: with `--output json` as JSON.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; None if there is none."""
        if cmd_name in MODULES:
            importlib.import_module(f"{__package__}.{MODULES[cmd_name]}")
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order of the help."""
        return [*MODULES, *sorted(set(self.commands) - set(MODULES))]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help, a section for each thing that one does with a cluster.

        What the cluster of this folder can't use is only named, at the end.
        """
        width = max(map(len, MODULES))
        hidden = not_for(_document(ctx))
        for title, names in SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names if name not in hidden}
            if not commands:
                continue
            limit = formatter.width - width - 6
            narrow = formatter.width < _NARROW
            lines = [
                (name if narrow else name.ljust(width), found.get_short_help_str(_WHOLE if narrow else limit))
                for name, found in commands.items()
                if found
            ]
            with formatter.section(title):
                formatter.write_dl(lines)
        for reason in dict.fromkeys(hidden.values()):
            others = ", ".join(name for name in MODULES if hidden.get(name) == reason)
            formatter.write_paragraph()
            formatter.write_text(f"Not for this cluster ({reason}): {others}")

    def all_commands(self) -> Mapping[str, click.Command]:
        """All commands by their names."""
        for module in MODULES.values():
            importlib.import_module(f"{__package__}.{module}")
        return self.commands

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        """Run the program with these words (default: those it was called with), and end it with its exit status."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            ended = super().main(words, *rest, **{**settings, "standalone_mode": False})
        except click.ClickException as error:
            if not wants_json(words):
                from gpucluster.cli.output import say

                usage = io.StringIO()
                error.show(usage)
                say(usage.getvalue(), err=True, newline=False)
                sys.exit(error.exit_code)
            from gpucluster.cli.output import JsonLines

            ctx = getattr(error, "ctx", None)
            JsonLines(command=ctx.command_path.partition(" ")[2] if ctx else "").error(_as_input_error(error))
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(EXIT_INTERRUPTED)
        sys.exit(ended if isinstance(ended, int) else EXIT_SUCCESS)


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line, which may be wrong, asks for JSON: its last `--output`, else the environment."""
    chosen = os.environ.get("GPUCLUSTER_OUTPUT", "")
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word == "--":
            break
        if word in ("-o", "--output"):
            chosen = following
        elif word.startswith(("-o", "--output=")):
            chosen = word.removeprefix("--output=").removeprefix("-o")
    return chosen == "json"


def _as_input_error(error: click.ClickException) -> InputError:
    ctx = getattr(error, "ctx", None)
    program = ctx.command_path if ctx else "gpucluster"
    # Without any words the message is the whole help (since click 8.2).
    missing = isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ()))
    return InputError("the command is missing" if missing else error.format_message(), hint=f"See: {program} --help")


@click.group(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="gpucluster")
@_at_root
def cli(**_common: Any) -> None:
    """Create and operate GPU clusters on Oracle Cloud Infrastructure, or the same cluster on this machine.

    One file describes the cluster; `apply` creates or updates it, then verifies it.
    """


@contextlib.contextmanager
def reporting(context: Context) -> Iterator[ResultReporter]:
    """A reporter; errors in this block become text and an exit code."""
    from gpucluster.cli.output import reporter_for

    # A live status line and debug lines would overwrite each other.
    plain = context.output == "auto" and (context.debug or not context.interactive)
    reporter = reporter_for("text" if plain else context.output, verbose=context.verbose, command=context.name)
    try:
        yield reporter
    except GpuClusterError as error:
        if context.debug:
            show_traceback()
        reporter.error(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        from gpucluster.paths import fault_of

        fault = fault_of(error)
        if fault is None:
            raise
        if context.debug:
            show_traceback()
        reporter.error(fault)
        sys.exit(fault.exit_code)
    except KeyboardInterrupt:
        reporter.error(Interrupted("interrupted"))
        sys.exit(EXIT_INTERRUPTED)
    finally:
        reporter.close()


@contextlib.contextmanager
def cluster_of(context: Context, provider: str = "bundled") -> Iterator[tuple[Cluster, ResultReporter]]:
    """The cluster of the file, within `reporting`."""
    with reporting(context) as reporter:
        yield open_cluster(context, reporter, provider), reporter


def open_cluster(context: Context, reporter: ResultReporter, provider: str = "bundled") -> Cluster:
    """The cluster of the file.

    Raises:
        GpuClusterError: the file is wrong, or this folder's state is of another cluster.
    """
    spec = context.spec()
    from gpucluster.cluster import Cluster

    cluster = Cluster(spec, on_event=reporter, provider=provider, cluster_id=context.cluster_id)
    cluster.state.require_name()
    return cluster


PROVIDER = click.option(
    "--provider", type=click.Choice(["bundled", "registry"]), default="bundled", envvar="GPUCLUSTER_PROVIDER",
    help="Terraform's provider on the local cloud: ours, or the real oracle/oci from where Terraform finds it.",
)  # fmt: skip
YES = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
DELETE_DATA = click.option("--delete-data", is_flag=True, help="Allow deleting users' files in the home share.")
SKIP_PREFLIGHT = click.option(
    "--skip-preflight", is_flag=True, help="Do not ask the cloud in advance whether it would accept the file."
)
