"""Images that were baked: which are used, kept and removed; made and deleted with the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import oci
import pytest

from gpucluster.cloud.baked_images import BakedImage, BakedImages, newest, superseded
from gpucluster.cloud.client import CloudAccess
from gpucluster.events import Event
from tests.localcloud.api_harness import Api, running


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(tmp_path / "cloud") as api:
        yield api


def _image(number: int, pool: str = "burst", state: str = "AVAILABLE") -> BakedImage:
    return BakedImage(f"i{number}", f"demo-{pool}-{number}", pool, "f", state, datetime(2026, 1, number, tzinfo=UTC))


def test_the_image_in_use_and_the_newest_beside_it_are_kept() -> None:
    images = [_image(3), _image(1), _image(4), _image(2), _image(5, "other")]
    assert [image.id for image in superseded(images, "burst", "i4")] == ["i2", "i1"]
    # The one in use stays, however old it is.
    assert [image.id for image in superseded(images, "burst", "i1")] == ["i3", "i2"]
    assert superseded(images[:1], "burst", "i3") == ()
    half = [_image(9, state="PROVISIONING"), _image(2)]
    assert newest(half, "burst", "f") == half[1]


@pytest.mark.slow
def test_an_image_is_made_of_an_instance_and_belongs_to_one_cluster_of_its_name(api: Api) -> None:
    access = CloudAccess(oci.config.from_file(str(api.home / "credentials" / "config")), api.endpoint, api.tenancy)
    builder = api.launch(api.subnet(api.vcn()), "builder")
    announced: list[Event] = []
    images = BakedImages(access, "demo", announced.append, identity="ab12")
    made = images.create("gpu", "f1", builder.id)
    assert (made.pool, made.fingerprint, made.state) == ("gpu", "f1", "AVAILABLE")
    assert made.name.startswith("demo-gpu-")
    assert images.all() == (made,)
    assert newest(images.all(), "gpu", "f1") == made
    assert newest(images.all(), "gpu", "f2") is None
    # Another cluster, and another one of the same name.
    assert BakedImages(access, "other", announced.append).all() == ()
    assert BakedImages(access, "demo", announced.append, identity="cd34").all() == ()
    images.remove(images.all())
    assert images.all() == ()
    name = f"image {made.name}"
    assert [(event.name, event.status) for event in announced] == [
        (name, "creating"), (name, "created"), (name, "deleting"), (name, "deleted"),
    ]  # fmt: skip
