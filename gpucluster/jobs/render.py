"""Makes files of a job. Pure: the same job gives the same bytes.

A script is put together from pieces, so that each is written once: `script.sh.j2` in this folder, head and start of the
scheduler, the functions of the launcher, and the body of the template. What a user has chosen is in it as quoted values
of shell variables, and nowhere else but in the lines that the scheduler reads, whose values have no special characters.
"""

from __future__ import annotations

import json
import shlex
from functools import lru_cache
from importlib import resources
from typing import Any

import jinja2

from gpucluster.jobs import launchers, shell, templates
from gpucluster.jobs.model import HEADER, Job, Kind, Need, Option, Ranks, Rendered, RenderedFile, Requirement
from gpucluster.jobs.payload import text_of


def render(job: Job) -> Rendered:
    """The files of a job.

    Raises:
        InputError: its launcher can't submit it with these options.
    """
    scheduler = job.launcher.scheduler
    script = job.name + scheduler.suffix
    required = requirements(job)
    options = template_options(job)
    text = (
        _environment()
        .get_template("script.sh.j2")
        .render(
            job=job,
            script=script,
            shape=shell.quoted(job.shape.name if job.shape else ""),
            values=[(option.name, shell.quoted(job.values[option.name])) for option in options],
            paths=[option for option in options if option.kind is Kind.PATH],
            modules=" ".join(shlex.quote(module) for module in str(job.values.get("modules", "")).split()),
            environment_ranks=job.template.ranks is Ranks.ENVIRONMENT,
            header_begin=HEADER,
            header_rest=shlex.quote(_header(job)),
            outside=_checks("check_host", job, [each for each in required if not each.inside]),
            inside=_checks("check_node", job, [each for each in required if each.inside]),
        )
    )
    files = {script: RenderedFile(text, executable=True)}
    for payload in job.template.payload:
        files[payload.name] = RenderedFile(text_of(job.template, payload), payload.executable)
    output = scheduler.output.format(name=job.name, job="{job}")
    if job.launcher.wrap:
        texts = {job.launcher.script if name == script else name: file.text for name, file in files.items()}
        files = {script: RenderedFile(job.launcher.wrap(job, texts))}
    return Rendered(job, script, files, scheduler.submit, output, required)


def requirements(job: Job) -> tuple[Requirement, ...]:
    """What the nodes must have for this job: what the launcher needs, what the template needs, its payload."""
    how = "Submit from a folder that all nodes mount, such as your home directory"
    payload = (Requirement(Need.FILE_OF_JOB, each.name, how) for each in job.template.payload)
    return (*job.launcher.requirements(job), *job.template.requirements(job), *payload)


def _checks(name: str, job: Job, required: list[Requirement]) -> str:
    return shell.checks(name, job.template.name, required) if required else ""


def template_options(job: Job) -> tuple[Option, ...]:
    """The options whose values the script has as variables: those of the template and of the launcher."""
    return (*job.template.options, *job.launcher.options)


def _header(job: Job) -> str:
    """What follows the number of nodes in the first line of the output. `sbatch --nodes` may change that number."""
    content = {key: value for key, value in job.to_dict().items() if key != "nodes"}
    return json.dumps(content, sort_keys=True).removeprefix("{")


class _Pieces(jinja2.BaseLoader):
    """Finds the pieces of scripts in the package."""

    def get_source(self, environment: jinja2.Environment, template: str) -> tuple[str, str | None, Any]:
        """The text of a piece: `NAME/body.sh.j2` is of a template, everything else of a launcher or for all."""
        folder, _slash, name = template.rpartition("/")
        if folder:
            place = resources.files(f"{templates.__name__}.{folder}").joinpath(name)
        elif template == "script.sh.j2":
            place = resources.files("gpucluster.jobs").joinpath(name)
        else:
            place = resources.files(launchers).joinpath(name)
        return place.read_text(encoding="utf-8"), None, lambda: True


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    # The shell writes ${#array[@]}, so comments begin differently. There is no HTML to protect.
    return jinja2.Environment(
        loader=_Pieces(),
        undefined=jinja2.StrictUndefined,
        comment_start_string="{##",
        comment_end_string="##}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )
