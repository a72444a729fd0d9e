"""The text that Prometheus reads."""

from __future__ import annotations

import urllib.request

import pytest

from gpucluster.autoscaler.daemon.metrics import Exporter, Metrics
from tests.waiting import PATIENCE_S

NAMES = {
    "nodes": "gauge", "scaleup_seconds": "histogram", "gang_total": "counter", "oci_requests_total": "counter",
    "oci_throttle_tokens": "gauge", "capacity_errors_total": "counter", "breaker_open": "gauge",
    "orphans_total": "counter", "hosts_reported_total": "counter",
    "loop_seconds": "histogram", "cost_usd_per_hour": "gauge",
    "idle_node_seconds_total": "counter", "last_success_timestamp": "gauge",
}  # fmt: skip


def test_every_name_is_there_with_its_type() -> None:
    text = Metrics().text()
    for name, kind in NAMES.items():
        assert f"# TYPE gpucluster_{name} {kind}\n" in text


def test_numbers_and_labels() -> None:
    metrics = Metrics()
    metrics.count("gang_total", result='st"ar\\ted\n')
    metrics.count("gang_total", result='st"ar\\ted\n')
    metrics.set("oci_throttle_tokens", 2.5)
    metrics.observe("loop_seconds", 0.2)
    metrics.observe("loop_seconds", 100.0)
    metrics.replace("breaker_open", [({"pool": "a", "fault": "capacity"}, 1.0)])
    metrics.replace("breaker_open", [({"pool": "b", "fault": "limit"}, 1.0)])
    lines = metrics.text().splitlines()
    assert 'gpucluster_gang_total{result="st\\"ar\\\\ted\\n"} 2.0' in lines
    assert "gpucluster_oci_throttle_tokens 2.5" in lines
    assert 'gpucluster_loop_seconds_bucket{le="0.1"} 0.0' in lines
    assert 'gpucluster_loop_seconds_bucket{le="0.25"} 1.0' in lines
    assert 'gpucluster_loop_seconds_bucket{le="+Inf"} 2.0' in lines
    assert "gpucluster_loop_seconds_sum 100.2" in lines
    assert "gpucluster_loop_seconds_count 2.0" in lines
    assert 'gpucluster_breaker_open{fault="limit",pool="b"} 1.0' in lines
    assert not [line for line in lines if 'pool="a"' in line]
    assert "gpucluster_orphans_total 0.0" in lines


def test_a_label_that_a_metric_does_not_have_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="gang_total has the labels"):
        Metrics().count("gang_total", outcome="x")


def test_it_is_served() -> None:
    metrics = Metrics()
    exporter = Exporter(metrics, port=0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=PATIENCE_S) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == metrics.text()
    finally:
        exporter.close()
