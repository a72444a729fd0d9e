"""The programs that lie beside the script of a job."""

from __future__ import annotations

from importlib import resources

from gpucluster.jobs import templates
from gpucluster.jobs.model import Payload, Template

#: In the folder of a template.
_FOLDER = "files"


def text_of(template: Template, payload: Payload) -> str:
    """The text of a program of a template."""
    if payload.text:
        return payload.text
    return resources.files(f"{templates.__name__}.{template.name}").joinpath(_FOLDER, payload.name).read_text("utf-8")
