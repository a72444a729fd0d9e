"""The catalogue of errors, docs/reference/errors.md: each message of the package with what to do about it, by exit code.

    python -m tools.error_catalogue
    python -m tools.error_catalogue --language ja

prints it, in English or in Japanese (docs/reference/errors.ja.md). tests/golden compares it with the pages. Messages are
read from the places that raise them: a message that is another program's, or is made of a value alone, is not in it.

The Japanese texts are in error_catalogue.ja.toml, by the English ones. A new message needs an entry there, and one for
its hint: tests/tools prints the lines to add.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gpucluster import errors
from gpucluster.cli import cli
from gpucluster.errors import GpuClusterError
from gpucluster.paths import import_root

PACKAGE = import_root() / "gpucluster"
#: Programs of hosts, and of the local cloud's server: what they report reaches a user as part of another message.
_OF_HOSTS = ("autoscaler", "controller", "localcloud", "node_agent", "jobs/templates")
#: They show a value, and change nothing of what it is about.
_SHOWING = frozenset({"printable", "shown", "str", "repr", "quote", "sorted", "count", "join", "listed", "named"})
_ANY = "..."
_JAPANESE = Path(__file__).with_name("error_catalogue.ja.toml")
#: A placeholder, or an abbreviation in capitals: both stay as they are in another language.
_CAPITALS = re.compile(r"[A-Z][A-Z_]{2,}|\.{3}| / ")
#: What a user types: between backticks, or a command after a colon. Also an option, and a name such as cluster.yml.
_TYPED = re.compile(
    r"`([^`]+)`"
    r"|(?:(?<=: )|(?<=\())((?:gpucluster|kubectl|mkdir|oci|pip|printf|sbatch|ssh|tail) .+?)(?=[.,;)]+(?: |$)| \(| / |$)"
    r"|((?<![\w-])--?[a-z][\w-]+|[a-z]\w*(?:[._/][a-z]\w*)+)"
)

# ruff: noqa: E501
_INTRODUCTION = """\
# Errors and what to do

[日本語](errors.ja.md)

<!-- Written by tools/error_catalogue.py from the places that raise them; checked by tests/golden -->

