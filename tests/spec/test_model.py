"""The model of cluster.yml."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucluster.spec import loads
from tests.spec.spec_texts import KEY, LOCAL, MINIMAL, OCI, public_key
from tests.spec.test_spec import oci


def test_the_model_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        loads(MINIMAL).name = "other"


def test_file_names_count_from_the_file(tmp_path: Path) -> None:
    spec = oci(tmp_path)
    assert spec.source == tmp_path
    assert spec.ssh.public_key == public_key(comment="operator")
    assert spec.ssh.private_key_path == tmp_path / "operator"


def test_home_directory_and_absolute_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "folder"
    (home / ".ssh").mkdir(parents=True)
    folder.mkdir()
    (home / ".ssh" / "id.pub").write_text(KEY)
    (tmp_path / "id_private").write_text("x")
    monkeypatch.setenv("HOME", str(home))
    private = f"~/.ssh/id.pub\n  private_key_file: {tmp_path}/id_private"
    spec = oci(folder, OCI.replace("operator.pub", private))
    assert spec.ssh.public_key == KEY
    assert spec.ssh.private_key_path == tmp_path / "id_private"


def test_partitions_and_elastic_pools() -> None:
    text = LOCAL.replace("    max_count: 4", "    max_count: 4\n    partition: gpu").replace(
        "    count: 2", "    count: 2\n    max_count: 3\n    partition: gpu\n    availability_domain: AD-2"
    )
    spec = loads(text.replace("provider: local", "provider: local\n  availability_domain: AD-1"))
    assert spec.partitions == {"gpu": ("compute", "cpu")}
    assert spec.slurm.default_partition == "gpu"
    assert {name: pool.default for name, pool in spec.pools.items()} == {"compute": True, "cpu": False}
    assert {name: pool.elastic_count for name, pool in spec.elastic_pools.items()} == {"compute": 1, "cpu": 4}
    assert [pool.availability_domain for pool in spec.pools.values()] == ["AD-2", "AD-1"]
    assert (spec.autoscaler.max_nodes, spec.autoscaler.max_launches_per_hour, spec.autoscaler.prices) == (None, 500, {})
