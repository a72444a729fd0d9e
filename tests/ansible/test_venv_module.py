"""gpucluster_venv with a wheel that is built here: unpacked, run, replaced, and left as it is."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.loading import FakeModule, ModuleFailed, load

VERSION = "{}.{}".format(*sys.version_info)


class Module(FakeModule):
    """Really runs the interpreter, and nothing else."""

    def run_command(self, argv: list[str], **_options: Any) -> tuple[int, str, str]:
        self.calls.append(" ".join(argv))
        if argv[0] == "systemd-run":
            return 0, "", ""
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr


def wheels(folder: Path, says: str) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / "hello-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("hello.py", f"def main():\n    print({says!r})\n")
        wheel.writestr("hello-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1\n")
        wheel.writestr("hello-1.dist-info/entry_points.txt", "[console_scripts]\nhello = hello:main\n")
        wheel.writestr("hello-1.data/scripts/plain", "#!python\nimport hello\nhello.main()\n")
    return folder


def environment(tmp_path: Path, **differs: str) -> Any:
    module = Module()
    arguments = {"path": str(tmp_path / "venv"), "interpreter": sys.executable, "version": VERSION, "hash": "first"}
    module.params = arguments | {"compile_except": "", "wheels": None} | differs
    return load("library/gpucluster_venv.py").Environment(module)


def said(tmp_path: Path, program: str) -> str:
    return subprocess.run(
        [tmp_path / "venv" / "bin" / program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_programs_run_from_the_link_and_the_next_set_takes_its_place(tmp_path: Path) -> None:
    first = environment(tmp_path)
    assert not first.is_installed()
    first.install(wheels(tmp_path / "one", "one"))
    assert first.is_installed()
    assert (said(tmp_path, "hello"), said(tmp_path, "plain")) == ("one", "one")

    second = environment(tmp_path, hash="second")
    assert not second.is_installed()
    second.install(wheels(tmp_path / "two", "two"))
    assert said(tmp_path, "hello") == "two"
    # A program that still runs from it keeps its files for a while.
    assert sorted(folder.name for folder in (tmp_path / "venvs").iterdir()) == ["first", "second"]
    environment(tmp_path, hash="third").install(wheels(tmp_path / "three", "three"))
    assert sorted(folder.name for folder in (tmp_path / "venvs").iterdir()) == ["second", "third"]


def test_what_a_broken_run_left_is_not_an_environment(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "hello-1-py3-none-any.whl").write_bytes(b"half")
    with pytest.raises(zipfile.BadZipFile):
        environment(tmp_path).install(broken)
    assert not environment(tmp_path).is_installed()
    environment(tmp_path).install(wheels(tmp_path / "good", "good"))
    assert said(tmp_path, "hello") == "good"


def test_another_python_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ModuleFailed, match=r"for Python 2\.7"):
        environment(tmp_path, version="2.7").check_interpreter()
    environment(tmp_path).check_interpreter()


def test_a_manifest_of_another_interpreter_is_not_ours(tmp_path: Path) -> None:
    environment(tmp_path).install(wheels(tmp_path / "one", "one"))
    manifest = tmp_path / "venv" / "wheels.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"interpreter": "/usr/bin/other"}))
    assert not environment(tmp_path).is_installed()
