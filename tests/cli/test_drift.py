"""`gpucluster drift`: what users and programs read, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from gpucluster.cluster import Cluster
from gpucluster.drift.model import APPLY, Area, DriftFinding, DriftReport, Unseen, ordered
from gpucluster.spec import template

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "drift.md"
HAND = "gpucluster user remove mallory"
FOUND = ordered(
    [
        DriftFinding(Area.CLOUD, "instance", "compute-1", "state", "RUNNING", "STOPPED", "oci compute instance action"),
        DriftFinding(
            Area.CLOUD,
            "resource",
            "module.network.oci_core_security_list.private",
            "ingress_security_rules",
            "nothing of this kind",
            '{"protocol": "6", "source": "0.0.0.0/0"}',
        ),
        DriftFinding(
            Area.HOSTS, "file", "demo-controller", "/etc/slurm/slurm.conf", "as apply left it", "other content"
        ),
        DriftFinding(Area.HOSTS, "unit", "demo-controller", "gpucluster-health.service", "running", "inactive"),
        DriftFinding(
            Area.SLURM, "reservation", "slurmctld", "mine", "no reservation", "one by hand, for alice", "scontrol"
        ),
        DriftFinding(
            Area.DIRECTORY, "entry", "directory", "user mallory", "no entry", "added, and not by `cluster`", HAND
        ),
    ]
)
SILENT = Unseen(Area.HOSTS, "compute-1", "it can't be reached: no route to host")
DRIFT = DriftReport(FOUND, (SILENT,), ("demo-controller",))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a cluster.yml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local"))


def said(monkeypatch: pytest.MonkeyPatch, found: DriftReport, *words: str) -> Result:
    monkeypatch.setattr(Cluster, "drift", lambda _cluster: found)
    return CliRunner().invoke(cli, ["drift", *words])


def test_the_page_shows_what_the_command_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    done = said(monkeypatch, DRIFT)
    block = PAGE.read_text().partition("of the command -->")[2].partition("<!-- end")[0]
    assert done.output.splitlines() == [line.removeprefix("    ") for line in block.strip("\n").splitlines()]


def test_it_is_one_screen_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [
        DriftFinding(Area.HOSTS, "file", f"compute-{number}", "/etc/" + "x" * 90, "a file", "no file")
        for number in range(60)
    ]
    many[:5] = [DriftFinding(area, "x", "y", "z", "a", "b") for area in Area if area != Area.HOSTS]
    silent = [Unseen(Area.HOSTS, f"compute-9{number}", "x" * 90) for number in range(20)]
    lines = said(monkeypatch, DriftReport(tuple(many), tuple(silent), remarks=("y" * 90,))).output.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "  and 50 more: gpucluster drift --details" in lines
    assert f"to put it right: {APPLY}" in lines


def test_the_details_have_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    text = said(monkeypatch, DRIFT, "--details").output
    for each in FOUND:
        assert f"    expected: {each.expected}\n    seen:     {each.seen}\n    fix:      {each.fix}\n" in text
    assert "put right" not in text


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (DriftReport((), hosts=("demo-controller",)), 0),
        (DriftReport(FOUND), 10),
        (DRIFT, 10),
        (DriftReport((), (SILENT,)), 11),
    ],
)
def test_the_exit_code_says_what_was_seen(monkeypatch: pytest.MonkeyPatch, report: DriftReport, code: int) -> None:
    done = said(monkeypatch, report, "--output", "json")
    assert done.exit_code == code
    last = json.loads(done.output.splitlines()[-1])
    assert last["kind"] == "result"
    assert last["status"] == ("success" if code == 0 else "failed")
    assert last["data"] == {"command": "drift", "status": last["status"], **report.to_dict()}
    help_text = CliRunner().invoke(cli, ["--help"]).output
    assert f"\n    {code} " in help_text


def test_nothing_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, DriftReport((), hosts=("a", "b"))).output == "drift of demo: 0 findings on 2 hosts\n"
