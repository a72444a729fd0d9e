"""Sessions of CI jobs: the SDK and the local cloud's provider use them, and their tokens are renewed."""

from __future__ import annotations

import configparser
import gc
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpucluster import process
from gpucluster.cloud.client import CloudAccess
from gpucluster.cloud.credentials import OciProfile, jwt
from gpucluster.cloud.credentials import session as sessions
from gpucluster.cloud.credentials.session import ExchangedSession
from gpucluster.cloud.providers.local import LocalCloudProvider
from gpucluster.environment import Program, child
from gpucluster.errors import CloudError, EnvironmentFault, InputError
from gpucluster.localcloud.provider.rest import ApiCredentials, RestClient, ServiceError
from gpucluster.paths import ClusterPaths, cache_dir
from gpucluster.spec import loads
from gpucluster.spec.sections.cloud import Oidc
from gpucluster.terraform.program import find_program
from tests.doubles.ci_system import AUDIENCE, CLIENT, SECRET, CiSystem
from tests.localcloud.api_harness import Api

pytestmark = pytest.mark.slow


class Clock:
    """Moves the session's clock; tokens are made with the real one."""

    def __init__(self) -> None:
        import time

        self.ahead, self._now = 0.0, time.time

    def __call__(self) -> float:
        return self._now() + self.ahead


@pytest.fixture
def clock(ci: CiSystem, api: Api) -> Clock:
    ci.trusted_by(api.home)
    return Clock()


def session(api: Api, environ: Mapping[str, str], clock: Clock) -> ExchangedSession:
    return ExchangedSession(Oidc(domain_url=api.endpoint, client_id=CLIENT, audience=AUDIENCE), environ, clock)


def in_github(ci: CiSystem) -> dict[str, str]:
    return {**ci.of_github(), "GPUCLUSTER_OIDC_CLIENT_SECRET": SECRET}


def test_the_sdk_signs_with_the_session(api: Api, ci: CiSystem, clock: Clock) -> None:
    begun = session(api, in_github(ci), clock)
    access = CloudAccess(begun.sdk_config("local-1"), api.endpoint, api.tenancy, signer=begun.signer)
    compute = access.client("core", "ComputeClient")
    assert compute.list_instances(api.tenancy).data == []
    assert access.config == {"tenancy": api.tenancy, "region": "local-1"}


def test_terraform_gets_the_session_as_files_for_their_owner(api: Api, ci: CiSystem, clock: Clock) -> None:
    begun = session(api, in_github(ci), clock)
    env = begun.terraform_env("local-1")
    home = Path(env["TF_HOME_OVERRIDE"])
    assert env == {
        "TF_HOME_OVERRIDE": str(home), "OCI_HOME_OVERRIDE": str(home), "OCI_AUTH": "SecurityToken",
        "OCI_CONFIG_FILE_PROFILE": "gpucluster", "OCI_REGION": "local-1",
    }  # fmt: skip
    assert begun.state_env() == {name: str(home) for name in ("TF_HOME_OVERRIDE", "OCI_HOME_OVERRIDE")}
    files = sorted(home.rglob("*"))
    assert [file.name for file in files] == [".oci", "config", "key.pem", "token"]
    assert [stat.S_IMODE(file.stat().st_mode) for file in (home, *files)] == [0o700, 0o700, 0o600, 0o600, 0o600]
    parser = configparser.ConfigParser()
    parser.read(home / ".oci" / "config")
    profile = parser["gpucluster"]
    credentials = ApiCredentials(
        profile["tenancy"], "", profile["fingerprint"], Path(profile["key_file"]), Path(profile["security_token_file"])
    )
    rest = RestClient(api.endpoint, credentials)
    assert list(rest.items("/20160918/instances", {"compartmentId": api.tenancy})) == []
    (home / ".oci" / "token").write_text("forged")
    with pytest.raises(ServiceError, match="NotAuthenticated"):
        list(rest.items("/20160918/instances", {"compartmentId": api.tenancy}))


def test_the_folder_goes_with_the_session(api: Api, ci: CiSystem, clock: Clock) -> None:
    begun = session(api, in_github(ci), clock)
    home = Path(begun.terraform_env("local-1")["TF_HOME_OVERRIDE"])
    assert home.is_dir()
    del begun
    gc.collect()
    assert not home.exists()


def test_a_token_is_renewed_when_half_of_its_life_is_over(api: Api, ci: CiSystem, clock: Clock) -> None:
    begun = session(api, in_github(ci), clock)
    before = ci.asked
    first = begun.token()
    file = Path(begun.terraform_env("local-1")["TF_HOME_OVERRIDE"]) / ".oci" / "token"
    assert (begun.token(), file.read_text(), ci.asked - before) == (first, first, 1)
    since, until = jwt.times(jwt.claims(first)) or (0.0, 0.0)
    latest = (since + until) / 2 - clock()
    assert (until - since, latest >= begun.due_in() >= (since + until) / 2 - clock()) == (3600, True)
    clock.ahead = 1900
    begun.renew()
    assert ci.asked - before == 2
    assert file.read_text() != first
    assert CloudAccess(
        begun.sdk_config("local-1"), api.endpoint, api.tenancy, signer=begun.signer
    ).client("core", "ComputeClient").list_instances(api.tenancy).data == []  # fmt: skip


