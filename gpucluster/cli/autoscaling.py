"""The commands about the autoscaler, which answers them itself, on the controller."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from gpucluster.cli.base import Context, cli, cluster_of, command, reporting


@cli.group("autoscaler")
def autoscaler() -> None:
    """What launches and removes elastic nodes, on the controller."""


def _ask_autoscaler(context: Context, *words: str) -> NoReturn:
    """Run the autoscaler's own program on the controller; its words and its exit status are ours."""
    with cluster_of(context) as (cluster, _shown):
        kind = "json" if context.output == "json" else "text"
        argv = cluster.autoscaler_argv([*words, "--output", kind])
    from gpucluster import process

    sys.exit(process.call(argv))


@command("status", parent=autoscaler)
def autoscaler_status(context: Context) -> None:
    """Show its health, its nodes, and the jobs that wait for some."""
    _ask_autoscaler(context, "status")


@command("plan", parent=autoscaler)
@click.option("--dry-run", is_flag=True, required=True, help="It only ever shows; the word is there to be sure.")
def autoscaler_plan(context: Context, dry_run: bool) -> None:
    """Show what it would do now."""
    _ask_autoscaler(context, "plan", "--dry-run")


@command("explain", parent=autoscaler)
@click.argument("subject", metavar="JOB|NODE")
def autoscaler_explain(context: Context, subject: str) -> None:
    """Show why a job waits, or why a node came, went or did not come."""
    _ask_autoscaler(context, "explain", subject)


@command("pause", parent=autoscaler)
@click.argument("reason", required=False)
def autoscaler_pause(context: Context, reason: str | None) -> None:
    """Let it launch and remove nothing until `resume`."""
    _ask_autoscaler(context, "pause", *([reason] if reason else []))


@command("resume", parent=autoscaler)
def autoscaler_resume(context: Context) -> None:
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
    with reporting(Context(None, above)):
        from gpucluster.autoscaler.simulation import command as simulate_command

        parser = argparse.ArgumentParser(prog="gpucluster autoscaler simulate")
        simulate_command.add_arguments(parser)
        parser.set_defaults(output="json" if above == "json" else "text")
        status = simulate_command.run(parser.parse_args(words))
    sys.exit(status)
