"""The reference page of the Python library, docs/reference/library.md, from the docstrings of the public names.

    python -m tools.library_reference

prints it. tests/golden compares it with the page.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import gpucluster

_COLUMNS = 110
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
_ENTRY = re.compile(r"^(\*{0,2}[\w, .*]+?): ?(.*)$")
_TITLES = {
    "Args": "Arguments",
    "Attributes": "Attributes",
    "Returns": "Returns",
    "Yields": "Yields",
    "Raises": "Raises",
}
# What a class has from its base class.
_INHERITED = frozenset({"model_config", "model_post_init"})

# In the page its lines may be longer than in a program.
# ruff: noqa: E501
_INTRODUCTION = """\
# Python library

<!-- Written by tools/library_reference.py from the docstrings; checked by tests/golden -->

    import gpucluster

    spec = gpucluster.load("cluster.yml")
    result = gpucluster.Cluster(spec).apply()
    print(result.checks)

A method does what [the command](command-line.md) of its name does: `gpucluster slurm upgrade` is `cluster.slurm.upgrade()`. The names on
this page are the whole public interface; every module below `gpucluster` is private and may change in any version
([why](../adr/0092-public-surface.md)).

Methods block until they end. [Use the library in automation](../how-to/python-automation.md) shows how to call them from asyncio, how to stop
a run from another thread, and what results and errors are as JSON. `load`, `as_json` and
`event_schema` are functions; everything else is a class.
"""


def page() -> str:
    """The whole page."""
    public = {name: getattr(gpucluster, name) for name in sorted(gpucluster.__all__) if not name.startswith("_")}
    cluster = gpucluster.Cluster
    parts = _parts_of(cluster)
    errors = {name: value for name, value in public.items() if _is_class(value, BaseException)}
    operations = {type_name: public[type_name] for type_name in parts.values()}
    told = {"load", "as_json", "event_schema", "Cluster", "Cancellation", "Event", "EventKind", *errors, *operations}
    others = {name: value for name, value in public.items() if name not in told}
    lines = [_INTRODUCTION]
    lines += ["## load\n", *_callable("gpucluster.load", gpucluster.load)]
    lines += ["## Cluster\n", *_callable("gpucluster.Cluster", cluster), *_methods("cluster", cluster)]
    for attribute, name in parts.items():
        lines += [f"## cluster.{attribute}\n", *_documented(operations[name])]
        lines += _methods(f"cluster.{attribute}", operations[name])
    cancellation = gpucluster.Cancellation
    lines += ["## Cancellation\n", *_callable("gpucluster.Cancellation", cancellation)]
    lines += _methods("cancellation", cancellation)
    lines += ["## as_json\n", *_callable("gpucluster.as_json", gpucluster.as_json)]
    lines += ["## Events\n", *_events(), *_callable("gpucluster.event_schema", gpucluster.event_schema)]
    lines += ["## Errors\n", *_errors(errors)]
    lines += ["## Types\n"]
    for name, value in others.items():
        lines += [f"### {name}\n", *_type(name, value)]
    return "\n".join(lines).rstrip() + "\n"


def _parts_of(cluster: type) -> dict[str, str]:
    """The attributes of a cluster that have methods -> the names of their types, as its constructor assigns them."""
    source = inspect.getsource(cluster.__init__)  # type: ignore[misc]
    assigned = re.findall(r"self\.([a-z]\w*): (\w+) =", source)
    return {name: kind for name, kind in assigned if name not in ("spec", "paths")}


def _is_class(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def _methods(prefix: str, owner: type) -> Iterator[str]:
    for name, value in vars(owner).items():
        if name.startswith("_") or name in _INHERITED:
            continue
        if isinstance(value, property):
            yield f"### {prefix}.{name}\n"
            yield from _documented(value)
        elif callable(value) or isinstance(value, staticmethod | classmethod):
            yield f"### {prefix}.{name}\n"
            yield from _callable(f"{prefix}.{name}", getattr(owner, name))


def _callable(name: str, value: Any) -> Iterator[str]:
    yield f"```python\n{_signature(name, value)}\n```\n"
    yield from _documented(value)


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    parts: list[str] = []
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and "*" not in parts and not any(one.startswith("*") for one in parts):
            parts.append("*")
        parts.append(_parameter(each))
    # A constructor returns nothing that one could use.
    returned = "" if isinstance(value, type) else f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) <= _COLUMNS:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){returned}"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = (
        "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    )
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return text
    return f"{text} = {_value(parameter.default)}"


def _annotation(annotation: Any) -> str:
    """Annotations are texts, as all modules import them from __future__."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _value(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return str(getattr(value, "__name__", None) or repr(value))


