"""Which files `gpucluster cp` copies between this machine and a host, in the words of scp(1): HOST:PATH.

Source: scp(1) of OpenSSH 9. It takes a word with a colon before the first slash for a path on a host, so a path of this
machine is written with a folder in front.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpucluster.errors import InputError

#: Whatever the name of that host is.
CONTROLLER = "controller"
_REMOTE = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9-]*|):(?P<path>.*)", re.DOTALL)
_EXAMPLES = "Such as: gpucluster cp data.tar controller:/mnt/home/, or gpucluster cp controller:results ."


@dataclass(frozen=True)
class Copying:
    """One copy.

    Args:
        host: as the user names it, or "controller".
        sources: paths there or here. `target`: on the other side.
        to_host: whether the host is the target.
    """

    host: str
    sources: tuple[str, ...]
    target: str
    to_host: bool

    def words(self, host: str) -> list[str]:
        """The arguments of scp for the sources and the target.

        Args:
            host: the host's name in the ssh configuration.
        """
        sources = [_local(path) if self.to_host else f"{host}:{path}" for path in self.sources]
        return [*sources, f"{host}:{self.target}" if self.to_host else _local(self.target)]


def copying(words: Sequence[str]) -> Copying:
    """What the words of a command line ask for.

    Args:
        words: the sources, and at the end the target.

    Raises:
        InputError: not exactly one side is a host, or it is several.
    """
    found = [_REMOTE.fullmatch(word) for word in words]
    *sources, target = found
    if target and any(sources):
        raise InputError("both sides are on hosts of the cluster", hint=f"One of them is this machine. {_EXAMPLES}")
    if not target and not all(sources):
        what = "some sources are on a host, and others here" if any(sources) else "neither side is on a host"
        raise InputError(what, hint=f"A path on a host is HOST:PATH; one with a colon here is ./a:b. {_EXAMPLES}")
    hosts = {match["host"] or CONTROLLER for match in found if match}
    if len(hosts) > 1:
        raise InputError(f"the sources are on several hosts: {', '.join(sorted(hosts))}", hint="Copy from each of them")
    paths = [match["path"] if match else word for match, word in zip(found, words, strict=True)]
    return Copying(hosts.pop(), tuple(paths[:-1]), paths[-1], to_host=target is not None)


def _local(path: str) -> str:
    """A path of this machine that scp takes for nothing else."""
    return path if path.startswith(("/", "./", "../")) or path in (".", "..") else f"./{path}"
