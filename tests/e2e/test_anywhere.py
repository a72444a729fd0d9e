"""Four machines, one after the other, work on one cluster: each has cluster.yml, the wheel, credentials and the state's
backend, and its disk is lost afterwards. The third is killed in the middle of its destroy.

A machine is a process of its own name, processes and mounts, with an empty home; it shares the kernel and the network
with the test, through which it reaches the local cloud. The state is in the double of a server (state_doubles). Run by
hand with GPUCLUSTER_TEST_BACKEND=s3 for the other one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.addresses import free_range
from tests.e2e.site_harness import NET, NETWORK, PATIENCE_TO_BUILD_S
from tests.localcloud.api_harness import Api, running
from tests.terraform.state_doubles import StateDouble, serving
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * PATIENCE_TO_BUILD_S)]

ROOT = Path(__file__).resolve().parents[2]
BACKEND = os.environ.get("GPUCLUSTER_TEST_BACKEND", "http")
CLUSTER = """\
version: 1
name: anywhere
cloud: {provider: local}
NETWORK
ssh: {public_key_file: operator.pub}
controller: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8}
storage: {home: {enabled: true}}
pools:
  cpu: {shape: VM.Standard.E5.Flex, ocpus: 2, memory_gb: 8, count: 1}
users:
  people:
    - {name: alice, generate_key: true}
