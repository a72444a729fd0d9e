"""The command that prints the JSON schemas of what gpucluster reads and writes."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

from gpucluster.cli.base import Context, command, reporting


@command("schema")
@click.argument("what", metavar="events|cluster", type=click.Choice(["events", "cluster"]))
def schema(context: Context, what: str) -> None:
    """Print the JSON schema of the events or of cluster.yml.

    events: the lines of `--output json`, which `on_event` of the library gets, too. cluster: the cluster file, for
    editors.
    """
    with reporting(context) as reporter:
        printed = _schema(what)
        reporter.result(
            {"command": "schema", "what": what, "schema": printed}, json.dumps(printed, indent=2), verbatim=True
        )


def _schema(what: str) -> Mapping[str, object]:
    if what == "cluster":
        from gpucluster.spec import json_schema

        return json_schema()
    from gpucluster.events.schema import event_schema

    return event_schema()
