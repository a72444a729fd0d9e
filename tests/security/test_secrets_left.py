"""What is left of an operator's secrets: nothing, in the folder of the cluster and in the home of the local cloud.

Fifty secrets are in variables, files and arguments; commands run with them, and then each byte on the disk is looked
at. Hosts are not part of it: the local cloud launches nothing here, and a playbook runs on this machine.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from gpucluster.configuration import runner
from gpucluster.configuration.runner import Ansible
from gpucluster.environment import Program
from gpucluster.paths import ClusterPaths, ansible_dir, write_private
from gpucluster.process import environment_for
from gpucluster.spec import template
from tests.addresses import free_range
from tests.localcloud.api_harness import running
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(15 * PATIENCE_S)]

#: Variables that programs of ours need, and those of other tools, which they do not.
NEEDED = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "TF_HTTP_USERNAME", "TF_HTTP_PASSWORD",
    "TF_TOKEN_registry_example_org", "TF_ENCRYPTION", "OCI_PRIVATE_KEY_PASSWORD", "PIP_INDEX_URL",
)  # fmt: skip
OTHERS = (
    "GITHUB_TOKEN", "GH_TOKEN", "GITLAB_TOKEN", "CI_JOB_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "NPM_TOKEN",
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "NGC_API_KEY", "NVIDIA_API_KEY", "OPENAI_API_KEY",
    "VAULT_TOKEN", "CONSUL_HTTP_TOKEN", "GOOGLE_CREDENTIALS", "ARM_CLIENT_SECRET", "DIGITALOCEAN_TOKEN",
    "DOCKER_AUTH_CONFIG", "KUBE_TOKEN", "SLACK_TOKEN", "PGPASSWORD", "MYSQL_PWD", "SSHPASS", "LDAPPASSWORD",
    "ANSIBLE_VAULT_PASSWORD", "ANSIBLE_BECOME_PASSWORD", "TF_VAR_private_key_password", "TF_CLI_ARGS",
    "OCI_CLI_PASSPHRASE", "OCI_PRIVATE_KEY", "SECRET", "password", "my_proxy",
)  # fmt: skip
FILES = (".netrc", ".aws/credentials", ".ssh/id_rsa", ".docker/config.json", ".config/gh/hosts.yml", ".pypirc")
ARGUMENTS = ("ssh", "status", "validate")


def _secret(name: str) -> str:
    return f"sEcReT-{name.lower().replace('_', '').replace('/', '').replace('.', '')}-0f9a"


SECRETS = {name: _secret(name) for name in (*NEEDED, *OTHERS, *FILES, *(f"argument {each}" for each in ARGUMENTS))}


def _variables(home: Path) -> dict[str, str]:
    """The environment of the operator."""
    made = {name: SECRETS[name] for name in (*NEEDED, *OTHERS)}
    # A value of the form that the program takes.
    made["PIP_INDEX_URL"] = f"https://user:{made['PIP_INDEX_URL']}@127.0.0.1:9/simple"
    del made["TF_ENCRYPTION"]  # Terraform does not know it, and OpenTofu would refuse the text
    return {**made, "HOME": str(home), "https_proxy": f"http://user:{SECRETS['my_proxy']}@127.0.0.1:9"}


def found(folder: Path) -> list[str]:
    """The secrets in the files of a folder, in their names, and in what links lead to."""
    wanted = {
        form: name
        for name, value in SECRETS.items()
        for form in (value.encode(), base64.b64encode(value.encode())[:-4], quote(value).encode())
    }
    seen = []
    for path in folder.rglob("*"):
        data = os.fsencode(path.name) + b"\n"
        if path.is_symlink():
            data += os.fsencode(os.readlink(path))
        elif path.is_file():
            data += path.read_bytes()
        seen += [f"{name} in {path.relative_to(folder)}" for form, name in wanted.items() if form in data]
    return seen


@pytest.fixture
def operator(tmp_path: Path) -> Path:
    home = tmp_path / "operator"
    for name in FILES:
        write_private(home / name, f"token = {SECRETS[name]}\n")
    return home


def test_there_are_fifty() -> None:
    assert len(set(SECRETS.values())) >= 50


def test_nothing_of_the_environment_is_left(tmp_path: Path, operator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not installed")
    variables = _variables(operator)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    folder, cloud = tmp_path / "site", tmp_path / "cloud"
    folder.mkdir()
    environment = {**os.environ, **variables, "GPUCLUSTER_HOME": str(cloud)}
    with free_range() as net, running(cloud):
        (folder / "cluster.yml").write_text(template("demo", "local").replace("10.77.", f"{net}."))
        for words in (
            ["validate"], ["plan"], ["preflight"], ["list"], ["policies"], ["--debug", "status"], ["software", "list"],
        ):  # fmt: skip
            _run(folder, environment, *words)
        _apply_until_hosts_are_asked(folder, environment)
        for words in (
            ["plan"], ["status"], ["runs"], ["logs"], ["output"], ["inventory"],
            ["status", SECRETS["argument status"]], ["validate", "--file", SECRETS["argument validate"]],
        ):  # fmt: skip
            _run(folder, environment, *words)
        assert (folder / ".gpucluster" / "terraform.tfstate").exists()
        assert list((folder / ".gpucluster" / "runs").iterdir())
    assert found(folder) == []
    assert found(cloud) == []


def _run(folder: Path, environment: Mapping[str, str], *words: str) -> None:
    argv = [sys.executable, "-m", "gpucluster", *words]
    done = subprocess.run(
        argv, cwd=folder, env=dict(environment), capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    said = done.stdout + done.stderr
    assert [name for name, value in SECRETS.items() if value in said and not name.startswith("argument")] == []


def _apply_until_hosts_are_asked(folder: Path, environment: Mapping[str, str]) -> None:
    """Everything in the cloud is made. Instances that do not exist do not answer: then the operator gives up."""
    argv = [sys.executable, "-m", "gpucluster", "--output", "json", "apply"]
    with subprocess.Popen(
        argv, cwd=folder, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as apply:
        assert apply.stdout is not None
        lines = []
        for line in apply.stdout:
            lines.append(line)
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("kind") == "phase" and event.get("name") == "hosts" and event.get("status") == "started":
                apply.send_signal(signal.SIGINT)
        assert apply.wait(PATIENCE_S) == 130, lines


@pytest.fixture
def playbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ansible"
    folder.mkdir()
    shutil.copy(ansible_dir() / "ansible.cfg", folder)
    monkeypatch.setattr(runner, "ansible_dir", lambda: folder)
    (folder / "site.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - set_fact: {gpucluster_proxy: \"{{ lookup('env', 'https_proxy') | length }}\"}\n"
    )
    return folder


def test_ansible_gets_what_it_needs_and_stores_nothing_of_it(
    tmp_path: Path, operator: Path, playbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _variables(operator).items():
        monkeypatch.setenv(name, value)
    paths = ClusterPaths(tmp_path / "site" / ".gpucluster")
    paths.create()
    ansible = Ansible(paths, tmp_path / "ssh-config", {"GPUCLUSTER_CLUSTER": str(paths.root)}, lambda _: None)
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = runner.write_inventory(paths, {"all": {"hosts": {"here": here}}})
    done = ansible.run("site.yml", inventory, run_id="test", variables={"word": "x"})
    assert done.facts["here"]["gpucluster_proxy"] == len(os.environ["https_proxy"])
    assert found(tmp_path / "site") == []
    assert list(paths.ansible.glob("artifacts/*/command"))


@pytest.mark.parametrize("program", list(Program))
def test_no_program_gets_what_it_has_no_use_for(
    program: Program, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in _variables(operator).items():
        monkeypatch.setenv(name, value)
    passed = environment_for(program)
    assert not {*OTHERS} & passed.keys()
    assert not {*NEEDED} & passed.keys() or program in (Program.TERRAFORM, Program.PIP)


def test_git_takes_nothing_of_the_folder(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    # A command that only reads, in a fresh clone, makes the folder as well.
    write_private(ClusterPaths(tmp_path / "a" / ".gpucluster").ssh / "config", "x")
    ClusterPaths(tmp_path / "b" / ".gpucluster").create()
    (tmp_path / "b" / "cluster.yml").write_text("x")
    subprocess.run([*git, "add", "-A"], check=True)
    listed = subprocess.run([*git, "ls-files"], check=True, capture_output=True, text=True).stdout
    assert listed.split() == ["b/cluster.yml"]
