"""What all commands share: the root group, the options before and after a command's name, the `Cluster` of the file,
and the exit codes of errors.

Everything heavy is imported inside functions, so that `--help` costs little more than Python itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from gpucluster import __version__
from gpucluster.cli.debug import debugging, show_traceback
from gpucluster.errors import EXIT_INTERRUPTED, GpuClusterError, InputError, Interrupted

if TYPE_CHECKING:
    from pathlib import Path

    from gpucluster.cli.output import Reporter
    from gpucluster.cluster import Cluster
    from gpucluster.spec import ClusterSpec

DEFAULT_FILES = ("cluster.yml", "inventories/local/cluster.yml")
EXIT_CODES = """\b
Exit codes:
  0    success
  1    failed (also: a check of verify failed or could not run)
  2    bad input, or the cloud would refuse it; nothing was created
  3    plan --detailed-exitcode: there are changes
  4    another run holds this cluster
  5    this machine lacks something that is needed
  6    users' data would be lost; pass --delete-data to continue
  7    nodes would be replaced; pass --replace-nodes to continue
  130  interrupted; run the same command again to continue"""


class Context:
    """The values of the options that all commands share."""

    def __init__(self, file: str | None, output: str, *, debug: bool = False) -> None:
        self._file = file
        self.output = output
        self.debug = debug

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

    def spec(self) -> ClusterSpec:
        """The validated content of the cluster file."""
        from gpucluster.spec import load

        return load(self.file)


def options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--file`, `--output` and `--debug`, understood before and after the command's name."""
    file = click.option(
        "-f", "--file", type=click.Path(dir_okay=False), envvar="GPUCLUSTER_FILE",
        help="The cluster file. Default: cluster.yml, else inventories/local/cluster.yml.",
    )  # fmt: skip
    output = click.option(
        "-o", "--output", type=click.Choice(["auto", "text", "json"]), envvar="GPUCLUSTER_OUTPUT",
        help="auto: live on a terminal, lines in a pipe. json: one event a line, the result last.",
    )  # fmt: skip
    debug = click.option(
        "--debug", is_flag=True, envvar="GPUCLUSTER_DEBUG",
        help="Show the commands that are run, all output of Terraform and Ansible, and tracebacks.",
    )  # fmt: skip
    return file(output(debug(function)))


def command(name: str, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A command of `gpucluster` that takes the common options and passes a `Context` to its function."""

    def register(function: Callable[..., None]) -> click.Command:
        @click.pass_context
        def call(ctx: click.Context, /, file: str | None, output: str | None, debug: bool, **arguments: Any) -> None:
            at_root = ctx.find_root().params
            context = Context(
                file or at_root.get("file"),
                output or at_root.get("output") or "auto",
                debug=debug or bool(at_root.get("debug")),
            )
            with debugging(context.debug):
                function(context, **arguments)

        call.__doc__ = function.__doc__
        call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        parent = settings.pop("parent", cli)
        registered: click.Command = parent.command(name, **settings)(options(call))
        return registered

    return register


class _Root(click.Group):
    """A stop signal ends every command with the same code, also one that arrives before the command has begun."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)


@click.group(
    cls=_Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="gpucluster")
@options
def cli(file: str | None, output: str | None, debug: bool) -> None:
    """Create and operate GPU clusters on Oracle Cloud Infrastructure, or the same cluster on this machine.

    One file describes the cluster; `apply` creates or updates it, then verifies it.
    """


@contextlib.contextmanager
def reporting(context: Context) -> Iterator[Reporter]:
    """A reporter; errors in this block become text and an exit code."""
    from gpucluster.cli.output import reporter_for

    # A live status line and debug lines would overwrite each other.
    reporter = reporter_for("text" if context.debug and context.output == "auto" else context.output)
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
def cluster_of(context: Context, provider: str = "bundled") -> Iterator[tuple[Cluster, Reporter]]:
    """The cluster of the file, within `reporting`."""
    with reporting(context) as reporter:
        spec = context.spec()
        from gpucluster.cluster import Cluster

        yield Cluster(spec, on_event=reporter, provider=provider), reporter


PROVIDER = click.option(
    "--provider", type=click.Choice(["bundled", "registry"]), default="bundled", envvar="GPUCLUSTER_PROVIDER",
    help="Terraform's provider on the local cloud: ours, or the real oracle/oci from where Terraform finds it.",
)  # fmt: skip
DELETE_DATA = click.option("--delete-data", is_flag=True, help="Allow deleting users' files in the home share.")
SKIP_PREFLIGHT = click.option(
    "--skip-preflight", is_flag=True, help="Do not ask the cloud in advance whether it would accept the file."
)
