"""The commands for a cluster as a whole, from its file to its removal."""

from __future__ import annotations

import itertools
import shlex
import sys
from typing import TYPE_CHECKING, Literal

import click

from gpucluster.cli import completion
from gpucluster.cli.base import (
    DEFAULT_FILES,
    DELETE_DATA,
    PROVIDER,
    SKIP_PREFLIGHT,
    YES,
    Context,
    OwnOptions,
    cluster_of,
    command,
    open_cluster,
    reporting,
)
from gpucluster.cli.plan_report import plan_text, write_markdown
from gpucluster.cli.summaries import (
    change_sum,
    changes_text,
    destruction,
    instances_text,
    next_steps,
    place,
    program_of,
    summary,
)
from gpucluster.errors import EXIT_CHANGES, EXIT_INPUT, InputError, PreflightError
from gpucluster.text import printable, some

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from gpucluster.cloud.clusters import CloudContents
    from gpucluster.cluster import Cluster
    from gpucluster.terraform.plan import ResourceChange

#: How many pools `validate` names.
_MOST_POOLS = 20

DRAIN_NODES = click.option(
    "--drain-timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long to wait for jobs on nodes that are replaced. 0: requeue or cancel them. Default: an hour.",
)  # fmt: skip


def _pools_option(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--pool", "pools", multiple=True, metavar="POOL", shell_complete=completion.pools, help=text,
    )  # fmt: skip