def _documented(value: Any) -> Iterator[str]:
    """The docstring as Markdown: its sections become lists."""
    paragraphs, sections = _read(value)
    yield from (f"{paragraph}\n" for paragraph in paragraphs)
    for section, entries in sections.items():
        yield f"**{_TITLES[section]}**\n"
        yield from (f"- `{name}`: {text}" if name else f"- {text}" for name, text in entries)
        yield ""


def _read(value: Any) -> tuple[list[str], dict[str, list[tuple[str, str]]]]:
    """The paragraphs of a docstring, and the entries of its sections: names with their texts."""
    paragraphs: list[str] = []
    sections: dict[str, list[tuple[str, str]]] = {}
    for block in (inspect.getdoc(value) or "").split("\n\n"):
        head, *rest = block.splitlines() or [""]
        if not (found := _SECTION.match(head)):
            paragraphs += [block] if block.strip() else []
            continue
        entries = sections.setdefault(found[1], [])
        for line in rest:
            entry = _ENTRY.match(line.strip()) if found[1] not in ("Returns", "Yields") else None
            if line.startswith("     ") and entries:
                entries[-1] = (entries[-1][0], f"{entries[-1][1]} {line.strip()}")
            else:
                entries.append((entry[1], entry[2]) if entry else ("", line.strip()))
    return paragraphs, sections


def _events() -> Iterator[str]:
    yield from _documented(gpucluster.Event)
    yield "`Cluster(on_event=...)` is called with each of them, and `--output json` prints each as one line of JSON.\n"
    yield "| kind | status | what |\n|---|---|---|"
    module = inspect.getmodule(gpucluster.Event)
    table = re.findall(r"^ {4}(\w+) {2,}(.*?) {2,}(\S.*)$", inspect.getdoc(module) or "", re.MULTILINE)
    known = {str(kind.value) for kind in gpucluster.EventKind}
    missing = known ^ {kind for kind, *_rest in table}
    if missing:
        raise ValueError(f"gpucluster/events/__init__.py: its docstring and EventKind differ: {sorted(missing)}")
    for kind, status, what in table:
        yield f"| `{kind}` | {_cell(status)} | {_cell(what)} |"
    yield "\n| field | type | when it is left out |\n|---|---|---|"
    for field in dataclasses.fields(gpucluster.Event):
        left_out = (
            "" if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING else "if empty"
        )
        yield f"| `{field.name}` | `{_cell(str(field.type))}` | {'' if field.name == 'time' else left_out} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _errors(errors: dict[str, Any]) -> Iterator[str]:
    yield from _documented(gpucluster.GpuClusterError)
    yield "| error | exit code | what |\n|---|---|---|"
    for name, value in sorted(errors.items(), key=lambda each: (each[1].exit_code, each[0])):
        first = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
        yield f"| `{name}` | {value.exit_code} | {_cell(first)} |"
    yield ""


def _type(name: str, value: Any) -> Iterator[str]:
    paragraphs, sections = _read(value)
    yield from (f"{paragraph}\n" for paragraph in paragraphs)
    if _is_class(value, enum.Enum):
        yield "Values: " + ", ".join(f"`{member.value}`" for member in value) + "\n"
        return
    texts = {
        each: text
        for part in ("Args", "Attributes")
        for names, text in sections.get(part, [])
        for each in names.replace("*", "").split(", ")
    }
    fields = _fields(value)
    if fields:
        yield "| field | type | what |\n|---|---|---|"
        yield from (f"| `{field}` | {_code(kind)} | {_cell(texts.get(field, ''))} |" for field, kind in fields)
        yield ""
    members = []
    for method, member in vars(value).items():
        if method.startswith("_") or method in _INHERITED or method in dict(fields):
            continue
        if isinstance(member, property):
            members.append(f"- `{method}`: {_first(member)}")
        elif inspect.isfunction(member):
            members.append(f"- `{_signature(method, member)}`: {_first(member)}")
    if members:
        yield "\n".join(members) + "\n"


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _first(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())


def _fields(value: Any) -> list[tuple[str, str]]:
    if dataclasses.is_dataclass(value):
        annotations = {each.name: each.type for each in dataclasses.fields(value)}
    else:
        annotations = getattr(value, "__annotations__", {})
    return [(name, str(getattr(kind, "__forward_arg__", kind))) for name, kind in annotations.items() if name[0] != "_"]


if __name__ == "__main__":
    print(page(), end="")
