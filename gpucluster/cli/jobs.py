"""The commands for jobs: templates of workloads, their scripts, and what their outputs mean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gpucluster.cli import completion
from gpucluster.cli.base import Context, cluster_of, command, command_group, reporting
from gpucluster.errors import EXIT_FAILED, InputError

if TYPE_CHECKING:
    from pathlib import Path

    from gpucluster.cli.output import ResultReporter
    from gpucluster.cluster import Cluster
    from gpucluster.jobs.model import Expectation, Job, JobResult, Launcher, Rendered, Template
    from gpucluster.jobs.report.build import JobReport
    from gpucluster.operations.jobs import JobRequest


@command_group("job")
def job() -> None:
    """Run workloads from templates, and judge what they reach."""


_Decorator = Callable[[Callable[..., None]], Callable[..., None]]
_GPUS = click.option("--gpus", type=click.IntRange(min=0), help="GPUs of each node; all by default.")
_POOL = click.option(
    "--pool",
    default="",
    shell_complete=completion.pools,
    help="A pool of the cluster file. Default: the first that fits.",
)
_LAUNCHER = click.option(
    "-l",
    "--launcher",
    default="",
    shell_complete=completion.launchers,
    help="How ranks are started. Default: the template's first that the cluster has.",
)
_SETTINGS = click.option(
    "settings", "-s", "--set", multiple=True, metavar="KEY=VALUE",
    help="An option of the template or the launcher; `job show` lists them. Can be repeated.",
)  # fmt: skip


def _nodes(default: int | None) -> _Decorator:
    return click.option(
        "-n", "--nodes", type=click.IntRange(min=1), default=default, help="How many nodes. Default: 2."
    )


def _choice(function: Callable[..., None]) -> Callable[..., None]:
    """The options that set what runs, and where."""
    for decorate in (
        _GPUS,
        click.option("--shape", default="", help="A shape such as BM.GPU4.8, instead of a pool and a cluster file."),
        _POOL,
        _nodes(None),
        _LAUNCHER,
        _SETTINGS,
    ):
        function = decorate(function)
    return function


_NODES = 2


def _settings(options: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for each in options:
        name, equals, value = each.partition("=")
        if not equals:
            raise InputError(f"--set {each}: not KEY=VALUE", hint="Such as --set time=30")
        settings[name] = value
    return settings


def _described(
    context: Context, template: Template, launcher: Launcher, chosen: Mapping[str, Any], *, has_run: bool = False
) -> Job:
    """The job on the shape, on the pool, or, without both and without a cluster file, on hardware that was not named.

    Args:
        has_run: it only describes an output: hardware that is emulated here was real there.
    """
    settings, nodes = _settings(chosen["settings"]), chosen["nodes"] or _NODES
    if chosen["shape"] and chosen["pool"]:
        raise InputError("--shape and --pool exclude each other", hint="A pool has a shape")
    of_cluster = not chosen["shape"] and chosen["gpus"] is None and context.has_file
    if has_run and of_cluster and context.spec().cloud.traits.hardware_emulated:
        of_cluster = False  # the output is of another machine
    if chosen["pool"] or of_cluster:
        from dataclasses import replace

        from gpucluster.operations.job_choice import check_divided, job_for

        job = job_for(context.spec(), template, launcher, settings, nodes=nodes, pool=chosen["pool"], has_run=has_run)
        job = job if chosen["gpus"] is None else replace(job, gpus=chosen["gpus"])
        # The output of a job has what it took.
        if chosen["pool"] and not has_run:
            check_divided(context.spec(), chosen["pool"], job)
        return job
    from gpucluster import shapes
    from gpucluster.jobs import choose

    shape = shapes.get(chosen["shape"]) if chosen["shape"] else None
    return choose.describe(template, launcher, settings, nodes=nodes, shape=shape, gpus=chosen["gpus"])


@command("list", parent=job)
def job_list(context: Context) -> None:
    """List the jobs that wait or run, of all users."""
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.cli.output import table

        jobs = cluster.jobs.list()
        rows = [
            [each.id, each.user, each.state, each.running or "-", each.nodes or "-", each.name, each.reason]
            for each in jobs
        ]
        header = ["ID", "USER", "STATE", "TIME", "NODES", "NAME", "WHY IT WAITS"]
        text = table(rows, header) if rows else "no job waits or runs"
        reporter.result({"command": "job list", "jobs": [each.to_dict() for each in jobs]}, text)


@command("logs", parent=job, without=("-f",))
@click.argument("number", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job has ended. Ctrl-C leaves it running.")
def job_logs(context: Context, number: str, follow: bool) -> None:
    """Print what job ID has printed.

    Of a job that `gpucluster job submit` has not submitted, it is the file of sbatch's --output, while Slurm knows the
    job. Secrets in it are left out.
    """
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.cli.output import say

        parts = cluster.jobs.output(number, follow=follow)
        if context.output == "json":
            text = "".join(parts)
            reporter.result({"command": "job logs", "id": number, "output": text}, "")
            return
        for part in parts:
            say(part, newline=False)


@command("templates", parent=job)
def job_templates(context: Context) -> None:
    """List the templates of jobs."""
    with reporting(context) as reporter:
        from gpucluster.cli.output import table
        from gpucluster.jobs import registry

        rows, data = [], []
        for template in registry.templates():
            needs = " ".join(word for word, needed in _needs(template).items() if needed)
            rows.append([template.name, needs or "-", ",".join(template.launchers), template.title])
            data.append(
                {
                    "name": template.name,
                    "title": template.title,
                    "launchers": list(template.launchers),
                    "needs": _needs(template),
                }
            )
        text = table(rows, ["NAME", "NEEDS", "LAUNCHERS", "WHAT IT DOES"])
        reporter.result({"command": "job templates", "templates": data}, text)


def _needs(template: Template) -> dict[str, bool]:
    return {"gpus": template.needs_gpus, "rdma": template.needs_rdma}


@command("show", parent=job)
@click.argument("name", shell_complete=completion.templates)
@_choice
def job_show(context: Context, name: str, launcher: str, **chosen: Any) -> None:
    """Show a template: options, requirements, expectation."""
    with reporting(context) as reporter:
        from gpucluster.jobs import choose, registry
        from gpucluster.jobs.render import requirements

        template = registry.template(name)
        here = _launchers_here(context, template, chosen)
        by = registry.launcher(template, launcher or here[0])
        shown = _shown(context, template, by, chosen)
        needed, expected = requirements(shown), template.expectation(shown)
        known = choose.options(template, by)
        result = {
            "command": "job show",
            "name": template.name,
            "title": template.title,
            "about": template.about,
            "launchers": list(template.launchers),
            "launcher": by.name,
            "options": [option.to_dict() for option in known],
            "requirements": [requirement.to_dict() for requirement in needed],
            "expectation": [figure.to_dict() for figure in expected],
            "refused": choose.refusal(shown),
        }
        reporter.result(result, _show(shown, result, expected, here))


def _launchers_here(context: Context, template: Template, chosen: Mapping[str, Any]) -> tuple[str, ...]:
    """The launchers to offer: those of the cluster of the file, and all where it can run none or there is no file."""
    from gpucluster.operations.job_choice import own_launchers

    if chosen["shape"] or not context.has_file:
        return template.launchers
    try:
        return tuple(own_launchers(context.spec(), template)) or template.launchers
    except InputError:  # a template is also shown beside a file that is wrong
        return template.launchers


def _shown(context: Context, template: Template, launcher: Launcher, chosen: Mapping[str, Any]) -> Job:
    """What `show` is about: a template is also shown where it can't run, and without any cluster."""
    from gpucluster.jobs import choose

    if any(chosen[key] for key in ("pool", "shape", "gpus")):
        return _described(context, template, launcher, chosen)
    settings = _settings(chosen["settings"])
    return choose.describe(template, launcher, settings, nodes=chosen["nodes"] or _NODES, shape=None)