Every error states what went wrong, where, and what to do next, and ends the command with an [exit code](command-line.md#exit-codes). This page has
the messages by exit code, so that you can search for one. Words in capitals stand for a value, `...` for a longer text. Errors in cluster.yml have
the place in the file and are explained with [each key](cluster-yml.md); what preflight finds is on [its page](../how-to/preflight.md), and what checks
of hosts find on [theirs](../how-to/node-checks.md).
"""


class Message(NamedTuple):
    """A message of an error.

    Args:
        error: the class. `text`: with placeholders. `hint`: what to do; empty if the message states it.
    """

    error: str
    text: str
    hint: str


def classes() -> dict[str, type[GpuClusterError]]:
    """The errors, by name."""
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: each for name, each in found if issubclass(each, GpuClusterError)}


@cache
def messages() -> frozenset[Message]:
    """The messages of the package."""
    names = classes()
    found: set[Message] = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        if not file.relative_to(PACKAGE).as_posix().startswith(_OF_HOSTS):
            found.update(_messages(ast.parse(file.read_text(encoding="utf-8")), frozenset(names)))
    return frozenset(found)


def _messages(tree: ast.Module, names: frozenset[str]) -> Iterator[Message]:
    known = _texts(tree.body, {})
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            nodes = list(ast.walk(function))
            own = _texts(nodes, known)
            for node in nodes:
                if isinstance(node, ast.Call) and node.args and (name := _name(node.func)) in names:
                    hints = [template(each.value, own) for each in node.keywords if each.arg == "hint"]
                    text = template(node.args[0], known)
                    if _needs_words(text):
                        yield Message(name, _one_line(text), _one_line(hints[0]) if hints else "")


def _texts(nodes: Iterable[ast.AST], known: Mapping[str, str]) -> dict[str, str]:
    """The texts that a module, or a function of it, has names for, with those that are known."""
    found = dict(known)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text, name = template(node.value, found), node.targets[0].id
            if " " in text:
                found[name] = f"{found[name]} / {text}" if name in found else text
    return found


def template(node: ast.expr, known: Mapping[str, str] = MappingProxyType({})) -> str:
    """A text of the program, with placeholders for its values.

    Args:
        known: texts by their names.
    """
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return _joined(template(each, known) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        return _placeholder(node.value, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left, known) + template(node.right, known)
    if isinstance(node, ast.IfExp):
        first, second = template(node.body, known), template(node.orelse, known)
        return " / ".join(dict.fromkeys(each for each in (first, second) if each))
    return known.get(_name(node), _ANY)


def _joined(parts: Iterable[str]) -> str:
    """The parts of a text. A placeholder whose value brings its own space has one here."""
    text = ""
    for part in parts:
        behind = re.search(r"[A-Z]{3}$", text) and part[:1].isalnum()
        before = re.search(r"[A-Za-z]$", text) and re.match(r"[A-Z_]{3}", part)
        text += f" {part}" if behind or before else part
    return text


def _placeholder(node: ast.expr, known: Mapping[str, str]) -> str:
    """The name of a value in capitals, such as HOST; or dots."""
    if isinstance(node, ast.Call) and _name(node.func) in _SHOWING and node.args:
        return _placeholder(node.args[-1], known)
    if isinstance(node, ast.Constant | ast.JoinedStr | ast.IfExp) or _name(node) in known:
        return template(node, known)
    if isinstance(node, ast.Subscript):
        return _placeholder(node.value, known)
    name = _name(node).strip("_")
    return name.upper() if re.fullmatch(r"[a-z][a-z_]{2,}", name) else _ANY


def _name(node: ast.expr) -> str:
    """The last word of a name; empty for another expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


class Japanese(NamedTuple):
    """The Japanese texts, by the English ones.

    Args:
        introduction: the begin of the page. `heading`: of a class, with its `{name}` and `{exit_code}`.
        columns: the heads of a table. `classes`: what each class means. `messages` and `hints`: as in `Message`.
    """

    introduction: str
    heading: str
    columns: str
    classes: Mapping[str, str]
    messages: Mapping[str, str]
    hints: Mapping[str, str]


def japanese() -> Japanese:
    """The texts of error_catalogue.ja.toml."""
    return Japanese(**tomllib.loads(_JAPANESE.read_text(encoding="utf-8")))


def english() -> dict[str, list[str]]:
    """The texts that need a translation, by the table of error_catalogue.ja.toml, each in its order."""
    known = messages()
    texts = {
        "classes": {_summary(each) for name, each in classes().items() if name in {one.error for one in known}},
        "messages": {each.text for each in known},
        "hints": {each.hint for each in known if _needs_words(each.hint)},
    }
    return {table: sorted(each, key=str.casefold) for table, each in texts.items()}


def entry(text: str) -> str:
    """The line of error_catalogue.ja.toml for an English text, without its translation yet."""
    return f'{json.dumps(text, ensure_ascii=False)} = ""'


def lost(text: str, translation: str) -> list[str]:
    """What a translation does not have as its English text has it: placeholders, commands, options, names of settings.

    Returns:
        Also commands of the translation that the English text does not have.
    """
    counts = Counter(_CAPITALS.findall(text)) - Counter(_CAPITALS.findall(translation))
    typed = ["".join(each) for each in _TYPED.findall(text)]
    typed += [f"gpucluster {each}" for each in re.findall(r"gpucluster ([a-z-]+)", text) if each in _subcommands()]
    invented = [each for each in re.findall(r"`([^`]+)`", translation) if each not in text]
    return [*counts.elements(), *(each for each in typed if each not in translation), *invented]


@cache
def _subcommands() -> frozenset[str]:
    return frozenset(cli.all_commands())


def page() -> str:
    """The page as Markdown."""
    return _INTRODUCTION + _sections(
        lambda name, error: f"## `{name}`, exit code {error.exit_code}\n\n{_summary(error)}",
        lambda rows: _table("| message | what to do |", ((_cell(each.text), _cell(each.hint) or "-") for each in rows)),
    )


def japanese_page() -> str:
    """The page in Japanese, as Markdown. A text that has no translation yet is there in English."""
    texts = japanese()

    def heading(name: str, error: type[GpuClusterError]) -> str:
        summary = _summary(error)
        title = texts.heading.format(name=name, exit_code=error.exit_code)
        return f"{title}\n\n{texts.classes.get(summary) or summary}"

    def row(each: Message) -> tuple[str, str, str]:
        meaning, way_out = texts.messages.get(each.text) or each.text, texts.hints.get(each.hint) or each.hint
        return _cell(each.text), _cell_with_code(meaning), _cell_with_code(way_out) or "-"

    return texts.introduction + _sections(heading, lambda rows: _table(texts.columns, map(row, rows)))


def _sections(heading: Callable[[str, type[GpuClusterError]], str], table: Callable[[Iterable[Message]], str]) -> str:
    """A section for each class that has messages, by exit code."""
    rows: dict[str, list[Message]] = {}
    for each in messages():
        rows.setdefault(each.error, []).append(each)
    ordered = sorted(classes().items(), key=lambda item: (item[1].exit_code, item[0]))
    return "".join(
        f"\n{heading(name, error)}\n\n{table(sorted(rows[name], key=_place))}"
        for name, error in ordered
        if name in rows
    )


def _place(message: Message) -> str:
    return f"| {_cell(message.text)} | {_cell(message.hint) or '-'} |\n".casefold()


def _table(columns: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = dict.fromkeys(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{columns}\n|{'---|' * (columns.count('|') - 1)}\n{''.join(lines)}"


def _summary(error: type[GpuClusterError]) -> str:
    return " ".join((inspect.getdoc(error) or "").partition("\n\n")[0].split())


def _needs_words(text: str) -> bool:
    return re.search(r"[a-z]{3}", text) is not None


def _one_line(text: str) -> str:
    return " ".join(text.split()).removesuffix(": " + _ANY).rstrip(":")


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_`\[\]])", r"\\\1", text)


def _cell_with_code(text: str) -> str:
    """A cell whose backticks mark code, where only the border of a cell needs a backslash."""
    parts = text.split("`")
    return "`".join(part.replace("|", r"\|") if i % 2 else _cell(part) for i, part in enumerate(parts))


def _printed() -> str:
    parser = argparse.ArgumentParser(description="Print the catalogue of errors.")
    parser.add_argument("--language", choices=("en", "ja"), default="en")
    return japanese_page() if parser.parse_args().language == "ja" else page()


if __name__ == "__main__":
    print(_printed(), end="")
