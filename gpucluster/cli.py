"""The command line: options in, one call on `Cluster`, an exit code out.

Only here: the environment's variables, questions to the user, `sys.exit`. Everything heavy is imported inside the
commands, so that `--help` costs little more than Python itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from gpucluster import __version__
from gpucluster.errors import (
    EXIT_CHANGES,
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    GpuClusterError,
    InputError,
    Interrupted,
)

if TYPE_CHECKING:
    from pathlib import Path

    from gpucluster.cluster import Cluster, Result
    from gpucluster.localcloud.control import Status
    from gpucluster.report import Reporter
    from gpucluster.spec import ClusterSpec

DEFAULT_FILES = ("cluster.yml", "inventories/local/cluster.yml")
EXIT_CODES = """\b
Exit codes:
  0    success
  1    failed (also: a check of verify failed or could not run)
  2    bad input, or the cloud would not do it; nothing was created
  3    plan --detailed-exitcode: there are changes
  4    another run holds this cluster
  5    this machine lacks something that is needed
  6    users' data would be lost; say --delete-data to go on
  7    nodes would be replaced; say --replace-nodes to go on
  130  interrupted; run the same command again to go on"""


class _Context:
    """What the options before the command say."""

    def __init__(self, file: str | None, output: str) -> None:
        self._file = file
        self.output = output

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
        """The validated wish."""
        from gpucluster.spec import load

        return load(self.file)


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--file` and `--output`, understood before and after the command's name."""
    file = click.option(
        "-f", "--file", type=click.Path(dir_okay=False), envvar="GPUCLUSTER_FILE",
        help="The cluster file. Default: cluster.yml, else inventories/local/cluster.yml.",
    )  # fmt: skip
    output = click.option(
        "-o", "--output", type=click.Choice(["auto", "text", "json"]), envvar="GPUCLUSTER_OUTPUT",
        help="auto: live on a terminal, lines in a pipe. json: one event a line, the result last.",
    )  # fmt: skip
    return file(output(function))


def _command(name: str, **settings: Any) -> Callable[[Callable[..., None]], click.Command]:
    """A command of `gpucluster` that takes the common options and hands its function a `_Context`."""

    def register(function: Callable[..., None]) -> click.Command:
        @click.pass_context
        def call(ctx: click.Context, /, file: str | None, output: str | None, **arguments: Any) -> None:
            above = ctx.find_root().params
            function(_Context(file or above.get("file"), output or above.get("output") or "auto"), **arguments)

        call.__doc__ = function.__doc__
        call.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        parent = settings.pop("parent", cli)
        command: click.Command = parent.command(name, **settings)(_options(call))
        return command

    return register


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=EXIT_CODES,
)
@click.version_option(__version__, prog_name="gpucluster")
@_options
def cli(file: str | None, output: str | None) -> None:
    """GPU clusters on Oracle Cloud Infrastructure, and the same cluster on this machine.

    One file says what is wanted; `apply` makes it so and proves it.
    """


@contextlib.contextmanager
def _reporting(context: _Context) -> Iterator[Reporter]:
    """A reporter, and the way from an error to text and exit code."""
    from gpucluster.report import reporter

    shown = reporter(context.output)
    try:
        yield shown
    except GpuClusterError as error:
        shown.error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        shown.error(Interrupted("interrupted"))
        sys.exit(EXIT_INTERRUPTED)
    finally:
        shown.close()


@contextlib.contextmanager
def _cluster(context: _Context, provider: str = "bundled") -> Iterator[tuple[Cluster, Reporter]]:
    with _reporting(context) as shown:
        spec = context.spec()
        from gpucluster.cluster import Cluster

        yield Cluster(spec, on_event=shown, provider=provider), shown


_PROVIDER = click.option(
    "--provider", type=click.Choice(["bundled", "registry"]), default="bundled", envvar="GPUCLUSTER_PROVIDER",
    help="Terraform's provider on the local cloud: ours, or the real oracle/oci from where Terraform finds it.",
)  # fmt: skip
_DELETE_DATA = click.option(
    "--delete-data", is_flag=True, help="Allow that users' files in the home share are deleted."
)
_SKIP_PREFLIGHT = click.option(
    "--skip-preflight", is_flag=True, help="Do not ask the cloud first whether it would do what the file wishes."
)


