"""What is kept of reports and findings: which of them count, and what a file that can't be read costs."""

from __future__ import annotations

import pytest

from gpucluster.node_agent.checks.model import Profile, Status
from gpucluster.node_agent.errors import Failed
from tests.controller.health.control_site import BAD, GOOD, Site
from tests.controller.health.doubles import nodes


def test_reports_of_an_earlier_boot_and_of_a_silent_node_blame_no_node(site: Site) -> None:
    site.slurm.down = True
    with pytest.raises(Failed):
        site.send({"disk": Status.FAIL}, profile=Profile.BOOT)
    site.slurm.down = False
    site.clock.pass_(4000)
    site.control.run()
    assert site.slurm.changes == []
    site.send(GOOD, boot="second")
    site.control.run()
    assert site.slurm.changes == []


def test_the_boot_report_counts_until_the_next_boot(site: Site) -> None:
    site.slurm.state["compute-1"] = nodes(1, flags=frozenset({"IDLE", "POWERING_UP"}))["compute-1"]
    site.send({"disk": Status.FAIL}, profile=Profile.BOOT)
    site.slurm.state["compute-1"] = nodes(1)["compute-1"]
    site.send(GOOD)
    assert "disk" in site.node[1]


def test_a_damaged_file_is_as_good_as_none(site: Site) -> None:
    site.send(BAD)
    for file in (site.folder / "reports").glob("*.json"):
        file.write_text(file.read_text()[:30])
    (site.folder / "findings.json").write_text("[]")
    site.restart()
    assert site.control.run().carried == ()
    assert site.node[0]
