"""All providers of one Terraform are one process, which ends with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpucluster import process
from tests.waiting import wait_for

# What Terraform does: it starts providers, reads a line of each, asks some for their end, and ends.
TERRAFORM = """
import base64, json, subprocess, sys
import grpc
from tf.gen import grpc_controller_pb2, grpc_controller_pb2_grpc, tfplugin_pb2, tfplugin_pb2_grpc

def channel(line):
    _, _, _, path, _, certificate = line.strip().split("|")
    der = base64.b64decode(certificate + "=" * (-len(certificate) % 4))
    pem = "-----BEGIN CERTIFICATE-----\\n" + base64.encodebytes(der).decode() + "-----END CERTIFICATE-----\\n"
    name = (("grpc.ssl_target_name_override", "localhost"),)
    return grpc.secure_channel("unix:" + path, grpc.ssl_channel_credentials(pem.encode()), name)

command = [sys.executable, "-m", "gpucluster.localcloud.provider"]
providers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
lines = [each.stdout.readline() for each in providers]
with channel(lines[0]) as first:
    grpc_controller_pb2_grpc.GRPCControllerStub(first).Shutdown(grpc_controller_pb2.Empty())
with channel(lines[1]) as second:
    stub = tfplugin_pb2_grpc.ProviderStub(second)
    status = providers[0].wait()
    resources = len(stub.GetMetadata(tfplugin_pb2.GetMetadata.Request()).resources)
    schema = len(stub.GetProviderSchema(tfplugin_pb2.GetProviderSchema.Request()).resource_schemas)
told = {"lines": lines, "status": status, "resources": [resources, schema], "pids": [each.pid for each in providers]}
print(json.dumps(told), flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    """Its path is short, because there are sockets in it."""
    with tempfile.TemporaryDirectory(prefix="gpucluster-tf-") as path:
        yield Path(path)


@contextmanager
def _terraform(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "TF_PLUGIN_MAGIC_COOKIE": "x",
        "TMPDIR": str(folder),
        "GPUCLUSTER_CLUSTER": str(folder),
    }
    command = [sys.executable, "-c", TERRAFORM]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as terraform:
        yield terraform
        terraform.kill()


def _providers(folder: Path, terraform: subprocess.Popen[str]) -> set[int]:
    return {*process.pids_with_variable("GPUCLUSTER_CLUSTER", str(folder))} - {terraform.pid}


def test_one_process_answers_for_all_and_one_that_ends_disturbs_no_other(folder: Path) -> None:
    with _terraform(folder) as terraform:
        assert terraform.stdout is not None
        told = json.loads(terraform.stdout.readline())
        addresses = [line.split("|") for line in told["lines"]]
        assert len({address[3] for address in addresses}) == 3
        assert len({address[5] for address in addresses}) == 1, "the certificate of one process"
        assert told["status"] == 0
        assert told["resources"][0] == told["resources"][1] > 10
        (private,) = folder.iterdir()
        assert private.stat().st_mode & 0o777 == 0o700
        # The host and the two that Terraform has not ended. A killed Terraform ends none: they see it themselves.
        assert len(_providers(folder, terraform)) == 3
        terraform.send_signal(signal.SIGKILL)
        terraform.wait()
        wait_for("the providers have ended", lambda: not _providers(folder, terraform))
        assert list(folder.iterdir()) == []
