"""What a user may add to the pods of a job, from text: variables, annotations, mounts, tolerations. Pure.

The API server decides whether a namespace accepts it, and names the field that it refuses.
"""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple

from gpucluster.errors import InputError
from gpucluster.node_agent.rules.labels import is_label

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: They tell the pods of a job who they are.
_OURS = re.compile(r"GPUCLUSTER_.*|HOME")
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Mount(NamedTuple):
    """Files in the pods: a claim of the namespace, or (from /) a folder of the host, at a path."""

    source: str
    path: str

    @property
    def volume(self) -> dict[str, Any]:
        """Where they are, as a pod has it beside the volume's name."""
        if self.source.startswith("/"):
            return {"hostPath": {"path": self.source, "type": "Directory"}}
        return {"persistentVolumeClaim": {"claimName": self.source}}


def variables(text: str) -> dict[str, str]:
    """Environment variables.

    Args:
        text: words NAME=VALUE, as a shell has them.

    Raises:
        InputError: a word is none, or the name is one that the job itself sets.
    """
    pairs = _pairs("env", text)
    for name in pairs:
        if not _VARIABLE.fullmatch(name):
            raise _refused("env", name, "a name has letters, digits and _, and no digit in front")
        if _OURS.fullmatch(name):
            raise _refused("env", name, "the job sets it itself")
    return pairs


def pod_annotations(text: str) -> dict[str, str]:
    """Annotations of pods; `text` as for `variables`.

    Raises:
        InputError: a word is none.
    """
    pairs = _pairs("annotations", text)
    for name in pairs:
        if not is_label(name, ""):
            raise _refused("annotations", name, "an annotation has a name such as example.com/note")
    return pairs


def mounts(text: str) -> tuple[Mount, ...]:
    """Files that pods see besides the home.

    Args:
        text: SOURCE:PATH, separated by commas.

    Raises:
        InputError: an entry is none.
    """
    entries = []
    for each in _entries(text):
        source, colon, path = each.partition(":")
        if not colon or not path.startswith("/") or ":" in path:
            raise _refused("mounts", each, "write SOURCE:PATH, with a path from /")
        if not source.startswith("/") and not _CLAIM.fullmatch(source):
            raise _refused("mounts", each, "the source is the name of a claim, or a folder of the host from /")
        entries.append(Mount(source, path))
    return tuple(entries)


def tolerations(text: str) -> list[dict[str, str]]:
    """Taints that pods tolerate, besides those of nodes with GPUs.

    Args:
        text: KEY[=VALUE][:EFFECT], separated by commas. Without a value any is tolerated, without an effect each.

    Raises:
        InputError: an entry is none.
    """
    entries = []
    for each in _entries(text):
        taint, colon, effect = each.partition(":")
        key, equals, value = taint.partition("=")
        if not is_label(key, value if equals else ""):
            raise _refused("tolerations", each, "write KEY[=VALUE][:EFFECT], such as lab.example/reserved=ada")
        if colon and effect not in _EFFECTS:
            raise _refused("tolerations", each, f"the effect is one of {', '.join(_EFFECTS)}")
        which = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
        entries.append({"key": key, **which, **({"effect": effect} if colon else {})})
    return entries


def _entries(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _pairs(option: str, text: str) -> dict[str, str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _refused(option, text, f"a quotation mark is not closed ({error})") from None
    pairs = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise _refused(option, word, "write NAME=VALUE")
        if name in pairs:
            raise _refused(option, name, "it is there twice")
        pairs[name] = value
    return pairs


def _refused(option: str, text: str, why: str) -> InputError:
    return InputError(
        f"option {option}, {text[:80]!r}: {why}", hint=f"See: gpucluster job show NAME (--set {option}=...)"
    )
