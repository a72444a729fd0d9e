"""The test files that reach what changed, by who imports what.

    python -m tools.affected            since this branch left the main branch
    python -m tools.affected HEAD~1     since a commit

It prints what pytest runs then, with the rules for the whole tree (`RULES`), which hold for every change.

A module counts with all modules that import it, at any depth. Other files count by their folder (`FOLDERS`). A file
that concerns everything, such as pyproject.toml, means all tests. It is for the loop of every hour: what a program
reads by itself, such as a role that a whole cluster plays, is not seen beyond `FOLDERS`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Which tests a change of a file of no Python module concerns, by the beginning of its path.
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "ansible/": ("tests/ansible", "tests/configuration", "tests/golden", "tests/contract"),
    "terraform/": ("tests/terraform", "tests/golden", "tests/handover", "tests/contract"),
    "inventories/": ("tests/spec", "tests/golden", "tests/contract"),
    "docs/": ("tests/contract", "tests/golden"),
    "gpucluster/localcloud/image/": ("tests/localcloud",),
    "gpucluster/shapes.toml": ("tests/test_shapes.py", "tests/spec", "tests/golden"),
    "gpucluster/jobs/templates/": ("tests/jobs", "tests/golden"),
    "gpucluster/": ("tests/golden", "tests/contract"),
    "benchmarks/": ("tests/contract",),
    "tools/": ("tests/contract", "tests/artifacts", "tests/packaging"),
    "tests/doubles/": ("tests/ansible",),
    "README.md": ("tests/contract",),
    "CHANGELOG.md": ("tests/contract",),
    "CONTRIBUTING.md": ("tests/contract",),
}
RULES = "tests/contract"
EVERYTHING = ("pyproject.toml", "requirements.lock", "Makefile", "tests/conftest.py", ".ci/")
_PACKAGES = ("gpucluster", "tests", "benchmarks", "tools")


def tests(root: Path, base: str) -> list[str] | None:
    """Test files and folders, relative to the root; None means all.

    Args:
        base: the commit to compare with; empty: where this branch left the main branch of its origin.
    """
    return reaching(root, changed(root, base))


def changed(root: Path, base: str) -> list[str]:
    """Files that differ from a commit, committed or not, and new files."""
    base = base or _branching_point(root)
    differing = _git(root, "diff", "--name-only", "-z", base)
    new = _git(root, "ls-files", "-z", "--others", "--exclude-standard")
    return sorted({name for name in (differing + new).split("\0") if name})


def reaching(root: Path, files: Iterable[str]) -> list[str] | None:
    """The tests that reach some files."""
    files = list(files)
    if any(file.startswith(EVERYTHING) for file in files):
        return None
    imports = read_imports(root)
    importers: dict[str, set[str]] = {}
    for module, used in imports.items():
        for one in used:
            importers.setdefault(one, set()).add(module)
    reached: set[str] = set()
    waiting = [module_of(file) for file in files if file.endswith(".py")]
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting += importers.get(module, ())
    found = {file_of(module) for module in reached if module in imports}
    chosen = {file for file in found if Path(file).name.startswith("test_")}
    for file in files:
        chosen.update(*(tests for start, tests in FOLDERS.items() if file.startswith(start)))
    return sorted(one for one in chosen if (root / one).exists())


def read_imports(root: Path) -> dict[str, set[str]]:
    """For each module of this repository those that it imports, with the packages around them."""
    files = [file for package in _PACKAGES for file in (root / package).rglob("*.py")]
    modules = {module_of(str(file.relative_to(root))) for file in files}
    found = {}
    for file in files:
        module = module_of(str(file.relative_to(root)))
        found[module] = {one for name in _imported(file, module) for one in _around(name) if one in modules} - {module}
    return found


def _imported(file: Path, module: str) -> Iterable[str]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            name = ".".join([*up, *([node.module] if node.module else [])])
            yield name
            yield from (f"{name}.{one.name}" for one in node.names)


def _around(name: str) -> list[str]:
    """A module and its packages: importing one runs the others."""
    words = name.split(".")
    return [".".join(words[:length]) for length in range(2, len(words) + 1)]


def module_of(file: str) -> str:
    """The name of the module in a file, relative to the root."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def file_of(module: str) -> str:
    """The file of a module that is not a package."""
    return f"{module.replace('.', '/')}.py"


def _branching_point(root: Path) -> str:
    for other in ("@{upstream}", "origin/HEAD", "origin/main"):
        try:
            return _git(root, "merge-base", "HEAD", other).strip()
        except subprocess.CalledProcessError:
            continue
    return "HEAD"


def main(words: list[str]) -> int:
    """Print the tests for pytest."""
    found = tests(Path(__file__).resolve().parents[1], *(words or [""]))
    print(*(["tests"] if found is None else dict.fromkeys([*found, RULES])))
    return 0


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
