"""The sections `slurm` and `autoscaler`: which release is built, limits, and values that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.spec import loads
from gpucluster.spec.sections.slurm import TIME_NAMES, SlurmSpec
from tests.spec.faults import findings
from tests.spec.spec_texts import LOCAL


@pytest.mark.parametrize(
    ("slurm", "built"),
    [
        (SlurmSpec(release="26.05"), "26.05"),
        (SlurmSpec(release="distribution"), None),
        (SlurmSpec(release="26.05", enabled=False), None),
    ],
)
def test_a_release_is_built_where_slurm_is_not_the_distributions(slurm: SlurmSpec, built: str | None) -> None:
    assert slurm.built_release == built


@pytest.mark.parametrize(
    ("old", "new", "path", "words"),
    [
        ("accounting: true", "default_gpus: some", "slurm.default_gpus", "must be none or all"),
        ("accounting: true", "max_job_hours: 0", "slurm.max_job_hours", "at least"),
        ("accounting: true", "user_limits: {gpu: 1}", "slurm.user_limits.gpu", "Did you mean gpus?"),
        ("accounting: true", "user_limits: {jobs: -1}", "slurm.user_limits.jobs", "at least"),
        ("software:", "autoscaler: {max_nodes: -1}\nsoftware:", "autoscaler.max_nodes", "at least"),
        ("software:", "autoscaler: {times: {tick: 0}}\nsoftware:", "autoscaler.times.tick", "must be above 0"),
    ],
)
def test_a_wrong_value_is_refused(old: str, new: str, path: str, words: str) -> None:
    (found,) = findings(LOCAL.replace(old, new, 1))
    assert found[2] == path
    assert words in found[3]


def test_prices_come_from_their_file(tmp_path: Path) -> None:
    (tmp_path / "prices.yml").write_text("BM.GPU4.8: 24.4\nVM.Standard.E5.Flex: 0.2\n")
    text = LOCAL.replace("software:", "autoscaler: {max_cost_per_hour: 100, prices_file: prices.yml}\nsoftware:", 1)
    autoscaler = loads(text, str(tmp_path / "cluster.yml")).autoscaler
    assert autoscaler.prices == {"BM.GPU4.8": 24.4, "VM.Standard.E5.Flex": 0.2}
    assert loads(LOCAL).autoscaler.prices == {}


def test_every_time_of_the_autoscaler_may_be_set() -> None:
    times = ", ".join(f"{name}: 60" for name in sorted(TIME_NAMES))
    spec = loads(LOCAL.replace("software:", f"autoscaler: {{times: {{{times}}}}}\nsoftware:", 1))
    assert set(spec.autoscaler.times) == TIME_NAMES