@_command("init")
@click.argument("path", type=click.Path(), default=DEFAULT_FILES[0])
@click.option("--name", default="demo", show_default=True, help="The cluster's name.")
@click.option("--cloud", type=click.Choice(["local", "oci"]), default="local", show_default=True)
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
def init(context: _Context, path: str, name: str, cloud: Literal["local", "oci"], force: bool) -> None:
    """Write a cluster.yml from a template, with every setting explained."""
    with _reporting(context) as shown:
        from gpucluster.spec import loads, template

        text = template(name=name, provider=cloud)
        # Whether the name is right shows in the local template; the other one asks for key files that may come later.
        loads(template(name=name, provider="local"), path)
        try:
            with open(path, "w" if force else "x") as stream:
                stream.write(text)
        except FileExistsError:
            raise InputError("the file is there already", where=path, hint="Say --force to overwrite it") from None
        except OSError as error:
            raise InputError(f"can't write the file: {error.strerror}", where=path) from error
        shown.result({"command": "init", "file": path}, f"{path} written. Next: gpucluster --file {path} validate")


@_command("validate")
def validate(context: _Context) -> None:
    """Check the cluster file; every fault at once, each with its place."""
    with _reporting(context) as shown:
        spec = context.spec()
        counts = {
            name: f"{pool.count} to {pool.max_count}" if pool.elastic else pool.count
            for name, pool in spec.pools.items()
        }
        pools = ", ".join(f"{name} ({counts[name]} x {pool.shape})" for name, pool in spec.pools.items())
        shown.result(
            {"command": "validate", "file": str(context.file), "name": spec.name},
            f"{context.file} is valid: cluster {spec.name}, pools {pools}",
        )


@_command("preflight")
@_PROVIDER
def preflight(context: _Context, provider: str) -> None:
    """Ask the cloud first whether it would do what the file wishes."""
    with _cluster(context, provider) as (cluster, shown):
        from gpucluster.report import findings

        report = cluster.preflight()
        verdict = "would fail" if report.errors else "nothing stands in the way"
        summary = f"preflight: {verdict}" + (f" ({report.summary})" if report.findings else "")
        shown.result(report.to_dict(), "\n".join(filter(None, [findings(report.findings), summary])))
    if report.errors:
        sys.exit(EXIT_INPUT)


@_command("policies")
def policies(context: _Context) -> None:
    """Print the rights that cluster and operator need, for an administrator."""
    with _cluster(context) as (cluster, shown):
        from gpucluster import iam

        wanted = cluster.policies()
        shown.result({"command": "policies", **wanted.to_dict()}, iam.text(wanted))


@_command("plan")
@_PROVIDER
@click.option("--detailed-exitcode", is_flag=True, help=f"Exit with {EXIT_CHANGES} when there are changes.")
@_SKIP_PREFLIGHT
def plan(context: _Context, provider: str, detailed_exitcode: bool, skip_preflight: bool) -> None:
    """Show what apply would change in the cloud."""
    with _cluster(context, provider) as (cluster, shown):
        changes = cluster.plan(preflight=not skip_preflight).changes
        lines = [f"  {change.action}  {change.address}" for change in changes]
        shown.result(
            {"command": "plan", "changes": [vars(change) for change in changes]},
            "\n".join([f"{len(changes)} changes", *lines]) if changes else "no changes",
        )
    if changes and detailed_exitcode:
        sys.exit(EXIT_CHANGES)


