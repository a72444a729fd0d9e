"""States in which the folder of a cluster can be, and a walk through all commands in one of them, in this process.

The programs are the real ones, but podman is not found, so that no local cloud starts. What the walk does not prove:
that a command succeeds where hosts answer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gpucluster import errors
from gpucluster.cli import cli
from tests.cli.test_other_cluster import CHANGES, ID, READS, cluster_text
from tests.event_lines import PASSES_ON, require_valid

#: The words of the commands that `test_other_cluster` has none for.
OTHERS: Mapping[str, tuple[str, ...]] = {
    "autoscaler simulate": ("no-such-trace",),
    "export orm": ("new.zip",),
    "init": ("new.yml",),
    "job judge": ("mpi_allreduce", "no-such-file"),
    "job render": ("mpi_allreduce", "--pool", "cpu"),
    "job show": ("mpi_allreduce",),
    "job templates": (),
    "kubernetes images": (),
    "kubernetes queues": (),
    "kubernetes values": (),
    "list": (),
    "local env": (),
    "local start": (),
    "local status": (),
    "local stop": (),
    "logs": (),
    "migrate orm": ("no-such-variables.json",),
    "runs": (),
    "schema": ("events",),
    "software fetch": ("mirror",),
    "software list": (),
    "software lock": (),
    "validate": (),
}
WORDS = {**CHANGES, **READS, **OTHERS}
#: An address of this machine on which no ssh server listens for us: each connection ends at once.
ADDRESS = "127.0.0.77"
PROGRAMS = ("ssh", "scp", "ssh-keygen", "ssh-add", "ip", "git", "sh")
# Almost each command asks for the version, which costs more than all the rest of it.
_TERRAFORM = """#!/bin/sh
case "$1" in
  version) echo '{{"terraform_version": "1.9.8"}}' ;;
  *) exec {program} "$@" ;;
esac
"""
RUN = "20261126T100000-abcdef"
_STATUSES = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
#: They end with the status of what they run on a host.
_PASS_ON = {"ssh", "cp", "kubectl"}
#: Words of Python, Ansible or Terraform that mean nothing to users, and our own for a bug.
_INTERNAL = re.compile(
    r"is undefined|bug in gpucluster|Traceback|NoneType|\b[A-Z]\w+Error: |Errno|<class|has no attribute|object is not"
    r"|codec can't|Expecting (value|property)|Extra data|Task failed|Finalization|\bPosixPath"
)


def state_of_a_cluster(version: int = 4, contract: int = 1, *, complete: bool = True) -> str:
    """Terraform's state of a cluster; without outputs as a killed first apply leaves it."""

    def pool(shape: str, *instances: dict[str, str]) -> dict[str, Any]:
        unused = ("baked_image_id", "instance_configuration_id", "compute_cluster_id", "cluster_network_id")
        named = {"availability_domain": "AD-1", "kind": "instances", "shape": shape, "image_id": "ocid1.image.local..i"}
        return {**named, **dict.fromkeys(unused), "instances": list(instances)}

    node = {"id": "ocid1.instance.local..n", "name": "compute-1", "private_ip": "127.0.0.79"}
    cluster = {
        "contract_version": contract,
        "name": "demo",
        "region": "local-1",
        "compartment_id": "ocid1.tenancy.local..x",
        "availability_domain": "AD-1",
        "controller": {"id": "ocid1.instance.local..c", "name": "demo-controller", "private_ip": ADDRESS,
                       "public_ip": ADDRESS},
        "home": {"file_system_id": "ocid1.filesystem.local..h", "mount_target_ip": "127.0.0.78", "export_path": "/h"},
        "pools": {"compute": pool("BM.GPU4.8", {**node, "public_ip": ""}), "cpu": pool("VM.Standard.E5.Flex")},
    }  # fmt: skip
    identity = {"contract_version": contract, "compartment_id": "ocid1.tenancy.local..x", "name": "demo", "id": ID}
    values = {"cluster": cluster, "identity": identity} if complete else {}
    outputs = {name: {"value": value, "type": _type(value)} for name, value in values.items()}
    tags = {"gpucluster": "demo", "gpucluster-id": ID}
    vcn = {"mode": "managed", "type": "oci_core_vcn", "name": "this",
           "instances": [{"attributes": {"id": "ocid1.vcn.local..v", "freeform_tags": tags}}]}  # fmt: skip
    state = {"version": version, "terraform_version": "1.9.0", "serial": 1, "lineage": "x", "outputs": outputs}
    return json.dumps({**state, "resources": [vcn]})


