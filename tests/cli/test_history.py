"""`gpucluster runs` and `gpucluster logs`: what people and programs read, which of run, host and job a word names, and
what is refused. The hosts are a double, which proves nothing of ssh, journalctl or Slurm: tests/e2e/test_main_path.py
has the real ones."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.errors import InputError, ToolError
from gpucluster.events import ignore
from gpucluster.operations.controller import ControllerConnection
from gpucluster.paths import ClusterPaths
from gpucluster.process import Completed
from gpucluster.spec import template
from gpucluster.workspace.run import run
from tests.doubles.controller import Asked, ControllerDouble, said
from tests.event_lines import require_valid

NAME = "20260101T030405-abcdef"
LINE = "2026-11-29T01:00:00.000001+00:00 compute-1 a[1]: one"
ROW = "12|COMPLETED|compute-[1-2]|1000|1010|1100\n"


def _run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def _json(*words: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_run(*words, "-o", "json").stdout)["data"]
    return data


# --- runs -----


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterPaths:
    """A cluster file that does not even have to be valid."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text("broken: [\n")
    paths = ClusterPaths.of(tmp_path / "cluster.yml")
    paths.create()
    return paths


def _write(paths: ClusterPaths, name: str, **record: Any) -> None:
    (paths.runs / f"{name}.json").write_text(json.dumps({"run": name, "command": "apply", **record}))


def test_a_run_that_failed_is_listed_with_its_error_and_its_files(paths: ClusterPaths) -> None:
    with suppress(ToolError), run("apply", paths, ignore) as this, this.phase("terraform"):
        artifacts = paths.ansible / "artifacts" / f"{this.id}-site"
        artifacts.mkdir(parents=True)
        (artifacts / "stdout").write_text("PLAY\n")
        terraform = paths.runs / f"{this.id.partition('-')[0]}-000001-terraform-apply.log"
        terraform.write_text("Error: 429\n")
        raise ToolError("no capacity", hint="Try later")
    assert this.id in _run("runs").stdout
    shown = _run("logs").stdout
    for words in (
        "apply, failed in the phase terraform",
        "terraform  ",
        "no capacity. Try later",
        str(terraform),
        str(artifacts / "stdout"),
    ):
        assert words in shown
    data = _json("logs", this.id)
    assert data["run"]["error"] == "no capacity. Try later"
    assert data["logs"] == [str(paths.runs / f"{this.id}.json"), str(terraform), str(artifacts / "stdout")]


def test_a_run_that_succeeded_or_still_works_shows_what_is_known_of_it(paths: ClusterPaths) -> None:
    _write(paths, NAME, status="success", phase="verify", elapsed=65.0, started="2026-01-01T03:04:05+00:00")
    first, second = _run("logs", NAME).stdout.splitlines()[:2]
    assert first == f"run {NAME}: apply, success"
    assert second.endswith("on an unknown host, took 1 min 05 s")
    with run("plan", paths, ignore):
        assert "took -" in _run("logs").stdout
        assert _run("runs").stdout.splitlines()[1].split()[-1] == "-"


def test_the_last_20_runs_are_listed_and_all_where_asked(paths: ClusterPaths) -> None:
    names = [f"202601{day:02}T030405-abcdef" for day in range(22, 0, -1)]
    for name in names:
        _write(paths, name, status="success", elapsed=65.0, started="2026-01-01T03:04:05+00:00")
    (paths.runs / "20260131T000000-abcdef.json").write_text("not JSON")
    lines = _run("runs").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:21]] == names[:20]
    assert "1 min 05 s" in lines[1]
    assert lines[21:] == ["", "2 older runs: gpucluster runs --all"]
    assert [line.split()[0] for line in _run("runs", "--all").stdout.splitlines()[1:]] == names
    # A program gets all of them.
    assert [each["run"] for each in _json("runs")["runs"]] == names


@pytest.mark.parametrize("name", ["20270101", "20260101", "20260101T010405-abcdee"])
def test_a_name_of_no_run_or_of_several_is_refused(name: str, paths: ClusterPaths) -> None:
    for hour in ("01", "02"):
        _write(paths, f"20260101T{hour}0405-abcdef", status="success")
    refused = _run("logs", name)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "gpucluster runs" in refused.stderr


