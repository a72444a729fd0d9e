"""Tests have the same surroundings on every machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surroundings import variables
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
#: A machine of a user who works with all these programs, in another country, behind a proxy that is down.
OTHERS = {
    "LANG": "tr_TR.UTF-8",
    "LC_ALL": "tr_TR.UTF-8",
    "TZ": "Asia/Kathmandu",
    "COLUMNS": "40",
    "NO_COLOR": "1",
    "ANSIBLE_CONFIG": "/nowhere/ansible.cfg",
    "ANSIBLE_STDOUT_CALLBACK": "oneline",
    "GIT_DIR": "/nowhere",
    "KUBECONFIG": "/nowhere",
    "OCI_CLI_PROFILE": "other",
    "AWS_PROFILE": "other",
    "SLURM_CONF": "/nowhere/slurm.conf",
    "TF_VAR_name": "other",
    "GITHUB_TOKEN": "no-secret",
    "https_proxy": "http://127.0.0.1:1",
}


def test_what_others_have_set_is_not_there() -> None:
    kept = variables({**OTHERS, "PATH": "/bin", "PIP_FIND_LINKS": "/opt/wheels", "PYTHONDONTWRITEBYTECODE": "1"})
    assert kept.pop("no_proxy").startswith("localhost,127.0.0.1")
    assert kept.pop("NO_PROXY")
    assert kept == {
        "PATH": "/bin", "PIP_FIND_LINKS": "/opt/wheels", "LANG": "C.UTF-8", "TZ": "UTC",
        "https_proxy": "http://127.0.0.1:1",
    }  # fmt: skip


def test_virtual_environments_are_not_on_path(tmp_path: Path) -> None:
    for name in ("venv", "other"):
        (tmp_path / name / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    path = f"{tmp_path}/venv/bin:/bin:{tmp_path}/other/bin:{tmp_path}/nowhere/bin"
    assert variables({"PATH": path})["PATH"] == f"/bin:{tmp_path}/other/bin:{tmp_path}/nowhere/bin"
    # Also a relative folder, as `PATH=.venv/bin:$PATH` has it, and an empty one, which is the current folder.
    assert variables({"PATH": f"{os.path.relpath(tmp_path)}/venv/bin::/bin"})["PATH"] == ":/bin"


def _state() -> tuple[object, int]:
    umask = os.umask(0o022)
    os.umask(umask)
    return signal.getsignal(signal.SIGHUP), umask


_BEFORE = _state()


@pytest.mark.parametrize("again", [False, True])
def test_what_a_test_changes_of_its_process_ends_with_it(again: bool) -> None:
    """In either order: what one of the two leaves, the other finds."""
    assert _state() == _BEFORE, again
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.umask(0o077)


@pytest.mark.slow
def test_tests_pass_on_a_machine_of_others() -> None:
    """The parts whose programs read most of this: the command's texts, ssh, times."""
    parts = ["tests/cli/test_output.py", "tests/ssh/test_client.py", "tests/workspace"]
    done = subprocess.run(
        ["sh", "-c", 'umask 077 && exec "$@"', "sh", sys.executable, "-m", "pytest", "-n", "0", "-x", "--no-header",
         "-p", "no:cacheprovider", *parts],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=3 * PATIENCE_S,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}, **OTHERS},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
