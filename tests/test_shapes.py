"""The catalogue of shapes: complete, consistent, and honest about what it does not know."""

from __future__ import annotations

import pytest

from gpucluster import shapes
from gpucluster.errors import InputError

EVERY = [
    *("BM.GPU3.8", "BM.GPU4.8", "BM.GPU.B4.8", "BM.GPU.GM4.8", "BM.GPU.A100-v2.8", "BM.GPU.H100.8", "BM.GPU.H200.8"),
    *("BM.GPU.B200.8", "BM.GPU.B300.8", "BM.GPU.GB200.4", "BM.GPU.GB200-v2.4", "BM.GPU.GB200-v3.4", "BM.GPU.GB300.4"),
    *("BM.GPU.L40S.4", "BM.GPU.L40S-NC.4", "BM.GPU.A10.4", "BM.GPU.RTXPRO.8", "VM.GPU.A10.1", "VM.GPU.A10.2"),
    *("BM.GPU.MI300X.8", "BM.GPU.MI355X.8", "BM.GPU.MI355X-v1.8", "BM.HPC2.36", "BM.Optimized3.36", "BM.HPC.E5.144"),
    *("VM.Standard.E4.Flex", "VM.Standard.E5.Flex", "VM.Optimized3.Flex"),
]
ALL = list(shapes.catalogue().values())


def test_the_place_of_rdma_interfaces_on_the_pci_bus_is_stated_once() -> None:
    """Policies for virtual functions name it."""
    assert shapes.get("BM.GPU4.8").rdma_pci_addresses[1::6] == ("0000:0c:00.1", "0000:4c:00.1", "0000:c3:00.1")
    for shape in ALL:
        assert not (shape.rdma_pci and shape.rdma_interfaces)
        assert len(shape.rdma_pci_addresses) in (0, len(shape.rdma_devices))
        assert len(set(shape.rdma_pci_addresses)) == len(shape.rdma_pci_addresses)


def test_every_shape_is_there() -> None:
    assert set(shapes.catalogue()) == set(EVERY)


@pytest.mark.parametrize("shape", ALL, ids=lambda shape: shape.name)
def test_a_shape_is_consistent(shape: shapes.Shape) -> None:
    assert (shape.gres_type is None) == (shape.gpus == 0)
    assert len(shape.gpu_device_files) == len(set(shape.gpu_device_files)) == shape.gpus
    assert (shape.rdma_link_gbps is None) == (not shape.rdma_devices)
    assert len(set(shape.rdma_devices)) == len(shape.rdma_devices)
    assert not set(shape.rdma_devices) & set(shape.frontend_devices), "a front-end device must never carry NCCL"
    sized = (shape.sockets, shape.cores_per_socket, shape.memory_gib)
    assert all(value is None for value in sized) if shape.flex else all(value is not None for value in sized)
    assert set(shape.assumed) <= set(shapes.Shape.model_fields) | {"flex"}
    assert shape.flex == shape.name.endswith(".Flex")
    # The count of GPUs (or cores) is the last part of a fixed shape's name.
    last = int(shape.name.rpartition(".")[2]) if not shape.flex else 0
    assert last in (0, shape.gpus, (shape.sockets or 0) * (shape.cores_per_socket or 0))


@pytest.mark.parametrize("shape", [shape for shape in ALL if shape.assumed], ids=lambda shape: shape.name)
def test_what_is_assumed_is_explained(shape: shapes.Shape) -> None:
    assert shape.note


@pytest.mark.parametrize(
    ("name", "count", "gbps"),
    [
        ("BM.GPU4.8", 16, 100),
        ("BM.GPU.A100-v2.8", 16, 100),
        ("BM.GPU.H100.8", 16, 200),
        ("BM.GPU.H200.8", 8, 400),
        ("BM.GPU.B300.8", 16, 400),
        ("BM.GPU.GB200.4", 4, 400),
        ("BM.GPU.MI300X.8", 8, 400),
    ],
)
def test_rdma(name: str, count: int, gbps: int) -> None:
    shape = shapes.get(name)
    assert (len(shape.rdma_devices), shape.rdma_link_gbps, shape.rdma) == (count, gbps, True)


@pytest.mark.parametrize("name", ["NCCL_ALGO", "NCCL_PROTO"])
def test_no_job_gets_an_algorithm_that_not_every_collective_has(name: str) -> None:
    data = shapes.get("BM.GPU.RTXPRO.8").model_dump(by_alias=True)
    with pytest.raises(ValueError, match=f"{name}: NCCL from 2.24 on ends with an error"):
        shapes.Shape.model_validate({**data, "nccl": {**data["nccl"], name: "Tree"}})


