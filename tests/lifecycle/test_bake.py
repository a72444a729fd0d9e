"""The image that fits the present configuration is used."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpucluster import handover
from gpucluster.cloud.baked_images import BakedImage
from gpucluster.events import Event
from gpucluster.lifecycle.bake import Baking
from gpucluster.paths import ClusterPaths
from gpucluster.spec import load
from tests.lifecycle.test_cluster_elastic import ElasticDouble, Site
from tests.spec.spec_texts import LOCAL
from tests.workspace.known_hosts import save_controller

OUTPUTS = Path(__file__).parents[1] / "golden" / "oci_three_kinds" / "outputs.json"


@pytest.fixture
def events() -> list[Event]:
    """What was announced."""
    return []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file of a cluster with a fixed pool `compute` and an elastic one, `cpu`; a run has saved its hosts."""
    save_controller(tmp_path, "demo-controller")
    (tmp_path / "cluster.yml").write_text(LOCAL)
    return tmp_path / "cluster.yml"


@pytest.fixture
def site(file: Path, events: list[Event]) -> Site:
    """Without any elastic node yet."""
    spec = load(file)
    made = Site(spec, ClusterPaths.of(spec.file), events, ElasticDouble())
    made.paths.create()
    return made


def test_the_image_that_fits_is_used_and_another_is_warned_of_once(site: Site, events: list[Event]) -> None:
    outputs = json.loads(OUTPUTS.read_text())
    fits = handover.node_fingerprint(site.spec, handover.Outputs.parse(outputs), "cpu")
    listed: list[BakedImage] = []

    class ImagesDouble:
        """Stands for `BakedImages`: a list."""

        def all(self) -> list[BakedImage]:
            return listed

    def unused(*_: object) -> Any:
        pytest.fail("nothing but images is asked for")

    baking = Baking(
        spec=site.spec,
        paths=site.paths,
        images=ImagesDouble,  # type: ignore[arg-type]
        elastic=unused,
        pool_members=unused,
        ssh_client=unused,
        ansible=unused,
        inventory=unused,
        on_event=events.append,
    )
    assert baking.fitting({}) == {}
    assert baking.fitting(outputs) == {}
    assert events == [], "a pool that was never baked is no reason to warn"

    def image(name: str, fingerprint: str) -> BakedImage:
        return BakedImage(name, name, "cpu", fingerprint, "AVAILABLE", datetime(2026, 1, 1, tzinfo=UTC))

    listed.append(image("old", "0" * 16))
    for _ in range(2):
        assert baking.fitting(outputs) == {}
    (warning,) = events
    assert "Bake it again: gpucluster image bake cpu" in warning.message

    listed.append(image("new", fits))
    assert {pool: found.id for pool, found in baking.fitting(outputs).items()} == {"cpu": "new"}