def test_a_renewal_that_fails_is_told_when_the_token_has_ended(api: Api, ci: CiSystem, clock: Clock) -> None:
    begun = session(api, in_github(ci), clock)
    first = begun.token()
    ci.trusted_by(api.home, active=False)
    clock.ahead = 1900
    assert begun.token() == first
    assert begun.renew() == sessions._AGAIN
    clock.ahead = 3700
    with pytest.raises(CloudError, match="no active trust"):
        begun.token()


def test_nothing_is_asked_before_it_is_needed(api: Api, ci: CiSystem, clock: Clock) -> None:
    before = ci.asked
    session(api, {}, clock)
    assert ci.asked == before
    with pytest.raises(EnvironmentFault, match="GPUCLUSTER_OIDC_CLIENT_SECRET"):
        session(api, ci.of_github(), clock).token()


CI = """
version: 1
name: demo
cloud: {{provider: local, auth: oidc, oidc: {{domain_url: "{domain}", client_id: {client}, audience: {audience}}}}}
network:
  vcn_cidr: 10.93.0.0/16
  public_subnet_cidr: 10.93.0.0/24
  private_subnet_cidr: 10.93.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
pools: {{compute: {{shape: BM.GPU4.8, count: 1}}}}
"""


def test_terraform_creates_what_a_job_may_create(
    api: Api, ci: CiSystem, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**in_github(ci), "GPUCLUSTER_HOME": str(api.home)}.items():
        monkeypatch.setenv(name, value)
    spec = loads(CI.format(domain=api.endpoint, client=CLIENT, audience=AUDIENCE))
    paths = ClusterPaths(tmp_path / ".gpucluster")
    paths.create()
    job = LocalCloudProvider(spec, paths, lambda _event: None)
    (tmp_path / "main.tf").write_text(
        'terraform {\n  required_providers {\n    oci = { source = "oracle/oci" }\n  }\n}\n'
        'resource "oci_core_vcn" "plain" {\n'
        f'  compartment_id = "{job.tenancy_id}"\n  cidr_blocks = ["10.92.0.0/16"]\n  display_name = "by a job"\n}}\n'
    )
    terraform = find_program(cache_dir())
    registry = "opentofu.org" if terraform.name == "tofu" else "terraform.io"
    added = job.terraform_env(f"registry.{registry}/oracle/oci")
    assert (added["OCI_AUTH"], job.access().signer is not None) == ("SecurityToken", True)
    env = {**child(os.environ, Program.TERRAFORM, home=str(tmp_path)), **added}
    assert not [name for name, value in env.items() if SECRET in value or "ID_TOKEN" in name]

    def run(*command: str) -> str:
        done = process.run([str(terraform), *command, "-input=false", "-no-color"], cwd=tmp_path, env=env, check=False)
        return str(done.stdout + done.stderr)

    assert "successfully initialized" in run("init")
    assert "1 added" in run("apply", "-auto-approve")
    [vcn] = api.network.list_vcns(api.tenancy, display_name="by a job").data
    assert vcn.cidr_blocks == ["10.92.0.0/16"]
    (Path(added["TF_HOME_OVERRIDE"]) / ".oci" / "token").write_text("forged")
    assert "401" in run("apply", "-destroy", "-auto-approve")


def test_a_profile_may_be_a_session(api: Api, ci: CiSystem, clock: Clock, tmp_path: Path) -> None:
    begun = session(api, in_github(ci), clock)
    home = Path(begun.terraform_env("local-1")["TF_HOME_OVERRIDE"])
    file = tmp_path / "config"
    file.write_text((home / ".oci" / "config").read_text() + "region=local-1\n")
    profile = OciProfile.read(file, "gpucluster")
    assert (profile.user, profile.tenancy) == ("", api.tenancy)
    access = CloudAccess(profile.sdk_config("local-1"), api.endpoint, api.tenancy, signer=profile.signer)
    assert access.client("core", "ComputeClient").list_instances(api.tenancy).data == []
    env = profile.terraform_env("local-1")
    assert (env["OCI_AUTH"], env["OCI_REGION"]) == ("SecurityToken", "local-1")
    assert f"security_token_file={home}" in (Path(env["TF_HOME_OVERRIDE"]) / ".oci" / "config").read_text()
    (home / ".oci" / "token").unlink()
    with pytest.raises(InputError, match="oci session authenticate"):
        OciProfile.read(file, "gpucluster").signer()
