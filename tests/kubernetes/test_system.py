"""What gpucluster runs in a cluster for its hardware: valid for every shape, way to RDMA and release."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from gpucluster import shapes
from gpucluster.kubernetes import manifests
from gpucluster.kubernetes.manifests import networks
from gpucluster.kubernetes.system import GpuSoftware, system
from gpucluster.shapes import GpuVendor
from tests.controller.kubernetes.api_server import ApiServer, needs_api_server, running
from tests.kubernetes.schemas import releases, validate_all
from tests.waiting import PATIENCE_S

ALL = list(shapes.catalogue().values())
MINORS = (20, 28, releases()[-1])


def _system(
    *names: str,
    minor: int = 36,
    access: str = "host",
    software: str = "device-plugin",
    emulated: bool = False,
    engine: bool = False,
    divided: bool = False,
) -> list[Any]:
    found = [shapes.get(name) for name in names]
    rdma = [shape for shape in found if shape.rdma]
    return system(
        found, rdma, minor=minor, software=cast("GpuSoftware", software),
        access=cast("networks.RdmaAccess", access), emulated=emulated, rdma_cidr="192.168.0.0/16", engine=engine,
        divided=divided,
    )  # fmt: skip


def _kinds(made: list[Any]) -> set[str]:
    return {f"{each['kind']} {each['metadata']['name']}" for each in made}


@pytest.mark.parametrize("access", get_args(networks.RdmaAccess))
def test_what_every_shape_gets_is_valid_for_every_release(access: str) -> None:
    for minor, software in itertools.product(MINORS, get_args(GpuSoftware)):
        validate_all(_system(*(shape.name for shape in ALL), minor=minor, access=access, software=software), oldest=20)


@pytest.mark.parametrize(("minor", "bound"), [(20, True), (24, True), (25, False)])
def test_pods_of_the_system_may_be_privileged_where_policies_decide(minor: int, bound: bool) -> None:
    assert ("RoleBinding gpucluster-privileged" in _kinds(_system("VM.Standard.E5.Flex", minor=minor))) == bound


@pytest.mark.slow
@needs_api_server
@pytest.mark.xdist_group("kubernetes-api-server")
def test_a_real_api_server_of_1_20_takes_them_all(tmp_path: Path) -> None:
    with running(tmp_path, "--allow-privileged=true") as server:  # as kubeadm starts it
        made = _system(*(shape.name for shape in ALL), minor=20, access="device")
        _apply(server, [each for each in made if each["kind"] in ("Namespace", "CustomResourceDefinition")])
        patience = f"--timeout={PATIENCE_S:.0f}s"  # kubectl's own is 30 s
        server.kubectl.run("wait", "--for=condition=Established", patience, "--all", "crd", seconds=PATIENCE_S)
        said = _apply(server, made, "--dry-run=server")
        assert len(said.splitlines()) == len(made)


def _apply(server: ApiServer, made: list[Any], *words: str) -> str:
    return server.kubectl.run("apply", "--filename=-", *words, text=manifests.to_json(made), seconds=PATIENCE_S)


def test_vendors_are_those_of_the_catalogue() -> None:
    assert {shape.gpu_vendor for shape in ALL} == set(get_args(GpuVendor))
