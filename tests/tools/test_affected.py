"""Which tests reach what changed: on small trees, and on this one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import affected

ROOT = Path(__file__).parents[2]
TREE = {
    "gpucluster/__init__.py": "",
    "gpucluster/base.py": "",
    "gpucluster/middle.py": "def f():\n    from gpucluster import base\n",
    "gpucluster/part/__init__.py": "",
    "gpucluster/part/one.py": "from . import two\n",
    "gpucluster/part/two.py": "",
    "tests/harness.py": "import gpucluster.middle\n",
    "tests/a/test_a.py": "from tests.harness import x\n",
    "tests/b/test_b.py": "from gpucluster.part.one import y\n",
    "tests/golden/test_golden.py": "",
    "tests/ansible/test_roles.py": "",
    "ansible/site.yml": "",
    "pyproject.toml": "",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "reached"),
    [
        ("gpucluster/base.py", ["tests/a/test_a.py", "tests/golden"]),
        ("gpucluster/part/two.py", ["tests/b/test_b.py", "tests/golden"]),
        ("tests/harness.py", ["tests/a/test_a.py"]),
        ("tests/b/test_b.py", ["tests/b/test_b.py"]),
        ("ansible/site.yml", ["tests/ansible", "tests/golden"]),
        ("pyproject.toml", None),
    ],
)
def test_a_changed_file_reaches_its_tests(tree: Path, file: str, reached: list[str] | None) -> None:
    (tree / file).write_text("# changed\n" + TREE[file])
    assert affected.tests(tree, "HEAD") == reached


def test_nothing_changed_and_a_new_file(tree: Path) -> None:
    assert affected.tests(tree, "") == []
    (tree / "tests" / "test_new.py").write_text("")
    assert affected.tests(tree, "") == ["tests/test_new.py"]


def test_each_folder_that_is_named_exists() -> None:
    named = {one for tests in affected.FOLDERS.values() for one in tests} | set(affected.EVERYTHING)
    assert [one for one in sorted(named) if not (ROOT / one).exists()] == []


def test_what_is_printed_for_pytest_has_the_rules_for_the_whole_tree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found, printed in (
        ([], "tests/contract"),
        (["tests/a/test_a.py"], "tests/a/test_a.py tests/contract"),
        (["tests/contract", "tests/golden"], "tests/contract tests/golden"),
        (None, "tests"),
    ):
        asked: list[str] = []

        def reached(
            _root: Path, base: str, found: list[str] | None = found, asked: list[str] = asked
        ) -> list[str] | None:
            asked.append(base)
            return found

        monkeypatch.setattr(affected, "tests", reached)
        assert affected.main(["HEAD~1"]) == affected.main([]) == 0
        assert asked == ["HEAD~1", ""]
        assert set(capsys.readouterr().out.splitlines()) == {printed}
