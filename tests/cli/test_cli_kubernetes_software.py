"""`gpucluster kubernetes images` and `values`: what an operator prepares where the internet is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpucluster.cli import cli
from gpucluster.handover.kubernetes import operator_charts, system_images
from gpucluster.kubernetes import images
from gpucluster.spec import load
from tests.spec.spec_texts import MINIMAL


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def command(name: str, section: str, scheduler: str = "kubernetes") -> Any:
        Path("cluster.yml").write_text(f"{MINIMAL}scheduler: {scheduler}\n{section}")
        return CliRunner().invoke(cli, ["-o", "json", "kubernetes", name])

    return command


def _last(text: str) -> Any:
    return json.loads(text.strip().splitlines()[-1])["data"]


def test_the_script_of_the_archive_is_for_the_release_and_the_hosts(run: Any) -> None:
    done = run("images", "kubernetes: {release: 1.34.2}\n")
    assert done.exit_code == 0, done.output
    said = _last(done.output)
    assert said["images"] == [], "emulated hardware needs no device plugin"
    assert list(said["scripts"]) == ["x86_64"]
    assert "--kubernetes-version 1.34.2" in said["scripts"]["x86_64"]


def test_the_archive_of_a_cluster_with_gpus_has_its_device_plugin(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text(f"{MINIMAL}scheduler: kubernetes\nkubernetes: {{rdma: device}}\n")
    needed = system_images(load(tmp_path / "cluster.yml"), hardware_emulated=False)
    assert images.reference("nvidia-device-plugin") in needed
    assert images.reference("multus") in needed


def test_values_are_those_of_the_operators_that_the_file_asks_for(run: Any) -> None:
    calico = "software: {versions: {calico: 3.27.5}}\n"
    said = _last(run("values", f"kubernetes: {{gpus: operator, rdma: sr-iov, release: 1.27.3}}\n{calico}").output)
    gpu, network = said["charts"]
    assert (gpu["name"], network["name"]) == ("gpu-operator", "network-operator")
    assert gpu["values"]["driver"] == {"enabled": False}
    assert gpu["values"]["cdi"] == {"enabled": False}, "kubelet of 1.27 passes no CDI devices on"
    assert "--version=v26.7.0" in gpu["install"]
    assert "--namespace=nvidia-network-operator" in network["install"]
    assert _last(run("values", "").output)["charts"] == []


def test_another_scheduler_needs_no_images(run: Any) -> None:
    done = run("images", "", "slurm")
    assert done.exit_code != 0
    assert "the scheduler of this cluster is slurm" in done.output


def test_a_file_of_values_is_yaml(tmp_path: Path) -> None:
    (tmp_path / "cluster.yml").write_text(f"{MINIMAL}scheduler: kubernetes\nkubernetes: {{gpus: operator}}\n")
    (chart,) = operator_charts(load(tmp_path / "cluster.yml"))
    assert yaml.safe_load(yaml.safe_dump(dict(chart.values))) == chart.values