def _show(shown: Job, result: Mapping[str, Any], expected: Expectation, here: Sequence[str]) -> str:
    import textwrap

    from gpucluster.cli.output import table
    from gpucluster.jobs import registry
    from gpucluster.jobs.shell import missing

    lines = [f"{shown.template.name}: {shown.template.title}", "", *textwrap.wrap(shown.template.about, 100), ""]
    for each in here:
        default = " (default)" if each == here[0] else ""
        lines.append(f"launcher {each}{default}: {registry.launchers()[each].title}")
    others = [each for each in shown.template.launchers if each not in here]
    lines += [f"not on this cluster: {', '.join(others)}"] if others else []
    if result["refused"] and shown.shape:
        lines += ["", f"It can't run on {shown.shape.name}: {result['refused']}"]
    rows = [[each["name"], _value(each["default"]), _meaning(each)] for each in result["options"]]
    lines += ["", f"Options with the launcher {shown.launcher.name} (--set OPTION=VALUE):", ""]
    lines += [table(rows, ["OPTION", "DEFAULT", "WHAT"]), "", "Each node must have:", ""]
    from gpucluster.jobs.render import requirements

    lines += [f"  {each.need.value} {each.name or '-'}: if not, {missing(each)}" for each in requirements(shown)]
    lines += ["", "Expected:", ""]
    lines += [
        f"  {figure.name} {figure.bound} {figure.value:g} {figure.unit} ({figure.condition}; {figure.source})"
        for figure in expected
    ] or ["  nothing is published"]
    return "\n".join(lines)