slurm: {enabled: false}
state: {backend: BACKEND, config: CONFIG}
"""
# What the machine does not have: the checkout, and Podman.
_ISOLATE = """
set -e
hostname machine-{name}
mount --bind {empty} {root}/gpucluster
mount --bind {empty} {root}/ansible
mount --bind {empty} {root}/terraform
mount --bind /dev/null "$(readlink -f "$(command -v podman)")"
exec "$@"
"""


@dataclass
class World:
    """What all machines share: the cloud, the state's server, the operator's agent, the wheel, and cluster.yml."""

    base: Path
    api: Api
    state: StateDouble
    agent: dict[str, str]
    wheel: Path

    def machine(self, name: str) -> Machine:
        """An empty machine."""
        folder = self.base / f"machine-{name}"
        (folder / "home").mkdir(parents=True)
        (folder / "work").mkdir()
        for file in ("cluster.yml", "operator.pub"):
            shutil.copy(self.base / file, folder / "work")
        credentials = folder / "cloud" / "credentials"
        credentials.mkdir(parents=True)
        shutil.copy(self.api.home / "endpoint.json", credentials.parent)
        shutil.copy(self.api.home / "credentials" / "api_key.pem", credentials)
        config = (self.api.home / "credentials" / "config").read_text()
        (credentials / "config").write_text(config.replace(str(self.api.home), str(credentials.parent)))
        return Machine(name, folder, self)


@dataclass
class Machine:
    """One machine. Leaving the block loses its disk."""

    name: str
    folder: Path
    world: World

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)

    def start(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        empty = self.world.base / "empty"
        script = _ISOLATE.format(name=self.name, empty=empty, root=ROOT)
        own = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(self.world.wheel),
            "GPUCLUSTER_HOME": str(self.folder / "cloud"),
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "no-secret",
            **self.world.agent,
        }
        return subprocess.Popen(
            [*own, "sh", "-c", script, "machine", *argv],
            cwd=self.folder / "work",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        """Run the command. Returns its exit code and its events; the last is the result or the error."""
        child = self.start([sys.executable, "-P", "-m", "gpucluster", "--output", "json", *words])
        printed, _ = child.communicate()
        assert "Traceback" not in printed, printed
        return child.returncode, [json.loads(line) for line in printed.splitlines() if line.startswith("{")]

    def good(self, *words: str) -> dict[str, Any]:
        code, events = self.run(*words)
        assert code == 0, json.dumps(events[-1])
        data: dict[str, Any] = events[-1]["data"]
        return data


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("anywhere")
    (base / "empty").mkdir()
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(base / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = (base / "dist").glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*install, str(base / "wheel"), str(built)], check=True, capture_output=True)
    key = base / "operator"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    said = subprocess.run(["ssh-agent", "-s"], check=True, capture_output=True, text=True).stdout
    agent = dict(re.findall(r"(SSH_\w+)=([^;]+);", said))
    try:
        subprocess.run(["ssh-add", "-q", str(key)], check=True, env={**os.environ, **agent})
        key.unlink()  # only the agent has it
        with (
            free_range() as net,
            running(base / "cloud", engine="podman") as api,
            serving(s3=BACKEND == "s3") as state,
        ):
            config: dict[str, Any]
            if BACKEND == "http":
                config = {"address": f"{state.url}/anywhere", "lock_address": f"{state.url}/anywhere"}
            else:
                config = {"bucket": "states", "endpoint": state.url, "use_lockfile": True, "region": "us-ashburn-1"}
            text = CLUSTER.replace("NETWORK\n", NETWORK.replace(NET, net))
            text = text.replace("BACKEND", BACKEND).replace("CONFIG", json.dumps(config))
            (base / "cluster.yml").write_text(text)
            yield World(base, api, state, agent, base / "wheel")
    finally:
        os.kill(int(agent["SSH_AGENT_PID"]), 15)


def test_one_cluster_and_four_machines(world: World) -> None:
    with world.machine("a") as a:
        built = a.good("apply")
        assert built["changes"] > 0
        public = (a.folder / "work" / ".gpucluster" / "ssh" / "alice_ed25519.pub").read_text()
        identity = a.good("output")["outputs"]["identity"]
        assert len(identity["host_keys"]) == 2
        assert "BEGIN CERTIFICATE" in identity["certificates"]["directory"]
        assert identity["secrets"] == {}  # there is no Slurm
        assert identity["origin"].endswith(f"@machine-a:{a.folder / 'work'}")

    with world.machine("b") as b:
        assert b.good("user", "list")["users"][0]["ssh_keys"] == [public.strip()]
        assert b.good("user", "add", "bob")["changed"]
        # A folder of its own beside it, which has the name and no state: it works on this cluster knowingly, or not.
        other = b.folder / "other"
        shutil.copytree(b.folder / "work", other, ignore=shutil.ignore_patterns(".gpucluster"))
        text = (other / "cluster.yml").read_text()
        (other / "cluster.yml").write_text(re.sub(r"(?m)^state: .*$", "", text))
        there = ("--file", str(other / "cluster.yml"))
        for words in (["destroy", "--delete-data"], ["user", "remove", "bob"], ["state", "recover"]):
            code, events = b.run(*words, *there)
            assert (code, events[-1]["data"]["cluster_id"]) == (2, identity["id"]), events[-1]
        assert b.good("user", "edit", "bob", "--full-name", "Bob", *there, "--cluster-id", identity["id"])["changed"]
        shutil.rmtree(b.folder / "work" / ".gpucluster")
        assert {host["name"] for host in b.good("status", "--timeout", str(PATIENCE_S))["hosts"]} == {
            "anywhere-controller",
            "cpu-1",
        }
        known = (b.folder / "work" / ".gpucluster" / "ssh" / "known_hosts").read_text()
        assert all(f"{ocid} {key}" in known for ocid, key in identity["host_keys"].items())
        shutil.rmtree(b.folder / "work" / ".gpucluster")
        checked = b.good("verify", "--junit", "verify.xml")
        assert set(checked["verdict"]["hosts"].values()) == {"pass"}, checked
        assert 'errors="0"' in (b.folder / "work" / "verify.xml").read_text()
        shutil.rmtree(b.folder / "work" / ".gpucluster")
        assert "anywhere-controller" in str(b.good("inventory"))
        said = b.start([sys.executable, "-P", "-m", "gpucluster", "ssh", "cpu-1", "--", "hostname; id bob"])
        printed, _ = said.communicate()
        assert printed.split()[0] == "cpu-1", printed
        assert "(bob)" in printed
        again = b.good("apply")
        assert (again["changes"], set(again["changed"].values())) == (0, {0}), again
        assert "another machine" in again["login"]["alice"]
        assert not (b.folder / "work" / ".gpucluster" / "ssh" / "alice_ed25519").exists()

    # The last step waits, so that the destroy does not end before the kill.
    world.api.faults({"operation": "DeleteVcn", "until_removed": True})
    with world.machine("c") as c:
        child = c.start([sys.executable, "-P", "-m", "gpucluster", "--output", "json", "destroy", "--delete-data"])
        assert child.stdout is not None
        assert any("deleted" in line for line in child.stdout), "nothing was removed"
        child.kill()  # the machine with all of its processes
        child.communicate()
    world.api.faults()

    with world.machine("d") as d:
        code, events = d.run("destroy", "--delete-data")
        assert code == 4, events[-3:]
        told = json.dumps(events[-1])
        assert "machine-c" in told
        unlock = re.search(r"remove its lock: gpucluster state unlock (\S+?)[\".\\]", told)
        assert unlock, told
        assert re.search(r"\(\d+ (s|min|min \d+ s) ago\)", told), told
        assert "machine-c" in d.good("state", "unlock", unlock[1])["run"]
        d.good("destroy", "--delete-data")
        assert not world.api.network.list_vcns(compartment_id=world.api.tenancy).data
        assert d.good("status", "--timeout", str(PATIENCE_S))["state"] == "absent"
        code, events = d.run("verify", "--junit", "verify.xml")
        assert (code, "gpucluster apply" in json.dumps(events[-1])) == (1, True), events[-1]
        assert 'errors="1"' in (d.folder / "work" / "verify.xml").read_text()
        state = next(iter(world.state.objects.values()))
        assert json.loads(state)["resources"] == []
