"""The autoscaler's metrics for Prometheus, served on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from gpucluster.controller.http_server import MetricsServer

HOST, PORT = "127.0.0.1", 9811
_PREFIX = "gpucluster_"
_Metric = TypeVar("_Metric", bound=MetricWrapperBase)
_SECONDS = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
_FAST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# Without this call each counter and histogram would have one more time series, `..._created`.
disable_created_metrics()  # type: ignore[no-untyped-call]


class _SnapshotGauge(Collector):
    """A gauge whose time series are all replaced at once: a scrape sees the old ones or the new ones, never a mix."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._name, self._text, self._labels = name, text, tuple(labels)
        self._values: Mapping[tuple[str, ...], float] = {}

    def replace(self, values: Mapping[tuple[str, ...], float]) -> None:
        self._values = values

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for key, value in self._values.items():
            family.add_metric(key, value)
        yield family


class Metrics:
    """Every metric of the autoscaler, by its name without `gpucluster_`. Methods may be called from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        self._snapshots: dict[str, _SnapshotGauge] = {}
        self._labels: dict[str, tuple[str, ...]] = {}
        self._snapshot("nodes", "Nodes of elastic pools, by what the scheduler and the cloud report.",
                       ("pool", "node_state", "cloud_state"))  # fmt: skip
        self._snapshot("elastic_node_info", "1 for an elastic node that Kubernetes has in service, with its address.",
                       ("node", "pool", "address"))  # fmt: skip
        self._histogram("scaleup_seconds", "How long a node took from the decision to service.", ("phase",), _SECONDS)
        self._counter("gang_total", "Jobs that needed new nodes, by result.", ("result",))
        self._counter("oci_requests_total", "Requests to the cloud, by the answer's code.", ("op", "code"))
        self._gauge("oci_throttle_tokens", "Launches that may be sent at once now.")
        self._gauge("oci_launch_rate", "Launches a second that the cloud is estimated to accept.")
        self._counter("capacity_errors_total", "Launches for which no host was free.", ("shape", "ad"))
        self._snapshot("breaker_open", "1 while a pool cools down.", ("pool", "fault"))
        self._counter("hosts_reported_total", "Physical hosts that were reported to Oracle as bad.")
        self._counter("orphans_total", "Instances without a node that were terminated.")
        self._histogram("loop_seconds", "How long one reconcile pass took.", (), _FAST)
        self._gauge("cost_usd_per_hour", "What the present instances cost, in the price table's currency.")
        self._counter("idle_node_seconds_total", "Seconds in which nodes were idle.", ("pool",))
        self._gauge("last_success_timestamp", "When a reconcile pass last succeeded (seconds of the epoch).")

    def count(self, name: str, by: float = 1.0, **labels: str) -> None:
        """Increase a counter."""
        self._labelled(self._counters[name], name, labels).inc(by)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._labelled(self._gauges[name], name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        self._labelled(self._histograms[name], name, labels).observe(value)

    def replace(self, name: str, values: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """Set a gauge for all its labels at once; labels that are not named are removed."""
        self._snapshots[name].replace({self._key(name, labels): value for labels, value in values})

    def text(self) -> str:
        """The exposition format of Prometheus (version 0.0.4)."""
        return generate_latest(self.registry).decode()

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._labels[name] = tuple(labels)
        self._counters[name] = Counter(_PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._labels[name] = tuple(labels)
        self._gauges[name] = Gauge(_PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        self._labels[name] = tuple(labels)
        self._histograms[name] = Histogram(_PREFIX + name, text, labels, buckets=buckets, registry=self.registry)

    def _snapshot(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._labels[name] = tuple(labels)
        self._snapshots[name] = _SnapshotGauge(_PREFIX + name, text, labels)
        self.registry.register(self._snapshots[name])

    def _labelled(self, metric: _Metric, name: str, labels: Mapping[str, str]) -> _Metric:
        key = self._key(name, labels)
        return metric.labels(*key) if key else metric

    def _key(self, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        known = self._labels[name]
        if set(labels) != set(known):
            raise ValueError(f"{name} has the labels {known}, not {tuple(labels)}")
        return tuple(labels[label] for label in known)


class Exporter:
    """Serves the metrics until it is closed. `port` 0 takes a free one.

    Raises:
        OSError: the address can't be used.
    """

    def __init__(self, metrics: Metrics, host: str = HOST, port: int = PORT) -> None:
        self._server = MetricsServer((host, port), lambda: metrics.text().encode())
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
