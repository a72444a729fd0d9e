"""The package as a whole: what it imports, how it is packed, and which command a name or an argument chooses."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import ModuleType

import pytest

import gpucluster
from gpucluster.artifacts import agent_archive
from gpucluster.controller import __main__ as controller
from gpucluster.node_agent import __main__ as entry
from gpucluster.node_agent import version
from gpucluster.node_agent.interpreter import PYTHON
from tests.agent_program import install

PACKAGE = Path(gpucluster.__file__).parent
SOURCES = {name: sorted((PACKAGE / name).rglob("*.py")) for name in ("node_agent", "controller")}
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
@pytest.mark.parametrize(
    ("package", "allowed"),
    [("node_agent", ("gpucluster.node_agent",)), ("controller", ("gpucluster.controller", "gpucluster.node_agent"))],
)
def test_it_imports_the_standard_library_and_the_agent_alone(package: str, allowed: tuple[str, ...]) -> None:
    assert STANDARD is not None
    for file in SOURCES[package]:
        ours = {name for name in imported(file) if name.split(".")[0] not in STANDARD}
        # Its version is the package's.
        ours -= {"gpucluster"} if file.name == "version.py" else set()
        assert all(name.startswith(allowed) for name in ours), f"{file}: {ours}"


def test_nodes_get_what_their_commands_need_and_nothing_else() -> None:
    """A module that the controller alone needs is in its package."""
    modules = {
        file: ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for file in SOURCES["node_agent"]
    }
    files = {module: file for file, module in modules.items()}
    # The last one is the first line of the archive.
    last = ["__main__", "version", "compiled", "interpreter"]
    left = [module for module, _help in entry.COMMANDS.values()] + [f"gpucluster.node_agent.{name}" for name in last]
    reached: set[str] = set()
    while left:
        module = left.pop()
        if module in files and module not in reached:
            reached.add(module)
            left += [module.rpartition(".")[0], *imported(files[module]), *names_imported(files[module])]
    assert set(files) - reached == set()


def names_imported(file: Path) -> set[str]:
    """What `from package import name` imports, if the names are modules."""
    return {
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize(
    ("build", "packages"),
    [(agent_archive.of_node, ["node_agent"]), (agent_archive.of_controller, ["node_agent", "controller"])],
    ids=["node", "controller"],
)
def test_the_same_content_gives_the_same_bytes(build: Callable[[], bytes], packages: list[str]) -> None:
    first = build()
    assert first == build()
    assert first.startswith(f"#!{PYTHON} -I\n".encode())
    with zipfile.ZipFile(BytesIO(first)) as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert {entry.date_time for entry in archive.infolist()} == {(2020, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        sources = [file for name in packages for file in SOURCES[name]]
        modules = {f"gpucluster/{file.relative_to(PACKAGE).as_posix()}" for file in sources}
        assert set(names) == modules | {"__main__.py", "gpucluster/__init__.py"}
        assert archive.read("gpucluster/node_agent/version.py") == (PACKAGE / "node_agent/version.py").read_bytes()


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """As on a host: no environment of ours, another folder."""
    return subprocess.run(argv, cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("node", [True, False], ids=["node", "controller"])
def test_the_file_states_which_one_it_is(tmp_path: Path, *, node: bool) -> None:
    agent = install(tmp_path, node=node)
    done = run(sys.executable, "-I", str(agent), "--version")
    checksum = version.checksum(["node_agent"] if node else ["node_agent", "controller"])
    assert done.stdout == f"gpucluster-agent {gpucluster.__version__} (sha256 {checksum})\n", done.stderr


def test_the_checksum_is_that_of_the_content(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version.checksum()
    assert len(before) == len(hashlib.sha256().hexdigest())
    files = version.files()
    monkeypatch.setattr(version, "files", lambda _names: [(files[0][0], files[0][1] + b"#"), *files[1:]])
    assert version.checksum() != before


@pytest.mark.parametrize(
    ("node", "command"),
    [*((True, each) for each in sorted(entry.COMMANDS)), *((False, each) for each in sorted(controller.COMMANDS))],
)
def test_every_command_has_help(command: str, tmp_path: Path, *, node: bool) -> None:
    done = run(sys.executable, "-I", str(install(tmp_path, node=node)), command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: " in done.stdout


@pytest.mark.parametrize(
    ("node", "link"),
    [*((True, each) for each in sorted(entry.LINKS)), *((False, each) for each in sorted(controller.LINKS))],
)
def test_a_link_is_a_command(link: str, tmp_path: Path, *, node: bool) -> None:
    (tmp_path / link).symlink_to(install(tmp_path, node=node))
    done = run(sys.executable, "-I", str(tmp_path / link), "--help")
    assert done.stdout.startswith(f"usage: {link} "), done.stderr


@pytest.mark.parametrize("command", ["health", "kubernetes", "host-certificate"])
def test_the_controller_has_the_subcommands_of_nodes_as_well(command: str, tmp_path: Path) -> None:
    """It may be a node of Kubernetes, and it asks its own CA."""

    def subcommands(*, node: bool) -> set[str]:
        folder = tmp_path / str(node)
        folder.mkdir()
        said = run(sys.executable, "-I", str(install(folder, node=node)), command, "--no-such-option").stderr
        # The usage has them as {one,two,...}, or as COMMAND.
        listed = run(sys.executable, "-I", str(folder / "gpucluster-agent"), command, "--help").stdout
        return set(re.findall(r"^ {4}([a-z-]+)(?= |$)", listed, re.MULTILINE)) | set(
            re.findall(r"[a-z-]+", " ".join(re.findall(r"\{([a-z,-]+)\}", said + listed)))
        )

    nodes = subcommands(node=True)
    assert nodes
    assert nodes < subcommands(node=False)


def test_programs_that_the_roles_install_are_found_where_sudo_leaves_their_folder_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle Linux: secure_path of /etc/sudoers has no /usr/local/bin, where kubectl and kubeadm are."""
    monkeypatch.setenv("PATH", "/sbin:/bin:/usr/sbin:/usr/bin")
    for _ in range(2):
        assert entry.main(["--version"], "gpucluster-agent") == 0
    assert os.environ["PATH"] == "/sbin:/bin:/usr/sbin:/usr/bin:/usr/local/bin"
    assert capsys.readouterr().out


@pytest.mark.parametrize("program", [entry, controller])
@pytest.mark.parametrize(("argv", "status"), [([], 2), (["nope"], 2), (["--help"], 0)])
def test_what_is_not_a_command_is_refused(
    program: ModuleType, argv: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(argv, "/usr/local/bin/gpucluster-agent") == status
    said = capsys.readouterr()
    assert all(command in (said.err if status else said.out) for command in program.COMMANDS)
