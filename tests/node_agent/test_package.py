"""The package as a whole: what it imports, how it is packed, and which command a name or an argument chooses."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gpucluster
from gpucluster.artifacts import agent_archive
from gpucluster.node_agent import __main__ as entry
from gpucluster.node_agent import version
from gpucluster.node_agent.interpreter import PYTHON
from tests.agent_program import install

PACKAGE = Path(gpucluster.__file__).parent / "agent"
SOURCES = sorted(PACKAGE.rglob("*.py"))
#: Python 3.9 has no list of its own modules.
STANDARD = getattr(sys, "stdlib_module_names", None)


def imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: {node.lineno}: a relative import"
            found.add(str(node.module))
    return found


@pytest.mark.skipif(STANDARD is None, reason="this Python has no list of the standard library's modules")
def test_the_agent_imports_the_standard_library_and_itself_alone() -> None:
    assert STANDARD is not None
    for file in SOURCES:
        ours = {name for name in imported(file) if name.split(".")[0] not in STANDARD}
        # Its version is the package's.
        allowed = {"gpucluster"} if file.name == "version.py" else set()
        assert all(name.startswith("gpucluster.node_agent") for name in ours - allowed), f"{file}: {ours}"


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    first = agent_archive.build()
    assert first == agent_archive.build()
    assert first.startswith(f"#!{PYTHON} -I\n".encode())
    with zipfile.ZipFile(install(tmp_path)) as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert {entry.date_time for entry in archive.infolist()} == {(2020, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {f"gpucluster/agent/{file.relative_to(PACKAGE).as_posix()}" for file in SOURCES} < set(names)
        assert not [name for name in names if "__pycache__" in name]
        assert archive.read("gpucluster/node_agent/version.py") == (PACKAGE / "version.py").read_bytes()


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """As on a host: no environment of ours, another folder."""
    return subprocess.run(argv, cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)


def test_the_file_says_which_one_it_is(tmp_path: Path) -> None:
    agent = install(tmp_path)
    done = run(sys.executable, "-I", str(agent), "--version")
    assert done.stdout == f"gpucluster-agent {gpucluster.__version__} (sha256 {version.checksum()})\n", done.stderr


def test_the_checksum_is_that_of_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version.checksum()
    assert len(before) == len(hashlib.sha256().hexdigest())
    files = version.files()
    monkeypatch.setattr(version, "files", lambda: [(files[0][0], files[0][1] + b"#"), *files[1:]])
    assert version.checksum() != before


@pytest.mark.parametrize("command", sorted(entry.COMMANDS))
def test_every_command_has_help(command: str, tmp_path: Path) -> None:
    done = run(sys.executable, "-I", str(install(tmp_path)), command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout


@pytest.mark.parametrize("link", sorted(entry.LINKS))
def test_a_link_is_a_command(link: str, tmp_path: Path) -> None:
    (tmp_path / link).symlink_to(install(tmp_path))
    done = run(sys.executable, "-I", str(tmp_path / link), "--help")
    assert done.stdout.startswith(f"usage: {link} "), done.stderr


def test_programs_that_the_roles_install_are_found_where_sudo_leaves_their_folder_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle Linux: secure_path of /etc/sudoers has no /usr/local/bin, where kubectl and kubeadm are."""
    monkeypatch.setenv("PATH", "/sbin:/bin:/usr/sbin:/usr/bin")
    for _ in range(2):
        assert entry.main(["--version"], "gpucluster-agent") == 0
    assert os.environ["PATH"] == "/sbin:/bin:/usr/sbin:/usr/bin:/usr/local/bin"
    assert capsys.readouterr().out


@pytest.mark.parametrize(("argv", "status"), [([], 2), (["nope"], 2), (["--help"], 0)])
def test_what_is_no_command_is_refused(argv: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(argv, "/usr/local/bin/gpucluster-agent") == status
    said = capsys.readouterr()
    assert all(command in (said.err if status else said.out) for command in entry.COMMANDS)
