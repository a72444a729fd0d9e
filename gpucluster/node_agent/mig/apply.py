"""Divides the GPUs, and makes the links that gres.conf names. Run as root at boot, before slurmd and kubelet."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from gpucluster.node_agent import programs
from gpucluster.node_agent.checks.expected import NodeExpectation
from gpucluster.node_agent.mig import collect, plan, pods, refusals
from gpucluster.node_agent.rules import mig

#: Written before the first change: this program has divided the GPUs of this host. Without it no GPU is made whole.
MARKER = "/var/lib/gpucluster/mig"
#: In `mig.FOLDER`: what the last run said.
RECORD = "record.json"
# They hold every GPU. The User Guide ("Driver Clients") and mig-parted (hooks.sh) stop them for a new mode.
CLIENTS = ("gpucluster-dcgm-exporter.service", "nvidia-dcgm.service", "nvsm.service")
# A change of the mode resets a GPU on Ampere, which takes some seconds; so does each instance.
_SECONDS = 120.0
_READ_S = 60.0
# Another nvidia-smi (of the exporter, of a check) holds a GPU for a second.
_TRIES, _PAUSE_S = 4, 3.0
_MOST_OUTPUT = 8 << 20


@dataclass(frozen=True)
class MigNode:
    """The node, or what stands for it in a test.

    Args:
        root: where its /run, /var and /proc are.
        run: runs a program with a limit in seconds.
    """

    root: Path
    run: collect.Run
    sleep: Callable[[float], None] = time.sleep

    def path(self, path: str) -> Path:
        """A path of the node."""
        return self.root / path.lstrip("/")


def here() -> MigNode:
    """This host."""
    return MigNode(Path("/"), run)


def run(argv: Sequence[str], seconds: float) -> collect.ProgramOutput:
    """Run a program with a limit. One that is missing or does not answer has no status."""
    result = programs.ask(list(argv), seconds, _MOST_OUTPUT)
    if result.fault:
        return collect.ProgramOutput(None, result.fault)
    text = result.output + (b"\n" + result.errors if result.errors else b"")
    return collect.ProgramOutput(result.status, text.decode(errors="replace"))


def apply(node: MigNode, expected: NodeExpectation) -> list[str]:
    """Divide the GPUs as they should be, and return what was done; nothing is done where they are.

    Raises:
        NotPossible: why not. The record has it, too, for the check `gpu_mig`.
    """
    marker = node.path(MARKER)
    if not expected.mig and not marker.exists():
        return []
    parts = expected.mig or ("",) * expected.gpus
    try:
        actions = _divide(node, parts, expected.gpu_model)
    except (plan.NotPossible, collect.Unreadable) as error:
        _record(node, str(error))
        raise plan.NotPossible(str(error)) from None
    if not expected.mig:
        marker.unlink(missing_ok=True)
    return actions


def _divide(node: MigNode, parts: Sequence[str], whole: str) -> list[str]:
    cards = collect.read(node.run, _READ_S)
    todo = plan.steps(cards, parts)
    if todo:
        marker = node.path(MARKER)
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        with pods.away(node), _alone(node) if any(step.mode for step in todo) else contextlib.nullcontext():
            for step in todo:
                _take(node, step)
        cards = collect.read(node.run, _READ_S)
        left = plan.steps(cards, parts)
        if left:
            raise plan.NotPossible(
                f"GPU {left[0].gpu} is not divided as it should be, though nvidia-smi reported success"
            )
    _show(node, cards, mig.devices(parts, whole) if any(parts) else ())
    return [f"GPU {step.gpu}: {step.what}" for step in todo]


@contextlib.contextmanager
def _alone(node: MigNode) -> Iterator[None]:
    """Stop the services that hold the GPUs, and start them again. At boot none of them runs yet."""
    running = [name for name in CLIENTS if node.run(["systemctl", "is-active", "--quiet", name], _READ_S).status == 0]
    for name in running:
        node.run(["systemctl", "stop", name], _READ_S)
    try:
        yield
    finally:
        for name in reversed(running):
            # Units that come after this program's own would wait for it, and it for them.
            node.run(["systemctl", "start", "--no-block", name], _READ_S)


def _take(node: MigNode, step: plan.Step) -> None:
    for left in reversed(range(_TRIES)):
        answer = node.run(["nvidia-smi", *step.words], _SECONDS)
        # A mode that is pending is a warning only: the status is 0.
        waits = step.mode and refusals.pending(answer.output)
        if answer.status == 0 and not waits:
            return
        if not left or refusals.IN_USE not in answer.output.lower():
            break
        node.sleep(_PAUSE_S)
    raise plan.NotPossible(f"GPU {step.gpu}: could not {step.what}: {refusals.explain(answer.output)}")


def _show(node: MigNode, cards: Sequence[collect.Card], devices: Sequence[mig.MigDevice]) -> None:
    """Make the links and the list of names; without devices both are removed."""
    folder = node.path(mig.FOLDER)
    targets: Mapping[str, str] = {}
    names: Mapping[int, str] = {}
    if devices:
        try:
            minors = collect.minors(node.path(collect.MINORS).read_text())
        except OSError as error:
            raise plan.NotPossible(f"{collect.MINORS} can't be read: {error.strerror}") from None
        targets = plan.links(cards, devices, minors)
        names = plan.names(cards, devices)
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    kept = {Path(path).name for path in targets}
    for old in folder.iterdir():
        if old.is_symlink() and old.name not in kept:
            old.unlink()
    for path, target in targets.items():
        _link(node.path(path), target)
    _write(folder / mig.NAMES, "".join(f"{number} {name}\n" for number, name in names.items()))
    _record(node, "")


def _link(path: Path, target: str) -> None:
    if path.is_symlink() and os.readlink(path) == target:
        return
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(path)


def _record(node: MigNode, reason: str) -> None:
    folder = node.path(mig.FOLDER)
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    _write(folder / RECORD, json.dumps({"said": reason}))


def _write(file: Path, text: str) -> None:
    """Replace a file, which all users may read: the prolog of a task runs as its user."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    new.chmod(0o644)
    new.replace(file)


def last_words(folder: Path) -> str:
    """Why the last run did not divide the GPUs; "" where it did, or did not run."""
    try:
        content: Any = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError):
        return ""
    return str(content.get("said", "")) if isinstance(content, dict) else ""