@_command("apply")
@_PROVIDER
@_DELETE_DATA
@click.option("--replace-nodes", is_flag=True, help="Allow that wished nodes, or the controller, are made anew.")
@click.option(
    "--drain-timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long jobs on nodes that go may run on. 0: they are requeued, or ended. Default: an hour.",
)  # fmt: skip
@_SKIP_PREFLIGHT
def apply(
    context: _Context,
    provider: str,
    delete_data: bool,
    replace_nodes: bool,
    drain_timeout: float | None,
    skip_preflight: bool,
) -> None:
    """Make it so and prove it: resources, configuration, checks."""
    with _cluster(context, provider) as (cluster, shown):
        from gpucluster.draining import DRAIN_TIMEOUT

        result = cluster.apply(
            delete_data=delete_data,
            replace_nodes=replace_nodes,
            drain_timeout=DRAIN_TIMEOUT if drain_timeout is None else drain_timeout,
            preflight=not skip_preflight,
        )
        shown.result(result.to_dict(), _summary(result) + _next_steps(cluster, result))


@_command("verify")
@_PROVIDER
def verify(context: _Context, provider: str) -> None:
    """Run the checks alone."""
    with _cluster(context, provider) as (cluster, shown):
        result = cluster.verify()
        shown.result(result.to_dict(), _summary(result))


@_command("destroy")
@_PROVIDER
@_DELETE_DATA
def destroy(context: _Context, provider: str, delete_data: bool) -> None:
    """Take away everything that apply made."""
    with _cluster(context, provider) as (cluster, shown):
        result = cluster.destroy(delete_data=delete_data)
        shown.result(result.to_dict(), _summary(result))


@_command("status")
def status(context: _Context) -> None:
    """Show what stands: hosts, Slurm's nodes, the last run."""
    with _cluster(context) as (cluster, shown):
        found = cluster.status()
        shown.result({"command": "status", **found}, _status_text(found))


@_command("output")
def output(context: _Context) -> None:
    """Print Terraform's outputs as JSON: a versioned contract."""
    import json

    with _cluster(context) as (cluster, shown):
        outputs = dict(cluster.outputs())
        shown.result({"command": "output", "outputs": outputs}, json.dumps(outputs, indent=2))


@_command("inventory")
def inventory(context: _Context) -> None:
    """Print the Ansible inventory as JSON."""
    import json

    with _cluster(context) as (cluster, shown):
        found = dict(cluster.inventory())
        shown.result({"command": "inventory", "inventory": found}, json.dumps(found, indent=2))


class _SshCommand(click.Command):
    """Keeps `--` as the border between a node's name and the remote command, even where the name is left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            border = args.index("--")
            ctx.meta["remote"] = tuple(args[border + 1 :])
            args = args[:border]
        return super().parse_args(ctx, args)


@_command("ssh", cls=_SshCommand, options_metavar="[OPTIONS]", short_help="Log in to a host, or run a command there.")
@click.argument("node", required=False)
def ssh(context: _Context, node: str | None) -> None:
    """Log in to NODE (the controller when none is named), or run a command: gpucluster ssh [NODE] [-- CMD...]."""
    remote = click.get_current_context().meta.get("remote", ())
    with _cluster(context) as (cluster, _shown):
        argv = cluster.ssh_argv(node, remote)
    from gpucluster import process

    sys.exit(process.call(argv))


@cli.group("image")
def image() -> None:
    """Baked images, from which elastic nodes boot ready to join."""


@_command("bake", parent=image)
@click.argument("pool")
@_PROVIDER
def image_bake(context: _Context, pool: str, provider: str) -> None:
    """Bake an image for the elastic nodes of POOL, and let them boot from it."""
    with _cluster(context, provider) as (cluster, shown):
        result = cluster.bake(pool)
        shown.result(result.to_dict(), _summary(result))


@_command("list", parent=image)
def image_list(context: _Context) -> None:
    """List the baked images of this cluster, the newest first."""
    from gpucluster.report import table

    with _cluster(context) as (cluster, shown):
        images = cluster.images()
        rows = [[one.pool, one.name, one.state, one.fingerprint, f"{one.created_at:%Y-%m-%d %H:%M}"] for one in images]
        text = table(rows, ["POOL", "IMAGE", "STATE", "FINGERPRINT", "MADE"]) if rows else "there are no baked images"
        shown.result({"command": "image list", "images": [one.to_dict() for one in images]}, text)


@cli.group("autoscaler")
def autoscaler() -> None:
    """What launches and removes elastic nodes, on the controller."""


def _ask_autoscaler(context: _Context, *words: str) -> NoReturn:
    """Run the autoscaler's own program on the controller; its words and its exit status are ours."""
    with _cluster(context) as (cluster, _shown):
        kind = "json" if context.output == "json" else "text"
        argv = cluster.autoscaler_argv([*words, "--output", kind])
    from gpucluster import process

    sys.exit(process.call(argv))


