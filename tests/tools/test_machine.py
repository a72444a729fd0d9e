"""What a machine lacks is named before a test starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S
from tools import machine

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def first(*enter: str, **variables: str) -> subprocess.CompletedProcess[str]:
    argv = [*enter, sys.executable, str(ROOT / "tools" / "machine.py"), "first"]
    environment = {**os.environ, **variables}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_this_machine_lacks_nothing() -> None:
    assert first().returncode == 0
    assert list(machine.installed()) == []


def test_a_user_without_rights_is_told() -> None:
    done = first("setpriv", "--reuid=65534", "--clear-groups")
    assert done.returncode == 1
    assert "you are not root" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [("noexec", "is mounted noexec: let TMPDIR name"), ("size=1m", "2 GiB of space in")],
)
def test_a_folder_for_temporary_files_that_does_not_do_is_named(tmp_path: Path, options: str, said: str) -> None:
    script = f'mount -t tmpfs -o {options} none {tmp_path} && exec "$@"'
    done = first("unshare", "--mount", "sh", "-c", script, "sh", TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert said in done.stderr


def test_a_program_that_is_missing_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_TESTS_OWN", {"no-such-program": "apt install nothing"})
    assert "the program no-such-program: apt install nothing" in list(machine.installed())


def test_a_kernel_without_a_feature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_FEATURES", {"time travel": "unshare --time-travel true"})
    [said] = [line for line in machine.installed() if line.startswith("time travel")]
    assert said.startswith("time travel: `unshare --time-travel true` fails here: unshare: unrecognized option")