def _meaning(option: Mapping[str, Any]) -> str:
    return f"{option['title']} ({', '.join(option['choices'])})" if option["choices"] else str(option["title"])


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else "-"


@command("render", parent=job)
@click.argument("name", shell_complete=completion.templates)
@_choice
@click.option("--directory", type=click.Path(file_okay=False), help="Write the files here. Default: print the script.")
@click.option("--force", is_flag=True, help="Overwrite files in the directory that have another content.")
def job_render(context: Context, name: str, launcher: str, directory: str | None, force: bool, **chosen: Any) -> None:
    """Write the script of a job, and the programs beside it.

    Submit it with sbatch from a folder that all nodes mount. With a launcher of Kubernetes it is the objects of the
    job, for `kubectl create`.
    """
    with reporting(context) as reporter:
        from gpucluster.jobs import choose, registry
        from gpucluster.jobs.render import render

        template = registry.template(name)
        job_to_render = _described(context, template, registry.launcher(template, launcher), chosen)
        why = choose.refusal(job_to_render)
        if why:
            raise InputError(f"{template.name} can't run here: {why}")
        rendered = render(job_to_render)
        result = {"command": "job render", **rendered.to_dict(), "directory": directory}
        if directory is None:
            reporter.result(result, rendered.files[rendered.script].text.rstrip("\n"), verbatim=True)
            return
        from pathlib import Path

        folder = Path(directory)
        _write(rendered, folder, force=force)
        lines = [f"{folder} has {', '.join(sorted(rendered.files))}"]
        where = "" if job_to_render.launcher.wrap else "copy it to the cluster, and there: "
        lines.append(f"Next: {where}cd {folder.name} && {rendered.submit} {rendered.script}")
        reporter.result(result, "\n".join(lines))


def _write(rendered: Rendered, folder: Path, *, force: bool) -> None:
    from gpucluster.paths import write_whole

    texts = {folder / name: file.text for name, file in rendered.files.items()}
    others = [] if force else [path.name for path, text in texts.items() if _differs(path, text)]
    if others:
        raise InputError(
            f"the folder has {', '.join(sorted(others))} with another content",
            where=str(folder),
            hint="Name another folder, or overwrite them with --force",
        )
    for name, file in rendered.files.items():
        write_whole(folder / name, file.text, mode=0o755 if file.executable else 0o644)


