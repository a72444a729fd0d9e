"""From the variables of a stack to a valid cluster.yml and an account of every variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpucluster.errors import InputError, InputFinding
from gpucluster.resource_manager.cluster_file import render
from gpucluster.resource_manager.convert import convert
from gpucluster.resource_manager.draft import Decision, Draft
from gpucluster.resource_manager.stack import Stack, secret_names
from gpucluster.resource_manager.table import LAST, Variable, variables
from gpucluster.spec import ClusterSpec, document, loads
from gpucluster.text import count

_SHOWN = 40


@dataclass(frozen=True)
class NotTaken:
    """A variable that has an effect in the stack and no counterpart here: its value, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class Migration:
    """What became of the variables.

    Each variable that the file has is in one of the five lists.

    Args:
        text: of the cluster.yml.
        taken: for each variable that decided a key, or is about a decision, its keys.
        not_taken: those that have an effect in the stack and no counterpart.
        idle: those that decide nothing: empty, switched off, at the stack's default without a counterpart, or without
            effect because of another variable.
        secrets: for each variable with a secret, where the secret belongs.
        unknown: those that no release of the stack has, up to `table.LAST`.
        decisions: what is left to the operator.
    """

    text: str
    spec: ClusterSpec
    taken: Mapping[str, tuple[str, ...]]
    not_taken: tuple[NotTaken, ...]
    idle: tuple[str, ...]
    secrets: Mapping[str, str]
    unknown: tuple[str, ...]
    decisions: tuple[Decision, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "name": self.spec.name,
            "taken": {name: list(keys) for name, keys in self.taken.items()},
            "not_taken": [vars(each) for each in self.not_taken],
            "idle": list(self.idle),
            "secrets": dict(self.secrets),
            "unknown": list(self.unknown),
            "decisions": [
                {"key": each.key, "text": each.text, "variables": list(each.sources)} for each in self.decisions
            ],
        }


def migrate(
    values: Mapping[str, Any], *, file: str, target: str, folder: str, settings: Mapping[str, str]
) -> Migration:
    """Convert the variables of a stack.

    Args:
        values: of the variables, by name.
        file: that they come from, for errors.
        target: the path of the cluster.yml.
        folder: the name of its folder.
        settings: keys of cluster.yml with values in YAML, which beat what the variables say.

    Raises:
        InputError: a value is not of its type, a key has no value, or the result is not a valid cluster.yml.
    """
    secrets = frozenset(secret_names(values))
    stack = Stack({name: value for name, value in values.items() if name not in secrets})
    draft = convert(stack, folder)
    if stack.faults:
        raise _faulty(stack.faults, file)
    for key, value in settings.items():
        draft.override(key, _parsed(key, value))
    if draft.missing:
        raise _incomplete(draft, secrets, file)
    text = render(draft)
    spec = _checked(text, target, draft)
    return _account(values, secrets, stack, draft, text=text, spec=spec)


def _parsed(key: str, value: str) -> Any:
    read = document.read_any(value, f"--set {key}")
    if read.findings:
        raise InputError("the value is not YAML", where=f"--set {key}", findings=read.findings)
    return _plain(read.data)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def _faulty(faults: Mapping[str, str], file: str) -> InputError:
    findings = [InputFinding(file, 0, 0, name, message) for name, message in sorted(faults.items())]
    return InputError(f"{file}: {count(len(findings), 'value')} of another type than the stack's", findings=findings)


def _incomplete(draft: Draft, secrets: frozenset[str], file: str) -> InputError:
    findings = []
    for key, variable in draft.missing.items():
        state = "has a private key, which is not taken" if variable in secrets else "has no value"
        findings.append(InputFinding(file, 0, 0, variable, f"{state}, and {key} needs one", f"Add: --set {key}=VALUE"))
    return InputError(f"{file}: {count(len(findings), 'variable')} without a value", findings=findings)


def _checked(text: str, target: str, draft: Draft) -> ClusterSpec:
    """The spec of the text.

    Raises:
        InputError: it is not valid. Its findings name variables instead of lines: the file was not written.
    """
    try:
        return loads(text, target)
    except InputError as error:
        findings = [_with_sources(each, draft) for each in error.findings]
        what = f"the variables make no valid cluster.yml ({count(len(findings), 'error')}); nothing was written"
        hint = "Set the keys with --set KEY=VALUE, such as: --set pools.compute.shape=BM.GPU.H100.8"
        raise InputError(what, hint=hint, findings=findings) from None


def _with_sources(finding: InputFinding, draft: Draft) -> InputFinding:
    sources = draft.sources_of(finding.path.partition("[")[0]) if finding.path else ()
    origin = f" (from {', '.join(sources)})" if sources else ""
    return InputFinding(finding.file, 0, 0, finding.path, finding.message + origin, finding.hint)


def _account(
    values: Mapping[str, Any], secrets: frozenset[str], stack: Stack, draft: Draft, *, text: str, spec: ClusterSpec
) -> Migration:
    known = variables()
    used: dict[str, dict[str, None]] = {}
    for name, key in draft.sources():
        used.setdefault(name, {})[key] = None
    hidden = {name for name in secrets if values[name]}
    plain = [name for name in values if name in known and name not in hidden]
    taken = {name: tuple(used[name]) for name in plain if name in used}
    rest = [known[name] for name in plain if name not in used]
    not_taken = [each for each in rest if each.reason and not each.secret and stack.active(each.name)]
    named = {each.name for each in not_taken}
    return Migration(
        text=text,
        spec=spec,
        taken=taken,
        not_taken=tuple(NotTaken(each.name, _shown(values[each.name]), each.reason) for each in not_taken),
        idle=tuple(each.name for each in rest if each.name not in named),
        secrets={name: _place_of(known.get(name)) for name in values if name in hidden},
        unknown=tuple(name for name in values if name not in known and name not in hidden),
        decisions=tuple(draft.decisions.values()),
    )


def _place_of(variable: Variable | None) -> str:
    """Where a secret belongs."""
    if variable is not None:
        return variable.reason or "It has a private key. That belongs into a file or an ssh agent of its owner."
    return f"It is not a variable of the stack up to {LAST}, and has the name or the form of a secret."


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
