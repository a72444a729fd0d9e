"""`gpucluster migrate orm` and `export orm` as commands: what they write, print and refuse, and how they end."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpucluster.cli import cli
from tests.resource_manager.stacks import FORK, REQUIRED, stack
from tests.spec.test_other_files import FILES


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    values = stack("3.1.0", slurm=True, mysql_admin_password="Hidden-1.now", create_bucket=True, newer_one="x")
    (tmp_path / "variables.json").write_text(json.dumps({"data": {"variables": values}}))
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_it_writes_a_file_that_validates_and_accounts_for_the_variables(folder: Path) -> None:
    done = run("migrate", "orm", "variables.json")
    assert done.exit_code == 0, done.output
    assert "DECIDE" in (folder / "cluster.yml").read_text()
    assert "  node_count -> pools.compute.count\n" in done.output
    assert "create_bucket = true: No bucket is created or mounted." in done.output
    assert "unknown (1)" in done.output
    assert "  newer_one\n" in done.output
    assert "mysql_admin_password: No MySQL service" in done.output
    assert "Next: gpucluster preflight" in done.output
    assert "Hidden" not in done.output + (folder / "cluster.yml").read_text()
    assert run("validate").exit_code == 0


def test_it_overwrites_nothing_without_force(folder: Path) -> None:
    (folder / "cluster.yml").write_text("mine")
    done = run("migrate", "orm", "variables.json")
    assert (done.exit_code, (folder / "cluster.yml").read_text()) == (2, "mine")
    assert "--force" in done.output
    assert run("migrate", "orm", "variables.json", "--force").exit_code == 0
    assert "version: 1" in (folder / "cluster.yml").read_text()


def test_what_is_left_to_decide_can_be_an_exit_code(folder: Path) -> None:
    assert run("migrate", "orm", "variables.json", "a.yml", "--detailed-exitcode").exit_code == 3
    settled = [
        "--set", "name=vision", "--set", "network.ssh_allowed_cidrs=[198.51.100.0/24]", "--set", "storage.home={}",
        "--set", "users.privilege_group=privilege",
    ]  # fmt: skip
    done = run("migrate", "orm", "variables.json", "b.yml", "--detailed-exitcode", *settled)
    assert done.exit_code == 0, done.output
    assert "DECIDE:" not in (folder / "b.yml").read_text()
    assert "Next: gpucluster --file b.yml preflight" in done.output


def test_programs_read_the_account_as_json(folder: Path) -> None:
    done = run("-o", "json", "migrate", "orm", "variables.json")
    result = json.loads(done.output.splitlines()[-1])["data"]
    assert result["file"] == "cluster.yml"
    assert result["taken"]["node_count"] == ["pools.compute.count"]
    assert result["unknown"] == ["newer_one"]
    assert {each["key"] for each in result["decisions"]} >= {"name", "network.ssh_allowed_cidrs"}


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["nowhere.json"], "there is no such file (nowhere.json)"),
        (["variables.json", "no-folder/cluster.yml"], "there is no such folder"),
        (["variables.json", "."], "gpucluster migrate orm VARIABLES cluster.yml"),
        (["variables.json", "--set", "name"], "not KEY=VALUE"),
        (["variables.json", "--set", "pools..count=1"], "not KEY=VALUE"),
        (["variables.json", "--set", "pools.compute.shape=BM.GPU.GB200.4"], "nothing was written"),
        (["variables.json", "--set", "nonsense=1"], "nonsense"),
    ],
)
def test_wrong_use_ends_with_2_and_writes_nothing(folder: Path, words: list[str], printed: str) -> None:
    done = run("migrate", "orm", *words)
    assert done.exit_code == 2, done.output
    assert printed in done.output
    assert "Traceback" not in done.output
    assert [each.name for each in folder.iterdir()] == ["variables.json"]


def test_bytes_that_are_no_text_are_refused(folder: Path) -> None:
    (folder / "variables.json").write_bytes(b"\xff\xfe{")
    done = run("migrate", "orm", "variables.json")
    assert (done.exit_code, "not UTF-8" in done.output) == (2, True)


def test_a_terraform_tfvars_is_read(folder: Path) -> None:
    (folder / "terraform.tfvars").write_text(FORK)
    done = run("migrate", "orm", "terraform.tfvars")
    assert done.exit_code == 0, done.output
    assert "ood_user_password" in done.output
    assert REQUIRED["region"] in (folder / "cluster.yml").read_text()


@pytest.mark.parametrize("command", [["validate"], ["plan"], ["apply"]], ids=lambda command: command[0])
@pytest.mark.parametrize("name", ["ParallelCluster", "Cluster Toolkit", "Magic Castle", "oci-hpc"])
def test_a_file_of_another_tool_is_recognised_by_every_command(folder: Path, command: list[str], name: str) -> None:
    text, words, hint = FILES[name]
    (folder / "theirs").write_text(text)
    done = run("-f", "theirs", *command)
    assert done.exit_code == 2
    assert words in done.output
    assert hint in done.output


@pytest.mark.parametrize("name", ["ParallelCluster", "ParallelCluster 2", "Cluster Toolkit", "Magic Castle"])
def test_migrate_recognises_them_as_well(folder: Path, name: str) -> None:
    text, words, hint = FILES[name]
    (folder / "theirs").write_text(text)
    done = run("migrate", "orm", "theirs")
    assert done.exit_code == 2
    assert words in done.output
    assert hint in done.output


def test_export_writes_a_zip_and_overwrites_nothing_without_force(folder: Path) -> None:
    done = run("export", "orm")
    assert done.exit_code == 0, done.output
    assert "Next: create a stack from it in Resource Manager" in done.output
    file = folder / "gpucluster-stack.zip"
    assert "schema.yaml" in zipfile.ZipFile(file).namelist()
    file.write_bytes(b"mine")
    again = run("export", "orm")
    assert (again.exit_code, file.read_bytes(), "--force" in again.output) == (2, b"mine", True)
    assert run("export", "orm", "--force").exit_code == 0
    assert zipfile.is_zipfile(file)


def test_export_names_the_fields_as_json(folder: Path) -> None:
    done = run("export", "orm", "form.zip", "-o", "json")
    result = json.loads(done.output.splitlines()[-1])["data"]
    assert result["file"] == "form.zip"
    assert "pool_1_shape" in result["fields"]


@pytest.mark.parametrize(
    ("path", "printed"),
    [("nowhere/a.zip", "there is no such folder"), (".", "gpucluster export orm gpucluster-stack.zip")],
)
def test_export_refuses_a_place_that_it_can_not_write(folder: Path, path: str, printed: str) -> None:
    done = run("export", "orm", path)
    assert (done.exit_code, printed in done.output) == (2, True), done.output
