"""Which requirements of a job are met, as far as the controller can know: what is on the share, and Slurm's nodes.

Programs, Python modules and devices are the nodes' own; the job's script looks for them when it starts. The words of
`need` are those of `gpucluster.jobs.model.Need`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpucluster.controller.jobs import datasets, slurm
from gpucluster.node_agent import bounded
from gpucluster.node_agent.accounts import Account, work_as
from gpucluster.node_agent.errors import Failed, Refused

MET, NOT_MET, AT_START = "met", "not met", "at the start"
IMAGE, DATA, PLACE = "container image", "data", "place"
_AT_START = "is checked at the start of the job, on each node"
#: Seconds for all paths together; a file server may not answer.
_SECONDS = 30.0
_MOST = 1 << 20
_MOST_REQUIREMENTS = 200
#: The first bytes of squashfs files.
_SQUASHFS = b"hsqs"


class RequirementState(NamedTuple):
    """Whether a requirement is met, and why not."""

    state: str
    message: str


def check(of: Account, share: Path, entries: Any) -> list[dict[str, str]]:
    """The state of each requirement, in their order.

    Args:
        entries: objects with `need` and `name`.

    Raises:
        Refused: they are something else.
    """
    if not isinstance(entries, list) or len(entries) > _MOST_REQUIREMENTS:
        raise Refused("the requirements are not a list")
    needs = [(str(each.get("need")), str(each.get("name"))) for each in entries if isinstance(each, dict)]
    try:
        states = bounded.loads(work_as(of, lambda: _look(share, needs), seconds=_SECONDS, most=_MOST))
    except Failed as error:
        states = [[AT_START, f"could not be checked here: {error.message}"] for _ in needs]
    return [
        {"need": need, "name": name, "state": state, "message": message}
        for (need, name), (state, message) in zip(needs, states)
    ]


def _look(share: Path, needs: Sequence[tuple[str, str]]) -> bytes:
    """As the user."""
    return json.dumps([_one(share, need, name) for need, name in needs]).encode()


def _one(share: Path, need: str, name: str) -> RequirementState:
    if need not in (IMAGE, DATA, PLACE):
        return RequirementState(AT_START, _AT_START)
    if need == IMAGE and name and not name.startswith("/"):
        return RequirementState(AT_START, "comes from its registry at the start of the job")
    if not name:
        return RequirementState(NOT_MET, "is not named")
    path = Path(name)
    if not path.is_absolute() or (share not in path.parents and share != path):
        return RequirementState(AT_START, f"is not on the share: {_AT_START}")
    try:
        ways = {IMAGE: _image, DATA: _data, PLACE: _place}
        problem = ways[need](path)
        if need == DATA and not problem:
            problem = datasets.problem(path)
    except OSError as error:
        problem = f"can't be read: {error.strerror}"
    return RequirementState(NOT_MET, problem) if problem else RequirementState(MET, "")


def _image(path: Path) -> str:
    if not path.exists():
        return "does not exist"
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        return "" if regular and os.read(descriptor, len(_SQUASHFS)) == _SQUASHFS else "is not a squashfs image"
    finally:
        os.close(descriptor)


def _data(path: Path) -> str:
    if not path.exists():
        return "does not exist"
    if path.is_dir():
        return "" if os.listdir(path) else "is an empty folder"
    return "" if os.access(path, os.R_OK) else "can't be read by the user"


def _place(path: Path) -> str:
    there = path if path.exists() else path.parent
    if not there.is_dir():
        return f"can't be written: there is no folder {there}"
    return "" if os.access(there, os.W_OK) else f"can't be written by the user: {there}"


def check_nodes(partition: str, nodes: int) -> tuple[str, str]:
    """Why a partition has not enough nodes, and what only delays the job; both "" if it can start.

    Raises:
        Failed: Slurm does not answer.
    """
    counts = slurm.usable_nodes(partition)
    if counts is None:
        return f"Slurm has no partition {partition}", ""
    there, usable = counts
    if there < nodes:
        return f"the partition {partition} has {there} nodes, and the job wants {nodes}", ""
    if usable < nodes:
        return (
            "",
            f"only {usable} of {there} nodes of the partition {partition} take jobs now; the job waits for {nodes}",
        )
    return "", ""
