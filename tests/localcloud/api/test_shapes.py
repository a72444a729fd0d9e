"""Shapes and capacity reports, with the real SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.core import models

from tests.localcloud.api_harness import GPU_SHAPE, Api, refused, running
from tests.localcloud.elastic_controller import Controller


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("instances"))) as api:
        yield api


def test_shapes(api: Api) -> None:
    gpu = api.compute.list_shapes(api.tenancy, shape=GPU_SHAPE).data[0]
    assert gpu.gpus == 8
    assert gpu.rdma_ports == 16
    assert gpu.is_flexible is False
    flex = api.compute.list_shapes(api.tenancy, shape="VM.Standard.E5.Flex").data[0]
    assert flex.ocpu_options.min == 1.0


@pytest.fixture(scope="module")
def subnet(api: Api) -> Any:
    return api.subnet(api.vcn())


@pytest.fixture(scope="module")
def controller(api: Api, subnet: Any, tmp_path_factory: pytest.TempPathFactory) -> Controller:
    return Controller(api, subnet, tmp_path_factory.mktemp("controller") / "config")


@pytest.mark.slow
def test_a_capacity_report(api: Api, controller: Controller) -> None:
    def report(**changes: Any) -> dict[str, tuple[str, int | None]]:
        shapes = [models.CreateCapacityReportShapeAvailabilityDetails(instance_shape=shape, fault_domain=None)
                  for shape in (GPU_SHAPE, "BM.GPU.H100.8", "BM.None.1")]  # fmt: skip
        values = {"compartment_id": api.tenancy, "availability_domain": api.domain, **changes}
        details = models.CreateComputeCapacityReportDetails(shape_availabilities=shapes, **values)
        found = controller.compute.create_compute_capacity_report(details).data.shape_availabilities
        return {one.instance_shape: (one.availability_status, one.available_count) for one in found}

    api.faults({"operation": "LaunchInstance*", "shape": GPU_SHAPE, "availability_domain": api.domain,
                "message": "Out of host capacity."}, {"shape": "BM.GPU.H100.8", "hosts": 3})  # fmt: skip
    assert report() == {
        GPU_SHAPE: ("OUT_OF_HOST_CAPACITY", 0),
        "BM.GPU.H100.8": ("AVAILABLE", 3),
        "BM.None.1": ("HARDWARE_NOT_SUPPORTED", 0),
    }
    assert report(availability_domain=api.domain.replace("AD-1", "AD-2"))[GPU_SHAPE] == ("AVAILABLE", None)
    api.faults()
    with refused(400, "InvalidParameter"):
        report(compartment_id="ocid1.compartment.local..other")