def _differs(path: Path, text: str) -> bool:
    if not path.exists() and not path.is_symlink():
        return False
    try:
        return path.read_text(encoding="utf-8") != text
    except (OSError, ValueError):
        return True


@command("judge", parent=job)
@click.argument("name", shell_complete=completion.templates)
@click.argument("output_file", metavar="FILE", type=click.Path())
@_choice
def job_judge(context: Context, name: str, output_file: str, launcher: str, **chosen: Any) -> None:
    """Say what the output of a job means.

    FILE is what the job has printed; - is standard input. Its first line states how the job was rendered; options state
    it for an output without that line, and where they are given they count more. Exits with 1 if the result is bad or
    can't be judged.
    """
    with reporting(context) as reporter:
        from gpucluster.jobs import outputs, registry

        template = registry.template(name)
        text = _read(output_file)
        judged = _judged(context, template, text, launcher, chosen)
        result = outputs.judged(judged, text)
        data = {"command": "job judge", "job": judged.to_dict(), **result.to_dict()}
        good = result.status.value in ("pass", "warn")
        reporter.result(
            {**data, "verdict": result.status.value, "status": "success" if good else "failed"}, _result_text(result)
        )
    if not good:
        sys.exit(EXIT_FAILED)


#: An output with every line that NCCL writes has some MB.
_LARGEST_OUTPUT = 1 << 30


def _read(file: str) -> str:
    import os

    if file == "-":
        return sys.stdin.buffer.read().decode(errors="replace")
    if os.path.isfile(file) and os.path.getsize(file) > _LARGEST_OUTPUT:
        raise InputError(f"{file} has more than {_LARGEST_OUTPUT} bytes", hint="Give the end of it: tail -c 100M")
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError as error:
        hint = "Name a file with what a job has printed"
        raise InputError(f"can't read the output: {error.strerror}", where=file, hint=hint) from None


def _judged(context: Context, template: Template, text: str, launcher: str, chosen: Mapping[str, Any]) -> Job:
    """How the job was rendered, as its output states; and the values of the options, which count more."""
    from dataclasses import replace

    from gpucluster.jobs import choose, outputs, registry

    header = outputs.header(text)
    if header is None:
        return _described(context, template, registry.launcher(template, launcher), chosen, has_run=True)
    job = choose.from_dict(header)
    if job.template.name != template.name:
        raise InputError(
            f"this is an output of {job.template.name}, and not of {template.name}",
            hint=f"gpucluster job judge {job.template.name} FILE",
        )
    if launcher:
        job = replace(job, launcher=registry.launcher(template, launcher))
    settings = _settings(chosen["settings"])
    parsed = choose.describe(template, job.launcher, settings, nodes=1, shape=None).values
    job = replace(job, values={**job.values, **{name: parsed[name] for name in settings}})
    if any(chosen[key] for key in ("pool", "shape")):
        where = _described(context, template, job.launcher, {**chosen, "settings": ()}, has_run=True)
        job = replace(job, shape=where.shape, gpus=where.gpus, rdma=where.rdma)
    if chosen["gpus"] is not None:
        job = replace(job, gpus=chosen["gpus"])
    return job if chosen["nodes"] is None else replace(job, nodes=chosen["nodes"])


def _result_text(result: JobResult) -> str:
    from gpucluster.jobs.model import LAST_LINES

    lines = [result.status.value.upper()]
    lines += [f"  {name}: {value:g} {result.units.get(name, '')}".rstrip() for name, value in result.values.items()]
    for finding in result.findings:
        lines.append(f"  - {finding.check}: {finding.status.value}: {finding.message}")
        lines += [f"    | {line}" for line in finding.evidence.get(LAST_LINES, ())]
    return "\n".join(lines)


# --- on a cluster -----


