"""Counts what the words and the size of this repository are measured by.

    python tools/counts.py                  of the working tree
    python tools/counts.py --list classes   the class names that occur more than once, with their files
    python tools/counts.py --list participles | is-no | says

Only files that git tracks, or would track, are read. Empty lines do not count. A participle is an argument or a
variable of the product with one of the names in `PARTICIPLES`; it is counted at each place where it gets a value.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTICIPLES = frozenset({"asked", "done", "found", "given", "said", "told", "wanted"})
_KINDS = {"gpucluster": "product", "terraform": "product", "tests": "tests", "ansible": "Ansible"}
_PROSE = {"is-no": re.compile(r"\bis no\b"), "says": re.compile(r"\bsays\b")}
_TEXT = {".md", ".py", ".yml", ".yaml", ".tf", ".j2", ".sh", ".txt", ".toml"}


@dataclass
class Counts:
    """What was counted.

    Attributes:
        lines: of product, tests and Ansible.
        classes: where each class name is defined.
        places: the places of participles and of patterns in prose: "file:line name".
    """

    lines: Counter[str] = field(default_factory=Counter)
    classes: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    places: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def repeated(self) -> dict[str, list[str]]:
        """The class names of the product that occur more than once."""
        return {name: files for name, files in sorted(self.classes.items()) if len(files) > 1}


def main(words: Sequence[str] | None = None) -> None:
    """Print the counts, or the places of one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=["classes", "participles", *_PROSE], help="print the places of this count")
    chosen = parser.parse_args(words).list
    counts = count(ROOT, tracked(ROOT))
    if chosen == "classes":
        print(*(f"{name}: {', '.join(files)}" for name, files in counts.repeated.items()), sep="\n")
    elif chosen:
        print(*counts.places[chosen], sep="\n")
    else:
        print(*report(counts), sep="\n")


def report(counts: Counts) -> list[str]:
    """One line for each count."""
    return [
        *(f"lines of {kind}: {counts.lines[kind]}" for kind in ("product", "tests", "Ansible")),
        f"class names that occur more than once in the product: {len(counts.repeated)}",
        f"participles as arguments or variables of the product: {len(counts.places['participles'])}",
        f'"is no" in prose: {len(counts.places["is-no"])}',
        f'"says" in prose: {len(counts.places["says"])}',
    ]


def tracked(root: Path) -> list[Path]:
    """The files of the repository, relative to its root: those of git, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted({Path(name) for name in listed if (root / name).is_file() and not (root / name).is_symlink()})


def count(root: Path, files: Sequence[Path]) -> Counts:
    """Count in these files, which are relative to `root`."""
    counts = Counts()
    for file in files:
        if file.suffix not in _TEXT:
            continue
        text = (root / file).read_text(encoding="utf-8", errors="replace")
        kind = _kind(file)
        if kind:
            counts.lines[kind] += sum(bool(line.strip()) for line in text.splitlines())
        if file.suffix == ".py" and kind:
            _count_python(file, text, counts, product=kind == "product")
        for line, prose in _prose(file, text):
            for name, pattern in _PROSE.items():
                counts.places[name] += [f"{file}:{line}"] * len(pattern.findall(prose))
    return counts


def _kind(file: Path) -> str:
    """Whether a file of code belongs to the product, its tests, or Ansible; "" for others, such as docs."""
    return "" if file.suffix == ".md" else _KINDS.get(file.parts[0], "")


def _count_python(file: Path, text: str, counts: Counts, *, product: bool) -> None:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a sample of a test
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and product and not node.name.startswith("_"):
            counts.classes[node.name].append(str(file))
        name = node.arg if isinstance(node, ast.arg) else ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if product and name in PARTICIPLES:
            counts.places["participles"].append(f"{file}:{getattr(node, 'lineno', 0)} {name}")


def _prose(file: Path, text: str) -> Iterator[tuple[int, str]]:
    """The lines of a file that people read, with their numbers: of Python its strings and comments, of others all."""
    if file.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            yield number, line


if __name__ == "__main__":
    main()
