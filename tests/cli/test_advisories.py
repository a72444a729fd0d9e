"""`validate` reports what is known of the Slurm that would be built."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from gpucluster.cli import cli
from tests.spec.spec_texts import MINIMAL


@pytest.mark.parametrize(("release", "says"), [("25.11", "25.11.8"), ("24.11", "24.11 gets no fix"), ("26.05", "")])
def test_validate_warns(release: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    file.write_text(f'{MINIMAL}slurm: {{release: "{release}"}}\n')
    done = CliRunner().invoke(cli, ["validate", "--file", str(file)])
    assert done.exit_code == 0
    assert ("CVE-2026-65107" in done.output) is bool(says)
    assert says in done.output


@pytest.mark.parametrize("shape", ["BM.GPU.GB200.4", "BM.GPU.GB200-v2.4", "BM.GPU.GB200-v3.4", "BM.GPU.GB300.4"])
def test_validate_accepts_shapes_of_a_memory_fabric_with_their_rack(shape: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yml"
    fabric = "ocid1.computegpumemoryfabric.oc1.iad.exampleuniqueid"
    for line, code in ((f", memory_fabric_id: {fabric}", 0), ("", 2)):
        file.write_text(MINIMAL.replace("BM.GPU4.8", f"{shape}{line}"))
        done = CliRunner().invoke(cli, ["validate", "--file", str(file)])
        assert done.exit_code == code, done.output
        assert ("memory_fabric_id" in done.output) is (code == 2)