def _request(function: Callable[..., None]) -> Callable[..., None]:
    """The options that set what runs on a cluster, and for which user."""
    for decorate in (
        click.option(
            "--user",
            default="",
            shell_complete=completion.users,
            help="Whose job it is. Default: the first of users.people.",
        ),
        _GPUS,
        _POOL,
        _nodes(_NODES),
        _LAUNCHER,
        _SETTINGS,
    ):
        function = decorate(function)
    return function


def _request_of(name: str, request: Mapping[str, Any]) -> JobRequest:
    from gpucluster.operations.jobs import JobRequest

    return JobRequest(name, **{**request, "settings": _settings(request["settings"])})


_TIMEOUT = click.option(
    "--timeout", type=click.FloatRange(min=0), help="Seconds to wait. Default: as long as it takes."
)


@command("submit", parent=job)
@click.argument("name", shell_complete=completion.templates)
@_request
@click.option("--wait", is_flag=True, help="Wait for its end, and judge it.")
@_TIMEOUT
def job_submit(context: Context, name: str, wait: bool, timeout: float | None, **request: Any) -> None:
    """Submit a job from the template NAME.

    What it needs is checked before. Its files and its output are in the home of the user, in gpucluster-jobs. With
    --wait the command ends with 1 if the result is bad or can't be judged. Ctrl-C ends the command, and not the job.
    """
    with cluster_of(context) as (cluster, reporter):
        submitted = cluster.jobs.submit(_request_of(name, request))
        text = (
            f"job {submitted.id} of {submitted.user}: {name} on {submitted.nodes} nodes of "
            f"{f'the partition {submitted.partition}' if submitted.partition else f'the pool {submitted.pool}'}, "
            f"in {submitted.folder}"
        )
        if wait:
            from gpucluster.events import info

            info(reporter, "job", text)
            good = _waited(cluster, reporter, "job submit", submitted.id, timeout)
        else:
            good = True
            data = {"command": "job submit", **submitted.to_dict()}
            reporter.result(data, f"{text}\nNext: gpucluster job wait {submitted.id}")
    if not good:
        sys.exit(EXIT_FAILED)


@command("wait", parent=job)
@click.argument("number", metavar="ID")
@_TIMEOUT
def job_wait(context: Context, number: str, timeout: float | None) -> None:
    """Wait for the end of job ID, and judge it.

    It may have ended before. The command ends with 1 if the result is bad or can't be judged. The result is kept beside
    the job, in result.json.
    """
    with cluster_of(context) as (cluster, reporter):
        good = _waited(cluster, reporter, "job wait", number, timeout)
    if not good:
        sys.exit(EXIT_FAILED)


def _waited(cluster: Cluster, reporter: ResultReporter, name: str, number: str, timeout: float | None) -> bool:
    """Wait for a job and report its outcome; returns whether it is good."""
    from gpucluster.text import printable

    outcome = cluster.jobs.wait(number, timeout=timeout)
    good = outcome.result.status.value in ("pass", "warn")
    data = {"command": name, **outcome.to_dict(), "status": "success" if good else "failed"}
    lines = [
        _result_text(outcome.result),
        f"job {outcome.id}: {printable(outcome.state)}, in {printable(outcome.folder)}",
    ]
    reporter.result(data, "\n".join(lines))
    return good


@command("status", parent=job)
@click.argument("number", metavar="ID")
def job_status(context: Context, number: str) -> None:
    """Show the state of job ID, and its result."""
    from gpucluster.text import printable

    with cluster_of(context) as (cluster, reporter):
        state = cluster.jobs.status(number)
        monitored = cluster.spec.monitoring.enabled and cluster.spec.slurm.enabled
        watched = list(cluster.job_reports.watched(number)) if state.state == "RUNNING" and monitored else []
        why = f" ({state.reason})" if state.reason else ""
        lines = [f"job {number} of {state.user}: {state.template} is {state.state}{why}, in {state.folder}"]
        lines += [*state.told, *watched]
        if watched or state.told:
            lines.append(f"Next: gpucluster job report {number}")
        if state.result:
            lines.append(f"it was judged: {state.result.get('verdict')}")
        elif state.ended:
            lines.append(f"Next: gpucluster job wait {number}")
        data = {"command": "job status", **state.to_dict(), "watched": watched}
        reporter.result(data, "\n".join(map(printable, lines)))


