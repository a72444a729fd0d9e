"""What `health status` prints and what Prometheus reads: both come from the same reports and decisions."""

from __future__ import annotations

import json

from gpucluster.controller.health import metrics
from gpucluster.controller.health.settings import HealthSettings
from tests.controller.health.control_site import BAD, Site
from tests.controller.health.doubles import DRAINS, nodes


def test_the_status_and_the_metrics_report_the_same(site: Site) -> None:
    site.send(BAD)
    settings = HealthSettings(
        slurm=True, interval=300, max_drained_percent=20, shadow=False, networks=(), pools={"compute": tuple(nodes(10))}
    )
    now = site.clock()
    content = json.loads(json.dumps(metrics.status(site.store, settings, DRAINS, now, site.slurm.nodes())))
    first = content["nodes"][0]
    assert (first["node"], first["status"], first["stale"], first["person"]) == ("compute-1", "fail", False, False)
    assert first["drained"].startswith("gpucluster: check failed")
    assert content["breakers"] == [{"pool": "compute", "drained": 1, "limit": 2, "open": False}]
    metrics.write(site.store, settings, DRAINS, now)
    text = (site.folder / "metrics.prom").read_text()
    assert 'gpucluster_health_check{node="compute-1",check="gpu",status="fail"} 1' in text
    assert 'gpucluster_health_drained{node="compute-1",kind="drain"} 1' in text
    assert 'gpucluster_health_drains_last_hour{pool="compute"} 1' in text
    assert text.count("gpucluster_health_report_timestamp_seconds{") == len(site.slurm.state)
    # A wall clock that jumped makes no report old.
    site.clock.wall += 86400
    later = metrics.status(site.store, settings, DRAINS, site.clock(), {})
    assert not any(row["stale"] for row in later["nodes"])
