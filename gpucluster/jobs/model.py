"""The types of job templates: what a template, a launcher and a rendered job are, and what a result contains. Pure.

A `Template` is a program with what it needs and what it should reach; a `Launcher` starts its ranks. `Job` is what a
user has chosen: template, launcher, number of nodes, hardware, values of the options. `gpucluster.jobs.render` makes
files of a job, and the judge of the template makes a `JobResult` of what the job has printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from gpucluster.errors import InputError
from gpucluster.node_agent.checks.model import Finding, Status, worst

if TYPE_CHECKING:
    from gpucluster.shapes import Shape

#: The exit status of a script whose requirements are not met (EX_NOINPUT of sysexits.h).
EXIT_REQUIREMENT = 66
#: In front of the JSON object with which the output of every job begins: see `Job.to_dict`.
HEADER = "gpucluster job: "

Value = str | int | float | bool


class Kind(Enum):
    """What an option's value is."""

    #: Any text, also of several lines, but no character NUL.
    TEXT = "text"
    #: What the scheduler reads in a comment of the script: letters, digits and ._- only.
    NAME = "name"
    #: A place on the nodes. Containers get it under the same path.
    PATH = "path"
    #: A whole number.
    INTEGER = "integer"
    NUMBER = "number"
    #: true or false.
    FLAG = "flag"
    #: One of the option's `choices`.
    CHOICE = "choice"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|")
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Option:
    """A setting of a template or a launcher; `--set NAME=VALUE`.

    Args:
        name: lower case with underscores. The script has the value in a shell variable of this name.
        title: what it is, in one line.
        default: the value without `--set`. An empty text means: none.
        choices: the values of a CHOICE.
        minimum, maximum: of an INTEGER or NUMBER.
        pattern: a regular expression that a whole NAME or TEXT fits; "" for any.
        read_only: whether containers get a PATH without the right to write.
    """

    name: str
    title: str
    kind: Kind
    default: Value = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    pattern: str = ""
    read_only: bool = False

    def parse(self, text: str) -> Value:
        """The value of a text.

        Raises:
            InputError: it is none of this option.
        """
        try:
            value = self._parse(text)
        except ValueError:
            raise self._refused(text, f"it must be {_ARTICLE[self.kind]}") from None
        why = self._wrong_text(value) if isinstance(value, str) else self._wrong_number(value)
        if why:
            raise self._refused(text, why)
        return value

    def _wrong_text(self, value: str) -> str:
        if "\0" in value or value != value.encode(errors="replace").decode():
            return "it has a character that no file can have"
        if self.kind is Kind.CHOICE and value not in self.choices:
            return f"it must be one of {', '.join(self.choices)}"
        if self.kind is Kind.NAME and not _NAME.fullmatch(value):
            return "it may have letters, digits and ._- only"
        if self.pattern and value and not re.fullmatch(self.pattern, value):
            return f"it must fit {self.pattern}"
        return ""

    def _wrong_number(self, value: float) -> str:
        if self.minimum is not None and value < self.minimum:
            return f"it must be {self.minimum:g} or more"
        if self.maximum is not None and value > self.maximum:
            return f"it must be {self.maximum:g} or less"
        return ""

    def _parse(self, text: str) -> Value:
        if self.kind is Kind.INTEGER:
            return int(text)
        if self.kind is Kind.NUMBER:
            number = float(text)
            if not math.isfinite(number):
                raise ValueError
            return number
        if self.kind is Kind.FLAG:
            if text.lower() not in _FLAGS:
                raise ValueError
            return _FLAGS[text.lower()]
        return text

    def _refused(self, text: str, why: str) -> InputError:
        return InputError(f"option {self.name}={text[:80]!r}: {why}", hint=f"{self.name}: {self.title}")

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "name": self.name, "title": self.title, "kind": self.kind.value, "default": self.default,
            "choices": list(self.choices),
        }  # fmt: skip


_ARTICLE = {
    Kind.INTEGER: "a whole number",
    Kind.NUMBER: "a number",
    Kind.FLAG: "true or false",
}


class Need(Enum):
    """What a requirement asks for."""

    #: `name` is a program on the search path.
    PROGRAM = "program"
    #: `name` is a module that python3 can import.
    PYTHON_MODULE = "python module"
    #: `name` is a file with a container image, or an address in a registry (with #, or without a slash in front).
    IMAGE = "container image"
    #: `name` is a path that can be read.
    DATA = "data"
    #: `name` is a path that can be written, or whose folder can.
    PLACE = "place"
    #: `name` is the number of GPUs on each node.
    GPUS = "gpus"
    #: Each node has an RDMA device; `name` is empty.
    RDMA = "rdma"
    #: `name` is a file beside the script: the folder of a job must be one that all nodes mount.
    FILE_OF_JOB = "file of the job"


