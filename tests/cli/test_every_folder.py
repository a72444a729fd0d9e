"""Every command, in every state in which the folder of a cluster can be: it does its work, or reports what is missing.

The list of commands is click's, so that a new one is in it. `tests/cli/folder_states.py` documents what runs for real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from gpucluster import errors
from gpucluster.cli import cli
from gpucluster.paths import import_root
from tests.cli import folder_states
from tests.cli.folder_states import STATES, WORDS, Outcome, judge
from tests.cli.test_other_cluster import _commands
from tests.terraform.state_doubles import serving
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow]

#: They start the server of the local cloud for real.
_STARTS = (
    "apply",
    "image list",
    "local env",
    "local start",
    "local status",
    "local stop",
    "policies",
    "status",
    "verify",
)


def _names() -> list[str]:
    names = sorted(_commands(cli))
    assert names == sorted(WORDS), "a new command needs its words in folder_states.OTHERS"
    return names


def _with_the_folder() -> list[str]:
    """Those that read more of a folder than its cluster.yml."""
    return [name for name in _names() if name not in folder_states.OTHERS or name in ("list", "logs", "runs")]


@pytest.fixture
def no_cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The local cloud can't start, and nothing is downloaded. Returns a folder for clusters."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "file" / "home"))
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # a connection there is refused at once
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", folder_states.link_programs(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "clusters"


def _assert_junit(file: Path) -> None:
    suite = ET.parse(file).getroot()
    assert (suite.get("errors"), suite.get("tests")) == ("1", "1")


@pytest.mark.parametrize("state", STATES)
def test_each_command_works_or_reports_what_is_missing(state: str, no_cloud: Path, tmp_path: Path) -> None:
    names = _names() if state == "a fresh clone" else _with_the_folder()
    folder_states.write(no_cloud, STATES[state], names)
    assert judge(folder_states.walk(no_cloud, names, tmp_path / "verify.xml")) == []
    _assert_junit(tmp_path / "verify.xml")


def test_with_a_stopped_local_cloud(no_cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server is started for real, and finds no podman."""
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path / "home"))
    folder_states.write(no_cloud, STATES["a killed apply"], _STARTS)
    assert judge(folder_states.walk(no_cloud, _STARTS, tmp_path / "verify.xml")) == []
    _assert_junit(tmp_path / "verify.xml")


def test_without_the_right_to_write(no_cloud: Path, tmp_path: Path) -> None:
    """On a read-only mount, which keeps root out as well; the child has a mount namespace of its own."""
    names = [*_with_the_folder(), "init"]
    folder_states.write(no_cloud, STATES["a killed apply"], names)
    words = [sys.executable, "-m", "tests.cli.folder_states", str(no_cloud), str(tmp_path / "verify.xml"), *names]
    outcomes = _in_read_only(no_cloud, words)
    assert judge(outcomes) == []
    changed = [each.command for each in outcomes if each.status == 0 and each.command in ("init", "apply", "destroy")]
    assert changed == []
    _assert_junit(tmp_path / "verify.xml")


def _in_read_only(folder: Path, words: Sequence[str]) -> list[Outcome]:
    mount = '/usr/bin/mount --bind "$0" "$0" && /usr/bin/mount -o remount,bind,ro "$0" && exec "$@"'
    done = subprocess.run(
        ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", mount, str(folder), *words],
        cwd=import_root(),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,  # for all commands
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [Outcome(**each) for each in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.parametrize("locked", [False, True])
def test_a_fresh_clone_with_a_remote_state(locked: bool, no_cloud: Path, tmp_path: Path) -> None:
    """The state is that of a cluster, with the real Terraform and a double of the backend. No command writes it."""
    names = ["apply", "destroy", "plan", "replace", "state recover", "verify"] if locked else _with_the_folder()
    with serving() as double:
        address = f"{double.url}/demo"
        more = f"state: {{backend: http, config: {{address: '{address}', lock_address: '{address}'}}}}\n"
        double.objects["/demo"] = folder_states.state_of_a_cluster().encode()
        if locked:
            double.lock("/demo")
        before = dict(double.locks)
        folder_states.write(no_cloud, STATES["a fresh clone"], names, more)
        outcomes = folder_states.walk(no_cloud, names, tmp_path / "verify.xml")
        assert (double.locks, double.changes.count("PUT")) == (before, 0)
    assert judge(outcomes) == []
    results = {each.command: each.result or {} for each in outcomes}
    if locked:
        assert {each.status for each in outcomes} == {errors.EXIT_LOCKED}
        assert [name for name, result in results.items() if "ada@elsewhere" not in result["what"]] == []
    else:
        assert results["output"]["outputs"]["cluster"]["name"] == "demo"
    _assert_junit(tmp_path / "verify.xml")


def _rename(folder: Path) -> None:
    file = folder / "cluster.yml"
    file.write_text(file.read_text().replace("name: demo", "name: renamed", 1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "cluster.yml").write_text("name: [\n"), "cluster.yml"),
        (lambda folder: (folder / "cluster.yml").unlink(), "there is no cluster.yml here"),
        (_rename, "this folder's state is of the cluster demo"),
        (lambda _folder: None, "there is no pool nowhere"),
    ],
)
def test_verify_writes_the_file_also_before_there_is_a_cluster(
    change: object, said: str, no_cloud: Path, tmp_path: Path
) -> None:
    folder_states.write(no_cloud, STATES["a killed apply"], ["verify"])
    change(folder_states.place_of(no_cloud, "verify"))  # type: ignore[operator]
    os.chdir(folder_states.place_of(no_cloud, "verify"))
    done = CliRunner().invoke(cli, ["verify", "--pool", "nowhere", "--junit", str(tmp_path / "v.xml")])
    assert done.exit_code == errors.EXIT_INPUT
    _assert_junit(tmp_path / "v.xml")
    assert said in (tmp_path / "v.xml").read_text()
