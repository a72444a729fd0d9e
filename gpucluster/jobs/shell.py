"""Values and requirements as shell. Pure.

The checks of requirements are used twice: in the script of a job, and by who submits it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from gpucluster.jobs.model import EXIT_REQUIREMENT, Need, Requirement, Value

#: Looks for a module without importing it, which takes seconds.
_FIND_MODULE = "import importlib.util as u, sys; sys.exit(not u.find_spec(sys.argv[1]))"
#: By kind, the message where it is missing.
_MISSING = {
    Need.PROGRAM: "the program {name} is not there",
    Need.PYTHON_MODULE: "python3 has no module {name}",
    Need.IMAGE: "the container image {name} can't be read",
    Need.DATA: "{name} can't be read",
    Need.PLACE: "{name} can't be written",
    Need.GPUS: "there are fewer GPUs than {name}",
    Need.RDMA: "there is no RDMA device",
    Need.FILE_OF_JOB: "{name} is not in the folder of the job, or can't be read",
}
#: Conditions that are not a single command, as functions of the shell.
_FUNCTIONS = {
    Need.PLACE: (
        "writable",
        'if [ -e "$1" ]; then [ -d "$1" ] && [ -w "$1" ]; else [ -w "$(dirname -- "$1")" ]; fi',
    ),
    Need.GPUS: (
        "has_gpus",
        "[ \"$(find /dev -maxdepth 2 -type c '(' -name 'nvidia[0-9]*' -o -name 'renderD*' ')' | wc -l)\" -ge \"$1\" ]",
    ),
    Need.RDMA: ("has_rdma", '[ -n "$(ls -A /sys/class/infiniband)" ]'),
}


def quoted(value: Value) -> str:
    """A value as one word of the shell; it arrives unchanged, whatever its characters are."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return shlex.quote(str(value))


def missing(requirement: Requirement) -> str:
    """The message where a requirement is not met: what is missing, and how to get it."""
    if requirement.need is Need.IMAGE and not requirement.name:
        return f"no container image is named. {requirement.get}"
    if requirement.need is Need.DATA and not requirement.name:
        return f"no data set is named. {requirement.get}"
    return f"{_MISSING[requirement.need].format(name=requirement.name)}. {requirement.get}"


def checks(name: str, template: str, requirements: Sequence[Requirement]) -> str:
    """A function of the shell (bash) that ends it with 66 and a message if one of the requirements is not met.

    Args:
        name: of the function. Its argument is the folder of the job.
    """
    used = {requirement.need for requirement in requirements}
    lines = [
        f"{name}() {{",
        "    need() {",
        "        local message=$1",
        "        shift",
        '        "$@" >/dev/null 2>&1 || {',
        f'            printf \'%s: %s: %s\\n\' {shlex.quote(template)} "$(uname -n)" "$message" >&2',
        f"            exit {EXIT_REQUIREMENT}",
        "        }",
        "    }",
        *(f"    {function}() {{ {body}; }}" for need, (function, body) in _FUNCTIONS.items() if need in used),
        *(f"    need {shlex.quote(missing(each))} {_condition(each)}" for each in requirements),
        "}",
    ]
    return "\n".join(lines)


def _condition(requirement: Requirement) -> str:
    """The command that succeeds if the requirement is met."""
    need, word = requirement.need, shlex.quote(requirement.name)
    if need in _FUNCTIONS:
        return f"{_FUNCTIONS[need][0]} {word}"
    if need is Need.PROGRAM:
        return f"command -v {word}"
    if need is Need.PYTHON_MODULE:
        return f"python3 -c {shlex.quote(_FIND_MODULE)} {word}"
    if need is Need.IMAGE and not requirement.name.startswith(("/", ".")):
        # An address in a registry: whether it is there shows when it is fetched.
        return "true" if requirement.name else "false"
    if need is Need.FILE_OF_JOB:
        return f'test -r "$1"/{word}'
    return f"test -r {word}"
