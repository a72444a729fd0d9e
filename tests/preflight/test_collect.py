"""Preflight with the real SDK and a local cloud that launches nothing: problems are found, and found fast.

Doubles replace only what the local cloud can't be: a wrong clock, a shape that is not offered and a proxy with its own
page come from a relay that changes responses.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import oci
import pytest
import yaml

from gpucluster import preflight
from gpucluster.cloud.client import CloudAccess, fingerprint
from gpucluster.cloud.providers.local import LocalCloudProvider
from gpucluster.errors import PreflightError
from gpucluster.events import Event, ignore
from gpucluster.paths import ClusterPaths
from gpucluster.preflight import Finding, collect, evaluate
from gpucluster.preflight.queries import client
from gpucluster.preflight.requirements import machines
from gpucluster.spec import ClusterSpec, loads, template
from tests.addresses import free_port
from tests.localcloud.api_harness import GPU_SHAPE, Api, running
from tests.localcloud.relay import Answer, relaying
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

CLUSTER_YML = """\
version: 1
name: look
cloud: {provider: local}
network:
  vcn_cidr: 10.95.0.0/16
  public_subnet_cidr: 10.95.0.0/24
  private_subnet_cidr: 10.95.1.0/24
  ssh_allowed_cidrs: [127.0.0.0/8]
controller: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 16}
pools:
  gpu: {shape: BM.GPU4.8, count: 2, max_count: 4}