def test_the_order_of_the_devices_is_the_order_for_nccl() -> None:
    numbers = [0, 2, 6, 8, 10, 12, 14, 16, 1, 3, 7, 9, 11, 13, 15, 17]
    assert shapes.get("BM.GPU4.8").nccl_ib_hca == "=" + ",".join(f"mlx5_{number}" for number in numbers)
    assert shapes.get("BM.GPU.A10.4").nccl_ib_hca is None
    b4 = shapes.get("BM.GPU.B4.8")
    assert b4.rdma_devices[:4] == ("mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8")
    assert set(b4.rdma_devices) == {f"mlx5_{number}" for number in range(1, 18)} - {"mlx5_13"}
    assert shapes.get("BM.GPU.A100-v2.8").rdma_devices == shapes.get("BM.GPU.GM4.8").rdma_devices == b4.rdma_devices


def test_device_files() -> None:
    assert shapes.get("BM.GPU4.8").gpu_device_files == tuple(f"/dev/nvidia{index}" for index in range(8))
    amd = {f"/dev/dri/renderD{number}" for number in range(128, 192, 8)}
    assert set(shapes.get("BM.GPU.MI300X.8").gpu_device_files) == amd
    assert set(shapes.get("BM.GPU.MI355X.8").gpu_device_files) == amd
    assert shapes.get("VM.GPU.A10.1").gpu_device_files == ("/dev/nvidia0",)


@pytest.mark.parametrize(
    ("name", "nodes", "algorithm", "fail"),
    [
        ("BM.GPU4.8", 2, "ring", 185),
        ("BM.GPU.H100.8", 2, "default", 440),
        ("BM.GPU.B300.8", 2, "default", 700),
        ("BM.GPU.B300.8", 1, "default", 800),
        ("BM.GPU.MI300X.8", 1, "default", 310),
        ("BM.GPU.GB200-v3.4", 2, "default", 300),
    ],
)
def test_bandwidth_gates(name: str, nodes: int, algorithm: str, fail: int) -> None:
    gates = [gate for gate in shapes.get(name).busbw if gate.nodes == nodes]
    assert [(gate.algorithm, gate.fail) for gate in gates] == [(algorithm, fail)]


def test_a_gate_is_never_above_what_the_wire_can_carry_in_a_ring() -> None:
    for shape in ALL:
        for gate in shape.busbw:
            if gate.nodes == 2 and gate.algorithm == "ring" and shape.rdma_link_gbps:
                assert gate.fail <= len(shape.rdma_devices) * shape.rdma_link_gbps / 8


def test_slurm_node_of_a_fixed_shape() -> None:
    assert shapes.slurm_node(shapes.get("BM.GPU4.8")) == {
        "Sockets": 2,
        "CoresPerSocket": 32,
        "ThreadsPerCore": 2,
        "RealMemory": 2034238,
        "Gres": "gpu:a100:8",
    }
    assert shapes.slurm_node(shapes.get("BM.HPC2.36"))["Gres"] is None


def test_slurm_node_of_a_flexible_shape() -> None:
    shape = shapes.get("VM.Standard.E5.Flex")
    node = shapes.slurm_node(shape, ocpus=4, memory_gb=32)
    assert (node["Sockets"], node["CoresPerSocket"], node["RealMemory"]) == (1, 4, 30 * 1024)
    with pytest.raises(InputError, match="flexible shape"):
        shapes.slurm_node(shape)


@pytest.mark.parametrize(
    ("gib", "left_mib"), [(1, 512), (4, 2048), (8, 6144), (32, 30720), (100, 99328), (2048, 2034238)]
)
def test_the_system_keeps_some_memory(gib: int, left_mib: int) -> None:
    assert shapes.real_memory_mib(gib * 1024) == left_mib


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("BM.GPU.H100", "Did you mean BM.GPU.H100.8"),
        ("bm.gpu4.8", "Did you mean BM.GPU4.8"),
        ("VM.Standard.E5.flex", "Did you mean VM.Standard.E5.Flex"),
        ("p5.48xlarge", "Known: BM.GPU3.8"),
    ],
)
def test_an_unknown_shape_gets_a_suggestion(wrong: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        shapes.get(wrong)
    assert hint in str(caught.value)
