"""Policies for tests of more than one folder."""

from __future__ import annotations

from gpucluster.autoscaler.policy import Policy
from tests.autoscaler.test_policy import on_kubernetes, written

KUBERNETES, SLURM = Policy.parse(on_kubernetes()), Policy.parse(written())
