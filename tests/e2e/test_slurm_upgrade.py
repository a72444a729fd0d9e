"""Slurm's release of a whole cluster: 24.11 of the distribution becomes 26.05 under a running job.

Then a node of another system joins. It runs by hand (`built_slurm`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.built_slurm import (
    FOLDER,
    SECONDS,
    from_cache,
    make_mirror,
    newest_source,
    on_host,
    to_cache,
    version_of,
)
from tests.e2e.site_harness import ROOT, Site, container_of, worked_example

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.timeout(2 * SECONDS)]

OTHER_SYSTEM = """\
  older:
    shape: VM.Standard.E5.Flex
    ocpus: 2
    memory_gb: 8
    count: 1
    image: {operating_system: Debian, version: "12"}
"""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    source = newest_source()
    text = worked_example("local").replace("count: 2  ", "count: 1  ")
    with Site(text + "slurm: {release: distribution}\n") as made:
        make_mirror(made, source)
        made.file.write_text(f"{made.file.read_text()}software: {{mirror: mirror, versions: {{}}}}\n")
        made.good("apply")
        text = made.file.read_text().replace("release: distribution", 'release: "26.05"')
        made.file.write_text(text.replace("versions: {}", f"versions: {{slurm: {version_of(source)}}}"))
        yield made


def test_apply_does_not_change_the_release(site: Site) -> None:
    assert any("slurm upgrade" in warning for warning in site.good("plan")["warnings"])
    code, events = site.run("apply")
    assert code == 1
    assert "gpucluster slurm upgrade" in events[-1]["message"]
    assert "24.11" in on_host(site, "demo-controller", "/usr/sbin/slurmctld", "-V")


def test_a_job_runs_across_the_upgrade(site: Site) -> None:
    # It ends when a test writes into its pipe.
    script = "#!/bin/bash\ncat go\nsrun echo done on $SLURMD_NODENAME\n"
    site.as_alice("mkfifo go; cat > job.sh", stdin=script)
    job = site.as_alice("sbatch --parsable -o out.txt job.sh")
    before = site.as_alice("sbatch --parsable --begin=now+1day --wrap true")
    site.runs(job)
    planned = site.good("slurm", "upgrade", "--plan")
    assert (planned["steps"], planned["running_jobs"]) == (["26.05"], 1)
    controller = container_of(site, "demo-controller")
    from_cache(controller)
    code, events = site.run("slurm", "upgrade", timeout=SECONDS)
    assert code == 0, events[-5:]
    result = events[-1]["data"]
    to_cache(controller)
    assert re.match(r"/var/backups/gpucluster/slurm-24\.11", result["slurm_copy"])
    for host, program in (("demo-controller", "slurmctld"), ("demo-controller", "slurmdbd"), ("compute-1", "slurmd")):
        assert on_host(site, host, "sudo", f"/usr/sbin/{program}", "-V").startswith("slurm 26.05")
        assert on_host(site, host, "systemctl", "is-active", program) == "active"
    # The same job, on the same node, still runs, and what waited still waits.
    assert site.as_alice(f"squeue -h -j {job} -o '%T %N'") == "RUNNING compute-1"
    assert site.as_alice(f"squeue -h -j {before} -o %T") == "PENDING"
    site.as_alice(f"scancel {before}; echo > go")
    site.over(job)
    assert site.as_alice("cat out.txt") == "done on compute-1"
    site.accounted(job)
    copied = on_host(site, "demo-controller", "sudo", "ls", result["slurm_copy"])
    assert {"accounting.sql", "etc-slurm.tar.gz", "var-lib-slurm-slurmctld.tar.gz"} <= set(copied.split())


def test_a_second_apply_changes_and_builds_nothing(site: Site) -> None:
    assert set(site.good("apply")["changed"].values()) == {0}


def test_a_node_of_another_system_has_the_same_release(site: Site) -> None:
    site.file.write_text(site.file.read_text().replace("\nusers:\n", f"{OTHER_SYSTEM}\nusers:\n", 1))
    controller = container_of(site, "demo-controller")
    from_cache(controller)
    code, events = site.run("apply", timeout=SECONDS)
    assert code == 0, events[-5:]
    to_cache(controller)
    assert 'VERSION_ID="12"' in on_host(site, "older-1", "cat", "/etc/os-release")
    assert on_host(site, "older-1", "/usr/sbin/slurmd", "-V") == on_host(site, "compute-1", "/usr/sbin/slurmd", "-V")
    assert "demo-controller" not in site.as_alice("srun -p older hostname")
    # The controller has the node's packages: the next node of its system takes them.
    assert "Debian-12" in on_host(site, "demo-controller", "ls", FOLDER)


def test_the_way_back_is_the_one_of_the_page(site: Site) -> None:
    """The commands of docs/how-to/slurm-release.md, on hosts of one system: the distributions' releases differ."""
    site.file.write_text(site.file.read_text().replace(f"{OTHER_SYSTEM}\n", "", 1))
    site.good("apply")
    since = site.as_alice("sbatch --parsable --wrap hostname")
    site.over(since)
    copy = on_host(site, "demo-controller", "sudo", "ls", "/var/backups/gpucluster").split()[-1]
    assert copy.startswith("slurm-24.11")
    page = (ROOT / "docs" / "how-to" / "slurm-release.md").read_text().partition("## The way back")[2]
    script = re.search(r"\n\n((?:    .*\n)+)", page)
    assert script
    commands = re.sub(r"slurm-24\.11\S*Z", copy, script[1])
    on_host(site, "compute-1", "sudo", "systemctl", "stop", "slurmd")
    _as_root(site, "demo-controller", commands)
    for host in ("demo-controller", "compute-1"):
        _as_root(site, host, "apt-get remove --yes 'slurm-smd*'\n"
                             "rm /etc/apt/preferences.d/gpucluster-slurm /etc/gpucluster/slurm-packages")  # fmt: skip
    site.file.write_text(site.file.read_text().replace('release: "26.05"', "release: distribution"))
    code, events = site.run("apply", timeout=SECONDS)
    assert code == 0, events[-5:]
    for host, program in (("demo-controller", "slurmctld"), ("compute-1", "slurmd")):
        assert "24.11" in on_host(site, host, f"/usr/sbin/{program}", "-V")
        assert on_host(site, host, "systemctl", "is-active", program) == "active"
    # What was before the upgrade is there, and what happened since is lost.
    assert site.as_alice("sacct -X -n -o JobID --starttime=now-1day").split()
    assert site.as_alice(f"sacct -X -n -j {since} -o State") == ""
    assert site.as_alice("srun hostname") == "compute-1"


def _as_root(site: Site, host: str, commands: str) -> None:
    argv = ["podman", "exec", "--interactive", container_of(site, host), "bash", "-e"]
    done = subprocess.run(argv, input=commands, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
