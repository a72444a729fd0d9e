"""`--debug`: what it shows, and that secrets are never in it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.cli.debug import debugging
from gpucluster.configuration import runner as ansible
from gpucluster.errors import ProcessError
from gpucluster.events import ignore
from gpucluster.paths import ClusterPaths
from gpucluster.terraform.runner import Terraform
from tests.waiting import PATIENCE_S

SECRET = "correct-horse-battery"
IN_ENVIRONMENT = "staple-in-the-environment"
BUG = "import gpucluster.cli as c; c.base.Context.spec = lambda _: 1 / 0; c.main()"


def _run(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return _python("-m", "gpucluster", *words, cwd=cwd, **env)


def _python(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(cwd), **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_an_error_of_ours_has_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text("version: 1\nname: Bad_Name\n")
    plain = _run("validate", "-o", "json", cwd=tmp_path)
    assert plain.stderr == ""
    before, after = ("--debug", "validate", "-o", "json"), ("validate", "--debug", "-o", "json")
    for words, env in ((before, {}), (after, {}), (("validate", "-o", "json"), {"GPUCLUSTER_DEBUG": "1"})):
        done = _run(*words, cwd=tmp_path, **env)
        assert done.returncode == 2, words
        assert "Traceback (most recent call last)" in done.stderr, words
        assert "InputError" in done.stderr
        assert "Traceback" not in done.stdout
        assert '"exit_code": 2' in done.stdout
        assert plain.stdout.count("\n") == done.stdout.count("\n")


def test_a_bug_of_ours_has_its_traceback_and_its_file(tmp_path: Path) -> None:
    quiet = _python("-c", BUG, "validate", cwd=tmp_path)
    loud = _python("-c", BUG, "validate", "--debug", cwd=tmp_path)
    assert "Traceback" not in quiet.stderr
    assert "ZeroDivisionError" in loud.stderr
    for done in (quiet, loud):
        assert done.returncode == 1
        assert "this is a bug in gpucluster" in done.stderr
    assert len(list(tmp_path.glob("gpucluster-bug-*.log"))) == 2
    data = json.loads(_python("-c", BUG, "validate", "-o", "json", cwd=tmp_path).stdout)["data"]
    assert (data["exit_code"], "this is a bug" in data["what"]) == (1, True)


def test_a_typing_error_is_not_a_bug(tmp_path: Path) -> None:
    done = _run("--debug", "validate", "--nonsense", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


# --- the commands that are run -----


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    """What is shown while `--debug` is on."""
    with debugging(True):
        yield capsys


def _program(text: str) -> list[str]:
    """A program that reads its standard input, as our programs on the controller do."""
    return [sys.executable, "-c", f"import sys; sys.stdin.read(); {text}"]


def test_commands_are_shown_without_their_environment_and_their_input(
    shown: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    env = {**os.environ, "TOKEN": IN_ENVIRONMENT}
    process.run(_program("sys.stderr.write('a \\x1b[31mnote\\n')"), env=env, input=SECRET)
    process.stream(_program("print('data')"), on_line=lambda _: None, env=env, input=SECRET)
    (tmp_path / "backup").write_text(SECRET)
    with (tmp_path / "backup").open("rb") as source, (tmp_path / "copy").open("wb") as target:
        process.transfer([sys.executable, "-c", "import sys; print(sys.stdin.read())"], source=source, target=target)
    with pytest.raises(ProcessError):
        process.run(_program("sys.exit(3)"), env=env, input=SECRET)
    assert process.call([sys.executable, "-c", "pass"], env=env) == 0
    text = shown.readouterr().err
    assert text.count("run: ") == 5
    assert f"{sys.executable}: a note\n" in text
    assert "ended with status 3" in text
    assert SECRET not in text
    assert IN_ENVIRONMENT not in text


def test_a_password_in_a_configured_url_is_not_shown(shown: pytest.CaptureFixture[str]) -> None:
    process.run(["echo", f"https://ci:{SECRET}@mirror.example/simple", "docker://user@registry#x"])
    text = shown.readouterr().err
    assert "https://ci:***@mirror.example/simple" in text
    assert "docker://user@registry#x" in text
    assert SECRET not in text


def test_the_output_of_terraform_and_ansible_is_shown(shown: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    diagnostic = '"diagnostic": {"summary": "429", "detail": "Too many"}'
    message = f'{{"@message": "Error: 429", "type": "diagnostic", {diagnostic}}}'
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\ncat <<\'END\'\n{message}\n{{"@message": "creating"}}\npanic: a crash\nEND\n')
    program.chmod(0o700)
    paths = ClusterPaths(tmp_path)
    (paths.terraform / "cluster").mkdir(parents=True)
    Terraform(paths, program, {}, ignore)._run("apply", lambda _: None)
    ansible._Listener(ignore, "site.yml")({"event": "verbose", "stdout": "\x1b[0;32mok: [compute-1]\x1b[0m"})
    text = shown.readouterr().err
    for words in ("Error: 429\nToo many\n", ": creating\n", ": panic: a crash\n", ": ok: [compute-1]\n"):
        assert words in text


def test_without_it_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with debugging(False):
        process.run(["true"])
    with debugging(True):
        pass
    process.run(["true"])
    assert capsys.readouterr().err == ""
    assert not logging.getLogger("gpucluster").handlers