"""
DOMAIN = "local:LOCAL-1-AD-1"


@dataclass
class Cloud:
    """The local cloud; `config` and `endpoint` override how it is reached."""

    real: LocalCloudProvider
    config: dict[str, str] = field(default_factory=dict)
    endpoint: str = ""
    hardware_emulated: bool = True

    def access(self) -> CloudAccess:
        access = self.real.access()
        return replace(access, config={**access.config, **self.config}, endpoint=self.endpoint or access.endpoint)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(Path(tmp_path_factory.mktemp("preflight"))) as api:
        yield api


@pytest.fixture(autouse=True)
def _here(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GPUCLUSTER_HOME", str(api.home))
    monkeypatch.setattr(client, "_PAUSES", (0.05, 0.05))
    yield
    api.faults()
    (api.home / "limits.json").unlink(missing_ok=True)


def _spec(folder: Path, *changes: tuple[str, str]) -> ClusterSpec:
    text = CLUSTER_YML
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    (folder / "cluster.yml").write_text(text)
    return loads(text, str(folder / "cluster.yml"))


def _cloud(spec: ClusterSpec, **changes: Any) -> Any:
    return Cloud(LocalCloudProvider(spec, ClusterPaths.of(spec.file), ignore), **changes)


def _findings(folder: Path, *changes: tuple[str, str], **cloud: Any) -> tuple[Finding, ...]:
    spec = _spec(folder, *changes)
    return preflight.examine(spec, _cloud(spec, **cloud)).findings


def _errors(found: tuple[Finding, ...]) -> list[str]:
    return [f"{one.check}: {one.reason}" for one in found if one.level == "error"]


def _one(found: tuple[Finding, ...], level: str, check: str) -> Finding:
    fitting = [one for one in found if (one.level, one.check) == (level, check)]
    assert len(fitting) == 1, "\n".join(map(str, found)) or "nothing was found"
    return fitting[0]


# --- a spec that can be created -----


def test_a_clean_run_finds_nothing_and_changes_nothing(api: Api, tmp_path: Path) -> None:
    log = api.home / "log" / "server.log"
    before = len(log.read_text())
    found = _findings(tmp_path)
    assert found == (), "\n".join(map(str, found))
    asked = re.findall(r" (GET|POST|PUT|DELETE|PATCH) '[^']*' (\w+) (\d+)", log.read_text()[before:])
    assert {operation for method, operation, _ in asked if method != "GET"} == {"CreateComputeCapacityReport"}
    assert {"GetCompartment", "ListShapes", "ListImages", "GetResourceAvailability"} <= {one[1] for one in asked}
    assert {status for _, _, status in asked} == {"200"}
    # It is quick because it asks for little.
    assert len(asked) < 60


def test_warnings_and_notes_are_announced(api: Api, tmp_path: Path) -> None:
    events: list[Event] = []
    spec = _spec(tmp_path, ("count: 2", 'image: {operating_system: Canonical Ubuntu, version: "24.04"}, count: 2'))
    api.faults({"hosts": 1, "shape": GPU_SHAPE})
    found = preflight.check(spec, _cloud(spec), {}, events.append)
    assert "hosts for 1 are free" in _one(found, "warning", "capacity").reason
    assert "contains Debian 13" in _one(found, "note", "image").reason
    assert "no RDMA stack" in _one(found, "warning", "image").reason
    assert [event.status for event in events] == ["warning", "warning", "info"]
    assert {event.name for event in events} == {"preflight"}


def test_an_image_that_is_not_what_its_name_states_is_noted(tmp_path: Path) -> None:
    images = {
        "{operating_system: Debian, version: '12'}": "",
        "{operating_system: Oracle Linux, version: '9'}": "contains Debian 12",
        "{listing: Oracle Linux - GPU Cluster Networking Image, login_user: opc}": "contains Debian 13",
    }
    for image, said in images.items():
        found = _findings(tmp_path, ("count: 2", f"image: {image}, count: 2"))
        notes = [one.reason for one in found if one.check == "image" and "stand-in" in one.reason]
        assert [said in note for note in notes] == ([True] if said else []), image


# --- credentials -----


def test_a_wrong_fingerprint(tmp_path: Path) -> None:
    found = _findings(tmp_path, config={"fingerprint": ":".join(["aa"] * 16)})
    assert "has the fingerprint aa:aa" in _one(found, "error", "credentials").reason


def test_a_key_that_was_not_uploaded(tmp_path: Path) -> None:
    key = tmp_path / "other.pem"
    made = subprocess.run(["openssl", "genrsa", "2048"], capture_output=True, check=True).stdout
    key.write_bytes(made)
    key.chmod(0o600)
    found = _findings(tmp_path, config={"fingerprint": fingerprint(made), "key_file": str(key)})
    assert "does not accept the signature" in _one(found, "error", "credentials").reason


@pytest.mark.parametrize(("text", "words"), [(None, "No such file"), ("nonsense", "not a private key")])
def test_a_key_file_that_is_none(text: str | None, words: str, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    if text:
        key.write_text(text)
        key.chmod(0o600)
    found = _findings(tmp_path, config={"key_file": str(key)})
    assert words in _one(found, "error", "credentials").reason


def test_no_server_is_told_at_once(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    (error,) = _findings(tmp_path, endpoint=nobody)
    assert error.level == "error"
    assert f"can't be reached ({nobody}): " in error.reason
    assert "Connection refused" in error.reason


def test_a_cloud_that_hangs_up_is_asked_once(tmp_path: Path) -> None:
    """The SDK's own attempts would take minutes."""
    met = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, peer = server.accept()
                    met.append(peer)
                    connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        (error,) = _findings(tmp_path, endpoint=f"http://127.0.0.1:{server.getsockname()[1]}")
        server.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)
    assert error.level == "error"
    assert len(met) == 1


@pytest.mark.parametrize(("seconds", "level"), [(-3600, "error"), (-90, "warning")])
def test_a_clock_that_is_off(api: Api, tmp_path: Path, seconds: int, level: str) -> None:
    """The relay sets the Date of the responses back, so the local clock seems to be ahead."""

    def earlier(path: str, answer: Answer) -> None:
        answer.headers["date"] = formatdate(time.time() + seconds, usegmt=True)

    with relaying(api.endpoint) as relay:
        relay.change = earlier
        began = time.time()
        found = _findings(tmp_path, endpoint=relay.endpoint)
        took = time.time() - began
    match = re.search(r"is (\d+) s ahead", _one(found, level, "clock").reason)
    assert match
    # It is known as exactly as the way of the answer is short.
    assert abs(int(match[1]) + seconds) <= 2 + took


