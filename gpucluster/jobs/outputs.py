"""What the outputs of all jobs have in common. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpucluster.jobs.model import HEADER, Job, JobResult
from gpucluster.node_agent import bounded
from gpucluster.node_agent.checks.model import Finding, Status
from gpucluster.text import printable

#: Lines of a rank may be long; longer ones are of a program that ran wild.
_LONGEST_OBJECT = 1 << 16
_LONGEST_CAUSE = 300
#: Characters of a cause by which it is known in another text.
_KNOWN_BY = 60


def header(text: str) -> Mapping[str, Any] | None:
    """The description of the job in the first line of its output; None without such a line. The last one counts."""
    for line in reversed(text.splitlines()):
        if line.startswith(HEADER):
            try:
                document = bounded.loads(line.removeprefix(HEADER))
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict):
                return document
    return None


def last_run(text: str) -> str:
    """What the last run of a job has printed: a job that was requeued goes on in the same file."""
    _before, line, after = text.rpartition(f"\n{HEADER}")
    return after if line else text


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines, in their order."""
    for line in text.splitlines():
        if line.startswith("{") and len(line) <= _LONGEST_OBJECT:
            try:
                document = bounded.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict):
                yield document


def number(document: Mapping[str, Any], key: str) -> float | None:
    """A number of an object; None if it has none, or one that is not finite."""
    value = document.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        return None
    return float(value)


def finding(job: Job, check: str, status: Status, message: str) -> Finding:
    """What a judge has found about a job.

    Args:
        check: what was judged, such as "steadiness".
    """
    return Finding(check, job.template.name, status, message)


#: Lines that state why a job ended, before the lines of those that ended because of it: a line, and what to do.
#: Sources: NVIDIA/pyxis#39 and #168 (a registry that was not asked), NVIDIA/nccl#872, torch's ProcessGroupNCCL.cpp,
#: ld.so(8), open-mpi/ompi#12495 (with srun a message now and then reaches a rank that is still in MPI_Init, which then
#: crashes).
_CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"pyxis: +\[ERROR\].*registry-1\.docker\.io/v2/[\w-]+\.[\w.-]+/.*"),
        "behind the name of a registry an image of Enroot has a #: nvcr.io#nvidia/pytorch:TAG",
    ),
    (re.compile(r"pyxis: +\[ERROR\].*\b40[13]\b.*"), "log in to the registry: ~/.config/enroot/.credentials"),
    (re.compile(r"pyxis: +\[ERROR\].*"), ""),
    (re.compile(r"error while loading shared libraries:.*"), "load its environment module, or install it on the nodes"),
    (re.compile(r"execve\(\): .*: No such file or directory"), "the program is not on the node, or not in the image"),
    (re.compile(r"ModuleNotFoundError:.*"), "install it in the environment or the image of the job"),
    (
        re.compile(r"mca_pml_ob1_recv_frag_callback_match\b(?=(?:.*\n){1,16}.*\bompi_mpi_init\b)"),
        "Open MPI crashed while it started, as with srun it does at times (open-mpi/ompi#12495): submit the job again",
    ),
    (re.compile(r"(?:torch\.)?OutOfMemoryError:.*|CUDA out of memory.*"), ""),
    (
        re.compile(r"\[Rank \d+\] +Watchdog caught collective operation timeout.*"),
        "it waited for other ranks",
    ),
    (re.compile(r"NCCL WARN .*"), ""),
)


def cause(text: str) -> str:
    """The line of an output that states why its job ended, and what to do; empty where none is known.

    The kinds come in the order of the table, and of each kind the first line counts: what follows is its consequence.
    """
    for pattern, advice in _CAUSES:
        match = pattern.search(text)
        if match:
            return " ".join(match[0].split())[:_LONGEST_CAUSE] + (f" ({advice})" if advice else "")
    return ""


def judged(job: Job, text: str) -> JobResult:
    """The result in the output of a job: the template's judgement, and where that could not be made, the line with the
    cause.
    """
    result = job.template.judge(text, job)
    why = cause(text) if result.status is Status.UNKNOWN else ""
    # The template may have found it as well, in its own words.
    words = why.removeprefix("NCCL WARN ")[:_KNOWN_BY]
    if not why or any(words in each.message for each in result.findings):
        return result
    reason = finding(job, "job", Status.UNKNOWN, f"the output reports: {printable(why)}")
    return replace(result, findings=(reason, *result.findings))
