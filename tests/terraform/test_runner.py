"""Runs of the real Terraform: what is applied, what an earlier run has left, and a program that is too old."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpucluster.errors import EnvironmentFault, TerraformError
from tests.terraform.small_root import ROOT, Machine, http_config
from tests.terraform.state_doubles import serving

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_root")]


def test_what_earlier_settings_and_killed_commands_left_goes_with_the_next_run(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "here")
    with serving() as double:
        machine.apply("http", {**http_config(double), "retry_max": 1})
        (kept,) = (machine.paths.terraform / "state").iterdir()
        killed = kept.with_name("next-killed")
        killed.mkdir()
        young = kept.with_name("next-works")
        young.mkdir()
        for old in (kept, killed):
            os.utime(old, (0, 0))
        with machine.terraform("http", http_config(double)).hold_state():
            pass
    assert not kept.exists()
    assert not killed.exists()
    assert young.exists()


def test_an_output_of_a_later_release_is_applied_though_no_resource_changes(machine: Machine, tmp_path: Path) -> None:
    machine.apply()
    _, plan = machine.plan()
    assert (plan.changes, plan.changes_outputs) == ((), False)

    later = ROOT.replace("contract_version = 1", 'contract_version = 1, private_subnet_domain_name = "there"')
    (tmp_path / "root" / "cluster" / "main.tf").write_text(later)
    terraform, plan = machine.plan()
    assert (plan.changes, plan.changes_outputs) == ((), True)
    terraform.apply(plan)
    assert terraform.outputs()["cluster"]["private_subnet_domain_name"] == "there"
    _, plan = machine.plan()
    assert (plan.changes, plan.changes_outputs) == ((), False)


def test_what_an_apply_could_not_save_is_saved_by_the_next(machine: Machine) -> None:
    with serving() as double:
        machine.apply("http", http_config(double))
        terraform = machine.terraform("http", http_config(double))
        terraform.set_variables({"cluster_name": "demo", "reads": "/dev/null"})
        plan = terraform.plan()
        double.read_only = True
        with pytest.raises(TerraformError) as caught:
            terraform.apply(plan)
        assert "the state can't be read or written" in caught.value.what
        double.read_only = False
        assert "slow" not in str(double.objects)
        assert machine.apply("http", http_config(double), reads="/dev/null") == 0
        assert "slow" in str(double.objects)
        assert machine.apply("http", http_config(double), reads="/dev/null") == 0


def test_oci_is_refused_by_a_terraform_that_is_too_old_before_anything_is_made(machine: Machine) -> None:
    terraform = machine.terraform("oci", {"bucket": "states", "namespace": "space"})
    terraform.prepare()
    with pytest.raises(EnvironmentFault, match=r"terraform 1\.11\.4 has no backend oci.*1\.12 is the first") as caught:
        terraform.init()
    assert caught.value.exit_code == 5
    assert "backend: s3" in caught.value.hint
    assert not (machine.paths.terraform / "cluster" / ".terraform").exists()