@command("cancel", parent=job)
@click.argument("number", metavar="ID")
def job_cancel(context: Context, number: str) -> None:
    """Cancel job ID."""
    with cluster_of(context) as (cluster, reporter):
        cancelled = cluster.jobs.cancel(number)
        text = f"job {number} had ended before" if cancelled.ended else f"job {number} is cancelled"
        reporter.result({"command": "job cancel", **cancelled.to_dict()}, text)


@command("prepare", parent=job)
@click.argument("name", shell_complete=completion.templates)
@_request
@click.option("source", "--from", type=click.Path(dir_okay=False), help="A file on this machine that has the data set.")
@click.option("--force", is_flag=True, help="Replace another data set of this name.")
def job_prepare(context: Context, name: str, source: str | None, force: bool, **request: Any) -> None:
    """Bring data sets and container images for a job.

    NAME is a template, or a data set of gpucluster's catalogue. Data sets come from software.mirror or their own page,
    with a checksum, to .gpucluster/datasets on the home share.
    """
    with cluster_of(context) as (cluster, reporter):
        from pathlib import Path

        prepared = cluster.jobs.prepare(
            _request_of(name, request), source=Path(source) if source else None, force=force
        )
        lines = [
            f"{each.kind} {each.name} {'is there now' if each.changed else 'was there already'}: {each.path}"
            for each in prepared
        ] or [f"{name} needs nothing that could be brought; what nodes must have: gpucluster job show {name}"]
        reporter.result({"command": "job prepare", "prepared": [each.to_dict() for each in prepared]}, "\n".join(lines))


@command("report", parent=job)
@click.argument("number", metavar="ID")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page with plots to this file.")
@click.option("--anonymous", is_flag=True, help="Leave out the names of users and accounts.")
@click.option("--force", is_flag=True, help="Overwrite a file that is not a report.")
def job_report(context: Context, number: str, html: str | None, anonymous: bool, force: bool) -> None:
    """Report what job ID used, and what stands out.

    ID is the number of a job, or that of a task of an array as 12_3. The job may still run. Plots need monitoring; the
    counters of the network before and after the job need the checks of nodes.
    """
    with cluster_of(context) as (cluster, reporter):
        from gpucluster.jobs.report.text import text

        if html is not None:
            _may_replace(html, force=force)
        report = cluster.job_reports.report(number, anonymous=anonymous)
        shown = text(report)
        if html is not None:
            _write_page(html, report)
            shown += f"\n\nPage: {html}"
        reporter.result({"command": "job report", **report.to_dict(), "html": html}, shown)


def _may_replace(place: str, *, force: bool) -> None:
    from pathlib import Path

    from gpucluster.jobs.report.page import KIND
    from gpucluster.pages.frame import is_page

    file = Path(place)
    if not file.parent.is_dir():
        raise InputError(f"there is no directory {file.parent}", hint="Create it, or name another file")
    if file.is_file() and not force:
        with file.open(encoding="utf-8", errors="replace") as stream:
            before = stream.read(_HEAD)
        if before and not is_page(before, KIND):
            raise InputError(f"{file} is not a job report", hint="Name another file, or overwrite it with --force")


_HEAD = 4096


def _write_page(place: str, report: JobReport) -> None:
    import time
    from pathlib import Path

    from gpucluster import __version__
    from gpucluster.jobs.report.page import html
    from gpucluster.paths import write_whole

    # It names users and hosts.
    write_whole(Path(place), html(report, made_at=time.time(), made_by=f"gpucluster {__version__}"), mode=0o600)
