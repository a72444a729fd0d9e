"""`gpucluster exposure`: what people and programs read, and how it ends."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpucluster.advisories.evaluate import HostVersions, InstalledVersion, evaluate
from gpucluster.cli import cli
from gpucluster.cluster import Cluster
from gpucluster.operations.exposure import Exposure, HostExposure
from gpucluster.spec import template

TODAY = date(2026, 11, 28)
OLD = InstalledVersion("slurm", "25.11.7")
OF_DEBIAN = InstalledVersion("runc", "1.1.5+ds1-1+deb12u1", "runc")
GOOD = InstalledVersion("kubernetes", "1.36.4")


def exposure(hosts: dict[str, list[InstalledVersion]], silent: tuple[str, ...] = ()) -> Exposure:
    versions = {name: HostVersions("debian-12", installed) for name, installed in hosts.items()}
    found = evaluate(versions, TODAY)
    told = [HostExposure(name, "", "debian-12", hosts[name], found[name]) for name in hosts]
    return Exposure(TODAY, [*told, *(HostExposure(name, "no answer within 20 s", "", (), ()) for name in silent)])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a cluster.yml."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yml").write_text(template("demo", "local"))


def said(monkeypatch: pytest.MonkeyPatch, found: Exposure, *words: str) -> Result:
    monkeypatch.setattr(Cluster, "exposure", lambda _cluster: found)
    return CliRunner().invoke(cli, ["exposure", *words])


def test_people_read_each_version_once_with_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = exposure({"head": [OLD, GOOD], "compute-1": [OLD, OF_DEBIAN], "compute-2": [OLD]}, silent=("compute-3",))
    done = said(monkeypatch, found)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    rows = [line.split() for line in lines[:4]]
    assert rows[0][0] == "PRODUCT"
    assert rows[1:] == [
        ["kubernetes", "1.36.4", "-", "head"],
        ["runc", "1.1.5+ds1-1+deb12u1", "package", "runc", "compute-1"],
        ["slurm", "25.11.7", "-", "head,", "compute-1,", "compute-2"],
    ]
    known = [line for line in lines if line.startswith("! ")]
    assert known[0].startswith("! head, compute-1, compute-2: Slurm 25.11.7 has known vulnerabilities of 2026-09 (CVE-")
    assert "(https://github.com/SchedMD/" in known[0]
    assert known[1] == "! compute-3: unknown: no answer within 20 s"
    asked = [line for line in lines if line.startswith("? ")]
    assert len(asked) == 3
    assert asked[0].startswith("? compute-1: runc 1.1.5+ds1-1+deb12u1 may have known vulnerabilities of 2026-06")
    assert lines[-1] == (
        "exposure of demo: something is known against 3 of 4 hosts, 3 questions to the distribution, 1 host did not "
        "answer; sources searched until 2026-11-28"
    )


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (exposure({"head": [GOOD]}), 0),
        (exposure({"head": [OF_DEBIAN]}), 0),
        (exposure({"head": [OLD]}), 1),
        (exposure({"head": [GOOD]}, silent=("compute-1",)), 1),
    ],
    ids=["nothing", "a question", "something", "no answer"],
)
def test_it_ends_as_it_was_found(monkeypatch: pytest.MonkeyPatch, found: Exposure, code: int) -> None:
    done = said(monkeypatch, found, "--output", "json")
    assert done.exit_code == code
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["status"] == ("failed" if code else "success")
    assert result["data"]["searched"] == "2026-11-28"
    assert {host["host"]: bool(host["error"]) for host in result["data"]["hosts"]} == {
        host.host: bool(host.error) for host in found.hosts
    }


def test_without_a_cluster_it_is_refused() -> None:
    done = CliRunner().invoke(cli, ["exposure"])
    assert done.exit_code == 1
    assert "there is no cluster yet" in done.output


# --- the page about it -----

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "exposure.md"
_BEGIN, _END = "of the command -->\n\n", "\n<!-- end of the output -->"


def test_the_output_on_the_page_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = InstalledVersion("kernel", "6.12.90-1", "linux")
    containerd = InstalledVersion("containerd", "1.6.20~ds1-1+deb12u1", "containerd")
    hosts = {"demo-controller": [OLD, kernel], "compute-1": [OLD, kernel], "compute-2": [OLD, kernel, containerd]}
    said_here = said(monkeypatch, exposure(hosts, silent=("compute-3",))).output
    before, begin, rest = PAGE.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    shown = "".join(f"    {line}".rstrip() + "\n" for line in said_here.splitlines())
    made = f"{before}{begin}{shown}{end}{after}"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(made)
    assert made == PAGE.read_text(), "the page is old; UPDATE_GOLDEN=1 writes its output again"