@_command("status", parent=autoscaler)
def autoscaler_status(context: _Context) -> None:
    """Show its health, its nodes, and the jobs that wait for some."""
    _ask_autoscaler(context, "status")


@_command("plan", parent=autoscaler)
@click.option("--dry-run", is_flag=True, required=True, help="It only ever shows; the word is there to be sure.")
def autoscaler_plan(context: _Context, dry_run: bool) -> None:
    """Show what it would do now."""
    _ask_autoscaler(context, "plan", "--dry-run")


@_command("explain", parent=autoscaler)
@click.argument("subject", metavar="JOB|NODE")
def autoscaler_explain(context: _Context, subject: str) -> None:
    """Show why a job waits, or why a node came, went or did not come."""
    _ask_autoscaler(context, "explain", subject)


@_command("pause", parent=autoscaler)
@click.argument("reason", required=False)
def autoscaler_pause(context: _Context, reason: str | None) -> None:
    """Let it launch and remove nothing until `resume`."""
    _ask_autoscaler(context, "pause", *([reason] if reason else []))


@_command("resume", parent=autoscaler)
def autoscaler_resume(context: _Context) -> None:
    """Let it go on after `pause`."""
    _ask_autoscaler(context, "resume")


@autoscaler.command(
    "simulate",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    options_metavar="",
    short_help="Run jobs of the past against a policy; needs no cluster.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="TRACE... [OPTIONS]")
@click.pass_context
def autoscaler_simulate(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Run jobs of the past against a policy: how long would they wait, and what would it cost? Needs no cluster."""
    import argparse

    above = ctx.find_root().params.get("output") or "auto"
    with _reporting(_Context(None, above)):
        from gpucluster.autoscaler import simulate

        parser = argparse.ArgumentParser(prog="gpucluster autoscaler simulate")
        simulate.add_arguments(parser)
        parser.set_defaults(output="json" if above == "json" else "text")
        status = simulate.run(parser.parse_args(words))
    sys.exit(status)


@cli.group("local")
def local() -> None:
    """The local cloud of this machine."""


@_command("start", parent=local)
def local_start(context: _Context) -> None:
    """Start the local cloud's API. apply does this by itself."""
    with _reporting(context) as shown:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        found = control.start(local_cloud_home(), shown)
        shown.result({"command": "local start", **_local_data(found)}, _local_text(found))


@_command("stop", parent=local)
def local_stop(context: _Context) -> None:
    """Stop the local cloud's API. Instances go on running."""
    with _reporting(context) as shown:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        control.stop(local_cloud_home())
        shown.result({"command": "local stop"}, "the local cloud is stopped")


@_command("status", parent=local)
def local_status(context: _Context) -> None:
    """Show whether the local cloud runs and what lives in it."""
    with _reporting(context) as shown:
        from gpucluster.localcloud import control
        from gpucluster.paths import local_cloud_home

        found = control.status(local_cloud_home())
        shown.result({"command": "local status", **_local_data(found)}, _local_text(found))


# --- words for people -----


def _local_data(found: Status) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(found), "home": str(found.home)}


def _local_text(found: Status) -> str:
    if not found.running:
        return f"the local cloud in {found.home} is stopped"
    instances = ", ".join(f"{count} {state.lower()}" for state, count in found.instances.items()) or "none"
    return f"the local cloud in {found.home} answers at {found.endpoint} (pid {found.pid}); instances: {instances}"


def _summary(result: Result) -> str:
    from gpucluster.report import seconds

    lines = [f"\n{result.command}: {result.status} in {seconds(result.elapsed)}"]
    lines += [f"  {name:<24}{seconds(took):>12}" for name, took in result.phases.items()]
    roles = sorted(result.roles.items(), key=lambda item: -item[1])
    lines += [f"    role {name:<17}{seconds(took):>12}" for name, took in roles]
    if result.changed:
        lines.append("  changed tasks: " + ", ".join(f"{host} {number}" for host, number in result.changed.items()))
    return "\n".join(lines)


def _next_steps(cluster: Cluster, result: Result) -> str:
    spec = cluster.spec
    program = _program(cluster)
    if not result.login:
        return f"\n\nLog in as the administrator:\n  {program} ssh"
    name, command = next(iter(result.login.items()))
    nodes = min(2, max((pool.max_count for pool in spec.pools.values()), default=0))
    lines = ["", "", f"Log in as {name}:", f"  {command}"]
    if nodes:
        come = not any(pool.count for pool in spec.pools.values())
        lines += [
            "Submit a job there, and its nodes come:" if come else "Submit a job there:",
            f"  srun -N {nodes} hostname",
            f"  sbatch -N {nodes} --wrap 'srun hostname'",
        ]
    lines += ["Log in as the administrator:", f"  {program} ssh", "Take it all away:", f"  {program} destroy"]
    return "\n".join(lines)


def _program(cluster: Cluster) -> str:
    """How to call us again, here, about this cluster."""
    import shlex
    import shutil
    from pathlib import Path

    beside = Path(sys.executable).with_name("gpucluster")
    name = "gpucluster" if shutil.which("gpucluster") else os.path.relpath(beside)
    file = os.path.relpath(cluster.spec.file)
    found = next((default for default in DEFAULT_FILES if os.path.exists(default)), None)
    return name if file == found else f"{name} --file {shlex.quote(file)}"


def _status_text(found: dict[str, Any]) -> str:
    from gpucluster.report import table

    parts = [f"cluster {found['name']}: {found['state']}"]
    if found["hosts"]:
        parts.append(table([[host["name"], host["address"]] for host in found["hosts"]], ["HOST", "ADDRESS"]))
    # Of the names that Slurm keeps for elastic nodes, those behind which nothing stands ("~") are no news.
    rows = [[row["node"], row["state"], row["partition"]] for row in found["slurm"] if not row["state"].endswith("~")]
    if rows:
        parts.append(table(rows, ["NODE", "STATE", "PARTITION"]))
    if found["autoscaler"]:
        parts.append(_autoscaler_text(found["autoscaler"]))
    run = found["last_run"]
    if run:
        parts.append(f"last run: {run['command']} {run['status']}, started {run['started']}")
    return "\n\n".join(parts)


def _autoscaler_text(told: dict[str, Any]) -> str:
    """The elastic nodes of each pool, and what is wrong."""
    if "error" in told:
        return f"! {told['error']}"
    lines = []
    for name, pool in told.get("pools", {}).items():
        states = ", ".join(f"{count} {state.lower()}" for state, count in pool["instances"].items()) or "none"
        baked = "from a baked image" if pool["baked"] else "configured as they come"
        rest = f"; left alone until {pool['cool_down']['until']}" if pool.get("cool_down") else ""
        lines.append(f"elastic nodes of pool {name}: {states}, at most {pool['max_nodes']}, {baked}{rest}")
    lines += [f"! {problem}" for problem in told.get("problems", ())]
    if told.get("paused"):
        lines.append(f"! the autoscaler is paused: {told['paused']}")
    return "\n".join(lines)


# --- the edge -----


def _stop(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line. An unexpected exception is our bug: it goes into a file, with a sentence about it."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        cli.main(prog_name="gpucluster")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception:
        import tempfile
        import traceback

        with tempfile.NamedTemporaryFile("w", prefix="gpucluster-bug-", suffix=".log", delete=False) as file:
            file.write(f"gpucluster {__version__}, Python {sys.version}\n\n{traceback.format_exc()}")
        click.echo(
            f"gpucluster: this is a bug in gpucluster, not in what you did. Please report it with {file.name}", err=True
        )
        sys.exit(EXIT_FAILED)