def test_a_clock_so_far_off_that_nothing_is_believed(api: Api, tmp_path: Path) -> None:
    def refuse(path: str, answer: Answer) -> None:
        answer.status, answer.body = 401, b'{"code": "NotAuthenticated", "message": "no"}'
        answer.headers["date"] = formatdate(time.time() + 900, usegmt=True)

    with relaying(api.endpoint) as relay:
        relay.change = refuse
        (found,) = _findings(tmp_path, endpoint=relay.endpoint)
    assert found.check == "clock"


# --- region and compartment -----


def test_an_unknown_compartment(tmp_path: Path) -> None:
    ocid = "ocid1.compartment.local..aaaaaaaanowhere"
    found = _findings(tmp_path, ("{provider: local}", f"{{provider: local, compartment_id: {ocid}}}"))
    assert ocid in _one(found, "error", "compartment").reason


def test_an_unknown_domain(tmp_path: Path) -> None:
    found = _findings(tmp_path, ("{provider: local}", "{provider: local, availability_domain: AD-9}"))
    assert DOMAIN in _one(found, "error", "domains").action


INVENTORIES = Path(__file__).parents[2] / "inventories"


@pytest.mark.parametrize("file", [*sorted(INVENTORIES.glob("*/cluster.yml")), "init"], ids=lambda file: str(file)[-30:])
def test_the_images_of_our_own_files_exist_and_have_what_their_machines_need(file: Path | str, api: Api) -> None:
    data = yaml.safe_load(template("demo", "oci") if isinstance(file, str) else file.read_text())
    if isinstance(file, str):
        # The same machines in the local cloud: a file of `init` for OCI names a compartment and keys that are not here.
        del data["ssh"]
        data |= {"cloud": {"provider": "local"}, "users": {"people": [{"name": "alice", "generate_key": True}]}}
    spec = loads(yaml.safe_dump(data))
    said = [one for one in evaluate(spec, collect(spec, _cloud(spec))) if one.check == "image"]
    assert [one for one in said if one.level != "note"] == []
    stand_ins = [one.reason.partition(":")[0] for one in said if "is a stand-in here" in one.reason]
    assert stand_ins == [one.place for one in machines(spec) if one.image.operating_system != "Debian"]


# --- a failing cloud -----


def test_a_refused_read_is_a_warning_with_the_statement_that_helps(api: Api, tmp_path: Path) -> None:
    api.faults({"operation": "CreateComputeCapacityReport", "status": 404})
    found = _findings(tmp_path)
    assert _errors(found) == []
    assert "manage compute-capacity-reports in tenancy" in _one(found, "warning", "capacity").action


def test_a_token_that_ends_in_the_middle(api: Api, tmp_path: Path) -> None:
    api.faults({"operation": "ListVcns", "status": 401})
    found = _findings(tmp_path)
    assert "401 NotAuthenticated" in _one(found, "warning", "overlap").reason


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_cloud_is_asked_again(api: Api, tmp_path: Path, status: int) -> None:
    api.faults(
        {"operation": "List*", "status": status, "times": 2}, {"operation": "Get*", "status": status, "times": 1}
    )
    assert _errors(_findings(tmp_path)) == []


def test_a_cloud_that_is_down_is_one_error(api: Api, tmp_path: Path) -> None:
    api.faults({"operation": "*", "status": 503})
    (found,) = _findings(tmp_path)
    assert "answers no query: the cloud answered 503" in found.reason


