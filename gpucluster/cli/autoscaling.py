"""The commands of the autoscaler. All but `simulate` run its own program on the controller."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from gpucluster.cli.base import Context, cluster_of, command, command_group, reporting


@command_group("autoscaler")
def autoscaler() -> None:
    """Inspect and control the autoscaler of elastic nodes."""


def _run_remotely(context: Context, *arguments: str) -> NoReturn:
    """Run the autoscaler's own program on the controller; its output and its exit status become ours."""
    with cluster_of(context) as (cluster, _reporter):
        from gpucluster.cli.output import say

        kind = "json" if context.output == "json" else "text"
        result = cluster.autoscaler.run([*arguments, "--output", kind])
        say(result.stdout, newline=False)
        say(result.stderr, err=True, newline=False)
    sys.exit(result.returncode)


@command("status", parent=autoscaler)
def autoscaler_status(context: Context) -> None:
    """Show its health, its nodes, and the jobs that wait for nodes."""
    _run_remotely(context, "status")


@command("plan", parent=autoscaler)
@click.option("--dry-run", is_flag=True, required=True, help="Required: this command only shows, it changes nothing.")
def autoscaler_plan(context: Context, dry_run: bool) -> None:
    """Show what the autoscaler would do now."""
    _run_remotely(context, "plan", "--dry-run")


@command("explain", parent=autoscaler)
@click.argument("subject", metavar="JOB|NODE")
def autoscaler_explain(context: Context, subject: str) -> None:
    """Explain why a job waits, or what happened to a node.

    Of a node: why it was launched, removed or not launched.
    """
    _run_remotely(context, "explain", subject)


@command("pause", parent=autoscaler)
@click.argument("reason", required=False)
def autoscaler_pause(context: Context, reason: str | None) -> None:
    """Stop launching and removing nodes until `resume`."""
    _run_remotely(context, "pause", *([reason] if reason else []))


@command("resume", parent=autoscaler)
def autoscaler_resume(context: Context) -> None:
    """Continue after `pause`, and end cool-downs of pools."""
    _run_remotely(context, "resume")


@command(
    "simulate",
    parent=autoscaler,
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
    options_metavar="",
    short_help="Replay past jobs against a policy; needs no cluster.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="TRACE... [OPTIONS]")
def autoscaler_simulate(context: Context, arguments: tuple[str, ...]) -> None:
    """Replay past jobs against a policy: how long would they wait, and what would it cost? Needs no cluster."""
    import argparse

    from gpucluster.autoscaler.simulation import command as simulate_command

    class Parser(argparse.ArgumentParser):
        """Reports wrong arguments as every other command of ours does."""

        def error(self, message: str) -> NoReturn:
            raise click.UsageError(message, click.get_current_context())

    with reporting(context):
        parser = Parser(prog="gpucluster autoscaler simulate")
        simulate_command.add_arguments(parser)
        kind = "json" if context.output == "json" else "text"
        # --output is one of the common options, which are read before.
        status = simulate_command.run(parser.parse_args([*arguments, "--output", kind]))
    sys.exit(status)
