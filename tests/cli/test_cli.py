"""The command line, as a user sees it. What needs a cluster is in tests/e2e."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

import gpucluster
from gpucluster import __main__, errors
from gpucluster.cli import DEFAULT_FILES, cli
from gpucluster.cli.base import EXIT_CODES, Root
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

HELP = Path(gpucluster.__file__).parent / "help.txt"


def _run(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpucluster", *words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_kept_help_is_what_click_would_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPUCLUSTER_FILE", raising=False)
    context = click.Context(cli, info_name="gpucluster", terminal_width=80, **cli.context_settings)
    said = cli.get_help(context) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        HELP.write_text(said)
    assert HELP.read_text() == said


def test_the_kept_help_is_for_a_usual_terminal_without_a_cluster_file(tmp_path: Path) -> None:
    assert tuple(DEFAULT_FILES) == __main__._DEFAULT_FILES
    assert _run("--help", cwd=tmp_path, COLUMNS="100").stdout == HELP.read_text()
    assert max(map(len, _run("--help", cwd=tmp_path, COLUMNS="40").stdout.splitlines())) <= 40
    (tmp_path / "cluster.yml").write_text("scheduler: none\n")
    assert "Not for this cluster (scheduler: none)" in _run("--help", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["-h"],
        ["apply", "--help"],
        ["ssh", "-h"],
        ["local", "stop", "--help"],
        ["image", "bake", "-h"],
        ["autoscaler", "explain", "-h"],
        ["user", "add", "-h"],
    ],
)
def test_help_is_there(words: list[str], tmp_path: Path) -> None:
    done = _run(*words, cwd=tmp_path)
    assert done.returncode == 0
    assert "Usage: gpucluster" in done.stdout


@pytest.mark.parametrize(
    ("shell", "words", "count", "answer"),
    [
        ("bash", "gpucluster us", "1", "plain,user\n"),
        ("bash", "gpucluster user im", "2", "plain,import\n"),
        ("zsh", "gpucluster destroy --y", "2", "plain\n--yes\nDo not ask for confirmation.\n"),
        ("fish", "gpucluster validate --out", "--out", "plain\n--output"),
    ],
)
def test_shells_complete_commands_and_options(shell: str, words: str, count: str, answer: str, tmp_path: Path) -> None:
    script = _run(cwd=tmp_path, _GPUCLUSTER_COMPLETE=f"{shell}_source")
    assert (script.returncode, f"{shell}_complete" in script.stdout) == (0, True), script.stderr
    done = _run(cwd=tmp_path, _GPUCLUSTER_COMPLETE=f"{shell}_complete", COMP_WORDS=words, COMP_CWORD=count)
    # click 8.2 and newer put the parts of an answer for fish in one line, others each in its own.
    assert done.stdout.replace(",", "\n").startswith(answer.replace(",", "\n"))


def _inner(group: click.Group) -> Mapping[str, click.Command]:
    return group.all_commands() if isinstance(group, Root) else group.commands


def test_every_command_explains_itself() -> None:
    def walk(group: click.Group) -> None:
        for name, command in _inner(group).items():
            assert command.get_short_help_str(), name
            if isinstance(command, click.Group):
                walk(command)

    walk(cli)
    assert set(_inner(cli)) == {
        "init", "validate", "plan", "apply", "status", "verify", "replace", "rollout", "ssh", "inventory", "output",
        "destroy", "local", "image", "autoscaler", "preflight", "policies", "user", "group", "backup",
        "restore", "slurm", "kubernetes", "kubeconfig", "kubectl", "software", "state", "list", "runs", "logs",
        "dashboard", "job", "drift", "exposure", "cost", "support-bundle", "controller", "rotate", "cp",
        "migrate", "export", "token", "schema",
    }  # fmt: skip


def test_every_exit_code_is_in_the_help_and_in_the_reference() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    page = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \| ", page, re.MULTILINE)} == codes
    assert {int(code) for code in re.findall(r"^ {2}(\d+) {2,}", EXIT_CODES, re.MULTILINE)} == codes


def test_no_line_of_help_is_cut_on_a_terminal_of_80_columns() -> None:
    groups = [(("gpucluster",), cli), *((("gpucluster", name), each) for name, each in _inner(cli).items())]
    for words, group in groups:
        context = click.Context(group, info_name=" ".join(words), terminal_width=78)
        cut = [line for line in group.get_help(context).splitlines() if line.endswith("...") and "Usage:" not in line]
        assert cut == [], words


def test_init_writes_a_file_that_validates_and_is_not_overwritten(tmp_path: Path) -> None:
    assert _run("init", cwd=tmp_path).returncode == 0
    assert _run("validate", cwd=tmp_path).returncode == 0
    again = _run("init", cwd=tmp_path)
    assert again.returncode == 2
    assert "--force" in again.stderr
    assert _run("init", "--force", "--name", "other", cwd=tmp_path).returncode == 0
    assert "name: other" in (tmp_path / DEFAULT_FILES[0]).read_text()


@pytest.mark.parametrize(
    ("folder", "name"),
    [("vision", "vision"), ("2026 Lab/Exp #3 (final)", "exp-3-final"), ("7", "cluster"), ("Größe-", "groe")],
)
def test_init_takes_the_name_of_the_folder(folder: str, name: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    written = _run("init", str(Path(folder) / "cluster.yml"), cwd=tmp_path)
    assert (written.returncode, f"for the cluster {name}." in written.stdout) == (0, True), written
    assert _run("validate", cwd=tmp_path / folder).returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["validate"], 2, "gpucluster init"),
        (["-f", "nowhere.yml", "validate"], 2, "nowhere.yml"),
        (["validate", "--file", "/dev"], 2, "/dev"),
        (["aply"], 2, "aply"),
        (["init", "nowhere/cluster.yml"], 2, "no such folder (nowhere). Run: mkdir -p nowhere"),
        (["init", "."], 2, "this is a folder (.). Name a file in it: gpucluster init cluster.yml"),
        (["init", "--name", "Not_DNS"], 2, "Not_DNS"),
    ],
)
def test_wrong_use_reports_what_is_wrong(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    done = _run(*words, cwd=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_applied_yet(tmp_path: Path) -> None:
    _run("init", cwd=tmp_path)
    home = str(tmp_path / "cloud")  # a cluster of this name may exist in this machine's own
    for words in (["ssh"], ["inventory"]):
        done = _run(*words, cwd=tmp_path, GPUCLUSTER_HOME=home)
        assert done.returncode == 1
        assert "gpucluster apply" in done.stderr
    assert "absent" in _run("status", "--timeout", "60", cwd=tmp_path, GPUCLUSTER_HOME=home).stdout
    assert not (tmp_path / "cloud").exists()


def test_findings_are_machine_readable(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text("version: 1\nname: Bad_Name\nnonsense: 1\n")
    done = _run("validate", "-o", "json", cwd=tmp_path)
    assert done.returncode == 2
    assert '"findings"' in done.stdout
    assert '"line": 2' in done.stdout


_COMMANDS_ALONE = """
import importlib
from gpucluster.cli.base import MODULES, cli
for name in sorted(MODULES, key=lambda name: (MODULES[name], name)):
    before = set(cli.commands)
    importlib.import_module(f"gpucluster.cli.{MODULES[name]}")
    new = set(cli.commands) - before
    assert name in cli.commands, name
    assert all(MODULES.get(each) == MODULES[name] for each in new), new
"""


def test_the_module_of_each_command_is_known() -> None:
    done = subprocess.run([sys.executable, "-c", _COMMANDS_ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rendering_a_job_loads_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    """Reading a cluster file takes most of the time; what else was once imported took half as long again."""
    assert _run("init", cwd=tmp_path).returncode == 0
    code = (
        "import sys; sys.argv[1:] = ['job', 'render', 'mpi_allreduce']\n"
        "from gpucluster.__main__ import main\n"
        "try: main()\n"
        "finally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert {"gpucluster.spec.model", "gpucluster.jobs.render"} <= loaded
    heavy = {
        "ansible_runner",
        "asyncio",
        "concurrent.futures",
        "cryptography",
        "gpucluster.node_agent.checks.registry",
        "gpucluster.cli.clusters",
        "gpucluster.cluster",
        "gpucluster.jobs.report",
        "gpucluster.pages",
        "gpucluster.dashboards",
        "gpucluster.operations.jobs",
        "http",
        "jsonschema",
        "logging.config",
        "multiprocessing",
        "oci",
        "prometheus_client",
        "python_terraform",
        "rich",
        "ssl",
        "subprocess",
        "unittest",
        "urllib.request",
    }
    assert not heavy & loaded
