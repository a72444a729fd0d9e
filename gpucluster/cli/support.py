"""The command that writes one archive for a person who looks for a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, command, open_cluster, reporting
from gpucluster.text import count, printable

if TYPE_CHECKING:
    from gpucluster.cli.output import ResultReporter
    from gpucluster.operations.support_bundle import SupportBundle

_MOST_NAMED = 10


@command("support-bundle")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(dir_okay=False))
@click.option(
    "--since",
    "since_h",
    metavar="HOURS",
    type=click.IntRange(1, 24 * 90),
    default=24,
    show_default=True,
    help="Hours of the journals.",
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    shell_complete=completion.hosts,
    help="Ask this host alone; may be repeated.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(20, 3600),
    default=120,
    show_default=True,
    help="Seconds for all answers together.",
)
def support_bundle(context: Context, path: str | None, since_h: int, hosts: tuple[str, ...], timeout: float) -> None:
    """Write logs and states of all hosts to one archive.

    FILE also has what this machine knows of the cluster, which may run, have failed, or be destroyed. Secrets are
    removed; look through the archive before you pass it on. What does not answer is named in its manifest.json. Default
    for FILE: NAME-support-TIME.tar.gz in this folder; an existing file is never overwritten.
    """
    with reporting(context) as reporter:
        bundle = _bundle(context, reporter, path, {"since_h": since_h, "timeout": timeout, "hosts": hosts})
        reporter.result({"command": "support-bundle", **bundle.to_dict()}, _text(bundle))


def _bundle(context: Context, reporter: ResultReporter, path: str | None, options: dict[str, Any]) -> SupportBundle:
    from datetime import datetime
    from pathlib import Path

    from gpucluster.errors import InputError
    from gpucluster.operations import support_bundle

    now = f"{datetime.now().astimezone():%Y%m%dT%H%M%S}"
    try:
        context.spec()
    except InputError as error:
        file = context.file
        if not file.is_file() and not (file.resolve().parent / ".gpucluster").is_dir():
            raise
        bundles = support_bundle.of_workspace(file, reporter)
        target = Path(path or f"{bundles.name}-support-{now}.tar.gz")
        return bundles.create(target, problem=str(error), **options)
    cluster = open_cluster(context, reporter)
    return cluster.support_bundle(Path(path or f"{cluster.spec.name}-support-{now}.tar.gz"), **options)


def _text(bundle: SupportBundle) -> str:
    bad = [name for name, error in bundle.hosts.items() if error]
    lines = [
        f"{bundle.file} written: {count(bundle.files, 'file')}, {bundle.bytes / 1e6:.1f} MB, "
        f"{count(len(bundle.hosts) - len(bad), 'host')}; "
        f"{count(bundle.removed, 'text was', 'texts were')} removed that looked like secrets",
        *(f"  not in it: {printable(name)}: {bundle.hosts[name]}" for name in bad[:_MOST_NAMED]),
        *(
            f"  not in it: {each.what}: {each.why}"
            for each in bundle.not_collected
            if not each.what.startswith("hosts/")
        ),
        "Look through it before you pass it on: gpucluster knows the usual forms of secrets, and not yours.",
    ]
    return "\n".join(lines)