@pytest.mark.parametrize("name", [(), (NAME,), ("20260101",)], ids=["last", "name", "beginning"])
@pytest.mark.parametrize(
    "options", [("--since", "-2h"), ("--until", "now"), ("--grep", "x"), ("--lines", "7"), ("--follow",)]
)
def test_options_of_journals_are_refused_for_a_run(
    paths: ClusterPaths, name: tuple[str, ...], options: tuple[str, ...]
) -> None:
    _write(paths, NAME, status="success")
    refused = _run("logs", *name, *options)
    assert refused.exit_code == 2
    assert "the options are for the journal of a HOST or a JOB" in refused.stderr


def test_before_the_first_run_there_is_nothing_to_show(paths: ClusterPaths) -> None:
    assert _run("runs").stdout == "there are no runs yet\n"
    assert _json("runs") == {"command": "runs", "runs": []}
    refused = _run("logs")
    assert (refused.exit_code, "gpucluster apply" in refused.stderr) == (2, True)


@pytest.mark.parametrize("command", ["runs", "logs"])
def test_without_a_cluster_file_the_option_is_named(paths: ClusterPaths, command: str) -> None:
    refused = CliRunner().invoke(cli, ["--file", "nowhere.yml", command])
    assert (refused.exit_code, "--file" in refused.stderr) == (2, True)
    assert "nowhere.yml" in refused.stderr


# --- journals -----


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ControllerDouble:
    """A cluster whose hosts answer each question with a line, and Slurm with a job of two nodes."""

    def answer(asked: Asked) -> Completed:
        if "sacct" in asked.command:
            return said(ROW)
        if asked.host == "compute-2":
            raise ToolError("compute-2 does not answer \x1b[2J within 60 s")
        return said(f"{LINE} \x1b[2J\n" if asked.host else "")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local"))
    double = ControllerDouble(answer)
    monkeypatch.setattr(ControllerConnection, "ask", lambda _self, command, **more: double.ask(command, **more))
    return double


def test_a_word_that_is_neither_run_nor_job_is_a_host(hosts: ControllerDouble) -> None:
    shown = _run("logs", "compute-1", "--grep", "one", "--lines", "7")
    # A host may write what it likes into its journal; on a terminal it moves no cursor.
    assert (shown.exit_code, shown.stdout) == (0, f"{LINE} \\x1b[2J\n")
    (asked,) = hosts.asked
    assert asked.host == "compute-1"
    assert asked.command.endswith("--lines=7 --grep=one")
    assert _json("logs", "compute-1") == {"command": "logs", "host": "compute-1", "lines": [f"{LINE} \x1b[2J"]}


def test_a_journal_without_such_a_line_is_no_error(hosts: ControllerDouble) -> None:
    shown = _run("logs", "controller", "--since", "-2h")
    assert (shown.exit_code, shown.stdout) == (0, "no such line in the journal of controller\n")
    assert hosts.asked[0].host is None


@pytest.mark.parametrize("job", ["12", "12_3"])
def test_a_number_is_a_job_and_its_silent_host_is_named(hosts: ControllerDouble, job: str) -> None:
    shown = _run("logs", job)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        f"{LINE} \\x1b[2J", "! compute-2: compute-2 does not answer \\x1b[2J within 60 s",
    ]  # fmt: skip
    data = _json("logs", job)
    assert data["times"]["job"] == "12"
    assert (len(data["lines"]), list(data["silent"])) == (1, ["compute-2"])
    assert f"-j {job}" in hosts.commands[0]


def test_a_day_is_a_run_and_not_a_job(hosts: ControllerDouble) -> None:
    refused = _run("logs", "20260102")
    assert (refused.exit_code, "there is no run yet" in refused.stderr) == (2, True)
    assert hosts.asked == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("12", "--follow"), "--follow is for the journal of a HOST"),
        (("compute-1", "--lines", "0"), "--lines"),
        (("compute-1", "--lines", "many"), "--lines"),
        (("compute-1", "--grep", "a\nb"), "line break"),
        (("12", "--since", "a\nb"), "line break"),
        (("compute-1", "--lines", "0", "--follow"), "--lines"),
        (("compute-1", "compute-2"), "unexpected extra argument"),
    ],
)
def test_wrong_words_are_refused_and_no_host_is_asked(
    hosts: ControllerDouble, words: tuple[str, ...], message: str
) -> None:
    refused = _run("logs", *words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in refused.stderr
    assert hosts.asked == []


def test_what_journalctl_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch, hosts: ControllerDouble) -> None:
    answer = said("", 1, "Failed to parse timestamp: soon\n")
    monkeypatch.setattr(ControllerConnection, "ask", lambda _self, _command, **_more: answer)
    refused = _run("logs", "compute-1", "--since", "soon")
    assert refused.exit_code == ToolError.exit_code
    assert "Failed to parse timestamp: soon" in refused.stderr
    assert hosts.asked == []


