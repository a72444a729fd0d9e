"""`gpucluster status` and a real local cloud without instances: what it finds by tag, and a cloud that hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from gpucluster.localcloud import control
from tests.localcloud.api_harness import Api
from tests.spec.spec_texts import LOCAL
from tests.stopping import stop
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    made = Api(tmp_path / "cloud")
    yield made
    control.stop(made.home)


def _status(folder: Path, *words: str) -> dict[str, Any]:
    (folder / "cluster.yml").write_text(LOCAL)
    argv = [sys.executable, "-m", "gpucluster", "-o", "json", "status", *words]
    env = {**os.environ, "GPUCLUSTER_HOME": str(folder / "cloud")}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True)
    data: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["data"]
    return data


def test_what_has_the_tag_is_there_though_no_folder_and_no_state_know_it(api: Api, tmp_path: Path) -> None:
    patient = ("--timeout", str(PATIENCE_S))
    assert _status(tmp_path, *patient)["state"] == "absent"
    details = oci.core.models.CreateVcnDetails(
        compartment_id=api.tenancy, cidr_blocks=["10.66.0.0/16"], freeform_tags={"gpucluster": "demo"}, display_name="d"
    )
    api.network.create_vcn(details)
    found = _status(tmp_path, *patient)
    assert (found["state"], found["resources"]) == ("partial", {"vcn": 1})
    assert found["pending"] == ["in the cloud, but not in Terraform's state: vcn d"]


def test_a_cloud_that_hangs_is_given_up(api: Api, tmp_path: Path) -> None:
    pid = control.status(api.home).pid
    assert pid is not None
    stop(pid)
    try:
        found = _status(tmp_path, "--timeout", "0.5")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (found["state"], found["resources"]) == ("unknown", None)
    assert found["sources"]["cloud"]["error"] == "no answer in time"
