"""Recording rules with what a node should have: the numbers of `shapes`, and the limits of the checks that hosts make.

Prometheus can't read shapes.toml. So its numbers are recorded as series with the label `shape`, which all series of a
node have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from textwrap import wrap

from gpucluster.node_agent.checks.judges import rdma, xids
from gpucluster.shapes import Shape

_BYTES_PER_GB_S = 1_000_000_000 // 8  # of one Gb/s
_WIDTH = 120
_HEADER = """\
# Written by tests/golden from shapes.toml and the limits of the checks (gpucluster/node_agent/checks): don't edit it.
groups:
  - name: gpucluster-shapes
    rules:
"""


def rules(shapes: Iterable[Shape]) -> str:
    """A rule file of Prometheus, as text."""
    entries = [*_of_shapes(shapes), *_of_checks()]
    return _HEADER + "".join(_entry(*entry) for entry in entries)


def _of_shapes(shapes: Iterable[Shape]) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    known = list(shapes)
    for shape in known:
        if shape.gpus:
            yield "gpucluster:shape_gpus:count", f"vector({shape.gpus})", {"shape": shape.name}
    for shape in known:
        for device in shape.rdma_devices if shape.rdma_link_gbps else ():
            rate = (shape.rdma_link_gbps or 0) * _BYTES_PER_GB_S
            labels = {"shape": shape.name, "device": device}
            yield "gpucluster:shape_rdma_rate:bytes_per_second", f"vector({rate})", labels


def _of_checks() -> Iterator[tuple[str, str, Mapping[str, str]]]:
    for counter, limit in rdma.LIMITS.items():
        yield "gpucluster:rdma_errors_limit:per_hour", f"vector({limit.warn:g})", {"counter": counter}
    codes = " or ".join(f"gpucluster:gpu_xid:code == {code}" for code in sorted(xids.HARDWARE))
    yield "gpucluster:gpu_xid_of_hardware:code", codes, {}


def _entry(name: str, expression: str, labels: Mapping[str, str]) -> str:
    lines = [f"      - record: {name}", f"        expr: {expression}"]
    if len(lines[1]) > _WIDTH:
        indent = " " * 10
        lines[1:] = ["        expr: >-", *wrap(expression, _WIDTH, initial_indent=indent, subsequent_indent=indent)]
    if labels:
        named = ", ".join(f'{label}: "{value}"' for label, value in labels.items())
        lines.append(f"        labels: {{{named}}}")
    return "\n".join(lines) + "\n"