def test_new_lines_of_a_host_are_shown_as_they_come(monkeypatch: pytest.MonkeyPatch, hosts: ControllerDouble) -> None:
    argv = ["printf", "%s\\n", LINE, "two \x1b[2J"]
    monkeypatch.setattr(ControllerConnection, "ssh_argv", lambda _self, _host, _command: argv)
    assert _run("logs", "compute-1", "--follow").stdout == f"{LINE}\ntwo \\x1b[2J\n"
    rows = [json.loads(line) for line in _run("logs", "compute-1", "--follow", "-o", "json").stdout.splitlines()]
    require_valid(rows)
    assert rows[0] == {"kind": "line", "host": "compute-1", "line": LINE}
    assert rows[1]["line"] == "two \x1b[2J"


# --- kept lines -----


@pytest.fixture(params=[ToolError, InputError])
def keeps(
    request: pytest.FixtureRequest, hosts: ControllerDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ControllerDouble:
    """A cluster that keeps journals, and has those of a node that is gone."""

    gone = request.param("the cluster has no host gpu-e1")

    def answer(asked: Asked) -> Completed:
        if "nowhere" in (asked.host or asked.text):
            if asked.host:
                raise InputError("there is no host nowhere", hint="the hosts are gpu-1")
            return said("", 2, "no lines of nowhere are kept\nSee which hosts have some: gpucluster logs --kept\n")
        if asked.command.endswith("logs hosts"):
            return said('{"hosts": {"gpu-e1": 1795998584}}')
        if asked.command.endswith("logs show"):
            return said(json.dumps({"lines": [f"{LINE} \x1b[2J"], "collected": 1795998584}))
        if asked.host == "gpu-e1":
            raise gone
        return said(f"{LINE}\n")

    with (tmp_path / "cluster.yml").open("a") as stream:
        stream.write("logs: {keep_days: 30}\n")
    double = ControllerDouble(answer)
    monkeypatch.setattr(ControllerConnection, "ask", lambda _self, command, **more: double.ask(command, **more))
    return double


UNTIL = "lines that the controller has kept until 2026-11-30 00:29:44 UTC"


def test_a_host_that_is_gone_is_shown_from_its_kept_lines(keeps: ControllerDouble) -> None:
    shown = _run("logs", "gpu-e1")
    assert (shown.exit_code, shown.stdout.splitlines()) == (
        0, [f"{LINE} \\x1b[2J", f"* the cluster has no host gpu-e1: {UNTIL}"],
    )  # fmt: skip
    assert _json("logs", "gpu-e1") == {
        "command": "logs", "host": "gpu-e1", "lines": [f"{LINE} \x1b[2J"], "collected": 1795998584.0,
    }  # fmt: skip


def test_kept_lines_can_be_asked_for(keeps: ControllerDouble) -> None:
    shown = _run("logs", "compute-1", "--kept", "--lines", "7")
    assert shown.stdout.splitlines() == [f"{LINE} \\x1b[2J", f"* {UNTIL}"]
    assert [each.host for each in keeps.asked] == [None]
    listed = _run("logs", "--kept").stdout.splitlines()
    assert listed[-1].split(maxsplit=1) == ["gpu-e1", "2026-11-30 00:29:44 UTC"]


@pytest.mark.parametrize("words", [("gpu-e1", "--kept"), ("--kept",)])
def test_without_kept_lines_the_key_is_named(hosts: ControllerDouble, words: tuple[str, ...]) -> None:
    refused = _run("logs", *words)
    assert (refused.exit_code, refused.stdout, hosts.asked) == (2, "", [])
    assert "logs.keep_days" in refused.stderr


@pytest.mark.parametrize("words", [("12", "--kept"), ("compute-1", "--kept", "--follow"), ("20260102", "--kept")])
def test_only_a_host_has_kept_lines(keeps: ControllerDouble, words: tuple[str, ...]) -> None:
    refused = _run("logs", *words)
    assert (refused.exit_code, keeps.asked) == (2, [])
    assert "--kept is for the journal of a HOST" in refused.stderr


def test_a_host_that_never_was_is_refused_with_the_names_of_the_others(keeps: ControllerDouble) -> None:
    refused = _run("logs", "nowhere")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "there is no host nowhere" in refused.stderr
    shown = _run("logs", "nowhere", "--kept").stderr
    assert "no lines of nowhere are kept" in shown
    assert "gpucluster logs --kept" in shown
    assert "\\n" not in shown