def _type(value: Any) -> Any:
    """The type of a value as Terraform's state has it."""
    if isinstance(value, Mapping):
        return ["object", {name: _type(each) for name, each in value.items()}]
    if isinstance(value, list):
        return ["tuple", [_type(each) for each in value]]
    return "number" if isinstance(value, int) else "string"


def _applied(folder: Path) -> Path:
    """What an apply leaves that was killed while it configured the hosts. Returns `.gpucluster`."""
    root = folder / ".gpucluster"
    record = {"run": RUN, "command": "apply", "host": "build-3", "pid": 1, "started": "2026-11-26T10:00:00+00:00",
              "status": "running", "phase": "ansible"}  # fmt: skip
    host = {"name": "demo-controller", "address": ADDRESS, "booted": None}
    location = {
        "backend": "local",
        "config": {"path": str(root / "terraform.tfstate")},
        "secret_address": "",
        "left": {},
    }
    files = {
        "terraform.tfstate": state_of_a_cluster(),
        "backend.json": json.dumps(location),
        "hosts.json": json.dumps({"hosts": [host]}),
        "identity.json": json.dumps({"name": "demo", "id": ID, "origin": "ada@build-3:/srv/demo"}),
        "compartment": "ocid1.tenancy.local..x\n",
        "lock.json": json.dumps({"pid": 1, "host": "build-3", "command": "apply", "since": 1.0}),
        "provider": "bundled\n",
        "bastion.json": "{}",
        "ssh/config": f"Host demo-controller\n  HostName {ADDRESS}\n  ConnectTimeout 2\n",
        "ssh/known_hosts": "ocid1.instance.local..c ssh-ed25519 AAAA\n",
        "ssh/alice_ed25519": "PRIVATE\n",
        "ssh/alice_ed25519.pub": "ssh-ed25519 AAAA alice@demo\n",
        "ansible/inventory.yml": "all: {hosts: {demo-controller: {}}}\n",
        "terraform/cluster/terraform.tfvars.json": "{}\n",
        "terraform/cluster/.terraform.lock.hcl": "# empty\n",
        f"runs/{RUN}.json": json.dumps(record),
        f"runs/{RUN}/evidence.json": json.dumps({"run": RUN, "level": "quick", "results": [], "facts": {}}),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def _without(*names: str, **texts: str) -> Callable[[Path], None]:
    """The same without these files, and with other texts in some."""

    def write(folder: Path) -> None:
        root = _applied(folder)
        for name in names:
            shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
        for name, text in texts.items():
            (root / name.replace("_", ".")).write_text(text)

    return write


def _damaged(damage: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for file in _applied(folder).rglob("*"):
            if file.is_file():
                file.write_bytes(damage(file.read_bytes()))

    return write


_OTHER_FORM = (
    b'{"version": 4, "outputs": [], "resources": 7, "hosts": 3, "phases": 3, "run": [1], "results": 3, "left": 1, '
    b'"config": 1, "backend": 2, "secret_address": 3, "pid": "x"}'
)
STATES: Mapping[str, Callable[[Path], None]] = {
    "a fresh clone": lambda _folder: None,
    "a killed apply": lambda folder: (_applied(folder), None)[1],
    "killed before there were hosts": _without(
        "hosts.json", "ssh", "ansible", terraform_tfstate=state_of_a_cluster(complete=False)
    ),
    "hosts without a state": _without("terraform.tfstate", "backend.json", "identity.json"),
    "destroyed": _without(
        "terraform.tfstate", "backend.json", "hosts.json", "identity.json", "compartment", "terraform", "ssh"
    ),
    "a state of a newer Terraform": _without("hosts.json", terraform_tfstate=state_of_a_cluster(version=5)),
    "a state of a newer gpucluster": _without("hosts.json", terraform_tfstate=state_of_a_cluster(contract=2)),
    "binary files": _damaged(lambda _whole: bytes(range(256))),
    "half of each file": _damaged(lambda whole: whole[: len(whole) // 2]),
    "files of another form": _damaged(lambda _whole: _OTHER_FORM),
    "a file in the place of the folder": lambda folder: ((folder / ".gpucluster").write_text("x"), None)[1],
}


@dataclass(frozen=True)
class Outcome:
    """How a command has ended: its status, what it printed, and an exception that it did not handle, as text."""

    command: str
    status: int
    output: str
    result: Mapping[str, Any] | None
    exception: str


def judge(outcomes: Iterable[Outcome]) -> list[str]:
    """What is wrong with how commands have ended."""
    return [f"{each.command}: {fault}: {each.output[-600:]}" for each in outcomes for fault in _faults(each)]


def _faults(outcome: Outcome) -> list[str]:
    faults = []
    if outcome.exception:
        faults.append(f"it raises {outcome.exception}")
    if outcome.status not in _STATUSES and outcome.command not in _PASS_ON:
        faults.append(f"it ends with {outcome.status}, which is not documented")
    if found := _INTERNAL.search(outcome.output):
        faults.append(f"it prints {found[0]!r}")
    if outcome.command.partition(" ")[0] not in PASSES_ON:
        try:
            require_valid(json.loads(line) for line in outcome.output.splitlines() if line.startswith("{"))
        except AssertionError as error:
            faults.append(str(error))
    if outcome.status != 0 and outcome.command not in _PASS_ON and not outcome.exception:
        said = outcome.result or {}
        if not said.get("error"):
            faults.append("it fails without a result")
        elif not (said.get("hint") or said.get("findings")):
            faults.append("it does not say what to do")
    return faults


def place_of(base: Path, command: str) -> Path:
    """The folder in which a command runs."""
    return base / command.replace(" ", "_")


def write(base: Path, state: Callable[[Path], None], commands: Iterable[str], more: str = "") -> None:
    """Make a folder in this state for each command; `more` is added to its cluster.yml."""
    for command in commands:
        folder = place_of(base, command)
        folder.mkdir(parents=True)
        (folder / "cluster.yml").write_text(cluster_text(command) + more)
        (folder / "people.yml").write_text("- {name: bob}\n")
        state(folder)


def link_programs(folder: Path) -> str:
    """A folder for PATH with the programs of this machine, without podman. Of Terraform the version is a double."""
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    wrapper = folder / "terraform"
    wrapper.write_text(_TERRAFORM.format(program=shutil.which("terraform") or "false"))
    wrapper.chmod(0o755)
    return str(folder)


def walk(base: Path, commands: Iterable[str], junit: Path) -> list[Outcome]:
    """Run each command in its folder."""
    return [_run(place_of(base, command), command, junit) for command in commands]


def _run(folder: Path, command: str, junit: Path) -> Outcome:
    os.chdir(folder)
    words = ["--output", "json", *command.split(), *WORDS[command]]
    words += ["--junit", str(junit)] if command == "verify" else []
    done = CliRunner().invoke(cli, words)
    unhandled = "" if isinstance(done.exception, SystemExit | None) else repr(done.exception)
    return Outcome(command, done.exit_code, done.output, result_of(done.stdout), unhandled)


def result_of(output: str) -> Mapping[str, Any] | None:
    """The result of a command with `--output json`; None if its last line is none."""
    try:
        result = json.loads(output.splitlines()[-1])["data"]
    except (ValueError, LookupError, TypeError):
        return None
    return result if isinstance(result, dict) else None


if __name__ == "__main__":
    _base, _junit, *_commands = sys.argv[1:]
    sys.stdout.write(json.dumps([asdict(each) for each in walk(Path(_base), _commands, Path(_junit))]))