@dataclass(frozen=True)
class Requirement:
    """Something that the nodes of a job must have.

    It is data: who submits checks it in advance, and the script checks it once more when it starts, on every node.

    Args:
        get: how to get it, as a sentence with the next command.
        inside: whether it must be where the program runs (in the container, if there is one), and not on the host.
    """

    need: Need
    name: str
    get: str
    inside: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"need": self.need.value, "name": self.name, "get": self.get, "inside": self.inside}


@dataclass(frozen=True)
class Payload:
    """A program that lies beside the script.

    Args:
        name: of the file, in the folder `files` of the template's folder, and beside the script.
        text: its text, where another part of gpucluster has it and not that folder.
    """

    name: str
    executable: bool = True
    text: str = ""


@dataclass(frozen=True)
class Figure:
    """A number that a job should reach, or that others have published.

    Args:
        name: of the value of a `JobResult` that is compared with it.
        bound: what is good: "at least" and "at most" are limits, "about" is for comparison only.
        condition: what it was reached with.
        source: where it is from: a seed, a shape in shapes.toml.
    """

    name: str
    bound: Literal["at least", "at most", "about"]
    value: float
    unit: str
    condition: str
    source: str

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return dict(vars(self))


#: What a template should reach: see `Template.expectation`.
Expectation = tuple[Figure, ...]


class Ranks(Enum):
    """How the ranks of a program find each other."""

    #: By the MPI library that they are linked with.
    MPI = "mpi"
    #: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are in the environment of each rank.
    ENVIRONMENT = "environment"


@dataclass(frozen=True)
class Job:
    """What a user wants to run.

    Args:
        nodes: how many.
        shape: of the nodes; None if gpucluster does not know it.
        gpus: of each node that the job uses; 0 without.
        rdma: whether the nodes have an RDMA network.
        values: of all options of the template, the launcher and the scheduler, by their names.
    """

    template: Template
    launcher: Launcher
    nodes: int
    shape: Shape | None
    gpus: int
    rdma: bool
    values: Mapping[str, Value]

    @property
    def name(self) -> str:
        """As the scheduler shows it."""
        return str(self.values.get("job_name") or self.template.name)

    @property
    def per_node(self) -> int:
        """Ranks on each node."""
        return self.template.per_node(self)

    @property
    def ranks(self) -> int:
        """Ranks of the whole job."""
        return self.nodes * self.per_node

    def text(self, option: str) -> str:
        """The value of an option with a text."""
        return str(self.values[option])

    def number(self, option: str) -> float:
        """The value of an option with a number."""
        return float(self.values[option])

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object: the first line of the job's output, so that it can be judged without knowing more."""
        return {
            "template": self.template.name,
            "launcher": self.launcher.name,
            "nodes": self.nodes,
            "shape": self.shape.name if self.shape else "",
            "gpus": self.gpus,
            "rdma": self.rdma,
            "values": dict(self.values),
        }


@dataclass(frozen=True)
class JobResult:
    """What a job has reached.

    Args:
        findings: in the words of `verify`; `check` is a word for what was judged, `subject` is the template.
        values: what was measured, by name, such as "busbw" or "accuracy".
        units: of these values.
        steps: what was measured in the course of the job, one entry for each step, epoch or size; all have the same
            keys.
    """

    findings: tuple[Finding, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Mapping[str, float], ...] = ()

    @property
    def status(self) -> Status:
        """The worst of its findings. A result without any is unknown."""
        return worst(finding.status for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "status": self.status.value,
            "findings": [finding.to_dict() for finding in self.findings],
            "values": dict(self.values),
            "units": dict(self.units),
            "steps": [dict(step) for step in self.steps],
        }


def _always(_job: Job) -> str:
    return ""


def _nothing(_job: Job) -> tuple[Any, ...]:
    return ()


def one_for_each_gpu(job: Job) -> int:
    """Ranks of a node: one for each GPU, or one without."""
    return max(job.gpus, 1)


