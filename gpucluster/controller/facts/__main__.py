"""`gpucluster-agent cluster-facts`: the facts of the cluster that `gpucluster verify` judges, and those of this host.

    {"token", "host", "share", "slurm", "rest", "autoscaler", "kubernetes", "apart", "seconds"}   the request, one line
    {"progress": "token"}           the token is on the share: other hosts may look at it
    a line, or the end of the input: they have looked; or the other side has ended
    {"result": {...}}               the facts

With `apart`, checks of hosts need the nodes for themselves: jobs and pods wait until the line has come.

Nothing is left behind, however it ends: the token and the image are removed from the share, and a job whose result
nobody waits for is cancelled. Before the line has come, the end of the input means that the connection was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from gpucluster.controller import share
from gpucluster.controller.conversation import Disconnected, RequestChannel
from gpucluster.controller.facts import services
from gpucluster.controller.facts.rest import rest
from gpucluster.controller.facts.slurm import SlurmFacts
from gpucluster.node_agent.errors import AgentError
from gpucluster.node_agent.facts.__main__ import HostFacts, at_once, prepare
from gpucluster.node_agent.programs import ProgramGroup

_NAME = "gpucluster-agent cluster-facts"
#: The folder of the token on the share.
FOLDER = ".gpucluster-verify"
# Seconds for programs to end that are not wanted any more: pods are removed, jobs are cancelled.
_STOP_SECONDS = 60.0


class Token:
    """A file on the share that every host must see. If it can't be written, hosts do not see it, and that is a fact.

    Args:
        place: where the share is mounted; None without one.
    """

    def __init__(self, place: Path | None, text: str) -> None:
        self._place = place
        self._text = text

    def __enter__(self) -> Token:
        if self._place is not None:
            with contextlib.suppress(AgentError, OSError):
                share.put(self._place, FOLDER, self._text, self._text.encode())
        return self

    def __exit__(self, *_error: object) -> None:
        if self._place is not None:
            with contextlib.suppress(OSError):
                share.remove(self._place, FOLDER)


class ClusterFacts:
    """What this controller knows of its cluster.

    Args:
        asked: see the module.
        looked: is set when the other hosts have looked.
    """

    def __init__(self, asked: Mapping[str, Any], programs: ProgramGroup, looked: threading.Event) -> None:
        self._looked = looked
        self._asked = asked
        self._programs = programs
        slurm = asked.get("slurm")
        self._slurm = SlurmFacts(slurm, programs, str(asked["token"])) if slurm else None

    def collect(self) -> dict[str, Any]:
        """Ask everything at the same time. What a program answers is a group of facts, or nothing."""
        asked = self._asked
        calls: dict[str, Callable[[], Any]] = {}
        if self._slurm is not None:
            calls["slurm"] = self._slurm_facts
        if asked.get("autoscaler"):
            calls["autoscaler"] = lambda: {"autoscaler": services.autoscaler(self._programs)}
        if asked.get("rest"):
            calls["rest"] = lambda: {"rest": rest(int(asked["rest"]))}
        if asked.get("kubernetes"):
            calls["kubernetes"] = self._kubernetes_facts
        found = at_once(calls)
        errors = {name: error for name, error in found.items() if name.endswith("_error")}
        return {**errors, **{name: fact for each in calls for name, fact in (found[each] or {}).items()}}

    def _slurm_facts(self) -> dict[str, Any]:
        assert self._slurm is not None
        self._await_nodes()
        return self._slurm.collect()

    def _kubernetes_facts(self) -> dict[str, Any]:
        asked = self._asked["kubernetes"]
        facts = services.kubernetes(asked, self._programs)
        if asked.get("pods"):
            self._await_nodes()
            facts.update(services.pods(asked["pods"], self._programs))
        return facts

    def _await_nodes(self) -> None:
        if self._asked.get("apart"):
            self._looked.wait()

    def close(self, *, lost: bool) -> None:
        """Leave nothing behind.

        Args:
            lost: nobody waits for the result: programs are ended, jobs are cancelled.
        """
        if lost:
            self._programs.stop(_STOP_SECONDS)
        if self._slurm is not None:
            if lost:
                self._slurm.cancel(ProgramGroup().run)
            with contextlib.suppress(OSError):
                self._slurm.close()


class _Work(threading.Thread):
    """A call by a thread of its own, whose end can be waited for together with an input."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.ended, self._ends = os.pipe()
        self.value: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.value = self._call()
        finally:
            os.close(self._ends)


def serve(channel: RequestChannel) -> int:
    """Answer one request.

    Raises:
        Disconnected: nobody waits any more. Nothing is left.
    """
    asked = channel.request()
    host = HostFacts(asked["host"])  # before any thread
    place = Path(asked["share"]) if asked.get("share") else None
    looked = threading.Event()
    cluster = ClusterFacts(asked, ProgramGroup(), looked)
    lost = True
    try:
        # Until all is done: this host looks at it, too.
        with Token(place, str(asked["token"])):
            channel.say(progress="token")
            work = _Work(lambda: at_once({"host": host.collect, "cluster": cluster.collect}))
            _await_line(channel, float(asked["seconds"]))
            looked.set()
            _await_end(channel, work)
        lost = False
    finally:
        cluster.close(lost=lost)
    facts = work.value
    errors = {name: error for name, error in facts.items() if name.endswith("_error")}
    channel.say(result={**(facts["host"] or {}), **errors, **(facts["cluster"] or {})})
    return 0


def _await_line(channel: RequestChannel, seconds: float) -> None:
    """Wait until the other hosts have looked.

    Raises:
        Disconnected: the connection is lost, or nothing came for so many seconds.
    """
    until = time.monotonic() + seconds
    while not channel.has_request():
        if not select.select([channel.source], [], [], max(until - time.monotonic(), 0))[0]:
            raise Disconnected
        channel.listen()
    channel.request()


def _await_end(channel: RequestChannel, work: _Work) -> None:
    """Wait for the facts; each of them has a limit.

    Raises:
        Disconnected: the connection is lost before.
    """
    while work.ended not in select.select([channel.source, work.ended], [], [])[0]:
        channel.listen()
    work.join()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    argparse.ArgumentParser(prog=_NAME, description=(__doc__ or "").partition("\n")[0]).parse_args(argv)
    prepare()
    try:
        return serve(RequestChannel(0, 1))
    except Disconnected:
        return 1


if __name__ == "__main__":
    sys.exit(main())
