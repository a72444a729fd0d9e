"""`gpucluster dashboard`: what the cluster does, in a browser."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, cluster_of, command, reporting

if TYPE_CHECKING:
    from gpucluster.cli.output import ResultReporter
    from gpucluster.cluster import Cluster
    from gpucluster.dashboards.addresses import Subject
    from gpucluster.operations.dashboard import Page

_MOST_PORT = 65535


@command(
    "dashboard",
    epilog="""\b
Examples:
  gpucluster dashboard --open         the cluster, in this machine's browser
  gpucluster dashboard --job 1234     the address of a job's dashboard
  gpucluster dashboard --password     the password of Grafana's user admin
  gpucluster dashboard --static       one HTML file of the cluster's state, without Grafana
  gpucluster dashboard --files out    Grafana's dashboards as JSON files, for a Grafana of your own""",
)
@click.option("--job", metavar="ID", help="The dashboard of this job.")
@click.option("--node", metavar="NAME", shell_complete=completion.nodes, help="The dashboard of this node.")
@click.option("--port", type=click.IntRange(1, _MOST_PORT), help="Port of this machine. Default: a free one.")
@click.option("--open", "open_browser", is_flag=True, help="Open the address in this machine's browser.")
@click.option("--password", is_flag=True, help="Print the password of Grafana's user admin, and end.")
@click.option(
    "--static", "page", type=click.Path(), metavar="FILE", is_flag=False, flag_value="",
    help="Write one HTML page of the cluster's state, and end. Default of FILE: CLUSTER-overview.html.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), metavar="SECONDS",
    help="With --static: how long to wait for all answers. Default: 6 seconds.",
)  # fmt: skip
@click.option(
    "--files", "folder", type=click.Path(file_okay=False), metavar="FOLDER",
    help="Write Grafana's dashboards as JSON files into this folder, and end. Needs no cluster.",
)  # fmt: skip
def dashboard(
    context: Context,
    job: str | None,
    node: str | None,
    port: int | None,
    open_browser: bool,
    password: bool,
    page: str | None,
    timeout: float | None,
    folder: str | None,
) -> None:  # fmt: skip
    """Show what the cluster does, in a browser.

    These are Grafana's dashboards, or else Prometheus' own pages. Both listen on the controller only. A port of this
    machine leads there through ssh until Ctrl-C.

    The page of --static needs neither, nor monitoring. Only you may read it: it names users and hosts. What could not
    be asked is named in its place. With --output json, the same facts are in the result.
    """
    if folder is not None:
        if page is not None or job or node or port or password:
            raise click.UsageError("--files has no --job, --node, --port, --password or --static")
        _write_dashboards(context, folder)
        return
    if page is not None and (job or node or port or password):
        raise click.UsageError("--static has no --job, --node, --port or --password")
    if page is None and timeout is not None:
        raise click.UsageError("--timeout is an option of dashboard --static")
    with cluster_of(context) as (cluster, reporter):
        if page is not None:
            _write(cluster, reporter, page, timeout, open_browser=open_browser)
            return
        if password:
            secret = cluster.dashboard.password()
            reporter.result({"command": "dashboard", "password": secret}, secret, verbatim=True)
            return
        from gpucluster.dashboards.addresses import Subject

        _forward(cluster, reporter, Subject(job, node), port, open_browser=open_browser)


def _write_dashboards(context: Context, folder: str) -> None:
    from pathlib import Path

    from gpucluster.dashboards.boards import all_files

    with reporting(context) as reporter:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        texts = all_files()
        for name, text in texts.items():
            (path / name).write_text(text, encoding="utf-8")
        files = [str(path / name) for name in texts]
        reporter.result({"command": "dashboard", "files": files}, "\n".join(files))


def _write(cluster: Cluster, reporter: ResultReporter, name: str, timeout: float | None, *, open_browser: bool) -> None:
    from pathlib import Path

    from gpucluster.dashboards import overview_page
    from gpucluster.operations import page_file
    from gpucluster.operations.overview import TIMEOUT

    file = page_file.check(Path(name or f"{cluster.spec.name}-overview.html"), overview_page.KIND)
    overview = cluster.overview(timeout=TIMEOUT if timeout is None else timeout)
    page_file.write(file, overview_page.html(overview))
    reporter.result(
        {"command": "dashboard", "file": str(file), "overview": overview.to_dict()},
        f"{file} written. Open it in a browser",
    )
    if open_browser:
        click.launch(str(file))


def _forward(
    cluster: Cluster, reporter: ResultReporter, subject: Subject, port: int | None, *, open_browser: bool
) -> None:
    """Until Ctrl-C, which is how it ends well."""
    from gpucluster.events import LogLevel

    shown: list[Page] = []

    def on_open(page: Page) -> None:
        from gpucluster.events import Event, EventKind

        shown.append(page)
        reporter(
            Event(
                EventKind.LOG, "dashboard", LogLevel.INFO, _text(page), data={"service": page.service, "url": page.url}
            )
        )
        if open_browser:
            click.launch(page.url)

    with contextlib.suppress(KeyboardInterrupt):
        cluster.dashboard.forward(subject, port, on_open)
    data = {"command": "dashboard", **({"url": shown[0].url} if shown else {})}
    reporter.result(data, "the connection is closed")


def _text(page: Page) -> str:
    end = "Ctrl-C ends it."
    if page.service == "grafana":
        return f"{page.url}  (user admin; its password: gpucluster dashboard --password). {end}"
    return f"{page.url}  (Prometheus' own pages: this cluster runs no Grafana). {end}"
