"""The tests mirror the package: who opens a module knows where its tests are.

For gpucluster/A/B/m.py with more than 100 lines there is tests/A/B/test_m.py, or test_m_<topic>.py where the tests are
divided by topic. `__main__` counts as `main`. A package's `__init__` counts as a module with the name of its folder,
which lies beside that folder or in it. What lies in a folder `files` or `..._files` is copied to other machines and is
not a module.

test_mirror.toml holds the exceptions, each with its reason.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[2]
PACKAGE = CHECKOUT / "gpucluster"
LINES = 100


def _settings() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("test_mirror.toml").read_text(encoding="utf-8"))


def _places(module: Path) -> list[Path]:
    """The paths below tests/, without `.py`, that the test file of a module may have."""
    if module.stem == "__init__":
        return [module.parent.parent / f"test_{module.parent.name}", module.parent / f"test_{module.parent.name}"]
    return [module.parent / f"test_{module.stem.strip('_')}"]


def _tested(module: Path, tests: Path) -> bool:
    for place in _places(module):
        beside = tests / place.parent
        if (beside / f"{place.name}.py").exists() or any(beside.glob(f"{place.name}_*.py")):
            return True
    return False


def _modules(package: Path) -> list[Path]:
    """The modules that need a test file, relative to the package."""
    paths = sorted(path.relative_to(package) for path in package.rglob("*.py"))
    modules = [path for path in paths if not any(f"_{part}".endswith("_files") for part in path.parts[:-1])]
    return [path for path in modules if len((package / path).read_text(encoding="utf-8").splitlines()) > LINES]


def _lacking() -> list[str]:
    return [module.as_posix() for module in _modules(PACKAGE) if not _tested(module, CHECKOUT / "tests")]


def test_every_module_above_100_lines_has_a_test_file_of_its_name() -> None:
    settings = _settings()
    lacking = [module for module in _lacking() if module not in settings["exceptions"]]
    assert lacking == []


def test_exceptions_are_needed() -> None:
    exceptions = _settings()["exceptions"]
    assert sorted(set(exceptions) - set(_lacking())) == [], "each of them has a test file, or 100 lines, or is gone"
    assert [module for module, reason in exceptions.items() if not reason.strip()] == []


@pytest.mark.parametrize(
    ("module", "test", "result"),
    [
        ("a/b/m.py", "a/b/test_m.py", True),
        ("a/b/m.py", "a/b/test_m_topic.py", True),
        ("a/b/m.py", "a/test_m.py", False),
        ("a/b/m.py", "a/b/test_more.py", False),
        ("m.py", "test_m.py", True),
        ("a/b/__main__.py", "a/b/test_main.py", True),
        ("a/b/__init__.py", "a/test_b.py", True),
        ("a/b/__init__.py", "a/b/test_b.py", True),
        ("a/b/__init__.py", "a/b/test_init.py", False),
    ],
)
def test_where_the_tests_of_a_module_lie(tmp_path: Path, module: str, test: str, result: bool) -> None:
    (tmp_path / test).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / test).touch()
    assert _tested(Path(module), tmp_path) is result


def test_short_modules_and_files_for_other_machines_need_none(tmp_path: Path) -> None:
    for name, lines in (
        ("short.py", LINES),
        ("long.py", LINES + 1),
        ("a/files/x.py", 200),
        ("a/image_files/x.py", 200),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n" * lines, encoding="utf-8")
    assert _modules(tmp_path) == [Path("long.py")]