@command("init")
@click.argument("path", metavar="[FILE]", type=click.Path(), default=DEFAULT_FILES[0])
@click.option("--name", help="The cluster's name. Default: from the name of the file's folder.")
@click.option(
    "--cloud", type=click.Choice(["local", "oci"]), default="local", show_default=True,
    help="Containers on this machine, or Oracle Cloud Infrastructure.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(context: Context, path: str, name: str | None, cloud: Literal["local", "oci"], force: bool) -> None:
    """Write a first cluster.yml: common settings, with comments.

    For the local cloud, its network has addresses that this machine does not use.

    docs/reference/cluster-yml.md has every setting.
    """
    from pathlib import Path

    with reporting(context) as reporter:
        from gpucluster.spec import LOCAL_NETWORK, loads, name_of_folder, template

        file = new_file(Path(path), force=force, command="init")
        name = name_of_folder(file.resolve().parent.name) if name is None else name
        network = LOCAL_NETWORK
        if cloud == "local":
            from gpucluster.cloud.providers.local import free_range

            network = free_range()
        text = template(name=name, provider=cloud, network=network)
        # The local template is enough to check the name. The other one needs key files, which may come later.
        loads(template(name=name, provider="local"), path)
        write_new(file, text, force=force)
        text = f"{path} written, for the cluster {name}. Next: {_next(path)}"
        reporter.result({"command": "init", "file": path, "name": name}, text)


def new_file(file: Path, *, force: bool, command: str, default: str = DEFAULT_FILES[0]) -> Path:
    """The same path, if a file can be there.

    Args:
        command: that writes it, with the words before the file, for hints.
        default: the name that such a file has.

    Raises:
        InputError: it is a folder, or in a folder that does not exist.
    """
    if file.is_dir():
        hint = f"Name a file in it: gpucluster {command} {'--force ' if force else ''}{file / default}"
        raise InputError("this is a folder", where=str(file), hint=hint)
    if not file.parent.exists():
        raise InputError("there is no such folder", where=str(file.parent), hint=f"Run: mkdir -p {file.parent}")
    return file


def write_new(file: Path, content: str | bytes, *, force: bool) -> None:
    """Write a file that does not exist; with `force` also one that does.

    Raises:
        InputError: it exists, or can't be written.
    """
    try:
        with file.open("wb" if force else "xb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
    except FileExistsError:
        raise InputError("the file exists already", where=str(file), hint="Pass --force to overwrite it") from None
    except OSError as error:
        hint = "Name a file in a folder that you may write"
        raise InputError(f"can't write the file: {error.strerror}", where=str(file), hint=hint) from error


def _next(path: str) -> str:
    """The command to type after `init`: the file is named only where it would not be found."""
    return "gpucluster validate" if path == DEFAULT_FILES[0] else f"gpucluster --file {shlex.quote(path)} validate"


@command("validate")
def validate(context: Context) -> None:
    """Check the cluster file: every error, with its line."""
    with reporting(context) as reporter:
        from datetime import UTC, datetime

        from gpucluster.advisories import evaluate
        from gpucluster.artifacts.catalogue import release_versions
        from gpucluster.spec import warnings

        spec = context.spec()
        today = datetime.now(UTC).date()
        known = (evaluate.warnings(name, version, today) for name, version in release_versions(spec).items())
        notes = (*warnings(spec), *itertools.chain.from_iterable(known))
        counts = {
            name: f"{pool.count} to {pool.max_count}" if pool.elastic else pool.count
            for name, pool in spec.pools.items()
        }
        pools = [f"{name} ({counts[name]} x {pool.shape})" for name, pool in spec.pools.items()]
        reporter.result(
            {"command": "validate", "file": str(context.file), "name": spec.name, "warnings": list(notes)},
            "\n".join(
                [
                    f"{context.file} is valid: cluster {spec.name}, pools {some(pools, _MOST_POOLS)}",
                    *(f"! {note}" for note in notes),
                ]
            ),
        )


@command("preflight")
@PROVIDER
def preflight(context: Context, provider: str) -> None:
    """Ask the cloud whether it would accept the cluster file.

    Creates nothing.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        from gpucluster.cli.output import findings

        report = cluster.preflight()
        verdict = "would fail" if report.errors else "no obstacle was found"
        line = f"preflight: {verdict}" + (f" ({report.summary})" if report.findings else "")
        refused = PreflightError(line, findings=report.findings).to_dict() if report.errors else {}
        result = {**refused, **report.to_dict()}
        reporter.result(result, "\n".join(filter(None, [findings(report.findings), line])))
    if report.errors:
        sys.exit(EXIT_INPUT)


@command("policies")
def policies(context: Context) -> None:
    """Print the IAM policies of the cluster and its operator.

    An administrator of the tenancy creates them.
    """
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.handover import iam

        needed = cluster.policies()
        reporter.result({"command": "policies", **needed.to_dict()}, iam.text(needed), verbatim=True)


@command("plan", short_help="Show what apply would change.")
@PROVIDER
@click.option("--detailed-exitcode", is_flag=True, help=f"Exit with {EXIT_CHANGES} when there are changes.")
@click.option("--refresh-prices", is_flag=True, help="Fetch Oracle's public price list first.")
@click.option("--full", is_flag=True, help="Show every line whole, and not on one screen.")
@click.option("--out", type=click.Path(), metavar="FILE", help="Write the plan into a file, for: gpucluster apply FILE")
@click.option("--markdown", type=click.Path(), metavar="FILE", help="Write the plan for a merge request, too.")
@SKIP_PREFLIGHT
def plan(
    context: Context,
    provider: str,
    detailed_exitcode: bool,
    refresh_prices: bool,
    full: bool,
    out: str | None,
    markdown: str | None,
    skip_preflight: bool,
) -> None:
    """Show what apply would change, node by node. Changes nothing."""
    with cluster_of(context, provider) as (cluster, reporter):
        from pathlib import Path

        file = Path(out) if out else None
        planned = cluster.plan(preflight=not skip_preflight, refresh_prices=refresh_prices, out=file)
        program = program_of(cluster)
        if markdown:
            write_markdown(planned, Path(markdown), cluster.spec.name)
        command = f"{program} apply{f' {shlex.quote(out)}' if out else ''}"
        text = plan_text(planned, command, full=full)
        reporter.result({"command": "plan", **planned.to_dict()}, text)
    if not planned.empty and detailed_exitcode:
        sys.exit(EXIT_CHANGES)


@command("apply")
@click.argument("plan_file", metavar="[PLAN]", required=False, type=click.Path())
@PROVIDER
@DELETE_DATA
@click.option(
    "--replace-nodes", is_flag=True, help="Allow recreating nodes that the file still asks for, or the controller."
)
@click.option(
    "--drain-timeout", type=click.FloatRange(min=0), metavar="SECONDS",
    help="How long to wait for jobs on nodes that are removed. 0: requeue or cancel them. Default: an hour.",
)  # fmt: skip
@click.option(
    "--accept-host-keys", is_flag=True, help="Trust the ssh host keys that the hosts have now, whatever the state has."
)
@click.option("--all-tasks", is_flag=True, help="Run every task on the hosts, also where nothing has changed.")
@SKIP_PREFLIGHT
@YES
def apply(
    context: Context,
    plan_file: str | None,
    provider: str,
    delete_data: bool,
    replace_nodes: bool,
    drain_timeout: float | None,
    accept_host_keys: bool,
    all_tasks: bool,
    skip_preflight: bool,
    yes: bool,
) -> None:
    """Create or update the cluster, then verify it.

    With PLAN, a file of `gpucluster plan --out`, it does exactly what that states, and asks nothing. If anything has
    moved since, it refuses and names it.

    On a terminal it shows what changes in a cluster that stands, and asks. Without a terminal it asks nothing.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        from pathlib import Path

        from gpucluster.operations.drain import DRAIN_TIMEOUT

        def confirm(changes: Sequence[ResourceChange]) -> None:
            reporter.close()
            _confirm_changes(changes)

        result = cluster.apply(
            delete_data=delete_data,
            replace_nodes=replace_nodes,
            drain_timeout=DRAIN_TIMEOUT if drain_timeout is None else drain_timeout,
            preflight=not skip_preflight,
            accept_host_keys=accept_host_keys,
            all_tasks=all_tasks,
            confirm=confirm if context.can_ask and not yes else None,
            plan=Path(plan_file) if plan_file else None,
        )
        reporter.result(result.to_dict(), summary(result) + next_steps(cluster, result))


def _confirm_changes(changes: Sequence[ResourceChange]) -> None:
    """Ask whether these changes may be made.

    Raises:
        InputError: they may not.
    """
    from gpucluster.cli.output import agree, say

    say(changes_text(changes), err=True)
    agree(f"{change_sum(changes)}. Apply", "nothing was changed")


def _fix_options(function: Callable[..., None]) -> Callable[..., None]:
    """The options of `verify --fix`."""
    for decorate in reversed(
        (
            click.option(
                "--fix", is_flag=True, help="Take nodes that failed out of service, replace elastic ones, check again."
            ),
            click.option("--shadow", is_flag=True, help="With --fix: only report what would be done."),
            click.option(
                "--replace-nodes", is_flag=True,
                help="With --fix: recreate permanent nodes, too. What is on their disks is lost.",
            ),
            DRAIN_NODES,
            YES,
        )
    ):  # fmt: skip
        function = decorate(function)
    return function


@command("verify", short_help="Say whether the cluster is good, and which host is not.")
@PROVIDER
@click.option(
    "--level",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="quick: the checks that apply ends with. full: also what needs nodes for itself.",
)
@_pools_option("Check the nodes of this pool alone.")
@click.option("--nodes", default="", metavar="LIST", help="Check these nodes alone, such as compute-[1-4,7].")
@click.option(
    "--junit", type=click.Path(), metavar="FILE", help="Write the results as JUnit XML, also when checks fail."
)
@click.option("--record-baseline", is_flag=True, help="With --level full: compare later measurements with this one.")
@_fix_options
def verify(
    context: Context,
    provider: str,
    level: str,
    pools: tuple[str, ...],
    nodes: str,
    junit: str | None,
    record_baseline: bool,
    fix: bool,
    shadow: bool,
    replace_nodes: bool,
    drain_timeout: float | None,
    yes: bool,
) -> None:  # fmt: skip
    """Say whether the cluster is good, and which host is not.

    Runs the checks that apply ends with. Ends with 1 if one of them failed or could not run.
    """
    if not fix and (shadow or replace_nodes or yes or drain_timeout is not None):
        raise click.UsageError("--shadow, --replace-nodes, --drain-timeout and --yes are options of verify --fix")
    with reporting(context) as reporter:
        from pathlib import Path

        from gpucluster.lifecycle.repair import Fix
        from gpucluster.lifecycle.verification import VerifyRequest, in_junit
        from gpucluster.operations.drain import DRAIN_TIMEOUT

        def confirm(nodes: Sequence[str]) -> None:
            reporter.close()
            _confirm_termination(nodes)

        timeout = DRAIN_TIMEOUT if drain_timeout is None else drain_timeout
        asking = {"confirm": confirm} if context.can_ask and not yes else {}
        how = Fix(shadow=shadow, replace_nodes=replace_nodes, drain_timeout=timeout, **asking) if fix else None
        file = Path(junit) if junit else None
        VerifyRequest(junit=file).check_file()
        with in_junit(file, Path.cwd().name):  # without a valid file there is no other name
            cluster = open_cluster(context, reporter, provider)
        result = cluster.verify(
            level=level, pools=pools, nodes=nodes, junit=file, record_baseline=record_baseline, fix=how
        )
        reporter.result(result.to_dict(), summary(result))


@command("replace")
@PROVIDER
@DRAIN_NODES
@YES
@click.option(
    "--report", metavar="TEXT",
    help="Report the physical hosts of these nodes to Oracle, and what you saw. Nodes that failed checks of their "
    "hardware are reported without it.",
)  # fmt: skip
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=completion.nodes)
def replace(
    context: Context, provider: str, drain_timeout: float | None, yes: bool, report: str | None, nodes: tuple[str, ...]
) -> None:
    """Put another machine in the place of a node.

    It waits until the jobs on the node have ended. A permanent node is recreated under its name, then configured. An
    elastic one is terminated: jobs get another one.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        from gpucluster.lifecycle.host_reports import fault_of_report
        from gpucluster.lifecycle.replace import choose
        from gpucluster.operations.drain import DRAIN_TIMEOUT

        choose(cluster.spec, nodes)
        if report is not None:
            fault_of_report(report)
        if context.can_ask and not yes:
            reporter.close()
            _confirm_termination(nodes)
        timeout = DRAIN_TIMEOUT if drain_timeout is None else drain_timeout
        result = cluster.replace(nodes, drain_timeout=timeout, report=report or "")
        reporter.result(result.to_dict(), summary(result))


@command("rollout", short_help="Give nodes another image, one after the other.")
@PROVIDER
@_pools_option("The nodes of this pool alone. Default: all pools.")
@click.option(
    "--jobs",
    type=click.Choice(["wait", "requeue"]),
    default="wait",
    show_default=True,
    help="Wait for the jobs on a node, or requeue them (those that can't be requeued are cancelled).",
)
@click.option(
    "--min-capacity",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="How many of a pool's nodes stay in service. Default: 90, but one may always leave.",
)
@click.option(
    "--max-failures",
    type=click.IntRange(min=1),
    metavar="N",
    help="Take the image back when N nodes have failed. No more are changed at once. Default: 2.",
)
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Change no more nodes at once.")
@click.option(
    "--replace-nodes",
    is_flag=True,
    help="Where the cloud refuses another boot volume: terminate, and launch another instance.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait for a node that is free, each time. Default: an hour.",
)
@click.option(
    "--boot-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long a node may take to answer with its new image. Default: 20 minutes.",
)
@YES
def rollout(
    context: Context,
    provider: str,
    pools: tuple[str, ...],
    jobs: str,
    min_capacity: float | None,
    max_failures: int | None,
    batch: int | None,
    replace_nodes: bool,
    timeout: float | None,
    boot_timeout: float | None,
    yes: bool,
) -> None:  # fmt: skip
    """Give the nodes of a pool the image that the file names, one after the other, when their jobs have ended.

    The first node is a canary: it must pass its checks. What is on the nodes' boot disks is lost. Run it again to go on
    where an earlier one stopped.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        from gpucluster.cli.output import agree
        from gpucluster.lifecycle.hosts import BOOT_DEADLINE
        from gpucluster.lifecycle.rollout import RolloutRequest
        from gpucluster.operations.drain import DRAIN_TIMEOUT
        from gpucluster.rollout.decide import MAX_FAILURES, JobPolicy, RolloutPolicy

        policy = RolloutPolicy(JobPolicy(jobs), min_capacity, max_failures or MAX_FAILURES, batch or 0)
        request = RolloutRequest(
            pools=pools,
            policy=policy,
            replace_nodes=replace_nodes,
            timeout=DRAIN_TIMEOUT if timeout is None else timeout,
            boot_timeout=BOOT_DEADLINE if boot_timeout is None else boot_timeout,
        )
        chosen = request.chosen(cluster.spec)
        if context.can_ask and not yes:
            reporter.close()
            lost = f"What is on the boot disks of the nodes of {', '.join(chosen)} will be lost"
            agree(f"{lost}. Roll out", "nothing was changed")
        result = cluster.rollout(request)
        reporter.result(result.to_dict(), summary(result))


def _confirm_termination(nodes: Sequence[str]) -> None:
    """Ask whether these machines may go.

    Raises:
        InputError: they may not.
    """
    from gpucluster.cli.output import agree

    agree(
        f"What is on the disks of {printable(', '.join(nodes))} will be lost. Terminate and replace",
        "nothing was replaced",
    )


@command("destroy")
@PROVIDER
@DELETE_DATA
@YES
def destroy(context: Context, provider: str, delete_data: bool, yes: bool) -> None:
    """Remove everything that apply made.

    On a terminal it first shows what that is, and asks for the cluster's name. Without a terminal it asks nothing.
    """
    with cluster_of(context, provider) as (cluster, reporter):
        if context.can_ask and not yes:
            cluster.state.require_own()
            contents = cluster.contents()
            reporter.close()
            if not contents.empty:
                _confirm(cluster, contents, delete_data=delete_data)
        result = cluster.destroy(delete_data=delete_data)
        reporter.result(result.to_dict(), summary(result))


def _confirm(cluster: Cluster, contents: CloudContents, *, delete_data: bool) -> None:
    """Ask whether the cluster is the right one.

    Raises:
        InputError: the answer is not its name.
    """
    from gpucluster.cli.output import say

    say(destruction(cluster, contents, delete_data=delete_data), err=True)
    name = cluster.spec.name
    answer = click.prompt(f"To remove it, type its name ({name})", default="", show_default=False, err=True)
    if answer.strip() != name:
        raise InputError("nothing was removed: this is not the name of the cluster", hint="Pass --yes to skip it")


@command("list")
def list_clusters(context: Context) -> None:
    """List the clusters in the compartment, found by their tags.

    It is the compartment of the cluster file; without a file, the local cloud of this machine.
    """
    with reporting(context) as reporter:
        from gpucluster.cli.output import table
        from gpucluster.cluster import Cluster
        from gpucluster.spec import loads, template

        spec = context.spec() if context.has_file else loads(template(), DEFAULT_FILES[0])
        cluster = Cluster(spec, on_event=reporter)
        clusters = cluster.clusters()
        rows = [
            [each.name, ", ".join(each.ids), instances_text(each), str(each.file_systems), str(each.networks)]
            for each in clusters
        ]
        text = (
            table(rows, ["CLUSTER", "IDENTITY", "INSTANCES", "FILE SYSTEMS", "NETWORKS"])
            if rows
            else "there are no clusters"
        )
        result = {"command": "list", "clusters": [each.to_dict() for each in clusters]}
        reporter.result(result, f"{text}\n\nin {place(cluster)}")


@command("output")
def output(context: Context) -> None:
    """Print Terraform's outputs as JSON, in a versioned format."""
    import json

    with cluster_of(context) as (cluster, reporter):
        outputs = dict(cluster.state.outputs())
        reporter.result({"command": "output", "outputs": outputs}, json.dumps(outputs, indent=2), verbatim=True)


@command("inventory")
def inventory(context: Context) -> None:
    """Print the Ansible inventory as JSON."""
    import json

    with cluster_of(context) as (cluster, reporter):
        hosts = dict(cluster.hosts.inventory())
        reporter.result({"command": "inventory", "inventory": hosts}, json.dumps(hosts, indent=2), verbatim=True)


class _SshCommand(OwnOptions):
    """Reads its words as ssh does: options, the host, options again, and from the first other word on the command.

    `--` ends the options: `ssh -- CMD` runs a command on the controller.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        options, words = self._options(ctx, args)
        host: list[str] = []
        if words and not self._ends_options(args, words):
            host = words[:1]
            more, words = self._options(ctx, words[1:])
            options += more
        ctx.meta["remote"] = tuple(words)
        return super().parse_args(ctx, [*options, *host])

    def _options(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """The options in front, and the words after them."""
        values, _rest, _order = self.make_parser(ctx).parse_args(list(args))
        host = values.get("host")
        words = list(host) if isinstance(host, tuple | list) else []  # click has a value of its own for none
        options = args[: len(args) - len(words)]
        return options[:-1] if options[-1:] == ["--"] else options, words

    @staticmethod
    def _ends_options(args: list[str], words: list[str]) -> bool:
        """Whether `--` is the word in front of these."""
        place = len(args) - len(words) - 1
        return place >= 0 and args[place] == "--"


@command(
    "ssh",
    cls=_SshCommand,
    options_metavar="[OPTIONS]",
    short_help="Log in to a host, or run a command there.",
    epilog="""\b
Examples:
  gpucluster ssh                        log in to the controller
  gpucluster ssh login                  log in to a login node that answers
  gpucluster ssh compute-1 nvidia-smi   run a command on a node
  gpucluster ssh compute-e1             log in to an elastic node that is up
  gpucluster ssh -- sinfo               run a command on the controller""",
)
@click.argument("host", nargs=-1, metavar="[HOST] [[--] COMMAND...]", shell_complete=completion.hosts)
def ssh(context: Context, host: tuple[str, ...]) -> None:
    """Log in to HOST (default: the controller), or run a command there.

    The words of COMMAND are joined with spaces, and a shell on the host reads them, as with ssh itself. Without HOST,
    put `--` before COMMAND.
    """
    remote = click.get_current_context().meta["remote"]
    with cluster_of(context) as (cluster, _reporter):
        from gpucluster import process
        from gpucluster.ssh import SSH_FAILED

        name = host[0] if host else None
        status = process.call(cluster.hosts.ssh_argv(name, remote))
        if status == SSH_FAILED and cluster.hosts.has_new_key(name):
            status = process.call(cluster.hosts.ssh_argv(name, remote))
    sys.exit(status)
