"""The metrics of a real Slurm: names that want to be rows, arrays, a slurmctld that hangs and one that is gone."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpucluster.controller.monitor.collector import Lists, SlurmCollector, SlurmQueries
from gpucluster.controller.monitor.settings import ElasticPool, MonitorSettings, ScrapedHost
from tests.autoscaler.slurm_harness import SlurmHarness, SlurmPool
from tests.waiting import PATIENCE_S, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.containers]

NASTY = 'a"b\\c|d\n9|9|N/A|main|RUNNING|root|root|evil'
SETTINGS = MonitorSettings(
    slurm=True,
    interval=10,
    jobs={"node": 9100},
    hosts=tuple(ScrapedHost(f"fixed-{number}", f"10.0.0.{number}", "fixed", "VM", ("node",)) for number in (1, 2)),
    elastic={"gpu": ElasticPool("gpu-e[1-3]", "BM.GPU4.8", ("node",))},
)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmHarness]:
    pools = [
        SlurmPool("gpu-e", 3, partition="gpu"),
        SlurmPool("fixed-", 2, partition="fixed", cloud=False, facts={"Gres": "gpu:a100:1"}),
    ]
    extra = {"GresTypes": "gpu", "MaxArraySize": "100001", "MaxJobCount": "200000"}
    with SlurmHarness(pools, extra=extra, resume_timeout=3600) as made:
        yield made


def samples(page: bytes) -> dict[str, float]:
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines)}


def test_what_slurm_reports_becomes_metrics(
    slurm: SlurmHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.write("/etc/slurm/gres.conf", "NodeName=fixed-[1-2] Name=gpu Type=a100 File=/dev/null\n")
    for name in ("fixed-1", "fixed-2"):
        slurm.start_slurmd(name)
    lists = Lists(SETTINGS, tmp_path)
    lists.write()
    found = SlurmCollector(SETTINGS, SlurmQueries(slurm.command_prefix, PATIENCE_S), lists.update)

    def page() -> dict[str, float]:
        found.nodes()
        found.jobs()
        return samples(found.page())

    assert samples(found.page())["gpucluster_slurm_up"] == 0  # nothing is known yet
    wait_for("the nodes", lambda: page().get('gpucluster_slurm_nodes{pool="fixed",state="idle"}') == 2)
    job = slurm.sbatch("--partition=fixed", "--nodelist=fixed-1", "--gres=gpu:1", "--mem=10", f"--job-name={NASTY}")
    # Bytes that are no UTF-8, as a script may give them.
    raw = (b"--job-name=x\xff\x01y", b"--wrap=sleep 600")
    words = ("sbatch", "--parsable", "--output=/dev/null", "--partition=fixed", "--nodelist=fixed-1", "--mem=10")
    done = subprocess.run([*slurm.command_prefix, *words, *raw], capture_output=True, check=True)
    slurm.sbatch("--partition=fixed", "--array=0-99999%1", "--hold", "--job-name=many")
    for number in (job, done.stdout.decode().strip()):
        slurm.until("it runs", lambda number=number: slurm.squeue().get(number) == "RUNNING")  # type: ignore[misc]
    slurm.scontrol("update", "nodename=fixed-2", "state=drain", 'reason=a "bad" | State=IDLE ThreadsPerCore=1')

    seen = page()
    assert seen["gpucluster_slurm_up"] == 1
    (nasty,) = [series for series in seen if series.startswith("gpucluster_slurm_job_info") and f'"{job}"' in series]
    assert 'name="a\\"b\\\\c|d\\n9|9|N/A|main|RUNNING|root|root|evil"' in nasty
    assert 'partition="fixed"' in nasty
    assert 'user="root"' in nasty
    assert any('name="x\ufffd\ufffdy"' in series for series in seen)
    running = [series for series in seen if series.startswith("gpucluster_slurm_job_info")]
    assert len(running) == 2
    assert seen['gpucluster_slurm_jobs{partition="fixed",state="running"}'] == 2
    assert seen['gpucluster_slurm_jobs{partition="fixed",state="pending"}'] == 100_000
    assert len(seen) < 60
    assert seen['gpucluster_slurm_nodes{pool="gpu",state="powered_down"}'] == 3
    assert seen['gpucluster_slurm_gpus{pool="fixed",state="allocated"}'] == 1
    assert seen['gpucluster_slurm_gpus{pool="fixed",state="total"}'] == 2
    drained = (
        'gpucluster_slurm_node_drained{node="fixed-2",pool="fixed",reason="a \\"bad\\" | State=IDLE ThreadsPerCore=1"}'
    )
    assert seen[drained] == 1
    assert seen['gpucluster_slurm_node_state{node="fixed-2",pool="fixed",state="drained"}'] == 1
    assert seen["gpucluster_slurm_scheduler_jobs_submitted_total"] >= 2
    assert "gpucluster_slurm_scheduler_last_cycle_seconds" in seen  # its unit: monitor/test_slurm_text.py
    # Every line is one that Prometheus reads: its own parser is in test_server.
    assert all(
        re.match(r"gpucluster_slurm_[a-z_]+(\{.*\})? ", line)
        for line in found.page().decode().splitlines()
        if line[0] != "#"
    )

    # An elastic node comes into service, and leaves.
    def nodes() -> set[str]:
        return {group["labels"]["node"] for group in json.loads((tmp_path / "targets-node.json").read_text())}

    assert nodes() == {"fixed-1", "fixed-2"}
    slurm.scontrol("update", "nodename=gpu-e1", "state=power_up")
    slurm.until("it powers up", lambda: "POWERING_UP" in slurm.flags("gpu-e1"))
    found.nodes()
    assert nodes() == {"fixed-1", "fixed-2"}
    slurm.start_slurmd("gpu-e1")
    slurm.until("it is up", lambda: "IDLE" in slurm.flags("gpu-e1") and "POWERING_UP" not in slurm.flags("gpu-e1"))
    found.nodes()
    assert nodes() == {"fixed-1", "fixed-2", "gpu-e1"}

    # A slurmctld that hangs.
    now = 1000.0
    commands = SlurmQueries(slurm.command_prefix, PATIENCE_S)
    hanging = SlurmCollector(SETTINGS, commands, lists.update, clock=lambda: now)
    hanging.nodes(), hanging.jobs()
    assert samples(hanging.page())["gpucluster_slurm_up"] == 1
    slurm.freeze("slurmctld")
    monkeypatch.setattr(commands, "_seconds", 1.0)
    hanging.nodes(), hanging.jobs()
    # Our limit has ended them, and not what slurmctld's clients have of their own.
    said = capsys.readouterr().err
    assert said.count("gave no answer within 1 s") == 3, said
    now += 60
    frozen = samples(hanging.page())
    assert frozen["gpucluster_slurm_up"] == 0
    assert frozen['gpucluster_slurm_jobs{partition="fixed",state="running"}'] == 2  # not old yet
    assert nodes() == {"fixed-1", "fixed-2", "gpu-e1"}
    slurm.thaw("slurmctld")

    # One that is gone: old answers are dropped after a while.
    slurm.stop("slurmctld")
    monkeypatch.setattr(commands, "_seconds", PATIENCE_S)
    now += 1
    hanging.nodes(), hanging.jobs()
    assert samples(hanging.page()) == {"gpucluster_slurm_up": 0.0}
    assert nodes() == {"fixed-1", "fixed-2", "gpu-e1"}

    # It comes again, and the elastic node is powered down.
    slurm.start_slurmctld()
    slurm.stop("gpu-e1")
    slurm.scontrol("update", "nodename=gpu-e1", "state=power_down_force")
    slurm.until("it powers down", lambda: slurm.flags("gpu-e1") & {"POWERING_DOWN", "POWERED_DOWN", "POWER_DOWN"})
    hanging.nodes(), hanging.jobs()
    assert samples(hanging.page())["gpucluster_slurm_up"] == 1
    assert nodes() == {"fixed-1", "fixed-2"}