def test_a_slow_answer_is_not_waited_for(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = CloudAccess.client

    def impatient(self: CloudAccess, service: str, name: str, *, timeout: float | None = None) -> Any:
        return given(self, service, name, timeout=0.5 if name == "VirtualNetworkClient" else timeout)

    monkeypatch.setattr(CloudAccess, "client", impatient)
    api.faults({"operation": "ListVcns", "delay": 3600})
    found = _findings(tmp_path)
    assert "Read timed out" in _one(found, "warning", "overlap").reason


@pytest.mark.parametrize("status", [200, 403])
def test_an_answer_that_is_not_the_clouds(api: Api, tmp_path: Path, status: int) -> None:
    """A proxy answers with its own page: no traceback."""

    def page(path: str, answer: Answer) -> None:
        answer.status, answer.body = status, b"<html>Log in first</html>"
        answer.headers["content-type"] = "text/html"

    with relaying(api.endpoint) as relay:
        relay.change = page
        found = _findings(tmp_path, endpoint=relay.endpoint)
    assert "something other than the cloud answered" in _one(found, "error", "credentials").reason


# --- an existing cluster -----


def test_what_stands_counts_in_its_favour(api: Api, tmp_path: Path) -> None:
    vcn = api.vcn("10.95.0.0/16", "standing")
    api.network.update_vcn(vcn.id, oci.core.models.UpdateVcnDetails(freeform_tags={"gpucluster": "look"}))
    subnet = api.subnet(vcn, "10.95.1.0/24")
    made = []
    try:
        for number in (1, 2):
            tags = {"gpucluster": "look", "pool": "gpu", "role": "compute"}
            more = {"shape": GPU_SHAPE, "shape_config": None, "freeform_tags": tags}
            made.append(api.launch(subnet, f"gpu-{number}", **more))
        api.faults({"hosts": 2, "shape": GPU_SHAPE})
        (api.home / "limits.json").write_text('{"limits": {"gpu4-count": 32, "vcn-count": 1}}')
        assert [one for one in _findings(tmp_path) if one.level != "note"] == []
        found = _findings(tmp_path, ("name: look", "name: other"))
        assert "2 of BM.GPU4.8 are to be launched" in _one(found, "warning", "capacity").reason
    finally:
        api.faults()
        for instance in made:
            api.compute.terminate_instance(instance.id)
        for instance in made:
            api.wait(api.compute.get_instance, instance.id, "TERMINATED")
        api.network.delete_subnet(subnet.id)
        api.network.delete_vcn(vcn.id)


# --- the command -----


def _command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpucluster", *words],
        cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_the_command_prints_findings_and_its_status_reports_whether_there_are_errors(api: Api, tmp_path: Path) -> None:
    _spec(tmp_path)
    done = _command(tmp_path, "preflight", "--output", "text")
    assert (done.returncode, done.stdout) == (0, "preflight: no obstacle was found\n"), done.stderr
    _spec(tmp_path, ("{provider: local}", "{provider: local, availability_domain: AD-9}"))
    done = _command(tmp_path, "preflight", "--output", "json")
    assert done.returncode == 2, done.stderr
    data = json.loads(done.stdout.splitlines()[-1])["data"]
    assert data["status"] == "failed"
    assert [(one["level"], one["check"]) for one in data["findings"]] == [("error", "domains")]


def test_an_error_stops_a_run(api: Api, tmp_path: Path) -> None:
    spec = _spec(tmp_path, ("{provider: local}", "{provider: local, availability_domain: AD-9}"))
    with pytest.raises(PreflightError, match="no availability domain AD-9") as caught:
        preflight.check(spec, _cloud(spec), {}, ignore)
    assert caught.value.exit_code == 2


def test_the_policies_are_printed(api: Api, tmp_path: Path) -> None:
    _spec(tmp_path)
    done = _command(tmp_path, "policies")
    assert done.returncode == 0, done.stderr
    assert "manage compute-capacity-reports in tenancy" in done.stdout
