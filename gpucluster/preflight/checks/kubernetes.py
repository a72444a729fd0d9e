"""Checks of a control plane of Kubernetes Engine: its release."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpucluster.errors import PreflightFinding as Finding
from gpucluster.preflight.facts import Facts, KubernetesEngine
from gpucluster.spec import ClusterSpec

_PLACE = "kubernetes.release"


def release(spec: ClusterSpec, facts: Facts) -> Iterator[Finding]:
    """The release is offered, or runs already; a control plane that runs can get to it in one step."""
    engine, target = facts.kubernetes_engine, spec.kubernetes.release
    if not isinstance(engine, KubernetesEngine):
        return
    offered = [version.removeprefix("v") for version in engine.offered]
    running = engine.running.removeprefix("v")
    if target == running:
        return
    listed = ", ".join(offered) or "none"
    old, new = _numbers(running), _numbers(target)
    if target not in offered:
        reason = f"{_PLACE}: Kubernetes Engine does not offer {target}"
        yield Finding("error", "kubernetes", reason, f"Write one that it offers: {listed}")
    elif old and new < old:
        reason = f"{_PLACE}: the control plane runs {running}, and Kubernetes Engine does not go back to {target}"
        yield Finding("error", "kubernetes", reason, f"Write {running} or a newer one")
    elif old and new[:2] > (old[0], old[1] + 1):
        reason = f"{_PLACE}: the control plane runs {running}, and is upgraded by one minor release at a time"
        step = [each for each in offered if _numbers(each)[:2] == (old[0], old[1] + 1)]
        yield Finding("error", "kubernetes", reason, f"Write {step[-1] if step else listed} first, and apply")


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release; empty for what is none."""
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+\.\d+\.\d+", version) else ()
