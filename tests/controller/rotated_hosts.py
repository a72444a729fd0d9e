"""Hosts of a rotation, as the controller asks them over ssh. A double, which proves nothing of ssh.

Each test states what its hosts answer, and what must hold after each step.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpucluster.controller import host_commands
from gpucluster.controller.host_commands import Answer
from gpucluster.controller.users import hosts
from gpucluster.controller.users.config import HostLogins

HERE, ELASTIC = "demo-controller", "gpu-e1"
CONFIG = HostLogins({HERE: "opc", "compute-1": "opc", "gpu-e[1-2]": "opc"})
NAMES = (HERE, "compute-1", ELASTIC)


class Killed(BaseException):
    """As kill -9 ends a process: no handler of an error sees it."""


@contextmanager
def killed_at_a_rename(
    number: int, counts: Callable[[Path, Path], bool] = lambda _file, _target: True
) -> Iterator[None]:
    """The process is killed in this block where it would give one more file its name.

    Args:
        number: of files that get theirs before. `counts`: whether a file and its new name are among them.
    """
    original, done = Path.replace, list[Path]()

    def replace(self: Path, target: Path) -> Path:
        if counts(self, target):
            if len(done) == number:
                raise Killed
            done.append(target)
        return original(self, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        with pytest.raises(Killed):
            yield


class RotatedHosts:
    """What the hosts of one test have in common.

    Attributes:
        off: those that Slurm has given up.
        kill_at: the step that ends the program, and of which host.
        steps: what was done, and on which host.
    """

    def __init__(self) -> None:
        self.off: set[str] = set()
        self.kill_at = ("", "")
        self.steps: list[tuple[str, str]] = []

    def answer(self, host: str, words: Sequence[str], text: str) -> Answer:
        """What a host answers to a command of the agent."""
        raise NotImplementedError

    def answers_of(
        self, logins: Mapping[str, Any], _key: Path | None, words: Sequence[str], _seconds: float, texts: Any
    ) -> dict[str, Answer]:
        """As `host_commands.answers_of`."""
        return {host: self.answer(host, words, texts.get(host, "")) for host in sorted(logins)}

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the hosts of a cluster."""
        monkeypatch.setattr(host_commands, "answers_of", self.answers_of)
        monkeypatch.setattr(host_commands, "on_this_one", lambda words, text, _seconds: self.answer(HERE, words, text))
        monkeypatch.setattr(host_commands, "away", lambda silent: tuple(sorted(set(silent) & self.off)))
        monkeypatch.setattr(hosts, "in_service", lambda _nodes: {ELASTIC: "10.0.0.9"})
        monkeypatch.setattr(socket, "gethostname", lambda: HERE)
        monkeypatch.setattr(time, "sleep", lambda _seconds: None)