@dataclass(frozen=True)
class Template:
    """A workload.

    Its folder is `gpucluster/jobs/templates/<name>`: a package with the constant TEMPLATE, `body.sh.j2` (what the
    script does after its preparations: see `gpucluster/jobs/render.py`), and the payload in `files`.

    Args:
        title: what it does, in one line.
        about: some sentences: what it is for, what its result means.
        ranks: how its ranks find each other.
        launchers: names of those that can start it; the first is the default.
        judge: returns the meaning of the text that the job has printed.
        requirements: what the nodes must have, for these values of the options. The launcher adds its own.
        expectation: what it should reach.
        refuses: "" or why it can't run on this hardware, with what to do instead.
        per_node: ranks on each node.
        needs_gpus, needs_rdma: whether it has no meaning on a shape without.
        whole_gpus: whether it has no meaning on instances of divided GPUs.
        data_sets: options that name a data set of the catalogue of gpucluster, with its name there. Without a value
            they mean the one that `job prepare` brings to the share.
    """

    name: str
    title: str
    about: str
    ranks: Ranks
    launchers: tuple[str, ...]
    judge: Callable[[str, Job], JobResult]
    options: tuple[Option, ...] = ()
    payload: tuple[Payload, ...] = ()
    requirements: Callable[[Job], tuple[Requirement, ...]] = _nothing
    expectation: Callable[[Job], Expectation] = _nothing
    refuses: Callable[[Job], str] = _always
    per_node: Callable[[Job], int] = one_for_each_gpu
    needs_gpus: bool = True
    whole_gpus: bool = False
    needs_rdma: bool = False
    data_sets: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobScheduler:
    """A batch system: the head of a script, and how the script learns on which nodes it runs.

    Its files are in `gpucluster/jobs/launchers`: `<name>_head.sh.j2` with the comments that the scheduler reads, and
    `<name>_start.sh.j2`, which sets the shell variables `nodes` (an array of host names), `job` (its number) and `here`
    (the folder of the script).

    Args:
        submit: the program that takes a script.
        suffix: of the script's file name.
        output: the file name of a job's output: {name} and {job} are the job's.
        more_gpus: what a job does whose nodes have too few GPUs, as a sentence without a full stop.
        with_program: what a job does whose nodes lack a program, as the end of a sentence; {pyxis} and {plain} are the
            address of an image that has it, in either form, with the words before it.
    """

    name: str
    title: str
    submit: str
    suffix: str
    output: str
    options: tuple[Option, ...] = ()
    more_gpus: str = ""
    with_program: str = ""

    def program_of(self, registry: str = "", image: str = "") -> str:
        """`with_program` for an image that is known: its registry, "" for Docker Hub's, and its name there."""
        return self.with_program.format(
            pyxis=f", such as docker://{registry}{'#' if registry else ''}{image}" if image else "",
            plain=f", such as {registry}{'/' if registry else ''}{image}" if image else "",
        )


@dataclass(frozen=True)
class RankVariables:
    """The environment variables in which a rank finds its number, its number on its node, and how many there are."""

    rank: str
    local_rank: str
    size: str


#: The key of a finding's evidence with the last lines of a job that did not end well.
LAST_LINES = "last_lines"
#: Those of Open MPI's mpirun, under each scheduler.
OPEN_MPI = RankVariables("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class Launcher:
    """How the ranks of a program are started.

    Its file `gpucluster/jobs/launchers/<name>.sh.j2` defines three functions of the shell. All of them run a program
    where the ranks run (in the container, if there is one), and wait for it::

        launch RANKS_PER_NODE PROGRAM ARGUMENT...   the ranks, on all nodes, in the order of the array `nodes`
        on_each_node PROGRAM ARGUMENT...            one process on each node, without MPI
        on_first_node PROGRAM ARGUMENT...           one process on the first node, without MPI

    `launch` puts the words of the array `rank` in front of the program. A program of the ranks sees what the script has
    exported and named in the array `exported`; see `give` in `script.sh.j2`.

    Args:
        ranks: what it can start.
        variables: what it sets for each rank; None if it sets RANK, LOCAL_RANK and WORLD_SIZE itself.
        requirements: what it needs itself.
        piece: the name of its file, where several launchers have the same; "" for the launcher's own.
        wrap: makes the one file that is submitted of the texts of all files, where the batch system takes no script;
            `script` is then the script's name among them. Raises InputError where an option forbids it.
    """

    name: str
    title: str
    scheduler: JobScheduler
    ranks: tuple[Ranks, ...]
    variables: RankVariables | None = None
    options: tuple[Option, ...] = ()
    requirements: Callable[[Job], tuple[Requirement, ...]] = _nothing
    piece: str = ""
    script: str = ""
    wrap: Callable[[Job, Mapping[str, str]], str] | None = None


@dataclass(frozen=True)
class RenderedFile:
    """A file of a job."""

    text: str
    executable: bool = False


@dataclass(frozen=True)
class Rendered:
    """A job as files. All of them belong into one folder that all nodes mount; it is submitted from there.

    Args:
        script: the name of the file that is submitted.
        files: by name; the script is one of them.
        submit: the program that takes the script.
        output: the name of the file in which the scheduler writes what the job prints: {job} is the job's number.
    """

    job: Job
    script: str
    files: Mapping[str, RenderedFile]
    submit: str
    output: str
    requirements: tuple[Requirement, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "job": self.job.to_dict(),
            "script": self.script,
            "files": {name: vars(file) for name, file in self.files.items()},
            "submit": self.submit,
            "output": self.output,
            "requirements": [requirement.to_dict() for requirement in self.requirements],
        }
