"""`gpucluster local env`: OCI's own tools in a shell that has evaluated it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpucluster.cli import cli
from gpucluster.cloud.credentials import OciProfile
from gpucluster.cloud.providers.shell import shell_text, shell_variables, without_shell_environment
from tests.localcloud.api_harness import Api, running

PROFILE = OciProfile("ocid1.tenancy.x", "ocid1.user.x", "aa:bb", "/keys/it's.pem", "local-1")
REPOSITORY = Path(__file__).parents[2]
# What an operator may have exported for work in a real tenancy.
CONTRARY = {
    "OCI_CLI_AUTH": "security_token", "OCI_CLI_PROFILE": "PROD", "OCI_CLI_USER": "ocid1.user.oc1..prod",
    "OCI_CLI_ENDPOINT": "https://iaas.example", "OCI_CLI_REGION": "eu-frankfurt-1",
    "OCI_CLI_KEY_CONTENT": "prod", "OCI_CONFIG_FILE": "/prod/config", "OCI_AUTH": "InstancePrincipal",
    "OCI_REGION": "eu-frankfurt-1", "TF_VAR_region": "eu-frankfurt-1", "TF_VAR_tenancy_ocid": "ocid1.tenancy.oc1..prod",
    "OCI_PRIVATE_KEY": "prod", "HTTP_PROXY": "http://proxy.invalid:3128", "NO_PROXY": "intranet",
}  # fmt: skip


def made(**caller: str) -> dict[str, str | None]:
    return shell_variables(Path("/home/config"), PROFILE, "http://127.0.0.1:7", caller, None)


def test_nothing_of_a_real_tenancy_stays_in_the_shell() -> None:
    variables = made()
    for name, theirs in CONTRARY.items():
        if "PROXY" not in name:
            assert name in variables, f"{name} would stay"
            assert variables[name] != theirs


def test_the_proxy_is_not_asked_for_this_machine() -> None:
    assert "NO_PROXY" not in made()
    assert made(https_proxy="http://p", NO_PROXY="intranet")["NO_PROXY"] == "intranet,localhost,127.0.0.1,::1"


def evaluated(text: str, names: list[str], env: dict[str, str]) -> dict[str, str]:
    """The variables with these names after a shell has evaluated the text."""
    show = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    done = subprocess.run(
        ["sh", "-c", f'eval "$TEXT"; unset TEXT; {show}'],
        env={"PATH": os.environ["PATH"], "TEXT": text, **env}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {name: value for name, value in json.loads(done.stdout).items() if name in names}


def test_a_shell_gets_exactly_these_and_loses_them_again() -> None:
    variables = {**made(), "TF_CLI_CONFIG_FILE": "/a b/$HOME/`id`"}
    names = [*variables, *CONTRARY]
    wanted = {name: value for name, value in variables.items() if value is not None}
    assert evaluated(shell_text(variables), list(variables), CONTRARY) == wanted
    both = f"{shell_text(variables)}\n{shell_text(without_shell_environment())}"
    assert evaluated(both, names, {}) == {}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(tmp_path_factory.mktemp("cloud") / "a home") as started:
        yield started


def in_the_shell(api: Api, command: str, cwd: Path, options: str = "") -> str:
    """The output of a command in a shell of an operator who has other things exported."""
    script = f'eval "$({sys.executable} -m gpucluster local env {options})" && {command}'
    env = {**os.environ, **CONTRARY, "GPUCLUSTER_HOME": str(api.home), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(["sh", "-c", script], env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_the_sdk_works_in_the_shell_and_never_calls_oracle(api: Api, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import oci, os\n"
        "config = oci.config.from_file(os.environ['OCI_CONFIG_FILE'])\n"
        "there = oci.identity.IdentityClient(config, service_endpoint=os.environ['OCI_CLI_ENDPOINT'])\n"
        "print(there.get_tenancy(os.environ['OCI_TENANCY']).data.id)\n"
        "print(oci.core.ComputeClient(config).base_client.endpoint)\n"
    )
    tenancy, forgotten = in_the_shell(api, f"{sys.executable} program.py", tmp_path).split()
    assert tenancy == api.tenancy
    assert re.fullmatch(r"https://iaas\.local-1\.({.*})?invalid/20160918", forgotten), "a client without the endpoint"


@pytest.mark.slow
def test_plain_terraform_works_in_the_shell(api: Api, tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(
        'terraform {\n  required_providers {\n    oci = { source = "oracle/oci" }\n  }\n}\n'
        'variable "compartment" {}\n'
        'resource "oci_core_vcn" "plain" {\n  compartment_id = var.compartment\n  cidr_blocks = ["10.92.0.0/16"]\n'
        '  display_name = "plain"\n}\n'
    )
    command = (
        'terraform init -input=false && terraform apply -auto-approve -input=false -var "compartment=$OCI_TENANCY"'
    )
    in_the_shell(api, command, tmp_path, "--provider bundled")
    [vcn] = api.network.list_vcns(api.tenancy, display_name="plain").data
    assert vcn.cidr_blocks == ["10.92.0.0/16"]


def test_without_a_local_cloud_it_reports_how_to_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCLUSTER_HOME", str(tmp_path))
    result = CliRunner().invoke(cli, ["local", "env"])
    assert (result.exit_code, result.stdout) == (5, "")
    assert "gpucluster local start" in result.stderr
    assert list(tmp_path.iterdir()) == []
