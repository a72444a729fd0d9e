"""What Prometheus reads: counters, gauges and histograms as text, served on loopback. No dependency."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST, PORT = "127.0.0.1", 9811
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
_FAST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass
class _Family:
    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()
    values: dict[tuple[str, ...], float] = field(default_factory=dict)
    counts: dict[tuple[str, ...], list[int]] = field(default_factory=dict)


class Metrics:
    """Every metric of the autoscaler; methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, _Family] = {}
        gauge, counter = "gauge", "counter"
        self._add("nodes", gauge, "Nodes of elastic pools, by what Slurm and the cloud say.",
                  ("pool", "slurm_state", "cloud_state"))  # fmt: skip
        self._add("scaleup_seconds", "histogram", "How long a node took to come up.", ("phase",), _SECONDS)
        self._add("gang_total", counter, "Jobs whose nodes were asked for, by what became of them.", ("result",))
        self._add("oci_requests_total", counter, "Requests to the cloud, by the answer's code.", ("op", "code"))
        self._add("oci_throttle_tokens", gauge, "Launches that may be sent at once now.")
        self._add("oci_launch_rate", gauge, "Launches a second that the cloud is believed to take.")
        self._add("capacity_errors_total", counter, "Launches for which no host was free.", ("shape", "ad"))
        self._add("breaker_open", gauge, "1 while a pool is not asked for nodes.", ("pool", "fault"))
        self._add("orphans_total", counter, "Instances without a node that were terminated.")
        self._add("loop_seconds", "histogram", "How long one look took.", (), _FAST)
        self._add("cost_usd_per_hour", gauge, "What the present instances cost, in the price table's currency.")
        self._add("idle_node_seconds_total", counter, "Seconds that nodes stood idle.", ("pool",))
        self._add("last_success_timestamp", gauge, "When a look last went well (seconds of the epoch).")

    def _add(self, name: str, kind: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = ()) -> None:
        self._families[name] = _Family(f"gpucluster_{name}", kind, text, tuple(labels), tuple(buckets))

    def count(self, name: str, by: float = 1.0, **labels: str) -> None:
        """Let a counter grow."""
        family, key = self._of(name, labels)
        with self._lock:
            family.values[key] = family.values.get(key, 0.0) + by

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        family, key = self._of(name, labels)
        with self._lock:
            family.values[key] = value

    def replace(self, name: str, values: Iterable[tuple[Mapping[str, str], float]]) -> None:
        """Set a gauge for all its labels at once; labels that are not named are gone."""
        fresh = {self._of(name, labels)[1]: value for labels, value in values}
        with self._lock:
            self._families[name].values = fresh

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""
        family, key = self._of(name, labels)
        with self._lock:
            counts = family.counts.setdefault(key, [0] * (len(family.buckets) + 1))
            for number, bound in enumerate(family.buckets):
                counts[number] += value <= bound
            counts[-1] += 1
            family.values[key] = family.values.get(key, 0.0) + value

    def _of(self, name: str, labels: Mapping[str, str]) -> tuple[_Family, tuple[str, ...]]:
        family = self._families[name]
        if set(labels) != set(family.labels):
            raise ValueError(f"{name} has the labels {family.labels}, not {tuple(labels)}")
        return family, tuple(labels[label] for label in family.labels)

    def text(self) -> str:
        """The exposition format of Prometheus (version 0.0.4)."""
        with self._lock:
            lines = [line for family in self._families.values() for line in _lines(family)]
        return "\n".join(lines) + "\n"


def _lines(family: _Family) -> list[str]:
    lines = [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
    if family.kind != "histogram":
        values = family.values or ({} if family.labels else {(): 0.0})
        return lines + [f"{family.name}{_labels(family.labels, key)} {_number(value)}" for key, value in values.items()]
    for key, counts in family.counts.items():
        bounds = [*map(_number, family.buckets), "+Inf"]
        for bound, count in zip(bounds, counts, strict=True):
            lines.append(f"{family.name}_bucket{_labels((*family.labels, 'le'), (*key, bound))} {count}")
        lines.append(f"{family.name}_sum{_labels(family.labels, key)} {_number(family.values[key])}")
        lines.append(f"{family.name}_count{_labels(family.labels, key)} {counts[-1]}")
    return lines


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + pairs + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


class Exporter:
    """Serves the metrics until it is closed. `port` 0 takes a free one."""

    def __init__(self, metrics: Metrics, host: str = HOST, port: int = PORT) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                body = metrics.text().encode() if self.path == "/metrics" else b"not found\n"
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Who reads metrics is no event."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
