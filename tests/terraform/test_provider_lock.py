"""The kept lock of the provider: real Terraform, which takes the stand-in provider from a folder, as from a mirror.

What this does not prove: the registry, its signature, and the checksums of oracle/oci.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucluster.errors import InputError, TerraformError
from gpucluster.events import ignore
from gpucluster.localcloud.provider import installation
from gpucluster.paths import ClusterPaths
from gpucluster.terraform import provider_lock
from gpucluster.terraform.runner import Terraform

pytestmark = pytest.mark.slow

ROOT = 'terraform {\n  required_providers {\n    oci = { source = "oracle/oci" }\n  }\n}\n'


class Operator:
    """A machine that takes the provider from a folder of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.paths = ClusterPaths.of(folder / "cluster.yml")
        self.paths.create()
        self.lock = provider_lock.path_of(folder / "cluster.yml")
        self._plugins = folder / "plugins"
        shutil.copytree(Path(environment["TF_CLI_CONFIG_FILE"]).parent / "plugins", self._plugins)
        config = folder / "terraform.rc"
        config.write_text(installation.cli_config(self._plugins))
        self._environment = {"TF_CLI_CONFIG_FILE": str(config)}

    def init(self, *, own_provider: bool = False) -> Terraform:
        program = Path(shutil.which("terraform") or "")
        kept = None if own_provider else self.lock
        terraform = Terraform(self.paths, program, self._environment, ignore, kept_lock=kept)
        terraform.prepare()
        terraform.init()
        return terraform

    def forget(self) -> None:
        """As if `.gpucluster/` was never there."""
        shutil.rmtree(self.paths.terraform)
        self.paths.create()

    def change_the_provider(self) -> None:
        (program,) = self._plugins.rglob("terraform-provider-oci_*")
        program.write_text(program.read_text() + "# another program\n")


@pytest.fixture
def operator(tmp_path: Path, terraform_environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Operator:
    root = tmp_path / "root" / "cluster"
    root.mkdir(parents=True)
    (root / "versions.tf").write_text(ROOT)
    monkeypatch.setattr("gpucluster.terraform.runner.terraform_dir", lambda: tmp_path / "root")
    return Operator(tmp_path / "here", terraform_environment)


def test_a_kept_lock_holds_on_a_machine_that_knows_nothing_and_another_provider_is_refused(operator: Operator) -> None:
    terraform = operator.init()
    assert not operator.lock.exists(), "nothing is written beside cluster.yml unasked"
    assert terraform.keep_provider_lock()
    kept = operator.lock.read_text()
    assert f'version = "{installation.VERSION}"' in kept
    assert '"h1:' in kept
    assert operator.lock.stat().st_mode & 0o777 == 0o644
    operator.forget()
    assert not operator.init().keep_provider_lock()
    assert operator.lock.read_text() == kept

    operator.forget()
    operator.change_the_provider()
    with pytest.raises(TerraformError, match="checksum") as caught:
        operator.init()
    assert "lock-provider" in caught.value.hint
    assert "rm -r" not in caught.value.hint
    assert operator.lock.read_text() == kept
    # As the hint states.
    operator.lock.unlink()
    (operator.paths.terraform / "cluster" / provider_lock.WORKING).unlink()
    operator.init()


def test_a_lock_of_another_version_is_not_changed_by_a_run(operator: Operator) -> None:
    operator.init().keep_provider_lock()
    other = operator.lock.read_text().replace(installation.VERSION, "8.27.0")
    operator.lock.write_text(other)
    operator.forget()
    with pytest.raises(TerraformError, match=r"8\.27\.0"):
        operator.init()
    assert operator.lock.read_text() == other


def test_the_provider_of_the_local_cloud_is_never_locked(operator: Operator) -> None:
    operator.lock.write_text("no lock at all")
    terraform = operator.init(own_provider=True)
    with pytest.raises(InputError, match="part of gpucluster"):
        terraform.keep_provider_lock()
    assert operator.lock.read_text() == "no lock at all"


def test_before_the_first_run_there_is_nothing_to_keep(operator: Operator) -> None:
    terraform = Terraform(operator.paths, Path("terraform"), {}, ignore, kept_lock=operator.lock)
    with pytest.raises(InputError, match="no provider of this cluster on this machine yet") as caught:
        terraform.keep_provider_lock()
    assert caught.value.hint == "Run: gpucluster plan"
